//! The real kubectl before a simulated cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tidewatch_drain::Drain;
use tidewatch_simulator::{Options, Server, ServerOptions, Token, User};
use tidewatch_tests::Harness;
use tokio::{process::Command, time::timeout};

const LONG: Duration = Duration::from_mins(1);

struct Kubectl {
    program: PathBuf,
    folder: PathBuf,
}

impl Kubectl {
    async fn run(&self, args: &str) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args.split_whitespace()).kill_on_drop(true);
        command.env("KUBECONFIG", self.folder.join("config")).env("HOME", &self.folder);
        command.env("KUBE_EDITOR", "sed -i s/x:2/x:3/").current_dir(&self.folder);
        let output = timeout(LONG, command.output()).await.context("kubectl hangs")??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {args}: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn manifest(folder: &Path, image: &str, data: &serde_json::Value) -> Result<()> {
    let pod = json!({"containers": [{"name": "c", "image": image}]});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": data},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app"}, "spec": {
            "selector": {"matchLabels": {"app": "app"}},
            "template": {"metadata": {"labels": {"app": "app"}}, "spec": pod},
        }},
    ]});
    Ok(fs::write(folder.join("app.json"), list.to_string())?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_with_a_simulated_cluster() -> Result<()> {
    let harness = Harness::for_tests()?;
    let folder = harness.folder().join("kubectl");
    fs::create_dir_all(&folder)?;
    let drain = Drain::new();
    let server = Server::start(ServerOptions::default(), &drain).await?;
    server.add("demo", Options::default())?.allow_token(Token("t".into()), User::admin("admin"));
    fs::write(folder.join("config"), server.kubeconfig("demo", "t"))?;
    let kubectl = Kubectl { program: harness.tools().get("kubectl")?, folder: folder.clone() };

    manifest(&folder, "x:1", &json!({"a": "1", "b": "2"}))?;
    assert_eq!(
        kubectl.run("apply -f app.json").await?,
        "configmap/app created\ndeployment.apps/app created\n"
    );
    assert_eq!(
        kubectl.run("apply -f app.json").await?,
        "configmap/app unchanged\ndeployment.apps/app unchanged\n"
    );
    manifest(&folder, "x:2", &json!({"a": "1", "c": "3"}))?;
    assert_eq!(
        kubectl.run("apply -f app.json").await?,
        "configmap/app configured\ndeployment.apps/app configured\n"
    );
    assert_eq!(kubectl.run("get cm app -o jsonpath={.data}").await?, r#"{"a":"1","c":"3"}"#);
    kubectl.run("edit deploy app").await?;
    let image = "get deploy app -o jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(kubectl.run(image).await?, "x:3");
    kubectl.run("apply --server-side --force-conflicts -f app.json").await?;
    assert_eq!(kubectl.run(image).await?, "x:2");
    let table = kubectl.run("get deploy").await?;
    assert!(table.contains("READY") && table.contains("1/1"), "{table}");
    kubectl.run("rollout status deploy/app --timeout=10s").await?;
    kubectl.run("scale deploy app --replicas=3").await?;
    kubectl.run("wait --for=jsonpath={.status.readyReplicas}=3 deploy/app --timeout=10s").await?;
    assert!(
        kubectl.run("describe deploy app").await?.contains("3 desired | 3 updated | 3 total | 3 available")
    );
    assert!(
        kubectl
            .run("explain deployment.spec.strategy")
            .await?
            .contains("rollingUpdate\t<RollingUpdateDeployment>")
    );
    kubectl.run("label cm app q=r").await?;
    assert!(kubectl.run("get cm -l q=r --output=name").await?.contains("configmap/app"));
    assert!(kubectl.run("api-resources").await?.contains("customresourcedefinitions"));
    kubectl.run("delete -f app.json").await?;
    assert_eq!(kubectl.run("get deploy").await?, "");
    Ok(())
}
