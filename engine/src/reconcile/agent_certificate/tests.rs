use std::{collections::BTreeSet, sync::Arc};

use jiff::SignedDuration;
use tidewatch_api::Kyma;
use tidewatch_certs::Ca;
use tidewatch_planner::agent_install::AgentSettings;

use super::*;
use crate::{
    Engine,
    authority::Authority,
    key::WorkKey,
    reconcile::tests::{Requests, engine_with, not_found},
};

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// An engine that installs agents and has its CA, on a KCP without any Secret.
fn engine() -> (Engine, Requests) {
    let settings = AgentSettings {
        url: "https://receiver.example:443".into(),
        image: "agent".into(),
        name: "tidewatch-agent".into(),
        proxy: None,
        pull_secret: None,
    };
    let agents = AgentInstall { settings, authority: Authority::default(), lifetime: DAY };
    let config = EngineConfig { agents: Some(agents), ..EngineConfig::default() };
    let (engine, requests) = engine_with(config, |_, _| not_found());
    let ca = Ca::create("ca", DAY, Timestamp::UNIX_EPOCH).unwrap();
    let bundle = ca.cert_pem().to_owned();
    engine.replace_authority(Issuer { ca, bundle });
    (engine, requests)
}

fn register(engine: &Engine, name: &str, runtime: &str) {
    let kyma: Kyma = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kyma-project.io/runtime-id": runtime}, "annotations": {"skr-domain": "a.example"}},
        "spec": {"channel": "regular"}
    }))
    .unwrap();
    engine.dispatcher.kcp.index_mut().apply_kyma(kyma);
}

fn revoke(engine: &Engine, ids: &[&str]) {
    engine.set_revoked(ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>());
}

/// Works on a Kyma's request, and returns the message of the outcome.
async fn message(engine: &Engine, kyma: &str) -> String {
    engine.enqueue(WorkKey::AgentCertificate { kyma: kyma.into() }, crate::queue::Class::Rollout, None);
    let lease = engine.queue().next().await;
    assert_eq!(lease.key().to_string(), format!("AgentCertificate/{kyma}"));
    Arc::clone(&engine.dispatcher).work(lease).await;
    engine.history().of(kyma).last().unwrap().message.clone()
}

#[tokio::test(start_paused = true)]
async fn no_request_is_looked_at_before_the_revocations_are_known() {
    let (engine, requests) = engine();
    register(&engine, "harbour", "r1");
    assert_eq!(message(&engine, "harbour").await, "the revoked runtimes are not known yet");
    assert!(requests.lock().is_empty(), "{:?}", requests.lock());
    // Known, and this one is not among them.
    revoke(&engine, &["r2"]);
    let next = message(&engine, "harbour").await;
    assert!(next.contains("kubeconfig"), "the runtime is looked for: {next}");
}

#[tokio::test(start_paused = true)]
async fn kymas_with_the_same_runtime_id_get_no_certificate() {
    let (engine, requests) = engine();
    revoke(&engine, &[]);
    register(&engine, "harbour", "r1");
    register(&engine, "twin", "r1");
    for kyma in ["harbour", "twin"] {
        assert_eq!(message(&engine, kyma).await, "several Kymas have the runtime id r1");
    }
    assert!(requests.lock().is_empty(), "{:?}", requests.lock());
    let wanted = engine.dispatcher.kcp.index_mut().delete_kyma("twin");
    assert!(
        wanted.iter().any(|(key, _)| key.to_string() == "Kyma/harbour"),
        "its reconcile requests the certificate"
    );
    assert!(message(&engine, "harbour").await.contains("kubeconfig"));
}

#[tokio::test(start_paused = true)]
async fn only_admitted_runtimes_are_looked_at_after_a_change_of_the_revocations() {
    let (engine, _) = engine();
    for (kyma, id) in [("harbour", "r1"), ("pier", "r2"), ("mole", "r3"), ("twin", "r3")] {
        register(&engine, kyma, id);
    }
    let queued = || engine.queue().inspect(|queue| queue.ready().map(|(_, keys)| keys).sum::<usize>());
    revoke(&engine, &["r1", "r2", "r3", "unknown"]);
    assert_eq!(queued(), 0, "a revocation makes no work");
    assert!(engine.state().read().revoked.as_ref().unwrap().contains("r2"));
    // `r3` names no runtime, and `unknown` no Kyma.
    revoke(&engine, &["r1"]);
    let lease = engine.queue().next().await;
    assert_eq!((lease.key().to_string(), queued()), ("AgentCertificate/pier".to_owned(), 0));
    assert_eq!(engine.state().read().revoked, Some(BTreeSet::from(["r1".to_owned()])));
}
