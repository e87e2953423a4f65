use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidewatch_api::{KymaSpec, ModuleReleaseMeta, ModuleTemplate};

use super::*;
use crate::versions::{choose, fixtures::FakeCatalog};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn listed_modules(modules: &[(&str, Value)]) -> Vec<ResolvedModule> {
    let mut catalog = FakeCatalog::default();
    for (name, requires) in modules {
        let release: ModuleReleaseMeta = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "moduleName": name, "ocmComponentName": format!("x.dev/{name}"),
            "channels": [{"channel": "regular", "version": "2.0.0"}]}}))
        .unwrap();
        catalog.releases.insert((*name).to_owned(), release.into());
        let template: ModuleTemplate = serde_json::from_value(json!({
            "metadata": {"name": format!("{name}-2.0.0"), "namespace": "kcp-system"},
            "spec": {"moduleName": name, "version": "2.0.0", "descriptor": {}, "requires": requires}}))
        .unwrap();
        catalog.put(template.into());
    }
    let list: Vec<Value> = modules.iter().map(|(name, _)| json!({"name": name})).collect();
    let wanted: KymaSpec = serde_json::from_value(json!({"channel": "regular", "modules": list})).unwrap();
    choose(&wanted, &catalog, &[])
}

fn manifest(module: &str, version: &str, state: &str) -> Manifest {
    serde_json::from_value(json!({
        "metadata": {"name": module, "generation": 1, "labels": {"operator.kyma-project.io/module-name": module}},
        "spec": {"version": version, "remote": false, "install": {"name": "raw-manifest", "source": {}}},
        "status": {"state": state, "conditions": [{"type": "Installation", "status": "True", "reason": "Ready",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}
    }))
    .unwrap()
}

fn messages(modules: &[(&str, Value)], manifests: &[Manifest]) -> BTreeMap<String, String> {
    let unmet = unmet(&listed_modules(modules), manifests, &BTreeSet::new());
    unmet.into_iter().map(|(module, unmet)| (module, unmet.message)).collect()
}

#[test]
fn a_module_waits_until_its_required_module_is_ready() {
    let modules = [("quay", json!(null)), ("crane", json!({"modules": ["quay", "harbour"]}))];
    let value = |manifests: &[Manifest]| messages(&modules, manifests).remove("crane");
    assert_eq!(
        value(&[]).unwrap(),
        "waits for module 'harbour' (not enabled), module 'quay' (not installed yet); it goes on by itself when that is there"
    );
    let harbour = manifest("harbour", "1.0.0", "Ready");
    let mut quay = manifest("quay", "2.0.0", "Processing");
    assert!(value(&[harbour.clone(), quay.clone()]).unwrap().contains("module 'quay' (not Ready yet);"));
    quay.status.as_mut().unwrap().state = State::Error;
    assert!(value(&[harbour.clone(), quay.clone()]).unwrap().contains("(in error)"));
    quay.status.as_mut().unwrap().state = State::Ready;
    assert_eq!(value(&[harbour, quay]), None);
}

#[test]
fn a_module_does_not_wait_for_an_unmanaged_one() {
    let mut listed_modules =
        listed_modules(&[("quay", json!(null)), ("crane", json!({"modules": ["quay"]}))]);
    assert!(unmet(&listed_modules, &[], &BTreeSet::new()).contains_key("crane"));
    listed_modules[0].entry.managed = false;
    assert!(
        unmet(&listed_modules, &[], &BTreeSet::new()).is_empty(),
        "nothing of ours says that it is there"
    );
    listed_modules[0].outcome = Err(Fault::Mandatory { module: "quay".into() });
    assert!(
        unmet(&listed_modules, &[], &BTreeSet::new()).contains_key("crane"),
        "a mandatory one is nobody's to give up"
    );
}

#[test]
fn a_module_waits_until_a_required_kind_is_served() {
    let api = json!({"group": "x.dev", "version": "v1", "kind": "Beam"});
    let modules = [("crane", json!({"apis": [api, {"group": "", "version": "v1", "kind": "Node"}]}))];
    let listed_modules = listed_modules(&modules);
    let needed = kinds(&listed_modules);
    assert_eq!(needed.len(), 2);
    let node: BTreeSet<_> = needed.iter().filter(|k| k.kind == "Node").cloned().collect();
    let waiting = unmet(&listed_modules, &[], &node).remove("crane").unwrap();
    assert!(waiting.apis && waiting.message.starts_with("waits for the kind Beam of x.dev/v1 (not served);"));
    assert!(unmet(&listed_modules, &[], &needed).is_empty());
}

#[test]
fn an_unmet_requirement_delays_only_the_upgrade() {
    let requires =
        json!({"modules": ["gone"], "apis": [{"group": "x.dev", "version": "v1", "kind": "Beam"}]});
    let modules = [("crane", requires)];
    assert!(messages(&modules, &[manifest("crane", "2.0.0", "Ready")]).is_empty());
    assert_eq!(messages(&modules, &[manifest("crane", "1.0.0", "Ready")]).len(), 1);
}

#[test]
fn lost_requirements_of_an_installed_module_are_reported() {
    let requires =
        json!({"modules": ["quay"], "apis": [{"group": "x.dev", "version": "v1", "kind": "Beam"}]});
    let mut listed_modules = listed_modules(&[("quay", json!(null)), ("crane", requires)]);
    let served = kinds(&listed_modules);
    let crane = || manifest("crane", "2.0.0", "Ready");
    let reported = |listed_modules: &[ResolvedModule], manifests: &[Manifest], served| {
        lost(listed_modules, manifests, served).remove("crane").unwrap_or_default()
    };
    let nothing = BTreeSet::new();
    assert_eq!(
        reported(&listed_modules, &[crane()], &nothing),
        "what it needs is not there: module 'quay' (not installed yet), the kind Beam of x.dev/v1 (not served); it stays as it is"
    );
    assert_eq!(
        reported(&listed_modules, &[crane(), manifest("quay", "2.0.0", "Error")], &served),
        "",
        "it tells of itself"
    );
    let mut deleting = manifest("quay", "2.0.0", "Ready");
    deleting.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(
        reported(&listed_modules, &[crane(), deleting], &served).contains("module 'quay' (on its way out);")
    );
    assert_eq!(
        reported(&listed_modules, &[manifest("crane", "1.0.0", "Ready")], &nothing),
        "",
        "its update waits"
    );
    listed_modules[0].entry.managed = false;
    assert_eq!(reported(&listed_modules, &[crane()], &served), "");
    listed_modules[1].entry.managed = false;
    assert!(lost(&listed_modules, &[crane()], &nothing).is_empty() && kinds(&listed_modules).is_empty());
}

#[test]
fn rechecks_of_missing_kinds_back_off() {
    let checks = |minutes: i64| next_discovery(at(0), at(minutes * 60)).as_second() / 60;
    assert_eq!([0, 1, 2, 4, 32, 64, 600].map(checks), [1, 2, 4, 8, 64, 124, 660]);
    assert_eq!(next_discovery(at(100), at(40)), at(100), "a clock was set back");
    let api = |group: &str, version: &str| GroupVersionKind {
        group: group.into(),
        version: version.into(),
        kind: "Beam".into(),
    };
    assert!(is_name(&api("x.dev", "v1")) && is_name(&api("", "v1")));
    for (group, version) in [("no/such.group", "v1"), ("x.dev", ""), ("x.dev", "v1/beams"), ("x dev", "v1")] {
        assert!(!is_name(&api(group, version)), "{group} {version}");
    }
}

#[test]
fn only_modules_in_a_cycle_are_named() {
    let waits_for = |modules: &[&str]| json!({"modules": modules});
    let modules = [
        ("a", waits_for(&["b"])),
        ("b", waits_for(&["c"])),
        ("c", waits_for(&["a"])),
        ("d", waits_for(&["a"])),
        ("e", waits_for(&["e"])),
    ];
    let unmet = unmet(&listed_modules(&modules), &[], &BTreeSet::new());
    for module in ["a", "b", "c"] {
        assert!(
            unmet[module].cycle && unmet[module].message.contains("the modules a, b, c wait for each other")
        );
    }
    assert!(!unmet["d"].cycle, "{}", unmet["d"].message);
    assert!(unmet["e"].cycle && unmet["e"].message.contains("requires the module 'e'"));
    // A Ready member ends the cycle.
    assert!(!messages(&modules, &[manifest("a", "1.0.0", "Ready")]).contains_key("c"));
}

#[test]
fn waits_are_warnings_after_15_minutes_despite_restarts() {
    let of = |cycle| Unmet { message: "waits for module 'quay'".into(), apis: false, cycle };
    let due = at(100) + WAIT_DEADLINE;
    let early = wait_report(&of(false), at(100), WAIT_DEADLINE, None, at(200));
    assert_eq!((early.state, early.recheck_at), (State::Processing, Some(due)));
    assert_eq!(early.message, "waits for module 'quay'; since 1970-01-01T00:01:40Z");
    // After a restart.
    let external = format!("Beacon default: no light; its update {}", early.message);
    for reported in [early.message.clone(), format!("its update {}", early.message), external] {
        let again =
            wait_report(&of(false), at(700), WAIT_DEADLINE, Some((State::Processing, &reported)), at(700));
        assert_eq!((again.recheck_at, &again.message), (Some(due), &early.message));
    }
    let other = wait_report(
        &of(false),
        at(700),
        WAIT_DEADLINE,
        Some((State::Processing, "Beacon: dark; since 1970-01-01T00:01:40Z")),
        at(700),
    );
    assert_eq!(other.recheck_at, Some(at(700) + WAIT_DEADLINE), "something else was said");
    let late = wait_report(&of(false), at(100), WAIT_DEADLINE, Some((State::Processing, "waits for")), due);
    assert_eq!((late.state, late.recheck_at), (State::Warning, None));
    assert_eq!(
        wait_report(&of(false), at(100), WAIT_DEADLINE, Some((State::Warning, "waits for x")), at(101)).state,
        State::Warning
    );
    assert_eq!(
        wait_report(&of(false), at(100), WAIT_DEADLINE, Some((State::Warning, "other")), at(101)).state,
        State::Processing
    );
    let before = |reported| {
        wait_report(&of(false), at(100), WAIT_DEADLINE, Some((State::Warning, reported)), at(101)).state
    };
    assert_eq!(before("its update waits for module 'quay'"), State::Warning);
    let own = "Beacon default: no light; its update waits for module 'quay'";
    assert_eq!(before(own), State::Processing, "the warning was about something else");
    assert_eq!(wait_report(&of(true), at(100), WAIT_DEADLINE, None, at(100)).state, State::Warning);
}

proptest! {
    #[test]
    fn every_requirement_graph_terminates(edges in prop::collection::btree_set((0..7_usize, 0..7_usize), 0..14)) {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let modules: Vec<(&str, Value)> = (0..7)
            .map(|n| {
                let others: Vec<&str> = edges.iter().filter(|(from, _)| *from == n).map(|(_, to)| names[*to]).collect();
                (names[n], json!({"modules": others}))
            })
            .collect();
        let listed_modules = listed_modules(&modules);
        let mut manifests: Vec<Manifest> = Vec::new();
        loop {
            let waiting = unmet(&listed_modules, &manifests, &BTreeSet::new());
            let next = names.iter().find(|name| {
                !waiting.contains_key(**name) && !manifests.iter().any(|m| m.module_name() == Some(**name))
            });
            match next {
                Some(name) => manifests.push(manifest(name, "2.0.0", "Ready")),
                None => {
                    prop_assert_eq!(waiting.len() + manifests.len(), 7);
                    prop_assert!(waiting.is_empty() || waiting.values().any(|unmet| unmet.cycle));
                    break;
                }
            }
        }
    }
}

#[test]
fn required_modules_are_listed_even_if_absent() {
    let modules = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let listed_modules = listed_modules(&[
        ("beacon", json!({"modules": ["guard", "istio"]})),
        (
            "buoy",
            json!({"modules": ["guard"], "apis": [{"group": "x.dev", "version": "v1", "kind": "Beam"}]}),
        ),
        ("quay", Value::Null),
    ]);
    assert_eq!(required(&listed_modules), modules(&["guard", "istio"]));
    assert_eq!(required(&[]), modules(&[]));
}
