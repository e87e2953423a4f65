//! Kymas affected by a mandatory module's change.

use super::*;

fn guard(version: &str, more: &Value) -> ModuleReleaseMeta {
    let mut metadata = json!({"name": "guard"});
    metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": metadata, "spec": {"moduleName": "guard",
        "ocmComponentName": "tidewatch.dev/module/guard", "mandatory": {"version": version}}}))
    .unwrap()
}

fn guards_manifest(version: u32, state: &str) -> Manifest {
    let mut guard = manifest("g", version, state, None);
    let labels = guard.metadata.labels.as_mut().unwrap();
    labels.insert("operator.kyma-project.io/mandatory-module".into(), "true".into());
    labels.insert("operator.kyma-project.io/module-name".into(), "guard".into());
    guard
}

#[test]
fn a_mandatory_release_reaches_every_kyma_once() {
    let mut state = KcpState::default();
    for name in ["a", "b"] {
        assert_eq!(keys(state.apply_kyma(kyma(name, name, 1, 1))).len(), 1, "nothing is mandatory yet");
    }
    let every = ["Release/guard", "Mandatory/a", "Mandatory/b"];
    assert_eq!(keys(state.apply_release("guard", Some(guard("1.0.0", &json!({}))))), every);
    let held = json!({"finalizers": ["operator.kyma-project.io/mandatory-module"]});
    assert!(state.apply_release("guard", Some(guard("1.0.0", &held))).is_empty(), "our finalizer is no news");
    assert_eq!(keys(state.apply_release("guard", Some(guard("1.1.0", &held)))), every[1..]);
    assert_eq!(keys(state.apply_kyma(kyma("c", "c", 1, 1))), ["Kyma/c", "Mandatory/c"]);
    assert_eq!(keys(state.apply_kyma(kyma("c", "c", 2, 2))), ["Kyma/c"], "its list says nothing of it");
    assert_eq!(keys(state.apply_kyma(kyma("c", "d", 3, 2))), ["Kyma/c", "Mandatory/c"], "its labels do");
    let template =
        json!({"metadata": {"name": "guard-1.1.0"}, "spec": {"moduleName": "guard", "version": "1.1.0"}});
    let template: ModuleTemplate = serde_json::from_value(template).unwrap();
    let asked = keys(state.apply_template("guard-1.1.0", Some(template)));
    assert_eq!(asked, ["Mandatory/a", "Mandatory/b", "Mandatory/c"]);
}

#[test]
fn mandatory_manifests_queue_the_mandatory_plan_only() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "a", 1, 1));
    let held = json!({"finalizers": ["operator.kyma-project.io/mandatory-module"]});
    state.apply_release("guard", Some(guard("1.0.0", &held)));
    let first = keys(state.apply_manifest(guards_manifest(1, "Processing")));
    assert_eq!(first, ["Manifest/g", "Mandatory/a"], "at first sight");
    assert!(state.apply_manifest(guards_manifest(2, "Ready")).is_empty());
    let mut changed = guards_manifest(3, "Ready");
    changed.metadata.generation = Some(2);
    assert_eq!(keys(state.apply_manifest(changed)), ["Manifest/g", "Mandatory/a"], "by hand");
    let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["operator.kyma-project.io/mandatory-module"]});
    let asked = keys(state.apply_release("guard", Some(guard("1.0.0", &gone))));
    assert_eq!(asked, ["Release/guard", "Mandatory/a"]);
    assert_eq!(keys(state.delete_manifest("g")), ["Kyma/a", "Mandatory/a", "Release/guard"]);
}

fn guard_to_choose() -> ModuleReleaseMeta {
    serde_json::from_value(json!({"metadata": {"name": "guard"}, "spec": {"moduleName": "guard",
        "ocmComponentName": "tidewatch.dev/module/guard", "channels": [{"channel": "regular", "version": "1.0.0"}]}}))
    .unwrap()
}

#[test]
fn an_unobserved_release_change_is_found_by_its_manifests() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "a", 1, 1));
    assert!(
        state.apply_release("guard", Some(guard_to_choose())).is_empty(),
        "nobody knows that it was mandatory"
    );
    let installed = |version| {
        let mut guard = guards_manifest(version, "Ready");
        guard.status = manifest("g", version, "Ready", Some("d")).status;
        guard
    };
    assert_eq!(keys(state.apply_manifest(installed(1))), ["Mandatory/a", "AgentConfig/a"]);
    assert!(state.apply_manifest(installed(2)).is_empty());
    state.delete_manifest("g");
    state.wrote("Manifest", "g", Some("3".into()));
    assert!(state.apply_manifest(guards_manifest(3, "Processing")).is_empty(), "our own write is no news");
}

#[test]
fn a_required_mandatory_module_queues_the_dependent_kyma() {
    let mut state = KcpState::default();
    let require = |state: &mut KcpState, module: &str| {
        state.kymas.waits_mut("a").unwrap().required = BTreeSet::from([module.to_owned()]);
    };
    state.apply_kyma(kyma("a", "a", 1, 1));
    state.apply_manifest(guards_manifest(1, "Processing"));
    require(&mut state, "guard");
    assert_eq!(keys(state.apply_manifest(guards_manifest(2, "Ready"))), ["Kyma/a"]);
    assert!(state.apply_manifest(guards_manifest(3, "Ready")).is_empty(), "its state is the same");
    require(&mut state, "another");
    assert!(state.apply_manifest(guards_manifest(4, "Warning")).is_empty());
}

#[test]
fn a_manifest_queues_its_kyma_when_mandatory_mode_ends() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "a", 1, 1));
    state.apply_release("guard", Some(guard("1.0.0", &json!({}))));
    let mut regular = guards_manifest(1, "Ready");
    regular.labels_mut().remove("operator.kyma-project.io/mandatory-module");
    state.apply_manifest(regular);
    assert_eq!(keys(state.apply_release("guard", Some(guard_to_choose()))), ["Kyma/a", "Mandatory/a"]);
}

#[test]
fn an_unread_module_list_is_not_an_empty_one() {
    let list = |names: &[&str]| {
        let modules = names.iter().map(|&name| Module { name: name.into(), ..Module::default() }).collect();
        KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() }
    };
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "a", 1, 1));
    state.apply_release("guard", Some(guard_to_choose()));
    state.apply_manifest(guards_manifest(1, "Ready"));
    assert_eq!(state.chosen_by_users("a").1, None);
    assert!(state.choose("a", &list(&[]), &[]).is_none(), "an empty list has to be noted too");
    assert!(state.record_list("a", &list(&["guard"])).is_empty(), "it stays, for its user has it");
    assert_eq!(state.chosen_by_users("a").1, Some(BTreeSet::from(["guard".to_owned()])));
    assert_eq!(keys(state.record_list("a", &list(&[]))), ["Mandatory/a"], "its user does not have it");
    assert_eq!(state.chosen_by_users("a").1, Some(BTreeSet::new()));
    assert!(state.choose("a", &list(&[]), &[]).is_some());
    state.apply_release("guard", Some(guard("1.0.0", &json!({}))));
    assert!(state.record_list("a", &list(&["other"])).is_empty(), "what is mandatory is no matter of lists");
    state.delete_kyma("a");
    assert_eq!(state.chosen_by_users("a").1, None);
}

#[test]
fn modules_required_by_mandatory_ones_queue_the_mandatory_plan() {
    let mut state = KcpState::default();
    let awaits = Awaits {
        groups: BTreeSet::from(["x.dev".to_owned()]),
        modules: BTreeSet::from(["crane".to_owned()]),
    };
    state.apply_kyma(kyma("a", "a", 1, 1));
    state.kymas.waits_mut("a").unwrap().mandatory = awaits;
    let crane = |version, state: &str| {
        let mut crane = manifest("m", version, state, None);
        let labels = crane.metadata.labels.as_mut().unwrap();
        labels.insert("operator.kyma-project.io/module-name".into(), "crane".into());
        crane
    };
    state.apply_manifest(crane(1, "Processing"));
    assert_eq!(keys(state.apply_manifest(crane(2, "Ready"))), ["Mandatory/a", "Kyma/a"]);
    assert!(state.apply_manifest(crane(3, "Ready")).is_empty());
    let waits = |state: &KcpState, name| state.kymas.waits("a").mandatory_for_definition(name);
    assert!(waits(&state, Some("hooks.x.dev")) && waits(&state, None) && !waits(&state, Some("hooks.y.dev")));
    let watched = state.agent_input("a").hash;
    state.kymas.waits_mut("a").unwrap().mandatory = Awaits::default();
    assert_ne!(state.agent_input("a").hash, watched, "definitions are watched meanwhile");
    assert!(!waits(&state, None) && keys(state.apply_manifest(crane(4, "Error"))) == ["Kyma/a"]);
}

#[test]
fn a_withdrawn_template_makes_its_module_mandatory_nowhere() {
    let mut state = KcpState::default();
    state.apply_kyma(kyma("a", "a", 1, 1));
    let template = |version: &str, annotations: Value| -> Option<ModuleTemplate> {
        let name = format!("guard-{version}");
        let component = json!({"component": {"name": "tidewatch.dev/module/guard", "version": version}});
        let object = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"moduleName": "guard", "version": version, "mandatory": true, "descriptor": component}});
        serde_json::from_value(object).unwrap()
    };
    let withdrawn = json!({"tidewatch.kyma-project.io/mandatory-withdrawn": "true"});
    state.apply_release("guard", Some(guard("1.0.0", &json!({}))));
    state.apply_template("guard-1.0.0", template("1.0.0", json!({})));
    assert!(!state.catalog.holders("guard").is_withdrawn);
    state.apply_template("guard-1.0.0", template("1.0.0", withdrawn));
    assert!(state.catalog.holders("guard").is_withdrawn, "a change of its annotations alone is seen");
    state.apply_release("guard", None);
    assert!(state.catalog.mandatory().is_empty() && state.catalog.holders("guard").templates.is_empty());
    state.apply_template("guard-1.1.0", template("1.1.0", json!({})));
    assert!(state.catalog.mandatory().is_empty(), "nor does a version that comes later");
    state.apply_release("guard", Some(guard("1.0.0", &json!({}))));
    assert_eq!(state.catalog.mandatory().len(), 1, "a new release does");
    state.apply_release("guard", None);
    state.apply_template("guard-1.0.0", None);
    assert_eq!(state.catalog.mandatory().len(), 1, "and so do templates of which none is withdrawn");
}
