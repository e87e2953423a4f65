//! The Helm chart on a real control plane: an operator's shell, and the receiver as its pods would run it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, EnvVar, Pod, PodSpec},
};
use kube::{Api, Client, api::ListParams};
use serde_json::{Value, json};
use tidewatch_demo::{files::write_private, fleet::kept_ca, pod::token};
use tokio::process::Command;

use crate::{
    ControlPlane, Harness, Process, binaries,
    cluster::ADMIN,
    fleet::{Receiver, SOON},
    http, wait,
};

const DEPLOYMENT: &str = "tidewatch-receiver";

/// An operator's shell beside the chart: the folder has `deploy/`, and `kcp.yaml` of a cluster admin of KCP, which is kubectl's
/// current cluster. `helm`, `kubectl` and `tidewatch` are on the PATH.
#[derive(Debug)]
pub struct Shell {
    folder: PathBuf,
    path: OsString,
}

impl Shell {
    /// Builds Helm if necessary.
    pub fn new(harness: &Harness, kcp: &ControlPlane, name: &str) -> Result<Self> {
        let kubeconfig = harness.write(&format!("{name}/kcp.yaml"), &kcp.kubeconfig_yaml(ADMIN)?)?;
        let folder = kubeconfig.parent().context("a file has a folder")?.to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
        std::os::unix::fs::symlink(root.join("deploy"), folder.join("deploy"))?;
        let tools = harness.tools()?;
        let programs = [tools.extra("helm")?, tools.get("kubectl")?, binaries::find("tidewatch")?];
        let own = programs.iter().filter_map(|program| program.parent().map(Path::to_owned));
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.chain(std::env::split_paths(&inherited)))?;
        Ok(Self { folder, path })
    }

    /// Writes a file into its folder.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        write_private(&self.folder.join(name), content)
    }

    /// Runs commands. Returns their output and standard error.
    pub async fn run(&self, script: &str) -> Result<String> {
        let (out, err) = self.run_apart(script).await?;
        Ok(out + &err)
    }

    async fn run_apart(&self, script: &str) -> Result<(String, String)> {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(&self.folder).kill_on_drop(true);
        command.env("PATH", &self.path).env("KUBECONFIG", "kcp.yaml");
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), self.folder.join(kind));
        }
        let output = command.output().await?;
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{script}\n{out}{err}");
        Ok((out, err))
    }

    /// Sends every object that the chart renders with these arguments as a server-side dry run, except those of groups that the API server
    /// does not serve. Returns the number of objects.
    ///
    /// # Errors With the API server's refusal or warning.
    pub async fn is_accepted(&self, namespace: &str, arguments: &str, unserved: &[&str]) -> Result<usize> {
        let chart = "deploy/charts/tidewatch";
        let template = format!("helm template tidewatch {chart} --namespace {namespace} {arguments}");
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&self.run_apart(&template).await?.0)?;
        objects.retain(|object| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            !unserved.iter().any(|group| version.split('/').next() == Some(group))
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.write("objects.json", &list.to_string())?;
        let apply = "kubectl apply --server-side --force-conflicts --dry-run=server --validate=strict";
        let output = self.run(&format!("{apply} -f objects.json")).await?;
        ensure!(!output.contains("Warning"), "{arguments}: {output}");
        ensure!(
            output.lines().count() == objects.len(),
            "{} objects of {arguments}: {output}",
            objects.len()
        );
        Ok(objects.len())
    }
}

/// Returns the commands of a page: its code blocks.
pub fn commands(page: &str) -> Vec<&str> {
    page.split("```").skip(1).step_by(2).collect()
}

/// Addresses of a receiver, where several processes share one host.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// For agents.
    pub events: u16,
    /// For operators.
    pub admin: u16,
}

/// Starts the receiver as the newest pod of the chart's Deployment says: arguments, environment, service account, probes.
///
/// Different from the pod: both ports, the folders of mounted volumes, and `KUBECONFIG` in place of the token in its fixed folder.
pub async fn start_receiver(
    harness: &Harness,
    cluster: &ControlPlane,
    namespace: &str,
    ports: Ports,
) -> Result<Receiver> {
    let client = cluster.client()?;
    let (pod, process) = start(harness, cluster, namespace, ports).await?;
    let ca = process
        .ready("to have its CA in KCP", SOON, || async { kept_ca(&client, namespace).await.map(Some) })
        .await?;
    let ca_file = harness.write(&format!("{}/ca.crt", folder(&pod, namespace)), ca.cert_pem())?;
    let (url, admin) = (format!("https://127.0.0.1:{}", ports.events), admin(ports));
    answers_probes(&pod, &process, &admin).await?;
    let receiver = Receiver { ca, ca_file, url, admin, process, namespace: namespace.to_owned() };
    receiver.ready().await?;
    Ok(receiver)
}

/// Like [`start_receiver`], in the mode `single-cluster`, which has no port for agents. Returns the process and its admin URL.
pub async fn start_single(
    harness: &Harness,
    cluster: &ControlPlane,
    namespace: &str,
    ports: Ports,
) -> Result<(Process, String)> {
    let (pod, process) = start(harness, cluster, namespace, ports).await?;
    answers_probes(&pod, &process, &admin(ports)).await?;
    Ok((process, admin(ports)))
}

fn admin(ports: Ports) -> String {
    format!("http://127.0.0.1:{}", ports.admin)
}

fn folder(pod: &Pod, namespace: &str) -> String {
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default())
}

fn container(pod: &Pod) -> Result<&Container> {
    pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("the pod has no container")
}

async fn start(
    harness: &Harness,
    cluster: &ControlPlane,
    namespace: &str,
    ports: Ports,
) -> Result<(Pod, Process)> {
    let client = cluster.client()?;
    let pod = newest_pod(&client, namespace).await?;
    let (folder, container) = (folder(&pod, namespace), container(&pod)?);
    let spec = pod.spec.as_ref().context("the pod has no spec")?;
    let account = spec.service_account_name.as_deref().context("the pod has no service account")?;
    let access = cluster.kubeconfig_with(&token(&client, namespace, account).await?, cluster.url());
    let kubeconfig = harness.write(&format!("{folder}/kubeconfig.yaml"), &access)?;

    let args = arguments(&harness.folder().join(&folder), spec, container, ports)?;
    let mut process = harness.spec(&folder, &binaries::find("tidewatch-receiver")?, args);
    for variable in container.env.iter().flatten() {
        process.env.push((variable.name.clone(), value(&pod, variable)?));
    }
    process.env.push(("KUBECONFIG".to_owned(), kubeconfig.display().to_string()));
    process.grace = Duration::from_secs(10);
    let process = Process::start(&process)?;
    Ok((pod, process))
}

async fn answers_probes(pod: &Pod, process: &Process, admin: &str) -> Result<()> {
    let container = container(pod)?;
    for probe in [&container.readiness_probe, &container.liveness_probe] {
        let probe = probe.as_ref().and_then(|probe| probe.http_get.as_ref()).context("a probe is missing")?;
        let url = format!("{admin}{}", probe.path.as_deref().unwrap_or_default());
        let is_good = || async { Ok((http::status(&url).await? == 200).then_some(())) };
        process.ready(&format!("to answer {url}"), SOON, is_good).await?;
    }
    Ok(())
}

/// Waits for a pod with an address that has the Deployment's present template.
async fn newest_pod(client: &Client, namespace: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    wait::until("a pod of the receiver with an address", SOON, || async {
        let spec = deployments.get(DEPLOYMENT).await?.spec.context("the Deployment has no spec")?;
        let labels = spec.selector.match_labels.unwrap_or_default();
        let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let found = pods.list(&ListParams::default().labels(&selector.join(","))).await?;
        let args = |spec: &PodSpec| spec.containers.first().and_then(|container| container.args.clone());
        let wanted = spec.template.spec.as_ref().and_then(args);
        let is_running = |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.spec.as_ref().and_then(args) == wanted
                && pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
        };
        Ok(found.items.into_iter().find(is_running))
    })
    .await
}

fn arguments(folder: &Path, spec: &PodSpec, container: &Container, ports: Ports) -> Result<Vec<String>> {
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
        let is_empty = volume.is_some_and(|volume| volume.empty_dir.is_some());
        let is_token = mount.mount_path.starts_with("/var/run/secrets/kubernetes.io/");
        ensure!(is_empty || is_token, "the volume {} has files that this test does not write", mount.name);
        let own = folder.join(&mount.name);
        std::fs::create_dir_all(&own)?;
        mounts.push((mount.mount_path.as_str(), own.display().to_string()));
    }
    let args = container.args.iter().flatten().map(|arg| match arg.split_once('=') {
        Some(("--listen", _)) => format!("--listen=127.0.0.1:{}", ports.events),
        Some(("--admin", _)) => format!("--admin=127.0.0.1:{}", ports.admin),
        _ => mounts.iter().fold(arg.clone(), |arg, (path, own)| arg.replace(path, own)),
    });
    Ok(args.collect())
}

fn value(pod: &Pod, variable: &EnvVar) -> Result<String> {
    let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
    let found = match field.map(|field| field.field_path.as_str()) {
        None => variable.value.clone(),
        Some("metadata.name") => pod.metadata.name.clone(),
        Some("status.podIP") => pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        Some("spec.nodeName") => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        Some(other) => bail!("{} is the field {other}, which this test does not read", variable.name),
    };
    found.with_context(|| format!("{} has no value", variable.name))
}
