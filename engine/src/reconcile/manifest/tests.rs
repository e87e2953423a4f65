//! Passes on a scripted runtime and KCP.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_api::{
    State,
    inventory::synced,
    names::{self, conditions, labels},
    object::{Gvk, ObjectId, ObjectRef},
    readiness::CrState,
};
use tidewatch_deployer::bundle::{self, Bundle, Scope};

use super::*;
use crate::{
    engine::Engine,
    outcome::Next,
    pace::{RECHECK_RARELY, RECHECK_SOON, RETRY},
    reconcile::tests::{Requests, engine_on, not_found},
    scripted::{self, stored},
    trigger::Trigger,
};

mod upgrades;

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/beacons.x.dev";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/n/deployments/a";
const BEACON: &str = "/apis/x.dev/v1/namespaces/n/beacons/a";
const DEFAULT_CR: &str = "/apis/x.dev/v1/namespaces/n/beacons/b";
/// A key instead of a path: refuses each write.
const THROTTLED: &str = "throttled";
const UNASKED: &str = "a webhook that cannot be asked";
const PODS: &str = "/api/v1/namespaces/n/pods";

fn beacon(name: &str) -> Value {
    json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": name, "namespace": "n"}, "spec": {"light": "on"}})
}

fn bundle() -> Bundle {
    let rendered = vec![
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "beacons.x.dev"},
               "spec": {"group": "x.dev", "scope": "Namespaced", "names": {"kind": "Beacon", "plural": "beacons"}}}),
        beacon("a"),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "n"},
               "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}}}),
    ];
    let scopes = BTreeMap::from([
        (Gvk::of("apps/v1", "Deployment"), Scope::Namespaced),
        (Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"), Scope::Cluster),
    ]);
    bundle::bundle(("kcp-system", "m"), rendered, &scopes).unwrap()
}

fn whole(key: &WorkKey) -> Work<'_> {
    Work {
        key,
        kyma: "harbour",
        inputs: Inputs::default(),
        scope: None,
        is_retry: false,
        definitions_changed: false,
    }
}

/// In progress for a minute, with a default CR.
fn manifest() -> Manifest {
    let installation = json!({"type": conditions::INSTALLATION, "status": "False", "reason": "Ready", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "1969-12-31T23:59:00Z"});
    serde_json::from_value(json!({
        "apiVersion": names::API_VERSION, "kind": "Manifest",
        "metadata": {"name": "m", "namespace": "kcp-system", "uid": "m1", "generation": 1, "labels": {labels::KYMA_NAME: "harbour"}},
        "spec": {"resource": beacon("b"), "customResourcePolicy": "CreateAndDelete"},
        "status": {"state": "Processing", "conditions": [installation], "synced": synced(&bundle().objects),
                   "lastOperation": {"operation": "for something", "lastUpdateTime": "1969-12-31T23:59:00Z"}}
    }))
    .unwrap()
}

fn with_status(object: Value, status: Value) -> Value {
    let mut object = stored(object);
    object["status"] = status;
    object
}

/// The complete module, ready, by path.
fn well() -> BTreeMap<&'static str, Value> {
    let Bundle { mut first, mut main, mut custom, .. } = bundle();
    let holds = |type_: &str| json!({"type": type_, "status": "True"});
    let served = json!({"conditions": [holds("Established"), holds("NamesAccepted")]});
    let available = json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1});
    BTreeMap::from([
        (CRD, with_status(first.remove(0), served)),
        (DEPLOYMENT, with_status(main.remove(0), available)),
        (BEACON, stored(custom.remove(0))),
        (DEFAULT_CR, with_status(beacon("b"), json!({"state": "Warning"}))),
    ])
}

/// A runtime that accepts applies, and its requests except discovery.
fn runtime(objects: BTreeMap<&'static str, Value>) -> (Gated, Requests) {
    let requests = Requests::default();
    let recorder = Arc::clone(&requests);
    let runtime = scripted::runtime(move |asked| {
        if let Some(kinds) = kinds(&asked.path) {
            return kinds;
        }
        recorder.lock().push(format!("{} {}", asked.method, asked.path));
        let found = match asked.method.as_str() {
            "GET" => objects.get(asked.path.as_str()).cloned(),
            "DELETE" => Some(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            _ => Some(stored(asked.body.clone())),
        };
        let refused = [(THROTTLED, 429), (UNASKED, 500)].into_iter().find_map(|(name, code)| {
            let status = objects.get(name).filter(|_| !asked.is_read())?;
            Some((code, status.clone()))
        });
        refused.unwrap_or_else(|| found.map_or_else(not_found, |object| (200, object)))
    });
    (runtime, requests)
}

fn kinds(path: &str) -> Option<scripted::Answer> {
    match path {
        "/api/v1" => Some(scripted::kinds("v1", "pods", "Pod", true)),
        "/apis/apps/v1" => Some(scripted::kinds("apps/v1", "deployments", "Deployment", true)),
        "/apis/x.dev/v1" => Some(scripted::kinds("x.dev/v1", "beacons", "Beacon", true)),
        "/apis/apiextensions.k8s.io/v1" => Some(scripted::definitions()),
        _ => None,
    }
}

/// An engine and its KCP writes.
fn engine() -> (Engine, Requests) {
    engine_on(|method, path| match (method, path.contains("/manifests/")) {
        ("PATCH", true) => (200, json!({"metadata": {"name": "m", "namespace": "kcp-system"}, "spec": {}})),
        _ => not_found(),
    })
}

fn manifest_key() -> WorkKey {
    WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() }
}

async fn install(
    engine: &Engine,
    work: Work<'_>,
    manifest: &Manifest,
    runtime: &Gated,
    bundle: Bundle,
) -> Outcome {
    // The future is large.
    Box::pin(engine.dispatcher.reconcilers.manifest.install(work, manifest, runtime, bundle)).await.unwrap()
}

/// Runs a pass, limited by the triggers if `before` is set.
async fn pass(engine: &Engine, runtime: &Gated, before: Option<LastSync>, causes: &[Trigger]) -> Outcome {
    let key = manifest_key();
    let inputs = Inputs::default();
    let scope = before.and_then(|last| SyncScope::after(last, inputs, named(&key, causes, causes.len())));
    assert_eq!(scope.is_some(), !causes.is_empty());
    let work = Work { inputs, scope, ..whole(&key) };
    install(engine, work, &manifest(), runtime, bundle()).await
}

fn last_sync(engine: &Engine) -> Option<LastSync> {
    engine.dispatcher.states.take_last_sync(&manifest_key())
}

fn ids(objects: &[&ObjectRef]) -> HashSet<ObjectId> {
    objects.iter().map(|object| ObjectId::from(*object)).collect()
}

fn event(object: &Value) -> Trigger {
    let object = ObjectRef::of(object).unwrap();
    Trigger::Event {
        epoch: "e".into(),
        seq: 1,
        watch: "w".into(),
        object,
        span: crate::spans::EventSpan::default(),
    }
}

fn take_requests(requests: &Requests) -> Vec<String> {
    let mut all = std::mem::take(&mut *requests.lock());
    all.sort();
    all
}

#[tokio::test]
async fn a_due_time_writes_the_pods_cause_at_once() {
    let (engine, kcp) = engine();
    let mut objects = well();
    objects.insert(DEPLOYMENT, stored(bundle().main.remove(0)));
    let pulls = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}});
    let due = [Trigger::Due { at: Timestamp::UNIX_EPOCH }];
    let deployment = ObjectRef::of(&bundle().main[0]).unwrap();
    for pods in [vec![], vec![pulls]] {
        let says_more = !pods.is_empty();
        objects.insert(PODS, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}));
        let (runtime, requests) = runtime(objects.clone());
        let before = LastSync { unready: ids(&[&deployment]), cr_exists: Some(true), ..LastSync::default() };
        let finish = pass(&engine, &runtime, Some(before), &due).await;
        assert_eq!(take_requests(&requests), [format!("GET {PODS}"), format!("GET {DEPLOYMENT}")]);
        let written = kcp.lock().clone();
        assert_eq!(written.len(), usize::from(says_more), "{written:?}");
        if says_more {
            assert!(finish.due == Some(Timestamp::from_second(60).unwrap()));
        } else {
            assert!(matches!(finish.next, Next::After(_)), "what the Deployment tells itself waits a moment");
        }
        assert_eq!(last_sync(&engine).unwrap().unready, ids(&[&deployment]));
    }
}

#[tokio::test]
async fn a_temporary_failure_keeps_a_ready_module_ready_once() {
    let (engine, kcp) = engine();
    let mut objects = well();
    objects.remove(DEPLOYMENT);
    let throttled = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests",
        "message": "later", "code": 429});
    objects.insert(THROTTLED, throttled);
    let (runtime, _) = runtime(objects);
    let key = manifest_key();
    for (state, is_retry, written) in [("Ready", false, 0), ("Ready", true, 1), ("Processing", false, 1)] {
        let mut manifest = manifest();
        manifest.status.as_mut().unwrap().state = serde_json::from_value(state.into()).unwrap();
        let work = Work { is_retry, ..whole(&key) };
        let finish = install(&engine, work, &manifest, &runtime, bundle()).await;
        assert!(finish.report().is_some() && finish.has_pace(RETRY), "it is tried again");
        let requests = std::mem::take(&mut *kcp.lock());
        assert_eq!(requests.len(), written, "{state}, {is_retry}: {requests:?}");
    }
}

/// The Go manager never looked for the manager, so a takeover reports nothing.
#[tokio::test]
async fn a_missing_manager_is_awaited_except_at_takeover() {
    let (engine, _) = engine();
    let key = manifest_key();
    for (kind, says) in [
        ("Deployment", "Deployment.apps n/keeper is not there"),
        ("Keeper", "Keeper.apps n/keeper is not served"),
    ] {
        let mut manifest = manifest();
        manifest.spec.manager = serde_json::from_value(
            json!({"group": "apps", "version": "v1", "kind": kind, "namespace": "n", "name": "keeper"}),
        )
        .unwrap();
        let mut objects = well();
        objects.insert(DEFAULT_CR, with_status(beacon("b"), json!({"state": "Ready"})));
        let (runtime, _) = runtime(objects.clone());
        let finish = install(&engine, whole(&key), &manifest, &runtime, bundle()).await;
        assert!(finish.has_pace(RECHECK_RARELY), "{finish:?}");
        let message = finish.message();
        assert!(message.contains(says), "{message}");

        manifest.spec.install.source.0.insert("ref".into(), "sha256:1".into());
        manifest.annotations_mut().insert(names::annotations::SYNC_OCI_REF.into(), "sha256:1".into());
        manifest.status.as_mut().unwrap().state = State::Ready;
        let (runtime, _) = self::runtime(objects);
        let finish = install(&engine, whole(&key), &manifest, &runtime, bundle()).await;
        assert!(finish == Outcome::done(), "{finish:?}");
    }
}

#[tokio::test]
async fn only_the_refused_object_is_retried() {
    let (engine, _) = engine();
    let mut objects = well();
    objects.remove(DEPLOYMENT);
    let invalid = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid",
        "message": "spec.replicas: must not be 1", "code": 422});
    objects.insert(THROTTLED, invalid);
    let (refusing, requests) = runtime(objects);
    pass(&engine, &refusing, None, &[]).await;
    assert_eq!(take_requests(&requests).len(), 5, "all are looked at, and one is applied");
    let retry = [Trigger::Retry {
        key: manifest_key(),
        attempt: 1,
        reason: crate::trigger::Reason::Failed("refused"),
    }];
    let tried = ["GET", "PATCH"].map(|method| format!("{method} {DEPLOYMENT}"));
    for _ in 0..2 {
        let before = last_sync(&engine).unwrap();
        assert_eq!(before.unready, ids(&[&ObjectRef::of(&bundle().main[0]).unwrap()]));
        let finish = pass(&engine, &refusing, Some(before), &retry).await;
        assert!(finish.has_pace(RETRY) && finish.message().contains("must not be 1"), "{finish:?}");
        assert_eq!(take_requests(&requests), tried);
    }
    let (well, requests) = runtime(well());
    pass(&engine, &well, last_sync(&engine), &retry).await;
    assert_eq!(take_requests(&requests), tried[..1]);
    assert!(last_sync(&engine).unwrap().unready.is_empty());
}

#[tokio::test]
async fn the_default_cr_is_read_on_its_event_only() {
    let (engine, _) = engine();
    let all = [CRD, DEPLOYMENT, BEACON, DEFAULT_CR].map(|path| format!("GET {path}"));
    let (runtime, requests) = runtime(well());
    pass(&engine, &runtime, None, &[]).await;
    assert_eq!(take_requests(&requests), all, "all of it, and nothing is written");
    let before = last_sync(&engine).unwrap();
    let said = Some(CrState { state: State::Warning, message: String::new() });
    assert_eq!((before.cr_exists, &before.cr_state, before.unready.len()), (Some(true), &said, 0));

    let deployment = bundle().main.remove(0);
    let finish = pass(&engine, &runtime, Some(before.clone()), &[event(&deployment)]).await;
    assert_eq!(take_requests(&requests), [format!("GET {DEPLOYMENT}")]);
    assert!(finish.waits_for_event() && finish.message().contains("is in state Warning"), "{finish:?}");
    assert_eq!(last_sync(&engine), Some(before.clone()), "nothing was heard of the default CR");

    let mut objects = well();
    objects.insert(DEFAULT_CR, with_status(beacon("b"), json!({"state": "Ready"})));
    let (runtime, requests) = self::runtime(objects);
    let finish = pass(&engine, &runtime, Some(before.clone()), &[event(&beacon("b"))]).await;
    assert_eq!(take_requests(&requests), [format!("GET {DEFAULT_CR}")]);
    assert!(finish == Outcome::done());
    assert_eq!(last_sync(&engine).unwrap().cr_state.unwrap().state, State::Ready);

    // A deleted object is created again.
    let mut objects = well();
    objects.remove(DEFAULT_CR);
    let (runtime, requests) = self::runtime(objects);
    pass(&engine, &runtime, Some(before), &[event(&beacon("b"))]).await;
    assert!(take_requests(&requests).contains(&format!("PATCH {DEFAULT_CR}")));
    let last = last_sync(&engine).unwrap();
    assert_eq!((last.cr_exists, last.cr_state.unwrap().state), (Some(true), State::Empty));
}

#[tokio::test]
async fn a_changed_definition_reads_its_objects_again() {
    let (engine, _) = engine();
    let mut objects = well();
    let mut changed = objects[CRD].clone();
    changed["spec"]["names"]["plural"] = "lights".into();
    objects.insert(CRD, changed);
    let before = LastSync { cr_exists: Some(true), ..LastSync::default() };
    let definition = event(&bundle().first[0]);
    let (runtime, requests) = runtime(objects);
    pass(&engine, &runtime, Some(before), &[definition]).await;
    let requests = take_requests(&requests);
    assert!(requests.contains(&format!("PATCH {CRD}")), "{requests:?}");
    let of_it = [BEACON, DEFAULT_CR].map(|path| format!("GET {path}"));
    assert!(of_it.iter().all(|get| requests.contains(get)), "{requests:?}");
    assert!(!requests.iter().any(|line| line.ends_with(DEPLOYMENT)), "{requests:?}");
}

#[tokio::test]
async fn a_sync_waiting_for_a_definition_is_not_recorded() {
    let (engine, _) = engine();
    let mut objects = well();
    for (status, waits) in [
        (json!({}), true),
        // Another CRD has its names, so its objects are left out.
        (
            json!({"conditions": [{"type": "NamesAccepted", "status": "False", "reason": "KindConflict", "message": "taken"}]}),
            false,
        ),
    ] {
        objects.insert(CRD, with_status(bundle().first.remove(0), status));
        let (runtime, requests) = runtime(objects.clone());
        let finish = pass(&engine, &runtime, None, &[]).await;
        assert!(!take_requests(&requests).iter().any(|line| line.ends_with(BEACON)));
        assert_eq!(finish.has_pace(RECHECK_RARELY) && finish.message().contains("to be served"), waits);
        assert_eq!(last_sync(&engine), None);
    }
    let (runtime, _) = runtime(well());
    pass(&engine, &runtime, None, &[]).await;
    assert!(last_sync(&engine).is_some());
}

#[tokio::test]
async fn a_missing_kind_becomes_an_error_after_the_deadline() {
    let (engine, kcp) = engine();
    let mut objects = well();
    objects.insert(DEPLOYMENT, stored(bundle().main.remove(0)));
    let (runtime, _) = runtime(objects);
    let key = manifest_key();
    // Within the deadline, past it, and within the module's own deadline.
    for (since, seconds, due) in [
        ("1969-12-31T23:59:00Z", None, Some(540)),
        ("1969-12-31T23:50:00Z", None, None),
        ("1969-12-31T23:50:00Z", Some(660), Some(60)),
    ] {
        let mut manifest = manifest();
        manifest.spec.resource = serde_json::from_value(
            json!({"apiVersion": "y.dev/v1", "kind": "Mast", "metadata": {"name": "b", "namespace": "n"}}),
        )
        .unwrap();
        let status = manifest.status.as_mut().unwrap();
        status.conditions[0].last_transition_time.0 = since.parse().unwrap();
        let said = status.last_operation.as_mut().unwrap();
        said.operation = "the kind of the default CR is not served yet".into();
        said.last_update_time.as_mut().unwrap().0 = since.parse().unwrap();
        if let Some(seconds) = seconds {
            let terms = json!({"progressDeadlineSeconds": seconds}).to_string();
            manifest.annotations_mut().insert(names::annotations::MODULE_TERMS.into(), terms);
        }
        let work = whole(&key);
        let finish = install(&engine, work, &manifest, &runtime, bundle()).await;
        let pace = if due.is_some() { RECHECK_SOON } else { RECHECK_RARELY };
        assert!(finish.has_pace(pace) && finish.message().contains("default CR"), "{finish:?}");
        let written = std::mem::take(&mut *kcp.lock()).len();
        assert_eq!(
            written,
            usize::from(due.is_none()),
            "on its way it waits a moment; an error does not: {since} {seconds:?}"
        );
    }
}

#[tokio::test]
async fn waits_for_an_unreachable_admission_webhook() {
    let (engine, _) = engine();
    let mut objects = well();
    objects.remove(DEFAULT_CR);
    let failed = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500,
        "message": "Internal error occurred: failed calling webhook \"b.x.dev\": no endpoints available for service \"b\""});
    objects.insert(UNASKED, failed);
    let (runtime, _) = runtime(objects);
    let finish = pass(&engine, &runtime, None, &[]).await;
    assert!(
        finish.has_pace(RECHECK_RARELY) && finish.message().contains("failed calling webhook"),
        "{finish:?}"
    );
}

#[tokio::test]
async fn nothing_is_pruned_while_a_webhook_is_unreachable() {
    const OLD: &str = "/apis/apps/v1/namespaces/n/deployments/old";
    let failed = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500,
        "message": "Internal error occurred: failed calling webhook \"all.x.dev\": connection refused"});
    let old = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "old", "namespace": "n",
        "labels": {labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME},
        "annotations": {names::annotations::OWNED_BY: "kcp-system/m"}}, "spec": {}});
    let mut manifest = manifest();
    let mut objects = bundle().objects;
    objects.push(ObjectRef::of(&old).unwrap());
    manifest.status.as_mut().unwrap().synced = synced(&objects).into();
    for (asked, removed) in [(true, true), (false, false)] {
        let (engine, _) = engine();
        let mut objects = well();
        objects.remove(DEPLOYMENT);
        objects.insert(OLD, stored(old.clone()));
        if !asked {
            objects.insert(UNASKED, failed.clone());
        }
        let (runtime, requests) = runtime(objects);
        let key = manifest_key();
        let work = whole(&key);
        install(&engine, work, &manifest, &runtime, bundle()).await;
        let requests = take_requests(&requests);
        assert_eq!(requests.contains(&format!("DELETE {OLD}")), removed, "{requests:?}");
    }
}
