//! `tidewatch certs revoke` and `admit`: the ConfigMap of revoked runtimes in the control plane.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::names::REVOCATIONS;

use crate::{
    args::usage,
    clusters::{ControlPlane, MANAGER},
    output::Format,
};

/// A runtime in a control plane.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Runtime id: the Kyma's label kyma-project.io/runtime-id.
    runtime: String,
    #[command(flatten)]
    kcp: ControlPlane,
}

/// The change of a runtime's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Refuse the runtime's certificates and requests.
    Revoke,
    /// Accept them again.
    Admit,
}

/// Returns whether a text can be a runtime id: a common name of certificates, and plain in paths and keys.
pub(crate) fn is_runtime_id(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (1..=64).contains(&text.len()) && text.chars().all(is_plain)
}

pub(crate) async fn run(target: &Target, change: Change, output: Format) -> anyhow::Result<()> {
    let runtime = &target.runtime;
    if !is_runtime_id(runtime) {
        return Err(usage(&format!("'{runtime}' is no runtime id")));
    }
    let maps: Api<ConfigMap> = Api::namespaced(target.kcp.client().await?, &target.kcp.namespace);
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
