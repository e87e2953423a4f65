//! kubectl with one file on one cluster.

use std::{
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Api;
use serde_json::Value;
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use super::{
    File,
    normal::{Objects, key},
};
use crate::{ControlPlane, Harness, cluster::ADMIN, fleet::apply_yaml, wait};

/// Timeout of one call. Megabytes of definitions take a few seconds.
const CALL: Duration = Duration::from_mins(1);
/// Retry period for objects that kubectl rejects at first, such as instances of a kind from the same file.
const APPLY: Duration = Duration::from_mins(1);

pub(super) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    pub(super) fn new(harness: &Harness, cluster: &ControlPlane) -> Result<Self> {
        let home = harness.folder().join(cluster.name());
        let kubeconfig = format!("{}/kubectl.kubeconfig", cluster.name());
        let kubeconfig = harness.write(&kubeconfig, &cluster.kubeconfig_yaml(ADMIN)?)?;
        Ok(Self { program: harness.tools()?.get("kubectl")?, kubeconfig, home })
    }

    async fn run(&self, args: &[&str], file: &Path) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(args).arg("-f").arg(file).kill_on_drop(true);
        // kubectl caches discovery in its home.
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        Ok(timeout(CALL, command.output()).await.with_context(|| format!("kubectl {args:?} hangs"))??)
    }

    /// Applies the file until all objects are accepted; returns the time.
    ///
    /// # Errors Some object is still rejected; contains kubectl's message.
    pub(super) async fn apply(&self, file: &Path) -> Result<Duration> {
        let began = Instant::now();
        wait::until("kubectl to apply all of the file", APPLY, || async {
            let output = self.run(&["apply", "--server-side"], file).await?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
            Ok(Some(began.elapsed()))
        })
        .await
    }

    /// Returns the file's existing objects.
    pub(super) async fn objects(&self, file: &Path) -> Result<Objects> {
        let args = ["get", "--ignore-not-found", "--show-managed-fields", "-o", "json"];
        let output = self.run(&args, file).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        if output.stdout.iter().all(u8::is_ascii_whitespace) {
            return Ok(Objects::new());
        }
        let mut answer: Value = serde_json::from_slice(&output.stdout).context("kubectl printed no JSON")?;
        // kubectl returns a single object without a List.
        let all = if answer["kind"] == "List" {
            answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
        } else {
            vec![answer]
        };
        Ok(all.into_iter().map(|object| (key(&object), object)).collect())
    }
}

/// Creates the expected namespaces and waits for each namespace's default objects.
pub(super) async fn prepare(cluster: &ControlPlane, file: &File) -> Result<()> {
    let client = cluster.client()?;
    for name in file.foreign_namespaces() {
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        apply_yaml(&client, &namespace.to_string()).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), name);
        wait::until(&format!("the namespace {name} to have its default objects"), APPLY, || async {
            let account = accounts.get_opt("default").await?;
            Ok(account.and(config_maps.get_opt("kube-root-ca.crt").await?).map(|_| ()))
        })
        .await?;
    }
    Ok(())
}
