use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, Manifest, Module, ModuleReleaseMeta, ModuleTemplate, State, Watcher,
    names::{self, field_managers, finalizers},
    object::ObjectRef,
};

use super::*;
use crate::queue::Class;

mod foreign_writes;
mod mandatory;

fn kyma(name: &str, runtime: &str, version: u32, generation: i64) -> Kyma {
    serde_json::from_value(json!({
        "metadata": {"name": name, "generation": generation, "resourceVersion": version.to_string(),
            "labels": {"kyma-project.io/runtime-id": runtime}, "annotations": {"skr-domain": format!("{name}.example")}},
        "spec": {"channel": "regular"},
        "status": {"state": "Ready", "modules": [{"name": "lighthouse", "state": "Ready"}]}
    }))
    .unwrap()
}

fn owned_by(uid: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "Kyma", "name": "a", "uid": uid}])
}

fn manifest(name: &str, version: u32, state: &str, deployment: Option<&str>) -> Manifest {
    let synced: Vec<Value> = deployment
        .map(|d| json!({"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "s", "name": d}))
        .into_iter()
        .collect();
    let mut manifest: Manifest = serde_json::from_value(json!({
        "metadata": {"name": name, "generation": 1, "resourceVersion": version.to_string(), "finalizers": [finalizers::MANIFEST],
            "labels": {"operator.kyma-project.io/kyma-name": "a"}, "ownerReferences": owned_by("u")},
        "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}},
        "status": {"state": state, "synced": synced, "lastOperation": {"operation": "o"}, "conditions": [
            {"type": "Resources", "status": "True", "reason": "R", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Installation", "status": "Unknown", "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    }))
    .unwrap();
    written_by(&mut manifest.metadata, &[(field_managers::APPLIER, 9)], None);
    manifest
}

fn release(version: &str) -> ModuleReleaseMeta {
    serde_json::from_value(json!({"metadata": {"name": "lighthouse"},
        "spec": {"moduleName": "lighthouse", "channels": [{"channel": "regular", "version": version}]}}))
    .unwrap()
}

pub(super) fn keys(wanted: Vec<Wanted>) -> Vec<String> {
    wanted.into_iter().map(|(key, _)| key.to_string()).collect()
}

#[test]
fn kymas_are_queued_for_spec_and_labels_not_status() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_kyma(kyma("a", "r1", 1, 1))), ["Kyma/a"]);
    let mut status_only = kyma("a", "r1", 2, 1);
    status_only.status.as_mut().unwrap().active_channel = "fast".into();
    assert!(state.apply_kyma(status_only).is_empty());
    assert_eq!(keys(state.apply_kyma(kyma("a", "r1", 3, 2))), ["Kyma/a"]);
    assert_eq!(keys(state.apply_kyma(kyma("a", "r2", 4, 2))), ["Kyma/a"], "a label changed");
}

#[test]
fn a_manifest_of_another_kyma_differs_from_a_missing_one() {
    let mut state = KcpState::default();
    state.apply_manifest(manifest("m", 1, "Ready", None));
    assert!(state.manifests.is_of_another("b", "m"));
    assert!(!state.manifests.is_of_another("a", "m"));
    assert!(!state.manifests.is_of_another("b", "gone"));
}

#[test]
fn removing_a_manifests_kyma_label_queues_the_kyma() {
    let label = "operator.kyma-project.io/kyma-name";
    let moved = |to: Option<&str>, mandatory: bool| {
        let mut state = KcpState::default();
        let mut there = manifest("m", 1, "Ready", Some("d"));
        if mandatory {
            there.labels_mut().insert(names::labels::MODULE_NAME.into(), "guard".into());
            there.labels_mut().insert(names::labels::MANDATORY_MODULE.into(), "true".into());
        }
        state.apply_manifest(there.clone());
        there.metadata.resource_version = Some("2".into());
        match to {
            Some(kyma) => drop(there.labels_mut().insert(label.into(), kyma.into())),
            None => drop(there.labels_mut().remove(label)),
        }
        let asked = keys(state.apply_manifest(there));
        let deployment =
            ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "s".into(), name: "d".into() };
        assert!(state.owners.of("a", &deployment).is_empty(), "events in its runtime find it no more");
        asked
    };
    assert_eq!(moved(None, false), ["Kyma/a"]);
    assert_eq!(moved(None, true), ["Kyma/a", "Mandatory/a"]);
    let to_another = moved(Some("b"), false);
    assert!(
        to_another.contains(&"Kyma/a".to_owned()) && to_another.contains(&"Manifest/m".to_owned()),
        "{to_another:?}"
    );
}

#[test]
fn an_echo_of_the_engines_own_write_queues_nothing() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.wrote("Kyma", "a", Some("2".into()));
    assert!(state.apply_kyma(kyma("a", "r9", 2, 1)).is_empty());
    assert_eq!(state.kymas.runtime("r1"), KymaLookup::Unknown, "but it is known");
    assert_eq!(keys(state.apply_kyma(kyma("a", "r9", 3, 2))), ["Kyma/a"]);
}

/// As kept by the watch: field counts of the engine's managers, and the last other write.
fn written_by(meta: &mut ObjectMeta, ours: &[(&str, u64)], time: Option<&str>) {
    let own = ours.iter().map(|(manager, count)| {
        json!({"manager": manager, "operation": "Apply", "subresource": "status", "time": "2026-01-01T11:00:00Z",
            "fieldsV1": {"count": count, "f:status": {"f:synced": {}}}})
    });
    let fields = json!({"f:status": {"f:state": {}}});
    let other = time.map(|time| json!({"manager": "kubectl-edit", "time": time, "fieldsV1": fields}));
    let all: Vec<Value> = own.chain(other).collect();
    meta.managed_fields = Some(serde_json::from_value(json!(all)).unwrap());
}

#[test]
fn a_runtime_id_must_be_registered_once() {
    let mut state = KcpState::default();
    assert_eq!(state.kymas.runtime("r1"), KymaLookup::Unknown);
    state.apply_kyma(kyma("a", "r1", 1, 1));
    let one = KymaLookup::One { kyma: "a".into(), domain: Some("a.example".into()), created: None };
    assert_eq!(state.kymas.runtime("r1"), one);
    state.apply_kyma(kyma("b", "r1", 1, 1));
    assert_eq!(state.kymas.runtime("r1"), KymaLookup::Ambiguous(2));
    state.delete_kyma("b");
    assert_eq!(state.kymas.runtime("r1"), one);
}

/// As after a watch interruption during the creation.
#[test]
fn first_sight_after_the_reconcile_queues_the_kyma() {
    let mut state = KcpState::default();
    state.wrote("Manifest", "m", Some("1".into()));
    let planned = Manifest { status: None, ..manifest("m", 1, "Ready", None) };
    assert!(state.apply_manifest(planned).is_empty(), "whoever has planned it knows of it");
    let mut state = KcpState::default();
    state.wrote("Manifest", "m", Some("3".into()));
    assert_eq!(keys(state.apply_manifest(manifest("m", 3, "Ready", None))), ["Kyma/a"]);
}

#[test]
fn a_manifest_status_change_queues_its_kyma() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(manifest("m", 1, "Processing", None))), ["Manifest/m", "Kyma/a"]);
    assert_eq!(keys(state.apply_manifest(manifest("m", 2, "Ready", None))), ["Kyma/a"]);
    assert!(state.apply_manifest(manifest("m", 3, "Ready", None)).is_empty());
    assert_eq!(keys(state.delete_manifest("m")), ["Kyma/a"]);
    assert!(!state.manifests.has_any("a"));
}

#[test]
fn module_states_of_a_kyma_are_known() {
    let mut state = KcpState::default();
    let mut reporting = kyma("a", "r1", 1, 1);
    let modules = json!({"state": "Error", "modules": [{"name": "crane", "state": "Error"}, {"name": "buoy", "state": "Unmanaged"}]});
    reporting.status = serde_json::from_value(modules).unwrap();
    state.apply_kyma(reporting);
    let known = state.kymas.module_states("a");
    assert_eq!(known, [("crane".to_owned(), State::Error), ("buoy".to_owned(), State::Unmanaged)]);
    state.delete_kyma("a");
    assert!(state.kymas.module_states("a").is_empty());
}

#[test]
fn a_settled_manifest_is_not_queued_at_start() {
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(manifest("m", 1, "Ready", Some("d")))), ["Kyma/a", "AgentConfig/a"]);
}

#[test]
fn a_module_secret_queues_only_its_modules_manifests() {
    let of = |name: &str, module: &str| {
        let mut manifest = manifest(name, 1, "Ready", None);
        manifest.labels_mut().insert(names::labels::MODULE_NAME.into(), module.into());
        manifest
    };
    let mut state = KcpState::default();
    let at_start = keys(state.apply_manifest(of("d", "deployer")));
    assert!(at_start.contains(&"Manifest/d".to_owned()), "it may have changed meanwhile: {at_start:?}");
    state.apply_manifest(of("o", "other"));
    assert_eq!(keys(state.module_secret_changed()), ["Manifest/d"]);
}

#[test]
fn go_manager_upgrades_are_not_queued_at_start() {
    let mut theirs = manifest("m", 1, "Ready", Some("d"));
    theirs.metadata.generation = Some(7);
    let asked = |theirs: &Manifest| {
        let mut state = KcpState::default();
        let wanted = keys(state.apply_manifest(theirs.clone()));
        (wanted, state.manifests.is_ready("m"))
    };
    let both = ["Manifest/m", "Kyma/a", "AgentConfig/a"].map(str::to_owned).to_vec();
    theirs.annotations_mut().insert("sync-oci-ref".into(), "sha256:aa".into());
    assert_eq!(asked(&theirs), (both, false), "it has not come to it");
    theirs.spec.install.source.0.insert("ref".into(), "sha256:aa".into());
    assert_eq!(asked(&theirs), (vec!["Kyma/a".to_owned(), "AgentConfig/a".to_owned()], true));
}

#[test]
fn an_owner_change_queues_the_manifest() {
    let cr = json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b", "namespace": "n"}});
    let mut ours = manifest("m", 2, "Ready", Some("d"));
    ours.spec.resource = serde_json::from_value(cr.clone()).unwrap();
    let mut nobodys = ours.clone();
    nobodys.metadata.owner_references = None;
    let (installed, cr) = (inventory_of(&ours), ObjectRef::of(&cr).unwrap());
    let owners = |state: &KcpState| [&installed, &cr].map(|object| state.owners.of("a", object).len());
    let mut state = KcpState::default();
    assert_eq!(keys(state.apply_manifest(nobodys)), ["Manifest/m", "Kyma/a", "AgentConfig/a"]);
    assert_eq!(
        owners(&state),
        [1, 0],
        "it will not make its default CR, so another's is not held back by it"
    );
    // Its Kyma may gain or miss it.
    assert_eq!(keys(state.apply_manifest(ours.clone())), ["Manifest/m", "Kyma/a"]);
    assert_eq!(owners(&state), [1, 1]);
    let mut relabelled = ours.clone();
    relabelled.labels_mut().insert(names::labels::MODULE_NAME.into(), "another".into());
    assert_eq!(keys(state.apply_manifest(relabelled)), ["Manifest/m", "Kyma/a"]);
}

#[test]
fn kymas_of_one_runtime_are_queued_for_each_other() {
    let mut state = KcpState::default();
    let of = |name: &str| kyma(name, "r1", 1, 1);
    state.apply_kyma(of("a"));
    assert!(state.kymas.others_of_runtime("a").is_empty());
    state.apply_kyma(of("b"));
    state.apply_kyma(kyma("c", "r2", 1, 1));
    assert_eq!(state.kymas.others_of_runtime("a"), ["b"]);
    assert!(
        state.kymas.others_of_runtime("c").is_empty() && state.kymas.others_of_runtime("nobody").is_empty()
    );
    let mut leaving = kyma("b", "r1", 2, 2);
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(keys(state.apply_kyma(leaving)), ["Kyma/a", "Kyma/b"]);
    assert!(state.kymas.others_of_runtime("a").is_empty(), "it does not stay");
    assert_eq!(keys(state.delete_kyma("b")), ["Kyma/b", "Kyma/a"]);
    state.apply_kyma(of("b"));
    assert_eq!(keys(state.apply_kyma(kyma("b", "r3", 3, 3))), ["Kyma/a", "Kyma/b"], "it has another one now");
}

#[test]
fn inventories_build_the_owner_index() {
    let mut state = KcpState::default();
    state.apply_manifest(manifest("m", 1, "Ready", Some("d")));
    let object =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "s"}});
    let object = ObjectRef::of(&object).unwrap();
    assert_eq!(state.owners.of("a", &object), ["m"]);
    state.delete_manifest("m");
    assert!(state.owners.of("a", &object).is_empty());
}

/// A Kyma that requests modules, each as `name`, `name/channel` or `name=version`.
fn asking(state: &mut KcpState, name: &str, entries: &[&str]) {
    state.apply_kyma(kyma(name, name, 1, 1));
    let module = |entry: &str| {
        let (rest, version) = entry.split_once('=').map_or((entry, None), |(n, v)| (n, Some(v.to_owned())));
        let (name, channel) = rest.split_once('/').map_or((rest, None), |(n, c)| (n, Some(c.to_owned())));
        Module { name: name.into(), channel, version, ..Module::default() }
    };
    let modules = entries.iter().map(|entry| module(entry)).collect();
    let wanted = KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() };
    assert!(state.choose(name, &wanted, &[]).is_none(), "it is not noted yet");
    state.record_list(name, &wanted);
    assert_eq!(state.choose(name, &wanted, &[]).unwrap().len(), entries.len());
}

fn offer(channels: &[(&str, &str)], versions: Value) -> ModuleReleaseMeta {
    let channels: Vec<Value> = channels.iter().map(|(c, v)| json!({"channel": c, "version": v})).collect();
    let spec = json!({"moduleName": "lighthouse", "ocmComponentName": "tidewatch.dev/module/lighthouse",
                      "channels": channels, "versions": versions});
    serde_json::from_value(json!({"metadata": {"name": "lighthouse"}, "spec": spec})).unwrap()
}

fn template(name: &str, spec: Value) -> ModuleTemplate {
    let mut template = json!({"metadata": {"name": name}, "spec": {"descriptor": {}}});
    template["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(template).unwrap()
}

#[test]
fn a_release_change_queues_only_kymas_using_the_module() {
    let mut state = KcpState::default();
    let none = || json!([]);
    asking(&mut state, "slow", &["lighthouse", "quay"]);
    asking(&mut state, "quick", &["lighthouse/fast"]);
    asking(&mut state, "fixed", &["lighthouse=1.0.0"]);
    asking(&mut state, "other", &["quay"]);
    let everybody = ["Kyma/fixed", "Kyma/quick", "Kyma/slow"];
    let (both, moved) =
        ([("regular", "1.0.0"), ("fast", "1.0.0")], [("regular", "1.0.0"), ("fast", "1.1.0")]);
    assert_eq!(keys(state.apply_release("lighthouse", Some(offer(&both, none())))), everybody, "it is there");
    assert!(state.apply_release("lighthouse", Some(offer(&both, none()))).is_empty(), "nothing changed");
    assert_eq!(keys(state.apply_release("lighthouse", Some(offer(&moved, none())))), ["Kyma/quick"]);
    let templates =
        |version: &str| template(&format!("lighthouse-{version}"), json!({"moduleName": "lighthouse"}));
    let first = state.apply_template("lighthouse-1.0.0", Some(templates("1.0.0")));
    assert_eq!(keys(first), ["Kyma/fixed", "Kyma/slow"], "who has this version");
    assert_eq!(keys(state.apply_template("lighthouse-1.1.0", Some(templates("1.1.0")))), ["Kyma/quick"]);
    assert!(state.apply_template("lighthouse-7.0.0", Some(templates("7.0.0"))).is_empty(), "nobody has it");
    let listed = offer(&moved, json!([{"version": "1.0.0"}, {"version": "1.1.0"}]));
    assert!(state.apply_release("lighthouse", Some(listed)).is_empty(), "offered twice is offered");
    let ends = json!([{"version": "1.1.0", "deprecationMessage": "go on"}]);
    let mut there = manifest("m", 1, "Ready", None);
    there.spec.version = "1.1.0".into();
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [label(names::labels::KYMA_NAME, "slow"), label(names::labels::MODULE_NAME, "lighthouse")];
    there.metadata.labels = Some(labels.into());
    state.apply_manifest(there);
    assert_eq!(
        keys(state.apply_release("lighthouse", Some(offer(&moved, ends.clone())))),
        ["Kyma/quick", "Kyma/slow"],
        "who asks for the version, and who has it installed and does not ask for it any more"
    );
    let mut labelled = templates("1.1.0");
    labelled.metadata.labels = Some([label(names::labels::BETA, "true")].into());
    assert_eq!(
        keys(state.apply_template("lighthouse-1.1.0", Some(labelled))),
        ["Kyma/quick", "Kyma/slow"],
        "the same of who may have it"
    );
    let away = [("regular", "1.1.0"), ("fast", "1.1.0")];
    let to = state.apply_release("lighthouse", Some(offer(&away, ends)));
    assert_eq!(keys(to), ["Kyma/fixed", "Kyma/slow"], "the pinned version is not offered any more");
    let pinned = offer(&away, json!([{"version": "1.0.0"}]));
    assert_eq!(
        keys(state.apply_release("lighthouse", Some(pinned))),
        everybody,
        "offered again; not ending any more"
    );
    let moved = offer(&[("regular", "1.0.0"), ("fast", "1.1.0")], json!([{"version": "1.0.0"}]));
    assert_eq!(
        keys(state.apply_release("lighthouse", Some(moved))),
        ["Kyma/slow"],
        "a pin does not care for channels"
    );
    assert_eq!(keys(state.apply_release("lighthouse", None)), everybody);
}

#[test]
fn an_old_style_template_queues_kymas_of_its_channel() {
    let mut state = KcpState::default();
    asking(&mut state, "slow", &["buoy"]);
    asking(&mut state, "quick", &["buoy/fast"]);
    let of = |channel: &str, version: &str| {
        let descriptor = json!({"component": {"name": "tidewatch.dev/module/buoy", "version": version}});
        template(
            &format!("buoy-{channel}"),
            json!({"moduleName": "buoy", "channel": channel, "descriptor": descriptor}),
        )
    };
    let first = state.apply_template("buoy-regular", Some(of("regular", "1.0.0")));
    assert_eq!(keys(first), ["Kyma/quick", "Kyma/slow"], "there is such a module now");
    assert_eq!(keys(state.apply_template("buoy-fast", Some(of("fast", "1.0.0")))), ["Kyma/quick"]);
    assert_eq!(keys(state.apply_template("buoy-fast", Some(of("fast", "1.1.0")))), ["Kyma/quick"]);
    assert_eq!(keys(state.apply_template("buoy-regular", None)), ["Kyma/slow"]);
}

#[test]
fn requested_versions_are_known_before_the_status_shows_them() {
    let mut state = KcpState::default();
    asking(&mut state, "a", &["lighthouse"]);
    // No status mentions it yet.
    let wanted = state.apply_release("lighthouse", Some(release("1.0.0")));
    assert_eq!(keys(wanted), ["Kyma/a"]);
    state.delete_kyma("a");
    assert!(state.apply_release("lighthouse", None).is_empty());
    let wanted = KymaSpec {
        modules: vec![Module { name: "lighthouse".into(), ..Module::default() }],
        ..KymaSpec::default()
    };
    state.record_list("a", &wanted);
    assert!(state.apply_release("lighthouse", Some(release("1.0.0"))).is_empty(), "it is gone");
}

#[test]
fn a_kubeconfig_change_queues_its_kyma_and_waiting_manifests() {
    let mut state = KcpState::default();
    let secret = SecretRef { name: "k".into(), uid: "u".into(), resource_version: "1".into() };
    assert!(state.apply_secret("a", "k", Some(secret.clone())).is_empty(), "no such Kyma yet");
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.apply_manifest(manifest("m", 1, "Error", None));
    let newer = SecretRef { resource_version: "2".into(), ..secret };
    assert_eq!(keys(state.apply_secret("a", "k", Some(newer.clone()))), ["Kyma/a", "Manifest/m"]);
    assert!(state.apply_secret("a", "k", Some(newer.clone())).is_empty());
    assert_eq!(state.secrets.of("a").len(), 1);
    let other = SecretRef { name: "j".into(), ..newer.clone() };
    assert!(!state.apply_secret("a", "j", Some(other.clone())).is_empty());
    assert_eq!(state.secrets.of("a"), [other, newer], "by name");
    assert!(!state.apply_secret("a", "j", None).is_empty());
    state.apply_secret("a", "k", None);
    assert!(state.secrets.of("a").is_empty() && state.apply_secret("a", "k", None).is_empty());
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
fn a_watcher_queues_every_runtime_only_if_watches_change() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "r1", 1, 1));
    state.apply_kyma(kyma("b", "r2", 1, 1));
    let everywhere = ["AgentConfig/a", "AgentConfig/b", "Watcher/w"];
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "pods", 1)))), everywhere);
    assert!(state.apply_watcher("w", Some(watcher("w", "pods", 1))).is_empty(), "a status, or an echo");
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "pods", 2)))), ["Watcher/w"], "of no account");
    assert_eq!(keys(state.apply_watcher("w", Some(watcher("w", "services", 3)))), everywhere);
    let refused = state.apply_watcher("bad", Some(watcher("bad", "secrets", 1)));
    assert_eq!(keys(refused), ["Watcher/bad"], "no runtime hears of one that is refused");
    assert!(state.apply_watcher("bad", None).is_empty());
    assert_eq!(keys(state.apply_watcher("w", None)), ["AgentConfig/a", "AgentConfig/b"]);
    assert!(state.watchers.plan().config.watches.is_empty());
}

#[test]
fn a_kyma_inherits_the_urgency_of_its_manifests_reconcile() {
    let mut state = KcpState::default();
    state.manifests.set_class("m", Class::Rollout);
    assert_eq!(state.manifests.class("m"), Class::UserEdit, "there is none yet");
    state.apply_manifest(manifest("m", 1, "Processing", None));
    for (worked, urgency) in [
        (Class::Resync, Class::Rollout),
        (Class::UserEdit, Class::UserEdit),
        (Class::Retry, Class::UserEdit),
        (Class::Rollout, Class::Rollout),
        (Class::Poll, Class::Rollout),
    ] {
        state.manifests.set_class("m", worked);
        assert_eq!(state.manifests.class("m"), urgency, "{worked:?}");
    }
    state.delete_manifest("m");
    assert_eq!(state.manifests.class("m"), Class::UserEdit, "there is none any more");
}

#[test]
fn unmanaged_manifests_own_nothing_and_are_queued_at_start() {
    let given_up = |name: &str| {
        let mut manifest = manifest(name, 1, "Ready", Some("d"));
        manifest.annotations_mut().insert(names::annotations::IS_UNMANAGED.into(), "true".into());
        manifest
    };
    let object = inventory_of(&manifest("m", 1, "Ready", Some("d")));
    let mut state = KcpState::default();
    let settled = keys(state.apply_manifest(manifest("m", 1, "Ready", Some("d"))));
    assert_eq!(settled, ["Kyma/a", "AgentConfig/a"], "it is settled");
    assert_eq!(keys(state.apply_manifest(given_up("n"))), ["Manifest/n", "Kyma/a"]);
    assert_eq!(state.needed_by("a", "n", &object), Some("m".into()));
    assert_eq!(state.needed_by("a", "m", &object), None, "the other one is given up too");
}

fn inventory_of(manifest: &Manifest) -> ObjectRef {
    let synced = &manifest.status.as_ref().unwrap().synced;
    tidewatch_api::inventory::inventory(synced).remove(0)
}

#[test]
fn a_successor_shares_module_and_owner_and_stays() {
    let of = |name: &str, owner: &str, state: &str| {
        let mut manifest = manifest(name, 1, state, Some("d"));
        manifest.labels_mut().insert(names::labels::MODULE_NAME.into(), "beacon".into());
        manifest.metadata.owner_references = serde_json::from_value(owned_by(owner)).unwrap();
        manifest
    };
    let old = of("m", "u", "Ready");
    let mut state = KcpState::default();
    let mut owner = kyma("a", "r1", 1, 1);
    owner.metadata.uid = Some("u".into());
    state.apply_kyma(owner);
    state.apply_manifest(old.clone());
    state.apply_manifest(of("n", "another", "Ready"));
    assert_eq!(state.successor("a", &old), None);
    assert_eq!(state.successor("a", &of("l", "another", "Ready")), None, "of strays nothing is installed");
    state.apply_manifest(of("o", "u", "Processing"));
    assert_eq!(state.successor("a", &old), Some(Successor { name: "o".into(), settled: None }));
    let ready = of("o", "u", "Ready");
    state.apply_manifest(ready.clone());
    let settled = Some(vec![inventory_of(&ready)]);
    assert_eq!(state.successor("a", &old), Some(Successor { name: "o".into(), settled }));
    let mut robbed = ready.clone();
    written_by(&mut robbed.metadata, &[], None);
    state.apply_manifest(robbed);
    assert_eq!(state.successor("a", &old).unwrap().settled, None, "nobody knows what it has");
    state.apply_manifest(ready.clone());
    assert_eq!(state.successor("a", &old).unwrap().settled, None, "nobody has looked at it since");
    let key = WorkKey::Manifest { kyma: "a".into(), name: "o".into() };
    assert!(state.take_suspicion(&key).is_some());
    assert!(state.successor("a", &old).unwrap().settled.is_some());
    let mut warns = of("o", "u", "Warning");
    state.apply_manifest(warns.clone());
    assert_eq!(state.successor("a", &old).unwrap().settled, None, "it was never ready");
    let status = warns.status.as_mut().unwrap();
    status.conditions = serde_json::from_value(serde_json::json!([{"type": "WasReady", "status": "True", "reason": "Ready",
        "message": "", "observedGeneration": warns.metadata.generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}]))
    .unwrap();
    state.apply_manifest(warns);
    assert!(state.successor("a", &old).unwrap().settled.is_some(), "it was, and warns now");
    let mut leaving = ready;
    leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    state.apply_manifest(leaving);
    assert_eq!(state.successor("a", &old), None);
}

#[test]
fn a_manifest_succeeds_older_ones_and_keeps_shared_objects() {
    let time = |second| Some(Time(jiff::Timestamp::from_second(second).unwrap()));
    let of = |name: &str, made: i64, ended: Option<Time>| {
        let mut manifest = manifest(name, 1, "Ready", Some("d"));
        manifest.labels_mut().insert(names::labels::MODULE_NAME.into(), "beacon".into());
        manifest.metadata.creation_timestamp = time(made);
        manifest.metadata.deletion_timestamp = ended;
        manifest
    };
    let mut state = KcpState::default();
    let mut owner = kyma("a", "r1", 1, 1);
    owner.metadata.uid = Some("u".into());
    state.apply_kyma(owner);
    let (old, new) = (of("old", 1, None), of("new", 2, None));
    state.apply_manifest(old.clone());
    state.apply_manifest(new.clone());
    assert_eq!(state.predecessors("a", &new), ["old"]);
    assert!(state.predecessors("a", &old).is_empty(), "of two that stay the older one");
    assert!(state.leaving_objects("a", "another").is_empty());
    state.apply_manifest(of("old", 1, time(3)));
    assert_eq!(state.predecessors("a", &new), ["old"]);
    assert!(state.leaving_objects("a", "another").is_empty(), "it is handed over");
    state.apply_manifest(of("new", 2, time(3)));
    assert_eq!(state.leaving_objects("a", "another").len(), 2);
    assert!(state.predecessors("a", &new).is_empty(), "it goes as well");
    let mut with_cr = of("new", 3, time(3));
    with_cr.spec.resource = serde_json::from_value(
        json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b", "namespace": "n"}}),
    )
    .unwrap();
    state.apply_manifest(with_cr);
    let names: Vec<String> =
        state.leaving_objects("a", "another").into_iter().map(|object| object.name).collect();
    assert!(names.contains(&"b".to_owned()), "and its default CR: {names:?}");
}

#[test]
fn the_agent_config_is_queued_when_module_kinds_change() {
    let mut state = KcpState::default();
    let asked = |wanted: Vec<Wanted>| keys(wanted).contains(&"AgentConfig/a".to_owned());
    let input = |state: &KcpState| state.agent_input("a").hash;
    let bare = input(&state);
    assert!(!asked(state.apply_manifest(manifest("m", 1, "Processing", None))), "nothing is installed yet");
    assert!(asked(state.apply_manifest(manifest("m", 1, "Processing", Some("d")))));
    let one = input(&state);
    assert_ne!(one, bare);
    assert!(!asked(state.apply_manifest(manifest("m", 1, "Ready", Some("d")))));
    assert!(!asked(state.apply_manifest(manifest("m", 2, "Ready", Some("another")))), "of the same kind");
    state.apply_manifest(manifest("n", 1, "Ready", Some("e")));
    assert_eq!(input(&state), one, "whoever installs it");
    state.owners.wait_for("a", "m", [&Gvk::of("x.dev/v1", "Beacon")]);
    assert_ne!(input(&state), one);
    state.delete_manifest("n");
    assert!(asked(state.delete_manifest("m")));
    assert_eq!(input(&state), bare);
}

#[test]
fn a_catalog_change_queues_the_runtimes_showing_the_module() {
    let mut state = KcpState::default();
    for (name, beta) in [("a", "true"), ("b", "false"), ("c", "true")] {
        let mut kyma = kyma(name, name, 1, 1);
        kyma.labels_mut().insert("operator.kyma-project.io/beta".into(), beta.into());
        state.apply_kyma(kyma);
    }
    let template = |version: &str, beta: &str| -> ModuleTemplate {
        serde_json::from_value(json!({"metadata": {"name": format!("buoy-{version}"),
            "labels": {"operator.kyma-project.io/beta": beta}}, "spec": {"moduleName": "buoy", "version": version}}))
        .unwrap()
    };
    let release = |channels: &[(&str, &str)]| -> ModuleReleaseMeta {
        let channels: Vec<Value> =
            channels.iter().map(|(c, v)| json!({"channel": c, "version": v})).collect();
        serde_json::from_value(
            json!({"metadata": {"name": "buoy"}, "spec": {"moduleName": "buoy", "channels": channels}}),
        )
        .unwrap()
    };
    assert!(
        state.apply_template("buoy-1.0.0", Some(template("1.0.0", "false"))).is_empty(),
        "nobody has a catalog yet"
    );
    let (a, b) = (state.view("a").unwrap(), state.view("b").unwrap());
    assert!(Arc::ptr_eq(&a.hashes, &b.hashes), "who sees the same shares it");
    assert!(
        state.apply_template("buoy-1.1.0", Some(template("1.1.0", "true"))).is_empty(),
        "no release names it"
    );
    let both = [("regular", "1.0.0"), ("fast", "1.1.0")];
    assert_eq!(keys(state.apply_release("buoy", Some(release(&both)))), ["Catalog/a", "Catalog/b"]);
    assert!(state.apply_release("buoy", Some(release(&both))).is_empty());
    assert_eq!(
        keys(state.apply_template("buoy-1.1.0", None)),
        ["Catalog/a"],
        "c has none yet, b never saw it"
    );
    state.delete_kyma("a");
    assert_eq!(keys(state.apply_release("buoy", None)), ["Catalog/b"]);
    let mark = state.catalog_mark("b");
    state.apply_kyma(kyma("b", "b", 2, 2));
    assert_ne!(state.catalog_mark("b"), mark, "its labels are others");
}

#[test]
fn a_briefly_ready_manifest_queues_its_kyma() {
    let mut state = KcpState::default();
    let waits = manifest("m", 1, "Processing", None);
    state.apply_manifest(waits.clone());
    let mut again = waits;
    again.metadata.resource_version = Some("3".into());
    assert_eq!(state.apply_manifest(again.clone()), []);
    again.metadata.resource_version = Some("5".into());
    let all = &mut again.status.as_mut().unwrap().conditions;
    let mut was_ready = all[0].clone();
    was_ready.type_ = names::conditions::WAS_READY.into();
    all.push(was_ready);
    let wanted: Vec<_> = state.apply_manifest(again).into_iter().map(|(key, _)| key).collect();
    assert_eq!(wanted, [kyma_key("a")], "another version runs now than its status says");
}
