//! `tidewatch certs revoke` and `admit`: the ConfigMap of revoked runtimes in the control plane.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::ObjectMeta,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{REVOCATIONS, labels},
};

use crate::{
    args::usage,
    clusters::{ControlPlane, MANAGER, Side, failed, pages},
    output::Format,
};

/// A runtime in a control plane.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Runtime id (the Kyma's label kyma-project.io/runtime-id), or name of the Kyma.
    runtime: String,
    #[command(flatten)]
    kcp: ControlPlane,
}

/// The change of a runtime's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Refuse the runtime's certificates and requests.
    Revoke {
        /// Also an id that no Kyma has.
        force: bool,
    },
    /// Accept them again.
    Admit,
}

/// A runtime that the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    id: String,
    kyma: Option<String>,
}

/// Refuses a text that cannot be a runtime id: a common name of certificates, and plain in paths and keys.
pub(crate) fn check_runtime_id(text: &str) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if (1..=64).contains(&text.len()) && text.chars().all(is_plain) {
        return Ok(());
    }
    Err(usage(&format!("'{text}' is no runtime id: 1 to 64 of a-z, A-Z, 0-9, '-', '.' and '_'")))
}

pub(crate) async fn run(target: &Target, change: Change, output: Format) -> anyhow::Result<()> {
    let Target { runtime, kcp } = target;
    check_runtime_id(runtime)?;
    let (client, namespace) = (kcp.client().await?, &kcp.namespace);
    let kymas: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    let kymas = pages(ListParams::default(), async |params| kymas.list_metadata(params).await).await;
    let kymas = kymas.map_err(|error| failed(Side::KcpAlone, "listing Kymas", &error))?;
    let kymas: Vec<_> = kymas.into_iter().map(|kyma| kyma.metadata).collect();
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let map = maps.get_opt(REVOCATIONS).await;
    let map = map.map_err(|error| failed(Side::KcpAlone, "reading the revoked runtimes", &error))?;
    let (exists, revoked) = (map.is_some(), map.and_then(|map| map.data).unwrap_or_default());

    let Found { id, kyma } = find(runtime, change, &kymas, &revoked)?;
    let since = match change {
        Change::Revoke { .. } => match revoked.get(&id) {
            Some(since) => Some(since.clone()),
            None => {
                let now = Timestamp::now().round(jiff::Unit::Second)?.to_string();
                write(&maps, exists, &id, json!(now)).await?;
                Some(now)
            }
        },
        Change::Admit => {
            write(&maps, true, &id, Value::Null).await?;
            None
        }
    };
    output.print(&json!({"runtime": id, "kyma": kyma, "revokedSince": since}))
}

/// Returns the runtime of a runtime id, a Kyma's name, or an entry of `revoked`.
fn find(
    text: &str,
    change: Change,
    kymas: &[ObjectMeta],
    revoked: &BTreeMap<String, String>,
) -> anyhow::Result<Found> {
    let id = |kyma: &ObjectMeta| kyma.labels.as_ref().and_then(|all| all.get(labels::RUNTIME_ID)).cloned();
    let found = |kyma: &ObjectMeta| Some(Found { id: id(kyma)?, kyma: kyma.name.clone() });
    let by_id = kymas.iter().find(|kyma| id(kyma).as_deref() == Some(text)).and_then(found);
    let by_name = kymas.iter().find(|kyma| kyma.name.as_deref() == Some(text)).and_then(found);
    let unregistered = Some(Found { id: text.to_owned(), kyma: None });
    match change {
        Change::Revoke { force: true } => by_id.or(unregistered),
        Change::Revoke { force: false } => by_id.or(by_name),
        Change::Admit => {
            let candidates = [by_id.clone(), by_name.clone(), unregistered];
            let entry = candidates.into_iter().flatten().find(|found| revoked.contains_key(&found.id));
            ensure!(
                entry.is_some() || by_id.or(by_name).is_none(),
                "the certificates of the runtime '{text}' are not revoked"
            );
            entry
        }
    }
    .ok_or_else(|| {
        let force = match change {
            Change::Revoke { .. } => "; --force revokes a runtime id that no Kyma has",
            Change::Admit => "",
        };
        anyhow!(
            "no Kyma has the runtime id or the name '{text}'; list them: kubectl get kymas -L {}{force}",
            labels::RUNTIME_ID
        )
    })
}

async fn write(maps: &Api<ConfigMap>, exists: bool, runtime: &str, value: Value) -> anyhow::Result<()> {
    let written = if exists {
        let patch = Patch::Merge(json!({"data": {runtime: value}}));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        maps.patch(REVOCATIONS, &params, &patch).await
    } else {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(REVOCATIONS.to_owned());
        map.data = value.as_str().map(|value| BTreeMap::from([(runtime.to_owned(), value.to_owned())]));
        maps.create(&PostParams::default(), &map).await
    };
    match written {
        Ok(_) => Ok(()),
        Err(error) => bail!(failed(Side::KcpAlone, "writing the revoked runtimes", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVOKE: Change = Change::Revoke { force: false };

    fn found(text: &str, change: Change) -> Result<(String, Option<String>), String> {
        let kyma = |name: &str, id: &str| ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(labels::RUNTIME_ID.to_owned(), id.to_owned())])),
            ..ObjectMeta::default()
        };
        let kymas = [kyma("harbour", "runtime-harbour"), kyma("quay", "runtime-quay"), ObjectMeta::default()];
        let revoked = ["runtime-harbour", "removed"].map(|id| (id.to_owned(), String::new())).into();
        let found = find(text, change, &kymas, &revoked).map_err(|error| error.to_string())?;
        Ok((found.id, found.kyma))
    }

    #[test]
    fn a_runtime_is_named_by_its_id_or_its_kyma() {
        let of = |id: &str, kyma: Option<&str>| Ok((id.to_owned(), kyma.map(str::to_owned)));
        for change in [REVOKE, Change::Admit] {
            for text in ["harbour", "runtime-harbour"] {
                assert_eq!(found(text, change), of("runtime-harbour", Some("harbour")), "{text}");
            }
        }
        assert_eq!(found("removed", Change::Admit), of("removed", None));
        assert_eq!(found("nosuch", Change::Revoke { force: true }), of("nosuch", None));
        assert_eq!(found("runtime-quay", Change::Revoke { force: true }), of("runtime-quay", Some("quay")));
    }

    #[test]
    fn an_unknown_runtime_is_refused_with_the_next_step() {
        let refused = found("nosuch", REVOKE).unwrap_err();
        assert!(refused.contains("kubectl get kymas") && refused.contains("--force"), "{refused}");
        let refused = found("nosuch", Change::Admit).unwrap_err();
        assert!(refused.contains("kubectl get kymas") && !refused.contains("--force"), "{refused}");
        assert!(found("quay", Change::Admit).unwrap_err().contains("not revoked"));
    }
}
