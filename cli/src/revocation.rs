//! `tidewatch certs revoke` and `admit`: the ConfigMap of revoked runtimes in the control plane.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_api::names::{KCP_NAMESPACE, REVOCATIONS};

use crate::{args::usage, output::Format};

const MANAGER: &str = "tidewatch";

/// A runtime in a control plane.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Runtime id: the Kyma's label kyma-project.io/runtime-id.
    runtime: String,
    #[command(flatten)]
    control_plane: ControlPlane,
}

/// The control plane.
#[derive(Debug, Args)]
pub(crate) struct ControlPlane {
    /// Kubeconfig of the control plane [default: as kubectl's].
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the receiver in the control plane.
    #[arg(long, default_value = KCP_NAMESPACE)]
    pub(crate) namespace: String,
}

/// The change of a runtime's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Refuse the runtime's certificates and requests.
    Revoke,
    /// Accept them again.
    Admit,
}

pub(crate) async fn run(target: &Target, change: Change, output: Format) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let runtime = &target.runtime;
    if runtime.is_empty() || runtime.len() > 64 || !runtime.chars().all(is_plain) {
        return Err(usage(&format!("'{runtime}' is no runtime id")));
    }
    let maps: Api<ConfigMap> =
        Api::namespaced(client(&target.control_plane).await?, &target.control_plane.namespace);
    let before = maps.get_opt(REVOCATIONS).await.context("the ConfigMap of revocations cannot be read")?;
    let known = before.as_ref().and_then(|map| map.data.as_ref()?.get(runtime)).cloned();
    let since = match (change, known) {
        (Change::Revoke, Some(since)) => Some(since),
        (Change::Revoke, None) => {
            let now = Timestamp::now().round(jiff::Unit::Second)?.to_string();
            write(&maps, before.is_some(), runtime, json!(now)).await?;
            Some(now)
        }
        (Change::Admit, Some(_)) => {
            write(&maps, true, runtime, Value::Null).await?;
            None
        }
        (Change::Admit, None) => bail!("the certificates of runtime '{runtime}' are not revoked"),
    };
    output.print(&json!({"runtime": runtime, "revokedSince": since}))
}

async fn write(maps: &Api<ConfigMap>, exists: bool, runtime: &str, value: Value) -> anyhow::Result<()> {
    if exists {
        let patch = Patch::Merge(json!({"data": {runtime: value}}));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        maps.patch(REVOCATIONS, &params, &patch).await.map(drop)
    } else {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(REVOCATIONS.to_owned());
        map.data = value.as_str().map(|value| BTreeMap::from([(runtime.to_owned(), value.to_owned())]));
        maps.create(&PostParams::default(), &map).await.map(drop)
    }
    .context("the ConfigMap of revocations cannot be written; the right to change it is needed")
}

pub(crate) async fn client(target: &ControlPlane) -> anyhow::Result<Client> {
    tidewatch_oci::install_crypto_provider();
    let config = match &target.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("{} is no kubeconfig; give --kubeconfig", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer().await.context("no control plane; give --kubeconfig")?,
    };
    Ok(Client::try_from(config)?)
}
