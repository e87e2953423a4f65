use serde_json::{Value, json};

use super::*;
use crate::plan::object::ObjectRef;

fn kyma(name: &str, runtime: &str, version: u32, generation: i64) -> Kyma {
    serde_json::from_value(json!({
        "metadata": {"name": name, "generation": generation, "resourceVersion": version.to_string(),
            "labels": {"kyma-project.io/runtime-id": runtime}, "annotations": {"skr-domain": format!("{name}.example")}},
        "spec": {"channel": "regular"},
        "status": {"state": "Ready", "modules": [{"name": "lighthouse", "state": "Ready"}]}
    }))
    .unwrap()
}

fn manifest(name: &str, version: u32, state: &str, deployment: Option<&str>) -> Manifest {
    let synced: Vec<Value> = deployment
        .map(|d| json!({"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "s", "name": d}))
        .into_iter()
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "generation": 1, "resourceVersion": version.to_string(),
            "labels": {"operator.kyma-project.io/kyma-name": "a"}},
        "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}},
        "status": {"state": state, "synced": synced, "conditions": [{"type": "Resources", "status": "True",
            "reason": "R", "message": "", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    }))
    .unwrap()
}

fn release(version: &str) -> ModuleReleaseMeta {
    serde_json::from_value(json!({"metadata": {"name": "lighthouse"},
        "spec": {"moduleName": "lighthouse", "channels": [{"channel": "regular", "version": version}]}}))
    .unwrap()
}

fn keys(wanted: Vec<Wanted>) -> Vec<String> {
    wanted.into_iter().map(|(key, _)| key.to_string()).collect()
}

#[test]
fn a_kyma_is_reconciled_for_its_spec_and_labels_but_not_for_its_status() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_kyma(kyma("a", "r1", 1, 1))), ["Kyma/a"]);
    let mut status_only = kyma("a", "r1", 2, 1);
    status_only.status = None;
    assert!(state.apply_kyma(status_only).is_empty());
    assert_eq!(keys(state.apply_kyma(kyma("a", "r1", 3, 2))), ["Kyma/a"]);
    assert_eq!(keys(state.apply_kyma(kyma("a", "r2", 4, 2))), ["Kyma/a"], "a label changed");
}

#[test]
fn our_own_write_coming_back_is_not_news() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.wrote("Kyma", "a", Some("2".into()));
    assert!(state.apply_kyma(kyma("a", "r9", 2, 1)).is_empty());
    assert_eq!(state.runtime("r1"), RuntimeLookup::Unknown, "but it is known");
    assert_eq!(keys(state.apply_kyma(kyma("a", "r9", 3, 2))), ["Kyma/a"]);
}

#[test]
fn a_runtime_id_must_be_registered_once() {
    let mut state = KcpState::default();
    assert_eq!(state.runtime("r1"), RuntimeLookup::Unknown);
    state.apply_kyma(kyma("a", "r1", 1, 1));
    let one = RuntimeLookup::One { kyma: "a".into(), domain: Some("a.example".into()) };
    assert_eq!(state.runtime("r1"), one);
    state.apply_kyma(kyma("b", "r1", 1, 1));
    assert_eq!(state.runtime("r1"), RuntimeLookup::Ambiguous(2));
    state.delete_kyma("b");
    assert_eq!(state.runtime("r1"), one);
}

#[test]
fn a_manifest_status_reaches_its_kyma_at_once() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(manifest("m", 1, "Processing", None))), ["Manifest/m", "Kyma/a"]);
    assert_eq!(keys(state.apply_manifest(manifest("m", 2, "Ready", None))), ["Kyma/a"]);
    assert!(state.apply_manifest(manifest("m", 3, "Ready", None)).is_empty());
    assert_eq!(keys(state.delete_manifest("m")), ["Kyma/a"]);
    assert!(state.manifests_of("a").is_empty());
}

#[test]
fn a_settled_manifest_costs_nothing_at_a_start() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(manifest("m", 1, "Ready", None))), ["Kyma/a"]);
}

#[test]
fn inventories_make_the_index_of_owners() {
    let mut state = KcpState::default();
    state.apply_manifest(manifest("m", 1, "Ready", Some("d")));
    let object =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "s"}});
    let object = ObjectRef::of(&object).unwrap();
    assert_eq!(state.owners.of("a", &object), ["m"]);
    state.delete_manifest("m");
    assert!(state.owners.of("a", &object).is_empty());
}

#[test]
fn a_release_reaches_those_who_use_the_module_and_nobody_else() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "r1", 1, 1));
    let mut other = kyma("b", "r2", 1, 1);
    other.status = None;
    state.apply_kyma(other);
    assert_eq!(keys(state.apply_release("lighthouse", Some(release("1.0.0")))), ["Kyma/a"]);
    assert!(state.apply_release("lighthouse", Some(release("1.0.0"))).is_empty(), "nothing changed");
    assert_eq!(keys(state.apply_release("lighthouse", Some(release("1.1.0")))), ["Kyma/a"]);
    assert_eq!(keys(state.apply_release("lighthouse", None)), ["Kyma/a"]);
}

#[test]
fn a_kubeconfig_asks_for_what_waited_for_it() {
    let mut state = KcpState::default();
    let secret = SecretRef { name: "k".into(), uid: "u".into(), resource_version: "1".into() };
    assert!(state.apply_secret("a", "k", Some(secret.clone())).is_empty(), "no such Kyma yet");
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.apply_manifest(manifest("m", 1, "Error", None));
    let newer = SecretRef { resource_version: "2".into(), ..secret };
    assert_eq!(keys(state.apply_secret("a", "k", Some(newer.clone()))), ["Kyma/a", "Manifest/m"]);
    assert!(state.apply_secret("a", "k", Some(newer)).is_empty());
    assert_eq!(state.secrets_of("a").len(), 1);
    state.apply_secret("a", "k", None);
    assert!(state.secrets_of("a").is_empty());
}

fn watcher(name: &str, resource: &str, generation: i64) -> Watcher {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "kcp-system", "generation": generation},
        "spec": {"manager": "lifecycle-manager", "field": "spec",
                 "resourceToWatch": {"group": "", "version": "v1", "resource": resource}}
    }))
    .unwrap()
}

#[test]
fn a_watcher_reaches_every_runtime_if_it_changes_what_is_watched() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.apply_kyma(kyma("b", "r2", 1, 1));
    let everywhere = ["Agent/a", "Agent/b", "Watcher/w"];
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "pods", 1)))), everywhere);
    assert!(state.apply_watcher("w", Some(watcher("w", "pods", 1))).is_empty(), "a status, or an echo");
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "pods", 2)))), ["Watcher/w"], "of no account");
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "services", 3)))), everywhere);
    let refused = state.apply_watcher("bad", Some(watcher("bad", "secrets", 1)));
    assert_eq!(keys(refused), ["Watcher/bad"], "no runtime hears of one that is refused");
    assert!(state.apply_watcher("bad", None).is_empty());
    assert_eq!(keys(state.apply_watcher("w", None)), ["Agent/a", "Agent/b"]);
    assert!(state.agent_plan().config.watches.is_empty());
}
