//! The real kubectl against the simulator and against both servers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{Options, Server, ServerOptions, Token, User};
use tidewatch_tests::Harness;
use tokio::{process::Command, time::timeout, try_join};

use crate::{
    compare,
    pair::{Answer, Pair},
};

const LONG: Duration = Duration::from_mins(1);

struct Kubectl {
    program: PathBuf,
    folder: PathBuf,
}

/// Created from arguments; kubectl sends protobuf.
const CREATED: [&str; 17] = [
    "namespace kubectl",
    "deployment web --image=x:1 --replicas=2 --port=80 -- a b",
    "configmap c --from-literal=a=b --from-literal=e=",
    "secret generic s --from-literal=a=b",
    "secret docker-registry d --docker-server=x --docker-username=u --docker-password=p",
    "serviceaccount sa",
    "role r --verb=get,list --resource=pods,deployments.apps",
    "rolebinding rb --role=r --serviceaccount=default:sa --user=u",
    "clusterrole kubectl --verb=get --non-resource-url=/x",
    "clusterrolebinding kubectl --clusterrole=kubectl --group=g",
    "cronjob cj --image=x:1 --schedule=@yearly --restart=Never",
    "service clusterip ci --tcp=80:8080",
    "service clusterip none --clusterip=None",
    "service externalname en --external-name=x.example.org",
    "poddisruptionbudget pdb --selector=a=b --min-available=1",
    "poddisruptionbudget pdb2 --selector=a=b --max-unavailable=10%",
    "priorityclass kubectl --value=7 --description=d",
];

/// From client-side to server-side apply: kubectl migrates managed fields by patch.
const MOVED: [&str; 6] = [
    "apply -o json --show-managed-fields -f first.json",
    "apply -o json --show-managed-fields --server-side -f second.json",
    "apply -o json --show-managed-fields --server-side --field-manager=other -f first.json",
    "apply -o json --show-managed-fields --server-side -f first.json",
    "apply -o json --show-managed-fields -f second.json",
    "get -o json --show-managed-fields -f first.json",
];

/// Runs kubectl against both servers; returns the differences.
pub(crate) async fn compare(pair: &Pair) -> Result<Vec<String>> {
    let program = pair.harness.tools()?.get("kubectl")?;
    let mut both = Vec::new();
    for (side, config) in ["real", "simulated"].into_iter().zip(&pair.kubeconfigs) {
        let folder = pair.harness.folder().join("kubectl").join(side);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("config"), config)?;
        let moved = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "moved"}, "data": data});
        fs::write(folder.join("first.json"), moved(json!({"a": "1", "b": "1"})).to_string())?;
        fs::write(folder.join("second.json"), moved(json!({"a": "2"})).to_string())?;
        both.push(Kubectl { program: program.clone(), folder });
    }
    let created =
        CREATED.iter().map(|words| format!("create --namespace=default --dry-run=server -o json {words}"));
    let asked = ["auth can-i get pods", "auth can-i create deployments.apps --subresource=scale -n fixed"];
    let mut found = Vec::new();
    for words in created.chain(asked.into_iter().chain(MOVED).map(str::to_owned)) {
        let answer = |said: String| Answer {
            code: 200,
            media: String::new(),
            body: serde_json::from_str(&said).unwrap_or(Value::String(said)),
            warnings: Vec::new(),
        };
        let (real, simulated) = try_join!(both[0].said(&words), both[1].said(&words))?;
        let lines = compare::answers(&answer(real), &answer(simulated));
        found.extend(lines.into_iter().map(|line| format!("kubectl {words}: {line}")));
    }
    say!("kubectl: {} commands", CREATED.len() + asked.len() + MOVED.len());
    Ok(found)
}

impl Kubectl {
    async fn run(&self, args: &str) -> Result<String> {
        let (output, refusal) = self.both(args).await?;
        ensure!(refusal.is_empty(), "kubectl {args}: {refusal}");
        Ok(output)
    }

    /// Returns the output or the error.
    async fn said(&self, args: &str) -> Result<String> {
        let (output, refusal) = self.both(args).await?;
        Ok(output + &refusal)
    }

    /// Returns the output and, on failure, the error.
    async fn both(&self, args: &str) -> Result<(String, String)> {
        let mut command = Command::new(&self.program);
        command.args(args.split_whitespace()).kill_on_drop(true);
        command.env("KUBECONFIG", self.folder.join("config")).env("HOME", &self.folder);
        command.env("KUBE_EDITOR", "sed -i s/x:2/x:3/").current_dir(&self.folder);
        let output = timeout(LONG, command.output()).await.context("kubectl hangs")??;
        let said = if output.status.success() { Vec::new() } else { output.stderr };
        Ok((
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    }
}

fn manifest(folder: &Path, image: &str, data: &Value) -> Result<()> {
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
    let kubectl = Kubectl { program: harness.tools()?.get("kubectl")?, folder: folder.clone() };

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
    let owners = "get cm app --show-managed-fields -o jsonpath={.metadata.managedFields[*].manager}";
    assert_eq!(kubectl.run(owners).await?, "kubectl kubectl-last-applied");
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
    kubectl.run("autoscale deploy app --max=3 --cpu=50%").await?;
    let target =
        "get hpa app -o jsonpath={.spec.maxReplicas}/{.spec.metrics[0].resource.target.averageUtilization}";
    assert_eq!(kubectl.run(target).await?, "3/50");
    kubectl.run("label cm app q=r").await?;
    assert!(kubectl.run("get cm -l q=r --output=name").await?.contains("configmap/app"));
    assert!(kubectl.run("api-resources").await?.contains("customresourcedefinitions"));
    kubectl.run("delete -f app.json").await?;
    assert_eq!(kubectl.run("get deploy").await?, "");
    Ok(())
}
