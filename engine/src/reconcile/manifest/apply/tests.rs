use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tidewatch_deployer::{definitions::Sorted, transform};

use super::*;
use crate::{
    clusters::RuntimeClient,
    gate::Gate,
    key::{Acknowledge, Guard},
    queue::{Class, Push, Tick},
    reconcile::{
        Version,
        echoes::{Completeness, Filtered},
    },
    scripted::{self, stored},
};

/// How the scripted API server treats an applied Beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Schema {
    /// Drops unknown fields.
    Old,
    /// Refuses it.
    Strict,
    New,
}

fn crd() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "beacons.x.dev"},
           "spec": {"group": "x.dev", "names": {"kind": "Beacon"}}})
}

fn beacon() -> Value {
    json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "a", "namespace": "n"}, "spec": {"old": "1", "new": "2"}})
}

fn runtime(schema: Arc<Mutex<Schema>>) -> Gated {
    runtime_with(schema, false)
}

/// `established`: CRDs are served.
fn runtime_with(schema: Arc<Mutex<Schema>>, established: bool) -> Gated {
    scripted::runtime(move |asked| match asked.path.as_str() {
        "/apis/apiextensions.k8s.io/v1" => scripted::definitions(),
        "/apis/x.dev/v1" => scripted::kinds("x.dev/v1", "beacons", "Beacon", true),
        path if asked.is_read() && path.contains("/customresourcedefinitions/") => {
            let holds = |type_: &str| json!({"type": type_, "status": "True"});
            let mut crd = stored(crd());
            crd["metadata"]["resourceVersion"] = "2".into();
            if established {
                crd["status"] = json!({"conditions": [holds("Established"), holds("NamesAccepted")]});
            }
            (200, crd)
        }
        path if path.contains("/namespaces/leaving/") && !asked.is_read() => {
            let cause = json!({"reason": "NamespaceTerminating", "message": "leaving", "field": "metadata.namespace"});
            scripted::refused_for(403, "Forbidden", "no", &json!({"causes": [cause]}))
        }
        path if path.contains("/beacons/") => match *schema.lock() {
            Schema::New => (200, stored(asked.body.clone())),
            Schema::Old => {
                let mut applied = asked.body.clone();
                applied["spec"].as_object_mut().unwrap().remove("new");
                (200, stored(applied))
            }
            Schema::Strict => scripted::refused(422, "Invalid", "spec.new: unknown"),
        },
        _ => (200, stored(asked.body.clone())),
    })
}

async fn install(runtime: &Gated, states: &AppliedStates, objects: Vec<Value>, second: i64) -> Applied {
    let beside = Beside::default();
    installer(runtime, states, &beside, second).apply_all(objects).await
}

struct Beside {
    terms: ModuleTerms,
    definitions: Definitions,
    echoes: EchoFilter,
    key: WorkKey,
}

impl Default for Beside {
    fn default() -> Self {
        let key = WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() };
        let definitions = Definitions::of(&[crd()]);
        Self { terms: ModuleTerms::default(), definitions, echoes: EchoFilter::default(), key }
    }
}

fn installer<'a>(
    runtime: &'a Gated,
    states: &'a AppliedStates,
    Beside { terms, definitions, echoes, key }: &'a Beside,
    second: i64,
) -> Installer<'a> {
    Installer {
        runtime,
        states,
        shared: &[],
        predecessors: &[],
        echoes,
        key,
        kyma: "harbour",
        before: &[],
        removed: &[],
        terms,
        facts: Facts::default(),
        was_ready: false,
        jobs_completed: false,
        warned: false,
        definitions,
        unanswered: Unanswered::default(),
        now: Timestamp::from_second(second).unwrap(),
    }
}

/// A runtime with or without this Job, and its count of creations.
fn jobs(live: Arc<Mutex<Option<Value>>>) -> (Gated, Arc<Mutex<usize>>) {
    let made = Arc::new(Mutex::new(0));
    let recorder = Arc::clone(&made);
    let runtime = scripted::runtime(move |asked| match live.lock().clone() {
        _ if asked.path == "/apis/batch/v1" => scripted::kinds("batch/v1", "jobs", "Job", true),
        Some(live) if asked.is_read() => (200, live),
        None if asked.is_read() => scripted::not_found(),
        _ => {
            *recorder.lock() += 1;
            (200, stored(job()))
        }
    });
    (runtime, made)
}

fn job() -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "n"}, "spec": {"ttlSecondsAfterFinished": 60}})
}

#[tokio::test]
async fn a_job_deleted_by_its_ttl_never_reruns() {
    let live = Arc::new(Mutex::new(None));
    let ((runtime, made), states, beside) =
        (jobs(Arc::clone(&live)), AppliedStates::default(), Beside::default());
    let before = [ObjectRef::of(&job()).unwrap()];
    let pass = async |jobs_completed: bool, wanted: Value| {
        let installer =
            Installer { before: &before, jobs_completed, ..installer(&runtime, &states, &beside, 100) };
        let applied = installer.apply_all(vec![wanted]).await;
        assert!(applied.failed.is_none() && applied.judged.len() == 1, "{:?}", applied.judged);
        (*made.lock(), applied.judged[0].1 == ObjectReadiness::Ready)
    };
    assert_eq!(pass(false, job()).await, (1, false), "nobody has seen it end");
    assert_eq!(pass(true, job()).await, (1, true), "the module was ready with it");
    let mut done = stored(job());
    done["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    *live.lock() = Some(done);
    assert_eq!(pass(false, job()).await, (1, true));
    *live.lock() = None;
    assert_eq!(pass(false, job()).await, (1, true), "it was seen complete");
    let mut labelled = job();
    labelled["metadata"]["labels"] = json!({"version": "2"});
    assert_eq!(pass(false, labelled).await, (1, true), "the next version, in which it is the same");
    let mut another = job();
    another["spec"]["backoffLimit"] = 3.into();
    assert_eq!(pass(false, another).await, (2, false), "another version of it");
    let mut stays = job();
    stays["spec"].as_object_mut().unwrap().remove("ttlSecondsAfterFinished");
    assert_eq!(pass(true, stays).await, (3, false), "somebody has deleted it");
}

/// The number of creations and the readiness after a pass.
async fn pass_over(
    (runtime, made): &(Gated, Arc<Mutex<usize>>),
    states: &AppliedStates,
    wanted: Value,
) -> (usize, Option<bool>) {
    let (beside, before) = (Beside::default(), [ObjectRef::of(&job()).unwrap()]);
    let applied = Installer { before: &before, ..installer(runtime, states, &beside, 100) }
        .apply_all(vec![wanted])
        .await;
    assert!(applied.failed.is_none());
    let ready = applied.judged.first().map(|(_, judged)| *judged == ObjectReadiness::Ready);
    (*made.lock(), ready)
}

fn living(condition: Option<&str>, leaves: bool) -> Value {
    let mut live = stored(job());
    if let Some(condition) = condition {
        live["status"] = json!({"conditions": [{"type": condition, "status": "True"}]});
    }
    if leaves {
        live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    live
}

#[tokio::test]
async fn a_job_with_an_unobserved_end_runs_once() {
    let (live, states) = (Arc::new(Mutex::new(None)), AppliedStates::default());
    let jobs = jobs(Arc::clone(&live));
    assert_eq!(pass_over(&jobs, &states, job()).await, (1, Some(false)), "it is made");
    assert_eq!(pass_over(&jobs, &states, job()).await, (1, Some(true)), "and has gone by itself");
    let mut another = job();
    another["spec"]["backoffLimit"] = 3.into();
    assert_eq!(pass_over(&jobs, &states, another.clone()).await, (2, Some(false)), "another version of it");
    // The previous Job's end does not count for the wanted one.
    *live.lock() = Some(living(Some("Complete"), true));
    let mut third = another;
    third["spec"]["backoffLimit"] = 4.into();
    assert_eq!(
        pass_over(&jobs, &states, third.clone()).await,
        (2, None),
        "it waits for the end of the other"
    );
    *live.lock() = None;
    assert_eq!(pass_over(&jobs, &states, third).await, (3, Some(false)));
}

#[tokio::test]
async fn a_terminating_jobs_result_counts() {
    for (condition, is_ready) in
        [("Complete", true), ("SuccessCriteriaMet", true), ("Failed", false), ("FailureTarget", false)]
    {
        let (live, states) =
            (Arc::new(Mutex::new(Some(living(Some(condition), true)))), AppliedStates::default());
        let jobs = jobs(Arc::clone(&live));
        assert_eq!(pass_over(&jobs, &states, job()).await, (0, Some(is_ready)), "{condition}");
        *live.lock() = None;
        for _ in 0..3 {
            assert_eq!(
                pass_over(&jobs, &states, job()).await,
                (0, Some(is_ready)),
                "{condition}: it runs once"
            );
        }
    }
}

#[tokio::test]
async fn a_job_deleted_before_its_end_is_recreated() {
    let (live, states) = (Arc::new(Mutex::new(Some(living(None, false)))), AppliedStates::default());
    let jobs = jobs(Arc::clone(&live));
    assert_eq!(pass_over(&jobs, &states, job()).await, (0, Some(false)), "it runs");
    *live.lock() = Some(living(None, true));
    assert_eq!(pass_over(&jobs, &states, job()).await, (0, None), "it goes");
    *live.lock() = None;
    assert_eq!(pass_over(&jobs, &states, job()).await, (1, Some(false)));
}

#[tokio::test]
async fn stops_between_phases_when_the_manifest_becomes_unmanaged() {
    let (runtime, states, beside) =
        (runtime(Arc::new(Mutex::new(Schema::New))), AppliedStates::default(), Beside::default());
    let asked = Mutex::new(0);
    let may_continue = || {
        let mut asked = asked.lock();
        *asked += 1;
        *asked < 2
    };
    let (installer, map) = (
        installer(&runtime, &states, &beside, 100),
        json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b", "namespace": "n"}}),
    );
    let applied = installer.phases([vec![crd()], vec![map], vec![beacon()]], Vec::new(), &may_continue).await;
    assert_eq!(*asked.lock(), 2, "before each phase");
    assert!(matches!(applied.failed, Some(Error::Outdated(_))) && applied.judged.is_empty());
}

#[tokio::test]
async fn ignored_fields_are_kept_on_objects_of_another_manifest() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&written);
    let runtime = scripted::runtime(move |asked| match asked.path.as_str() {
        "/apis/x.dev/v1" => scripted::kinds("x.dev/v1", "beacons", "Beacon", true),
        _ if asked.is_read() => {
            let mut theirs = beacon();
            theirs["spec"]["old"] = "theirs".into();
            (200, stored(theirs))
        }
        _ => {
            recorder.lock().push(asked.body["spec"].clone());
            (200, stored(asked.body.clone()))
        }
    });
    let (states, mut beside) = (AppliedStates::default(), Beside::default());
    let ignored = json!({"group": "x.dev", "kind": "Beacon", "paths": ["/spec/old"]});
    beside.terms.ignore_fields.push(serde_json::from_value(ignored).unwrap());
    let mut wanted = beacon();
    wanted["spec"]["new"] = "3".into();
    let applied = installer(&runtime, &states, &beside, 100).apply_all(vec![wanted]).await;
    assert!(applied.failed.is_none());
    assert_eq!(*written.lock(), [json!({"old": "theirs", "new": "3"})]);
}

/// A runtime with an immutable CRD marked for `owner`, so many instances, and its count of deletions.
fn rigid(beacons: Arc<Mutex<usize>>, owner: Option<&'static str>) -> (Gated, Arc<Mutex<usize>>) {
    let deleted = Arc::new(Mutex::new(0));
    let recorder = Arc::clone(&deleted);
    let runtime = scripted::runtime(move |asked| {
        let mut live = stored(crd());
        if let Some(owner) = owner {
            transform::mark(&mut live, ("kcp-system", owner));
        }
        live["spec"]["versions"] = json!([{"name": "v1", "served": true}]);
        match (asked.method.as_str(), asked.path.as_str()) {
            ("GET", "/apis/apiextensions.k8s.io/v1") => scripted::definitions(),
            ("GET", "/apis/x.dev/v1") => scripted::kinds("x.dev/v1", "beacons", "Beacon", true),
            ("GET", "/apis/x.dev/v1/beacons") => {
                let item = |n: usize| json!({"metadata": {"name": n.to_string(), "namespace": "n"}});
                let items: Vec<_> = (0..*beacons.lock()).map(item).collect();
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                                  "metadata": {}, "items": items});
                (200, list)
            }
            ("GET", _) => (200, live),
            ("DELETE", _) => {
                *recorder.lock() += 1;
                (200, live)
            }
            _ => scripted::refused(422, "Invalid", "spec.names.kind: Invalid value: field is immutable"),
        }
    });
    (runtime, deleted)
}

#[tokio::test]
async fn a_crd_with_instances_is_never_recreated() {
    let beacons = Arc::new(Mutex::new(1));
    let ((runtime, deleted), states, mut beside) =
        (rigid(Arc::clone(&beacons), Some("m")), AppliedStates::default(), Beside::default());
    let id = ObjectRef::of(&crd()).unwrap();
    beside.terms.recreate.push(GroupKind { group: id.gvk.group.clone(), kind: id.gvk.kind.clone() });
    let before = [id];
    let pass = async || {
        let mut wanted = crd();
        transform::mark(&mut wanted, ("kcp-system", "m"));
        wanted["spec"]["names"]["kind"] = "Buoy".into();
        Installer { before: &before, ..installer(&runtime, &states, &beside, 100) }
            .apply_all(vec![wanted])
            .await
    };
    let applied = pass().await;
    let told = applied.failed.map(|error| error.to_string()).unwrap_or_default();
    assert!(told.contains("objects of the kind that it defines would go with it"), "{told}");
    assert_eq!(*deleted.lock(), 0);
    *beacons.lock() = 0;
    let applied = pass().await;
    assert!(
        applied.failed.is_none()
            && applied.missing.is_some_and(|message| message.contains("is being made anew"))
    );
    assert_eq!(*deleted.lock(), 1);
}

#[tokio::test]
async fn objects_not_owned_by_the_module_are_never_recreated() {
    let id = ObjectRef::of(&crd()).unwrap();
    let mut wanted = crd();
    transform::mark(&mut wanted, ("kcp-system", "m"));
    wanted["spec"]["names"]["kind"] = "Buoy".into();
    let shared = [(id.clone(), "other".to_owned())];
    let predecessors = ["other".to_owned()];
    for (owner, shared, predecessors, whose) in [
        (None, &[][..], &[][..], Some("may be its user's")),
        (None, &[], &predecessors, Some("may be its user's")),
        (Some("other"), &[], &[], Some("carries the marks of kcp-system/other")),
        (Some("m"), &shared, &[], Some("the Manifest other has it, too")),
        // The module under another name.
        (Some("other"), &shared, &predecessors, None),
        (Some("m"), &shared, &predecessors, None),
    ] {
        let (runtime, deleted) = rigid(Arc::default(), owner);
        let (states, mut beside) = (AppliedStates::default(), Beside::default());
        beside.terms.recreate.push(GroupKind { group: id.gvk.group.clone(), kind: id.gvk.kind.clone() });
        let before = [id.clone()];
        let installer =
            Installer { before: &before, shared, predecessors, ..installer(&runtime, &states, &beside, 100) };
        let told = installer.apply_all(vec![wanted.clone()]).await.failed.map(|error| error.to_string());
        match whose {
            Some(whose) => assert!(told.as_ref().is_some_and(|told| told.contains(whose)), "{told:?}"),
            None => assert_eq!(told, None, "{owner:?}"),
        }
        assert_eq!(*deleted.lock(), usize::from(whose.is_none()), "{whose:?}");
    }
}

fn deployment(strategy: Value) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "n"},
                            "spec": {"strategy": strategy}});
    transform::mark(&mut object, ("kcp-system", "m"));
    object
}

/// A runtime whose Deployment cannot become `Recreate` while it has `rollingUpdate`, owned by `by`; and its requests.
fn rolling(by: Option<&'static str>) -> (Gated, Arc<Mutex<Vec<String>>>) {
    let mut live = stored(deployment(json!({"type": "RollingUpdate"})));
    live["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 1});
    if let Some(by) = by {
        let fields = json!({"f:spec": {"f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}}});
        let entry =
            json!({"manager": by, "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": fields});
        live["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
    }
    let (live, requests) = (Arc::new(Mutex::new(live)), Arc::new(Mutex::new(Vec::new())));
    let recorder = Arc::clone(&requests);
    let runtime = scripted::runtime(move |asked| {
        let mut live = live.lock();
        if asked.path.contains("/deployments/") {
            recorder.lock().push(format!("{} {}", asked.method, asked.content_type));
        }
        let ours = &live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:strategy"];
        let owns = !ours["f:rollingUpdate"].is_null();
        if asked.path == "/apis/apps/v1" {
            return scripted::kinds("apps/v1", "deployments", "Deployment", true);
        }
        if asked.content_type.contains("merge") {
            live["metadata"]["managedFields"] = asked.body["metadata"]["managedFields"].clone();
        } else if asked.content_type.contains("apply") && !owns {
            let field = "spec.strategy.rollingUpdate";
            let causes = json!([{"reason": "FieldValueForbidden", "message": "Forbidden", "field": field}]);
            let message = format!("{field}: Forbidden: may not be specified");
            return scripted::refused_for(422, "Invalid", &message, &json!({"causes": causes}));
        } else if asked.content_type.contains("apply") {
            *live = stored(asked.body.clone());
        }
        (200, live.clone())
    });
    (runtime, requests)
}

const APPLIES: &str = "PATCH application/apply-patch+yaml";
const OWNS: &str = "PATCH application/merge-patch+json";

#[tokio::test]
async fn a_refused_object_is_applied_without_its_unowned_fields() {
    for by in [None, Some("kubectl-client-side-apply")] {
        for known in [true, false] {
            let ((runtime, requests), states, beside) =
                (rolling(by), AppliedStates::default(), Beside::default());
            let wanted = deployment(json!({"type": "Recreate"}));
            let before = if known { vec![ObjectRef::of(&wanted).unwrap()] } else { Vec::new() };
            let applied = Installer { before: &before, ..installer(&runtime, &states, &beside, 100) }
                .apply_all(vec![wanted])
                .await;
            let failed = applied.failed.map(|error| error.to_string());
            assert_eq!((failed, applied.judged.len()), (None, 1), "{by:?}");
            let mut writes = requests.lock().clone();
            writes.retain(|line| line.starts_with("PATCH"));
            assert_eq!(writes, [APPLIES, OWNS, APPLIES], "{by:?}");
        }
    }
}

#[tokio::test]
async fn another_managers_field_is_named_or_forces_a_recreate() {
    let wanted = deployment(json!({"type": "Recreate"}));
    let before = [ObjectRef::of(&wanted).unwrap()];
    for recreate in [false, true] {
        let ((runtime, requests), states, mut beside) =
            (rolling(Some("scaler")), AppliedStates::default(), Beside::default());
        if recreate {
            beside.terms.recreate.push(GroupKind { group: "apps".into(), kind: "Deployment".into() });
        }
        let applied = Installer { before: &before, ..installer(&runtime, &states, &beside, 100) }
            .apply_all(vec![wanted.clone()])
            .await;
        let told = applied.failed.map(|error| error.to_string()).unwrap_or_default();
        let kept = "spec.strategy.rollingUpdate is the field manager's 'scaler'";
        assert_eq!(told.contains(kept) && told.contains("recreate"), !recreate, "{told}");
        assert_eq!(requests.lock().iter().any(|line| line.starts_with("DELETE")), recreate);
        assert!(!requests.lock().iter().any(|line| line == OWNS), "what is another's is not taken");
    }
}

#[tokio::test]
async fn an_object_waits_for_a_pruned_objects_value() {
    let runtime = scripted::runtime(|asked| match (asked.method.as_str(), asked.path.as_str()) {
        (_, "/api/v1") => scripted::kinds("v1", "services", "Service", true),
        ("GET", path) if path.ends_with("/old") => (200, json!({"spec": {"ports": [{"nodePort": 30080}]}})),
        ("GET", path) if path.ends_with("/other") => (200, json!({"spec": {"ports": [{"nodePort": 30081}]}})),
        ("GET", _) => scripted::not_found(),
        _ => {
            let cause = json!({"reason": "FieldValueInvalid", "field": "spec.ports[0].nodePort",
                               "message": "Invalid value: 30080: provided port is already allocated"});
            scripted::refused_for(422, "Invalid", "no", &json!({"causes": [cause]}))
        }
    });
    let named = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"},
               "spec": {"ports": [{"port": 80, "nodePort": 30080}]}})
    };
    let (states, beside) = (AppliedStates::default(), Beside::default());
    for (gone, waits) in [("old", true), ("other", false)] {
        let gone = [ObjectRef::of(&named(gone)).unwrap()];
        let installer = Installer { removed: &gone, ..installer(&runtime, &states, &beside, 100) };
        let applied = installer.apply_all(vec![named("new")]).await;
        assert_eq!(
            (applied.failed.is_none(), applied.missing.is_some()),
            (waits, waits),
            "{:?}",
            applied.missing
        );
    }
}

#[tokio::test]
async fn an_answer_by_the_old_schema_is_retried() {
    for first in [Schema::Old, Schema::Strict] {
        let schema = Arc::new(Mutex::new(first));
        let (runtime, states) = (runtime(Arc::clone(&schema)), AppliedStates::default());
        let applied = install(&runtime, &states, vec![crd()], 100).await;
        assert!(applied.missing.is_none() && applied.failed.is_none(), "{:?}", applied.missing);
        let applied = install(&runtime, &states, vec![beacon()], 100).await;
        assert_eq!(
            applied.missing.as_deref(),
            Some("waiting for the new schema of Beacon.x.dev n/a to be served"),
            "{first:?}"
        );
        assert!(applied.awaited.without_event && applied.failed.is_none() && applied.judged.is_empty());
        *schema.lock() = Schema::New;
        let applied = install(&runtime, &states, vec![beacon()], 101).await;
        assert!(applied.missing.is_none() && applied.failed.is_none() && applied.judged.len() == 1);
    }
}

#[tokio::test]
async fn old_answers_are_final_without_a_recent_crd_write() {
    for (crd_at, at) in [(None, 100), (Some(100), 110)] {
        let schema = Arc::new(Mutex::new(Schema::Old));
        let (runtime, states) = (runtime(Arc::clone(&schema)), AppliedStates::default());
        if let Some(second) = crd_at {
            install(&runtime, &states, vec![crd()], second).await;
        }
        let applied = install(&runtime, &states, vec![beacon()], at).await;
        assert!(
            applied.missing.is_none() && applied.judged.len() == 1,
            "what a schema leaves out it leaves out"
        );
        *schema.lock() = Schema::Strict;
        let applied = install(&runtime, &states, vec![beacon()], at).await;
        assert!(applied.failed.is_some_and(|error| error.to_string().contains("spec.new: unknown")));
    }
}

#[tokio::test]
async fn objects_wait_for_an_unserved_definition() {
    let (runtime, states) = (runtime(Arc::new(Mutex::new(Schema::New))), AppliedStates::default());
    let mut applied = install(&runtime, &states, vec![crd()], 100).await;
    let sorted = Definitions::of(&[crd()]).sort(vec![beacon()], &applied.judged);
    assert!(applied.take_served(sorted).is_empty());
    assert_eq!(applied.missing.as_deref(), Some("waiting for the kind Beacon.x.dev to be served"));
    assert_eq!(applied.awaited.status, [ObjectRef::of(&crd()).unwrap().gvk]);
    assert!(!applied.awaited.without_event, "its definition's next change of status is an event");
    // It may be established moments later, without a wait.
    for (established, served) in [(false, 0), (true, 1)] {
        let (runtime, states) =
            (runtime_with(Arc::new(Mutex::new(Schema::New)), established), AppliedStates::default());
        let mut applied = install(&runtime, &states, vec![crd()], 100).await;
        let beside = Beside::default();
        installer(&runtime, &states, &beside, 100).recheck_definitions(&mut applied).await;
        let sorted = beside.definitions.sort(vec![beacon()], &applied.judged);
        assert_eq!(applied.take_served(sorted).len(), served);
    }
}

struct Nobody;

impl Acknowledge for Nobody {
    fn finished(self: Box<Self>) {}
}

#[tokio::test]
async fn observes_the_last_read_version_of_a_definition() {
    let runtime = runtime_with(Arc::new(Mutex::new(Schema::New)), true);
    let (states, beside) = (AppliedStates::default(), Beside::default());
    beside.echoes.begin(&beside.key);
    let installer = installer(&runtime, &states, &beside, 100);
    let applied = installer.phases([vec![crd()], Vec::new(), vec![beacon()]], Vec::new(), &|| true).await;
    assert!(applied.is_clean() && applied.judged.len() == 2);
    beside.echoes.end(&beside.key, Completeness::Complete);
    let is_news = |object: &Value, resource_version: &str| {
        let id = ObjectRef::of(object).unwrap();
        let ask = Push { class: Class::UserEdit, trigger: None, guards: vec![Box::new(Nobody) as Guard] };
        let version = Version::Is { uid: "u", resource_version };
        matches!(beside.echoes.filter(&beside.key, &id, version, ask, Tick::ZERO), Filtered::Change(_))
    };
    assert!(!is_news(&crd(), "2") && is_news(&crd(), "3"));
    assert!(!is_news(&beacon(), "1") && is_news(&beacon(), "2"));
}

#[tokio::test]
async fn a_sync_waiting_for_a_definition_is_not_clean() {
    let runtime = runtime_with(Arc::new(Mutex::new(Schema::New)), false);
    let (states, beside) = (AppliedStates::default(), Beside::default());
    let installer = installer(&runtime, &states, &beside, 100);
    let applied = installer.phases([vec![crd()], Vec::new(), vec![beacon()]], Vec::new(), &|| true).await;
    assert!(applied.missing.is_some() && applied.has_skipped && !applied.is_clean());
    // Names not accepted: its objects are left out without a wait.
    let mut applied = Applied::default();
    assert!(applied.is_clean());
    applied.take_served(Sorted { waiting: 1, ..Sorted::default() });
    let mut all = Applied::default();
    all.take(applied);
    assert!(all.missing.is_none() && !all.is_clean());
}

#[tokio::test]
async fn objects_in_a_terminating_namespace_are_left_out() {
    let (runtime, states) = (runtime(Arc::new(Mutex::new(Schema::New))), AppliedStates::default());
    let mut leaving = beacon();
    leaving["metadata"]["namespace"] = "leaving".into();
    let applied = install(&runtime, &states, vec![leaving.clone(), beacon()], 100).await;
    assert!(applied.failed.is_none() && applied.missing.is_none() && !applied.is_clean());
    assert_eq!(applied.terminating, [ObjectRef::of(&leaving).unwrap()]);
    assert_eq!(applied.judged.len(), 1, "the other one is there");
    let mut all = Applied::default();
    all.take(applied);
    assert!(!all.is_clean(), "the next pass looks at all of them again");
}

#[tokio::test]
async fn an_object_needs_its_definition_to_be_ready() {
    let runtime = runtime(Arc::new(Mutex::new(Schema::New)));
    let (states, beside) = (AppliedStates::default(), Beside::default());
    let installer = installer(&runtime, &states, &beside, 100);
    let stood = vec![(ObjectRef::of(&crd()).unwrap(), ObjectReadiness::Ready)];
    let applied = installer.phases([Vec::new(), Vec::new(), vec![beacon()]], stood, &|| true).await;
    assert!(applied.is_clean() && applied.judged.len() == 1);
    // An unknown definition has no state.
    let applied = installer.phases([Vec::new(), Vec::new(), vec![beacon()]], Vec::new(), &|| true).await;
    assert!(!applied.is_clean() && applied.judged.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_answers_does_not_block_other_kinds() {
    let tried = Arc::new(Mutex::new(0));
    let count = Arc::clone(&tried);
    let client = scripted::client(move |asked| match asked.path.as_str() {
        "/apis/x.dev/v1" => Some(scripted::kinds("x.dev/v1", "beacons", "Beacon", true)),
        "/api/v1" => Some(scripted::kinds("v1", "configmaps", "ConfigMap", true)),
        path if path.contains("/beacons/") => {
            *count.lock() += 1;
            None
        }
        _ => Some((200, stored(asked.body.clone()))),
    });
    let client = RuntimeClient::new(client, Duration::from_secs(20));
    let (runtime, states) = (Gated::new(client, Gate::default(), "harbour"), AppliedStates::default());
    let named = |mut object: Value, n: usize| {
        object["metadata"]["name"] = format!("o{n}").into();
        object
    };
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n"}});
    let objects = (0..20).map(|n| named(beacon(), n)).chain((0..5).map(|n| named(map.clone(), n))).collect();
    let began = tokio::time::Instant::now();
    let applied = install(&runtime, &states, objects, 100).await;
    assert!(applied.failed.as_ref().is_some_and(|error| error.class() == "timeout") && applied.has_skipped);
    assert_eq!(applied.judged.len(), 5, "what does not depend on it is there");
    assert!(*tried.lock() <= CONCURRENCY + 2, "{} were tried", tried.lock());
    assert!(began.elapsed() <= Duration::from_mins(1), "it says why before its own time is over");
}

#[tokio::test]
async fn several_refusals_are_reported_together() {
    let runtime = scripted::runtime(|asked| match asked.path.as_str() {
        "/api/v1" => scripted::kinds("v1", "configmaps", "ConfigMap", true),
        path if path.ends_with("/good") => (200, stored(asked.body.clone())),
        path => scripted::refused(422, "Invalid", &format!("{path} is wrong")),
    });
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}});
    let objects = ["a", "good", "b", "c", "d", "e"].map(map).to_vec();
    let mut applied = install(&runtime, &AppliedStates::default(), objects, 100).await;
    assert_eq!((applied.judged.len(), applied.failing.len()), (1, 5));
    let told = applied.take_failed().unwrap().to_string();
    let named = [
        "configmaps/a is wrong",
        "; also: ",
        "configmaps/b is wrong",
        "configmaps/c is wrong",
        "; and 2 more",
    ];
    assert!(named.iter().all(|words| told.contains(words)) && !told.contains("configmaps/d"), "{told}");
}
