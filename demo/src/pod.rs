//! Prepares an agent as its Deployment says, where no kubelet runs pods.
//!
//! The files of the mounted `ConfigMap`, a token of the service account, and the arguments come from the runtime's API alone. Only the paths
//! and the port differ from a pod's: several agents share one host.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{ConfigMap, Secret, ServiceAccount},
    },
};
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::Value;
use tidewatch_api::names::{AGENT_IDENTITY_SECRET, AGENT_NAME, AGENT_SETTINGS, RUNTIME_NAMESPACE};
pub use tidewatch_planner::agent_install::INSTALLATION;

use crate::{
    files::{replace, write_private},
    wait,
};

const SOON: Duration = Duration::from_mins(1);
/// Longer than any demo.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// The CAs in the agent's `ConfigMap` and folder.
const CA: &str = "ca.crt";

/// The files of an agent.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The agent's configuration.
    pub config: PathBuf,
    /// Its folder.
    pub folder: PathBuf,
}

impl Pod {
    /// Waits until the agent of runtime `id` for this `receiver` is installed, and writes its files to `folder`. `kubeconfig` makes one of a
    /// token.
    ///
    /// The runtime may still have the agent of another registration.
    pub async fn prepare(
        runtime: &Client,
        (id, receiver): (&str, &str),
        folder: &Path,
        admin: &str,
        kubeconfig: impl FnOnce(&str) -> Result<String>,
    ) -> Result<Self> {
        let deployments: Api<Deployment> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
        let installed = format!("the agent of {id} to be installed");
        let deployment = wait::until(&installed, SOON, || async {
            let settings = config_map(runtime, AGENT_SETTINGS).await?;
            let names = |value: &str| settings.iter().any(|(_, text)| text.contains(&format!("\"{value}\"")));
            let is_of = names(id) && names(receiver);
            Ok(if is_of { deployments.get_opt(AGENT_NAME).await? } else { None })
        })
        .await?;
        let pod = deployment.spec.and_then(|spec| spec.template.spec).context("it has no pod template")?;
        let container = pod.containers.first().context("it has no container")?;
        let map = pod.volumes.iter().flatten().find_map(|volume| volume.config_map.as_ref());
        let map = map.context("it mounts no ConfigMap")?;
        for (name, content) in config_map(runtime, &map.name).await? {
            write_private(&folder.join(name), &content)?;
        }
        let account = pod.service_account_name.as_deref().context("it names no service account")?;
        let access = folder.join("kubeconfig.yaml");
        write_private(&access, &kubeconfig(&token(runtime, RUNTIME_NAMESPACE, account).await?)?)?;
        let args = container.args.as_deref().unwrap_or_default();
        let position = args.iter().position(|arg| arg == "--config").context("it has no --config")?;
        let config = folder.join(args.get(position + 1).context("--config has no value")?);
        let mut variables = container.env.iter().flatten();
        let installation = variables.find(|variable| variable.name == INSTALLATION);
        let installation = installation.and_then(|variable| variable.value.as_deref());
        let mut content = settings(&std::fs::read_to_string(&config)?, folder, installation)?;
        content["adminAddress"] = admin.into();
        content["kubeconfig"] = access.display().to_string().into();
        write_private(&config, &content.to_string())?;
        Ok(Self { config, folder: folder.to_owned() })
    }

    /// Copies the agent's certificate and key from its Secret into files, for requests by hand.
    pub async fn identity(&self, runtime: &Client) -> Result<(PathBuf, PathBuf)> {
        let secrets: Api<Secret> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
        let data = secrets.get(AGENT_IDENTITY_SECRET).await?.data.unwrap_or_default();
        let write = |key: &str| -> Result<PathBuf> {
            let ByteString(content) = data.get(key).with_context(|| format!("the Secret has no {key}"))?;
            let path = self.folder.join(key);
            write_private(&path, std::str::from_utf8(content)?)?;
            Ok(path)
        };
        Ok((write("tls.crt")?, write("tls.key")?))
    }
}

/// Keeps an agent's `ca.crt` in `folder` as its `ConfigMap` has it, as a kubelet does. Ends only if the file cannot be written.
pub async fn mount(runtime: Client, folder: &Path) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(runtime, RUNTIME_NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={AGENT_SETTINGS}"));
    let mut changes = pin!(watcher(maps, config).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        // The watcher recovers from errors.
        let content = change.ok().and_then(|map| map.data?.remove(CA));
        if let Some(content) = content {
            replace(&folder.join(CA), &content)?;
        }
    }
    Ok(())
}

/// The agent's configuration, for files in `folder` instead of the mounted `ConfigMap`, and without the environment of a pod.
///
/// `installation`: the value of [`INSTALLATION`].
pub fn settings(config: &str, folder: &Path, installation: Option<&str>) -> Result<Value> {
    let mut content: Value = serde_json::from_str(config)?;
    // The working directory of the container is the folder of the ConfigMap.
    let ca = content["receiver"]["caFile"].as_str().context("it has no caFile")?;
    content["receiver"]["caFile"] = folder.join(ca).display().to_string().into();
    content["receiver"]["proxy"] = "direct".into();
    content["installation"] = installation.into();
    Ok(content)
}

async fn config_map(runtime: &Client, name: &str) -> Result<Vec<(String, String)>> {
    let maps: Api<ConfigMap> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    Ok(maps.get(name).await?.data.unwrap_or_default().into_iter().collect())
}

/// Requests a token of a service account, as a kubelet does for a pod.
pub async fn token(client: &Client, namespace: &str, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    answer.status.and_then(|status| status.token).context("the API server has issued no token")
}
