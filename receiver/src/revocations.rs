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
    use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

    use http::{Request, Response};
    use jiff::Timestamp;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tidewatch_engine::{
        EngineConfig, WorkKey,
        history::{Observer, Record},
    };

    use super::*;

    struct Unseen;

    impl Observer for Unseen {
        fn reconciled(&self, _: &WorkKey, _: &Record) {}
        fn reachable(&self, _: &str, _: bool) {}
    }

    /// A KCP that answers requests in this order, and then none.
    fn kcp(answers: Vec<(u16, Value)>) -> Client {
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = answers.lock().next();
            async move {
                let Some((code, body)) = answer else { return std::future::pending().await };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "kcp-system")
    }

    #[test]
    fn each_entry_revokes_a_runtime() {
        let data = BTreeMap::from([("r1".to_owned(), "2026-11-29T10:00:00Z".to_owned())]);
        let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        assert_eq!(revoked(Some(&map)), BTreeSet::from(["r1".to_owned()]));
        assert!(revoked(None).is_empty() && revoked(Some(&ConfigMap::default())).is_empty());
    }

    /// Listener and engine wait for it: see `Agents::serve`, and `no_request_is_looked_at_before_the_revocations_are_known` in the engine.
    #[tokio::test(start_paused = true)]
    async fn revocations_are_known_only_after_they_were_read() {
        let failure = json!({"kind": "Status", "status": "Failure", "reason": "InternalError", "message": "", "code": 500});
        let map = json!({"metadata": {"name": REVOCATIONS, "namespace": "kcp-system", "uid": "u"}, "data": {"r1": "now"}});
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [map]});
        for (answers, is_read) in
            [(vec![(500, failure.clone())], false), (vec![(500, failure), (200, list)], true)]
        {
            let client = kcp(answers);
            let engine = Engine::new(
                client.clone(),
                EngineConfig::default(),
                Arc::new(Unseen),
                Arc::new(Timestamp::now),
            )
            .unwrap();
            let (revocations, (known, is_known)) = (Revocations::default(), oneshot::channel());
            let follow = follow(client, "kcp-system".into(), revocations.clone(), engine.clone(), known);
            let is_known = tokio::select! {
                () = follow => unreachable!(),
                known = tokio::time::timeout(Duration::from_mins(10), is_known) => known.is_ok_and(|known| known.is_ok()),
            };
            assert_eq!((is_known, revocations.contains("r1")), (is_read, is_read));
            assert_eq!(engine.state().read().revoked.is_some(), is_read);
        }
    }
}
