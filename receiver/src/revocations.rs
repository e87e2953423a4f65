//! The ConfigMap with revoked runtimes. Every receiver follows it, also while it waits for the Lease.
//!
//! Its data has one entry for each runtime id; the value is the time of the revocation. `tidewatch certs revoke` and `admit` change it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use tidewatch_api::names::REVOCATIONS;
use tidewatch_engine::Engine;
use tidewatch_listener::Revocations;
use tokio::sync::oneshot;

use crate::config_map;

fn revoked(map: Option<&ConfigMap>) -> BTreeSet<String> {
    map.and_then(|map| map.data.as_ref()).into_iter().flat_map(|data| data.keys().cloned()).collect()
}

/// Follows the ConfigMap. `known` is sent once it has been read: before, a revoked runtime would pass. While it cannot be watched, the last
/// state applies.
pub async fn follow(
    client: Client,
    namespace: String,
    revocations: Revocations,
    engine: Engine,
    known: oneshot::Sender<()>,
) {
    let (mut last, mut known) = (None, Some(known));
    let apply = |map: Option<&ConfigMap>| {
        let now = revoked(map);
        if last.as_ref() != Some(&now) {
            tracing::info!(runtimes = now.len(), "the revoked runtimes have changed");
            last = Some(now.clone());
            revocations.replace(now.clone());
            engine.set_revoked(now);
        }
        if let Some(known) = known.take() {
            let _ = known.send(());
        }
    };
    config_map::follow(client, &namespace, REVOCATIONS, apply).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_entry_revokes_a_runtime() {
        let data = BTreeMap::from([("r1".to_owned(), "2026-11-29T10:00:00Z".to_owned())]);
        let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        assert_eq!(revoked(Some(&map)), BTreeSet::from(["r1".to_owned()]));
        assert!(revoked(None).is_empty() && revoked(Some(&ConfigMap::default())).is_empty());
    }
}
