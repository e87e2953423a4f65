use std::collections::BTreeMap;

use serde_json::json;
use tidewatch_api::{
    CustomResourcePolicy, ManifestStatus, Module, SourceType,
    names::{annotations, conditions, labels},
};

use super::*;
use crate::{
    manifest::default_cr,
    notice::Kind,
    versions::{
        choose,
        fixtures::{FakeCatalog, catalog},
    },
    watches::RequiredKinds,
};

mod adopted;
mod convergence;
mod deleting;
mod failed;
mod gates;
mod managed;
mod mandatory;
mod running;
mod templates;

fn kyma() -> Kyma {
    serde_json::from_value(json!({
        "metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "kyma-uid", "generation": 3,
                     "labels": {"kyma-project.io/runtime-id": "r-1"}},
        "spec": {"channel": "regular"}
    }))
    .unwrap()
}

fn wanted(modules: &[&str]) -> KymaSpec {
    let modules = modules.iter().map(|name| Module { name: (*name).into(), ..Module::default() }).collect();
    KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() }
}

fn source() -> Source {
    Source {
        further: BTreeMap::new(),
        repo: "localhost:5000".into(),
        layer: "sha256:aa".into(),
        type_: SourceType::OciDir,
        images: vec!["example.local/lighthouse:1.0.0".into()],
    }
}

fn sources() -> Sources {
    sources_read(Ok)
}

fn sources_read(read: impl Fn(Source) -> Result<Source, SourceFault>) -> Sources {
    let of = |(version, layer): (&str, &str)| {
        let (component, version) = ("tidewatch.dev/module/lighthouse".into(), version.into());
        let key = ComponentVersion { component, version, registry: None, local: false };
        (key, read(Source { layer: layer.into(), ..source() }))
    };
    [("1.0.0", "sha256:aa"), ("1.1.0", "sha256:bb")].map(of).into_iter().collect()
}

fn run(wanted: &KymaSpec, manifests: &[Manifest]) -> Plan {
    run_with(wanted, manifests, &sources())
}

fn run_with(wanted: &KymaSpec, manifests: &[Manifest], sources: &Sources) -> Plan {
    plan_of(&kyma(), wanted, &catalog(), manifests, sources)
}

fn plan_of(
    kyma: &Kyma,
    wanted: &KymaSpec,
    catalog: &FakeCatalog,
    manifests: &[Manifest],
    sources: &Sources,
) -> Plan {
    plan(&Input {
        kyma,
        wanted,
        modules: &choose(wanted, catalog, &[]),
        sources,
        manifests,
        facts: Facts::default(),
        now: Timestamp::UNIX_EPOCH,
    })
}

fn installed(state: State) -> Manifest {
    let mut manifest = run(&wanted(&["lighthouse"]), &[]).apply.remove(0);
    manifest.metadata.generation = Some(1);
    let condition = |type_: &str| {
        json!({"type": type_, "status": "True", "reason": "Ready", "message": "", "observedGeneration": 1,
               "lastTransitionTime": "1970-01-01T00:00:00Z"})
    };
    let mut status: ManifestStatus = serde_json::from_value(json!({
        "state": "Ready", "conditions": [condition("Resources"), condition("Installation")],
        "lastOperation": {"operation": "resources are ready", "lastUpdateTime": "1970-01-01T00:00:00Z"}}))
    .unwrap();
    status.state = state;
    manifest.status = Some(status);
    manifest
}

#[test]
fn an_enabled_module_becomes_a_manifest() {
    let plan = run(&wanted(&["lighthouse"]), &[]);
    assert_eq!(plan.status.state, State::Processing);
    insta::assert_yaml_snapshot!(
        "enabled",
        json!({"apply": plan.apply, "delete": plan.delete, "status": plan.status})
    );
}

#[test]
fn a_manifest_is_created_in_its_kymas_namespace() {
    let mut kyma = kyma();
    kyma.metadata.namespace = Some("elsewhere".into());
    let (wanted, sources) = (wanted(&["lighthouse"]), sources());
    let listed_modules = choose(&wanted, &catalog(), &[]);
    let now = Timestamp::UNIX_EPOCH;
    let input = Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &listed_modules,
        sources: &sources,
        manifests: &[],
        facts: Facts::default(),
        now,
    };
    let plan = plan(&input);
    assert_eq!(plan.apply[0].namespace().as_deref(), Some("elsewhere"));
    let tracked = plan.status.modules[0].manifest.clone().unwrap();
    assert_eq!(tracked.metadata.unwrap().namespace, "elsewhere");
}

#[test]
fn a_ready_module_makes_a_ready_kyma_without_writes() {
    let plan = run(&wanted(&["lighthouse"]), &[installed(State::Ready)]);
    assert!(plan.apply.is_empty() && plan.delete.is_empty() && !plan.retry);
    assert_eq!(plan.status.state, State::Ready);
    insta::assert_yaml_snapshot!("ready_runtime_status", runtime_status(&plan.status));
}

#[test]
fn a_status_of_an_older_generation_does_not_count() {
    let mut manifest = installed(State::Ready);
    manifest.metadata.generation = Some(2);
    let plan = run(&wanted(&["lighthouse"]), &[manifest]);
    assert_eq!(plan.status.modules[0].state, State::Processing);
}

#[test]
fn a_channel_change_updates_the_manifest() {
    let mut wanted = wanted(&["lighthouse"]);
    wanted.modules[0].channel = Some("fast".into());
    let plan = run(&wanted, &[installed(State::Ready)]);
    assert_eq!(plan.apply[0].spec.version, "1.1.0");
    assert_eq!(plan.apply[0].name_any(), installed(State::Ready).name_any(), "the same Manifest");
    assert_eq!(plan.status.modules[0].state, State::Processing);
}

#[test]
fn a_label_only_change_keeps_the_module_ready() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::CHANNEL.into(), "fast".into());
    let plan = run(&wanted(&["lighthouse"]), &[manifest]);
    assert_eq!(plan.apply.len(), 1, "the label is set right");
    assert_eq!((plan.status.modules[0].state, plan.status.state), (State::Ready, State::Ready));
}

#[test]
fn a_removed_module_is_shown_as_deleting_until_gone() {
    let plan = run(&wanted(&[]), &[installed(State::Ready)]);
    assert_eq!(plan.delete, [installed(State::Ready).name_any()]);
    assert_eq!(plan.status.modules[0].state, State::Deleting);
    assert_eq!(plan.status.state, State::Processing);
    let plan = run(&wanted(&[]), &[]);
    assert_eq!((plan.status.state, plan.status.modules.len()), (State::Ready, 0));
}

#[test]
fn a_mandatory_manifest_is_not_deleted_by_the_list() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
    manifest.labels_mut().insert(labels::MODULE_NAME.into(), "guard".into());
    assert!(run(&wanted(&[]), &[manifest]).delete.is_empty());
}

#[test]
fn a_formerly_mandatory_module_is_adopted_by_the_list() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
    let plan = run(&wanted(&["lighthouse"]), &[manifest]);
    assert_eq!(plan.status.modules[0].state, State::Ready);
    assert!(plan.delete.is_empty() && !plan.apply[0].is_mandatory());
}

#[test]
fn a_bad_module_does_not_block_a_good_one() {
    let plan = run(&wanted(&["nothere", "lighthouse"]), &[]);
    assert_eq!(plan.apply.len(), 1);
    assert_eq!(plan.status.state, State::Error);
    assert!(plan.status.last_operation.unwrap().operation.contains("no module 'nothere'"));
    assert!(!plan.retry, "only a change of the catalog can mend it");
}

#[test]
fn an_unreadable_descriptor_keeps_the_installed_version() {
    let fault = SourceFault {
        message: "registry answers 503; next try within 5 min".into(),
        retryable: true,
        retry_after: None,
    };
    let sources = sources_read(|_| Err(fault.clone()));
    let plan = run_with(&wanted(&["lighthouse"]), &[installed(State::Ready)], &sources);
    assert_eq!(plan.status.state, State::Ready, "its Manifest says all that the descriptor would");
    assert!(!plan.retry && plan.delete.is_empty() && plan.apply.is_empty());
    let mut ignored = wanted(&["lighthouse"]);
    ignored.modules[0].custom_resource_policy = CustomResourcePolicy::Ignore;
    let plan = run_with(&ignored, &[installed(State::Ready)], &sources);
    assert_eq!(
        plan.apply[0].spec.install,
        installed(State::Ready).spec.install,
        "what its user changes comes"
    );
    let mut newer = wanted(&["lighthouse"]);
    newer.modules[0].channel = Some("fast".into());
    let plan = run_with(&newer, &[installed(State::Ready)], &sources);
    assert!(plan.retry && plan.delete.is_empty() && plan.apply.is_empty());
    assert_eq!(plan.status.modules[0].state, State::Warning);
    let plan = run_with(&wanted(&["lighthouse"]), &[], &sources);
    assert_eq!(plan.status.modules[0].state, State::Error);
}

#[test]
fn policy_ignore_creates_no_default_cr() {
    let mut wanted = wanted(&["lighthouse"]);
    wanted.modules[0].custom_resource_policy = CustomResourcePolicy::Ignore;
    let made = run(&wanted, &[]).apply.remove(0);
    assert_eq!(default_cr(&made), None, "it is its user's, and stays when the module goes");
    assert_eq!(
        made.spec.resource,
        installed(State::Ready).spec.resource,
        "the Go manager finds users' objects by it"
    );
    let kept_manifest = crate::blockers::declared(&made).unwrap();
    assert!(
        kept_manifest.iter().any(|kind| kind.kind == "Beacon"),
        "it holds the module back: {kept_manifest:?}"
    );
    assert!(
        RequiredKinds::of([&made]) == RequiredKinds::default(),
        "what it says of itself is nobody's business"
    );
    let mut present = made.clone();
    present.metadata.generation = Some(1);
    let planned = run(&wanted, std::slice::from_ref(&present));
    assert!(planned.apply.is_empty() && planned.status.modules[0].resource.is_none());
}

#[test]
fn a_default_cr_omitted_under_ignore_is_written_once() {
    let mut wanted = wanted(&["lighthouse"]);
    wanted.modules[0].custom_resource_policy = CustomResourcePolicy::Ignore;
    let made = run(&wanted, &[]).apply.remove(0);
    let mut before = made.clone();
    before.spec.resource = None;
    let terms =
        json!({"associatedResources": [{"group": "demo.tidewatch.dev", "version": "v1", "kind": "Beacon"}]});
    before.annotations_mut().insert(annotations::MODULE_TERMS.into(), terms.to_string());
    assert_eq!(run(&wanted, &[before]).apply, [made]);
}

#[test]
fn planning_twice_changes_nothing() {
    let first = run(&wanted(&["lighthouse"]), &[installed(State::Ready)]);
    let mut kyma = kyma();
    kyma.status = Some(first.status.clone());
    let wanted = wanted(&["lighthouse"]);
    let listed_modules = choose(&wanted, &catalog(), &[]);
    let manifests = [installed(State::Ready)];
    let later = Timestamp::from_second(1_000_000).unwrap();
    let sources = sources();
    let input = Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &listed_modules,
        sources: &sources,
        manifests: &manifests,
        facts: Facts::default(),
        now: later,
    };
    assert_eq!(plan(&input).status, first.status, "no timestamp moves when nothing happens");
}

#[test]
fn a_failed_reconcile_sets_the_modules_condition() {
    let mut kyma = kyma();
    kyma.status = Some(run(&wanted(&["lighthouse"]), &[installed(State::Ready)]).status);
    let failed = failed_status(&kyma, &[], "the runtime does not answer".into(), Timestamp::UNIX_EPOCH);
    let modules = failed.conditions.iter().find(|c| c.type_ == conditions::MODULES).unwrap();
    assert_eq!((modules.status.as_str(), modules.message.as_str()), ("False", "the runtime does not answer"));
    assert_eq!(failed.conditions.len(), 2, "the other condition is kept");
    assert_eq!(failed.modules.len(), 1, "what is installed is not forgotten");
}

#[test]
fn a_manifest_gains_and_loses_its_templates_terms() {
    let bare = installed(State::Ready);
    assert!(bare.annotations().get(annotations::MODULE_TERMS).is_none(), "nothing to say");
    let mut reported = bare.clone();
    reported.annotations_mut().insert(annotations::MODULE_TERMS.into(), r#"{"sources":["more"]}"#.into());
    let removed = run(&wanted(&["lighthouse"]), &[reported]);
    assert_eq!(removed.apply.len(), 1);
    assert!(removed.apply[0].annotations().get(annotations::MODULE_TERMS).is_none());
    let mut catalog = catalog();
    let mut template = catalog.templates["lighthouse-1.0.0"].as_ref().clone();
    template.spec.progress_deadline_seconds = Some(90);
    catalog.templates.insert("lighthouse-1.0.0".into(), Arc::new(template));
    let (kyma, wanted, sources) = (kyma(), wanted(&["lighthouse"]), sources());
    let listed_modules = choose(&wanted, &catalog, &[]);
    let (facts, now) = (Facts::default(), Timestamp::UNIX_EPOCH);
    let manifests = [bare];
    let input = Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &listed_modules,
        sources: &sources,
        manifests: &manifests,
        facts,
        now,
    };
    let applied = &plan(&input).apply[0];
    assert_eq!(applied.terms().unwrap().progress_deadline_seconds, Some(90));
}

fn after(gate: GateDecision, existing: Option<&Manifest>) -> (ModuleStatus, Plan) {
    let listed_modules = choose(&wanted(&["lighthouse"]), &catalog(), &[]);
    let mut plan = Plan::default();
    let status = stopped_status(gate, None, &listed_modules[0], existing, &mut plan);
    (status, plan)
}

#[test]
fn a_keeping_gate_changes_nothing_and_gives_its_reason() {
    let gate = |installed| {
        let message = "waits for the window".to_owned();
        let gate =
            GateDecision::Keep { state: State::Processing, message, maintenance: true, retry_at: None };
        after(gate, installed)
    };
    let old = installed(State::Ready);
    let (status, plan) = gate(Some(&old));
    assert_eq!(plan, Plan::default(), "nothing is written");
    assert_eq!((status.version.as_str(), status.maintenance), (old.spec.version.as_str(), true));
    assert!(status.manifest.is_some());
    let (status, plan) = gate(None);
    assert_eq!((status.version.as_str(), status.state, plan), ("", State::Processing, Plan::default()));
}

#[test]
fn a_removing_gate_deletes_once() {
    let gate = || GateDecision::Remove { message: "not for this Kyma".into() };
    let mut old = installed(State::Ready);
    let (status, plan) = after(gate(), Some(&old));
    assert_eq!((status.state, status.message.as_str()), (State::Deleting, "not for this Kyma"));
    assert_eq!(plan.delete, [old.name_any()]);
    old.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(after(gate(), Some(&old)).1, Plan::default(), "it is on its way");
    let (status, plan) = after(gate(), None);
    assert_eq!((status.state, plan), (State::Error, Plan::default()));
}

#[test]
fn an_unmanaged_module_shows_only_its_state() {
    let (status, plan) = after(GateDecision::Unmanage { state: State::Unmanaged }, None);
    let expected =
        ModuleStatus { name: "lighthouse".into(), state: State::Unmanaged, ..ModuleStatus::default() };
    assert_eq!((status, plan), (expected, Plan::default()));
}

#[test]
fn each_change_is_one_decision() {
    let parts = |plan: &Plan| -> Vec<(&str, String, String)> {
        plan.decisions.iter().map(|d| (d.kind.label(), d.from.0.clone(), d.to.0.clone())).collect()
    };
    let requested = wanted(&["lighthouse"]);
    let entry = |cause, from: &str, to: &str| (cause, from.to_owned(), to.to_owned());
    assert_eq!(parts(&run(&requested, &[])), [entry("install", "", "1.0.0")]);
    let fast = KymaSpec { channel: "fast".into(), ..requested.clone() };
    assert_eq!(parts(&run(&fast, &[installed(State::Ready)])), [entry("upgrade", "1.0.0", "1.1.0")]);
    assert_eq!(parts(&run(&wanted(&[]), &[installed(State::Ready)])), [entry("remove", "1.0.0", "")]);
    let first = run(&requested, &[installed(State::Ready)]);
    assert_eq!(parts(&first), [entry("state", "1.0.0", "1.0.0")], "it is Ready now");
    let kyma = Kyma { status: Some(first.status), ..kyma() };
    let (listed_modules, sources, manifests) =
        (choose(&requested, &catalog(), &[]), sources(), [installed(State::Ready)]);
    let now = Timestamp::UNIX_EPOCH;
    let input = Input {
        kyma: &kyma,
        wanted: &requested,
        modules: &listed_modules,
        sources: &sources,
        manifests: &manifests,
        facts: Facts::default(),
        now,
    };
    assert_eq!(parts(&plan(&input)), []);
}

#[test]
fn a_deleting_kyma_stays_deleting_on_failure() {
    let first = run(&wanted(&["lighthouse"]), &[installed(State::Ready)]);
    let mut kyma = Kyma { status: Some(first.status.clone()), ..kyma() };
    kyma.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let failed = failed_status(&kyma, &[], "no answer".into(), Timestamp::UNIX_EPOCH);
    assert_eq!(failed.state, State::Deleting);
    assert_eq!(failed.last_operation.unwrap().operation, "no answer", "what fails is said");
    assert_eq!(failed.conditions, first.status.conditions, "nothing is known about the modules");
}

#[test]
fn a_pinned_version_shows_no_channel() {
    let mut requested = wanted(&["lighthouse"]);
    requested.modules[0].version = Some("1.1.0".into());
    let plan = run(&requested, &[]);
    let module = &plan.status.modules[0];
    assert_eq!((module.version.as_str(), module.channel.as_str()), ("1.1.0", ""));
    assert_eq!(plan.apply[0].labels()[labels::CHANNEL], "");
    assert_eq!(plan.decisions[0].reason, "version asked for");
}

#[test]
fn a_downgrade_leaves_the_manifest_unchanged() {
    let mut newer = installed(State::Ready);
    newer.spec.version = "1.2.0".into();
    let plan = run(&wanted(&["lighthouse"]), &[newer]);
    assert_eq!((plan.apply.len(), plan.delete.len()), (0, 0));
    let module = &plan.status.modules[0];
    assert_eq!((module.version.as_str(), module.state), ("1.2.0", State::Warning));
    assert_eq!(plan.status.state, State::Warning);
}

#[test]
fn a_runtime_template_marks_its_manifest_and_source_key() {
    let template = json!({"metadata": {"name": "raft-mine", "namespace": "kyma-system", "generation": 1}, "spec": {
        "moduleName": "raft", "channel": "regular", "version": "0.1.0",
        "descriptor": {"component": {"name": "tidewatch.dev/module/raft", "version": "0.1.0"}}}});
    let local = [Arc::new(serde_json::from_value(template).unwrap())];
    let (kyma, requested) = (kyma(), wanted(&["raft"]));
    let listed_modules = choose(&requested, &catalog(), &local);
    let key = ComponentVersion::of(listed_modules[0].outcome.as_ref().unwrap());
    assert!(key.local);
    let source = Source { layer: "sha256:cc".into(), ..source() };
    let sources = Sources::from_iter([(key, Ok(source))]);
    let (facts, now) = (Facts::default(), Timestamp::UNIX_EPOCH);
    let plan = plan(&Input {
        kyma: &kyma,
        wanted: &requested,
        modules: &listed_modules,
        sources: &sources,
        manifests: &[],
        facts,
        now,
    });
    assert!(plan.apply[0].is_of_runtime_template());
    let metadata = plan.status.modules[0].template.clone().unwrap().metadata.unwrap();
    assert_eq!(metadata.namespace, "kyma-system");
    assert!(!installed(State::Ready).is_of_runtime_template());
}

#[test]
fn a_refused_crd_sets_the_crds_condition() {
    let mut kyma = kyma();
    kyma.status = Some(run(&wanted(&["lighthouse"]), &[installed(State::Ready)]).status);
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let status = crds_failed_status(&kyma, &[], "applying the CRD was refused".into(), now);
    let text = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_).unwrap();
    assert_eq!(text(conditions::CRDS_SYNC).status, "False");
    assert!(text(conditions::CRDS_SYNC).message.contains("was refused"));
    assert_eq!((text(conditions::MODULES).status.as_str(), status.state), ("False", State::Error));
    assert_eq!(status.conditions.len(), 2);
    // Another failure proves nothing about CRDs.
    let failed = failed_status(&kyma, &[], "timeout".into(), now);
    assert!(failed.conditions.iter().any(|c| c.type_ == conditions::CRDS_SYNC && c.status == "True"));
    kyma.status = None;
    assert_eq!(crds_failed_status(&kyma, &[], "x".into(), now).conditions.len(), 2);
}
