use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_api::{
    State, names,
    object::{Gvk, ObjectRef},
};
use tidewatch_planner::kyma::Plan;

use super::*;
use crate::{
    clusters::Gated,
    error::Error,
    gate::Mode,
    history::Record,
    index::SecretRef,
    key::{Acknowledge, Guard, OutcomeKind, Report},
    queue::Push,
    reconcile::{dispatch::RunningReconcile, echoes::Completeness},
    scripted,
    trigger::{Change, Reason, Trigger},
};

pub(crate) use scripted::not_found;

struct Nobody;

impl Observer for Nobody {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}
    fn reachable(&self, _: &str, _: bool) {}
}

struct Waiter(Arc<AtomicUsize>);

impl Acknowledge for Waiter {
    fn finished(self: Box<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn namespace(name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: name.into() }
}

fn manifest_key() -> WorkKey {
    WorkKey::Manifest { kyma: "k".into(), name: "m".into() }
}

/// Requests to a scripted KCP, as `METHOD path`.
pub(crate) type Requests = Arc<Mutex<Vec<String>>>;

/// An engine on a KCP that gives these answers (code and body) to a method and path.
pub(crate) fn engine_on(
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Engine, Requests) {
    engine_observed_by(Arc::new(Nobody), answer)
}

pub(crate) fn engine_observed_by(
    observer: Arc<dyn Observer>,
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Engine, Requests) {
    engine_of(EngineConfig::default(), observer, answer)
}

/// An engine that manages only the cluster of its KCP.
pub(crate) fn engine_of_single_cluster(
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Engine, Requests) {
    engine_of(EngineConfig { single_cluster: true, ..EngineConfig::default() }, Arc::new(Nobody), answer)
}

/// Like [`engine_on`], with settings.
pub(crate) fn engine_with(
    config: EngineConfig,
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Engine, Requests) {
    engine_of(config, Arc::new(Nobody), answer)
}

fn engine_of(
    config: EngineConfig,
    observer: Arc<dyn Observer>,
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Engine, Requests) {
    let requests = Requests::default();
    let recorder = Arc::clone(&requests);
    let client = scripted::client(move |asked| {
        recorder.lock().push(format!("{} {}", asked.method, asked.path));
        answer(&asked.method, &asked.path)
    });
    let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
    (Engine::new(client, config, observer, clock).unwrap(), requests)
}

/// The runtime of `harbour` that gives these answers (code and body) to a path.
pub(crate) fn runtime_on(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Gated {
    scripted::runtime(move |asked| answer(&asked.path))
}

fn engine() -> (Engine, Requests) {
    engine_on(|_, _| not_found())
}

async fn work_once(engine: &Engine) -> OutcomeKind {
    let lease = engine.queue().next().await;
    let kyma = lease.key().kyma().to_owned();
    Arc::clone(&engine.dispatcher).work(lease).await;
    engine.history().of(&kyma).last().unwrap().outcome
}

/// A KCP with `harbour` being deleted, and its lists of Manifests and Secrets.
fn leaving(manifests: Arc<Mutex<Value>>, secrets: Arc<Mutex<Value>>) -> (Engine, Requests) {
    engine_on(move |_, path| {
        let list = |kind: &str, api: &str, items: &Value| {
            (
                200,
                json!({"kind": kind, "apiVersion": api, "metadata": {"resourceVersion": "1"}, "items": items}),
            )
        };
        if path.ends_with("/manifests") {
            list("PartialObjectMetadataList", "meta.k8s.io/v1", &manifests.lock())
        } else if path.ends_with("/secrets") {
            list("PartialObjectMetadataList", "meta.k8s.io/v1", &secrets.lock())
        } else if path.contains("/kymas/harbour") {
            (
                200,
                json!({"apiVersion": names::API_VERSION, "kind": "Kyma", "metadata": {
                "name": "harbour", "namespace": "kcp-system", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names::finalizers::KYMA]},
                "spec": {"channel": "regular"}, "status": {"state": "Deleting"}}),
            )
        } else {
            not_found()
        }
    })
}

fn let_go(requests: &Requests) -> bool {
    requests.lock().iter().any(|line| line.starts_with("PATCH") && line.ends_with("/kymas/harbour"))
}

fn want_kyma(engine: &Engine) {
    let push = Push { class: Class::UserEdit, trigger: None, guards: Vec::new() };
    engine.queue().push(WorkKey::Kyma { kyma: "harbour".into() }, push);
}

/// The event may turn out to be an echo when the reconcile ends.
#[tokio::test(start_paused = true)]
async fn an_event_during_a_reconcile_is_queued_afterwards() {
    let harbour = WorkKey::Kyma { kyma: "harbour".into() };
    let object = ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "n".into() };
    let done = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(std::sync::OnceLock::<Engine>::new());
    let (engine, _) = engine_on({
        let (key, done, told) = (harbour.clone(), Arc::clone(&done), Arc::clone(&told));
        move |_, _| {
            let cause = Some(Trigger::SecondLook { object: namespace("n") });
            let ask = Push {
                class: Class::UserEdit,
                trigger: cause,
                guards: vec![Box::new(Waiter(Arc::clone(&done))) as Guard],
            };
            let version = Version::Is { uid: "u", resource_version: "7" };
            let engine = told.get().unwrap();
            assert!(engine.filter_echo(&key, &object, version, ask).is_none());
            not_found()
        }
    });
    assert!(told.set(engine.clone()).is_ok());
    engine.queue().push(harbour.clone(), Push { class: Class::Rollout, trigger: None, guards: Vec::new() });
    work_once(&engine).await;
    assert_eq!(done.load(Ordering::SeqCst), 0, "nobody has seen it yet");
    let lease = engine.queue().next().await;
    assert_eq!((lease.class, lease.triggers.len()), (Class::UserEdit, 1));
    Arc::clone(&engine.dispatcher).work(lease).await;
    assert_eq!(done.load(Ordering::SeqCst), 1);

    let ask = || Push { class: Class::UserEdit, trigger: None, guards: Vec::new() };
    let object = ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "n".into() };
    let version = Version::Is { uid: "u", resource_version: "8" };
    drop(engine.queue().next().await);
    let mut running = RunningReconcile::begin(&engine.dispatcher.echoes, engine.queue(), &harbour);
    let since = engine.queue().now();
    assert!(engine.filter_echo(&harbour, &object, version, ask()).is_none());
    assert_eq!(engine.queue().inspect(|queue| queue.waiting().count()), 0, "held");
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(running.end(Completeness::Complete).is_empty());
    assert_eq!(
        engine.queue().inspect(|queue| queue.waiting().map(|(_, since)| since).collect::<Vec<_>>()),
        [since]
    );
}

#[tokio::test(start_paused = true)]
async fn a_panicking_reconcile_queues_its_events_at_once() {
    let told = Arc::new(std::sync::OnceLock::<Engine>::new());
    let (engine, _) = engine_on({
        let told = Arc::clone(&told);
        move |_, _| {
            let object =
                ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "n".into() };
            let ask = Push { class: Class::UserEdit, trigger: None, guards: Vec::new() };
            let version = Version::Is { uid: "u", resource_version: "7" };
            let key = WorkKey::Kyma { kyma: "harbour".into() };
            assert!(told.get().unwrap().filter_echo(&key, &object, version, ask).is_none());
            panic!("as it should");
        }
    });
    assert!(told.set(engine.clone()).is_ok());
    want_kyma(&engine);
    engine.work(engine.queue().next().await).await;
    let again = tokio::time::timeout(Duration::from_millis(1), engine.queue().next()).await;
    assert!(again.is_ok(), "not only when the panic is tried again");
}

#[tokio::test(start_paused = true)]
async fn a_missing_kubeconfig_secret_needs_a_second_check() {
    let secrets = Arc::new(Mutex::new(json!([])));
    let (engine, requests) = leaving(Arc::new(Mutex::new(json!([]))), Arc::clone(&secrets));
    want_kyma(&engine);
    assert_eq!(work_once(&engine).await, OutcomeKind::Waiting);
    assert!(!let_go(&requests), "a Secret may be on its way");
    // It was recreated, and the watch has not delivered it yet.
    *secrets.lock() = json!([{"metadata": {"name": "kubeconfig-harbour", "namespace": "kcp-system"}}]);
    tokio::time::advance(Duration::from_secs(30)).await;
    want_kyma(&engine);
    assert_eq!(work_once(&engine).await, OutcomeKind::Waiting);
    assert!(!let_go(&requests), "there is one");
    *secrets.lock() = json!([]);
    want_kyma(&engine);
    assert_eq!(work_once(&engine).await, OutcomeKind::Waiting);
    assert!(!let_go(&requests), "the count starts anew");
    assert_eq!(work_once(&engine).await, OutcomeKind::Done, "it looks again by itself");
    assert!(let_go(&requests));
    let record = engine.history().of("harbour").pop().unwrap();
    assert!(matches!(record.triggers[..], [Trigger::Due { .. }]), "{:?}", record.triggers);
}

#[tokio::test(start_paused = true)]
async fn a_deleting_kyma_waits_for_unobserved_manifests() {
    let manifests = Arc::new(Mutex::new(json!([{"metadata": {"name": "m", "namespace": "kcp-system",
        "labels": {names::labels::KYMA_NAME: "harbour"}}, "spec": {"remote": false, "install": {"source": {}, "name": "n"}}}])));
    let (engine, requests) = leaving(Arc::clone(&manifests), Arc::new(Mutex::new(json!([]))));
    for _ in 0..2 {
        want_kyma(&engine);
        assert_eq!(work_once(&engine).await, OutcomeKind::Waiting);
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert!(!let_go(&requests), "it has a Manifest");
    *manifests.lock() = json!([]);
    want_kyma(&engine);
    assert_eq!(work_once(&engine).await, OutcomeKind::Done);
    assert!(let_go(&requests));
}

#[tokio::test(start_paused = true)]
async fn a_held_key_is_acknowledged_only_after_going_live() {
    let ((engine, asked), finished) = (engine(), Arc::new(AtomicUsize::new(0)));
    engine.set_mode(Mode::Paused);
    let guards: Vec<Guard> = vec![Box::new(Waiter(Arc::clone(&finished)))];
    let key = WorkKey::Kyma { kyma: "harbour".into() };
    engine.queue().push(key.clone(), Push { class: Class::UserEdit, trigger: None, guards });
    let work = || async {
        let lease = engine.queue().next().await;
        assert_eq!(lease.key(), &key);
        Arc::clone(&engine.dispatcher).work(lease).await;
    };
    work().await;
    let ready = || engine.queue().inspect(|q| q.ready().map(|(_, n)| n).sum::<usize>());
    assert_eq!((finished.load(Ordering::SeqCst), asked.lock().len(), ready()), (0, 0, 0));
    assert_eq!(engine.history().of("harbour")[0].outcome, OutcomeKind::Waiting);
    engine.set_mode(Mode::Live);
    assert_eq!(ready(), 1, "it is asked for at once");
    work().await;
    assert_eq!((finished.load(Ordering::SeqCst), asked.lock().len()), (1, 1));
    let held = Trigger::Retry { key: key.clone(), attempt: 1, reason: Reason::Held };
    assert_eq!(
        engine.history().of("harbour").pop().unwrap().triggers,
        [held, Trigger::Mode { mode: "live" }]
    );
}

#[tokio::test(start_paused = true)]
async fn an_unplanned_existing_manifest_is_not_overwritten() {
    let manifest = |name: &str| -> tidewatch_api::Manifest {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "kcp-system",
            "labels": {"operator.kyma-project.io/kyma-name": "harbour"}}, "spec": {"version": "1.0.0"}}))
        .unwrap()
    };
    let (engine, requests) = engine_on(|method, path| {
        let there = |labels: Value| {
            (
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {
                "name": "a", "namespace": "kcp-system", "resourceVersion": "9", "labels": labels}}),
            )
        };
        match (method, path.rsplit('/').next()) {
            ("GET", Some("behind")) => there(json!({"operator.kyma-project.io/kyma-name": "harbour"})),
            ("GET", Some("unlabelled")) => there(json!({})),
            ("GET", _) => not_found(),
            ("PATCH", Some(name)) => {
                (200, json!({"metadata": {"name": name, "namespace": "kcp-system"}, "spec": {}}))
            }
            _ => (409, json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409})),
        }
    });
    let apply = ["behind", "unlabelled", "new"].map(manifest).to_vec();
    let plan = Plan { apply, delete: vec!["changed".to_owned()], ..Plan::default() };
    let behind = engine
        .dispatcher
        .reconcilers
        .kyma
        .executor
        .execute("harbour", &plan, &[], Class::UserEdit, &[])
        .await
        .unwrap();
    assert!(matches!(behind.behind, Some(Error::Outdated(what)) if what.contains("behind")));
    let requests = requests.lock();
    let record_write: Vec<_> = requests.iter().filter(|line| !line.starts_with("GET")).cloned().collect();
    let names: Vec<_> = record_write.iter().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(names, ["unlabelled", "new", "changed"], "the others are done");
}

#[tokio::test(start_paused = true)]
async fn a_due_time_skips_a_ready_manifest() {
    let (engine, requests) = engine();
    let manifest = |state: &str| {
        let condition = json!({"type": "Installation", "status": "True", "reason": "Ready", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "apiVersion": names::API_VERSION, "kind": "Manifest",
            "metadata": {"name": "m", "namespace": "kcp-system", "generation": 1,
                         "labels": {"operator.kyma-project.io/kyma-name": "harbour"}},
            "spec": {}, "status": {"state": state, "conditions": [condition]}
        }))
        .unwrap()
    };
    let due = || Trigger::Due { at: Timestamp::UNIX_EPOCH };
    let change = || Trigger::Kcp { object: manifest_key(), change: Change::Changed };
    for (state, causes, reads) in [
        ("Ready", vec![due(), due()], false),
        ("Ready", vec![due(), change()], true),
        ("Ready", vec![change()], true),
        ("Processing", vec![due()], true),
    ] {
        engine.state().write().apply_manifest(manifest(state));
        requests.lock().clear();
        for cause in causes {
            let key = WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() };
            engine
                .queue()
                .push(key, Push { class: Class::Rollout, trigger: Some(cause), guards: Vec::new() });
        }
        assert_eq!(work_once(&engine).await, OutcomeKind::Done);
        assert_eq!(!requests.lock().is_empty(), reads, "{state}: {:?}", requests.lock());
        let record = engine.history().of("harbour").pop().unwrap();
        assert_eq!(record.has_read, reads, "{state}: what has read nothing ends no claim");
    }
}

/// The Manifest `m` of `harbour` with this many engine-owned status fields.
fn written(version: u32, state: &str, fields: u32) -> tidewatch_api::Manifest {
    serde_json::from_value(json!({
        "apiVersion": names::API_VERSION, "kind": "Manifest",
        "metadata": {"name": "m", "namespace": "kcp-system", "uid": "u", "resourceVersion": version.to_string(),
                     "labels": {"operator.kyma-project.io/kyma-name": "harbour"}, "managedFields": [
            {"manager": names::field_managers::APPLIER, "operation": "Apply", "subresource": "status", "time": "2026-01-01T00:00:00Z",
             "fieldsV1": {"count": fields}}]},
        "spec": {}, "status": {"state": state}
    }))
    .unwrap()
}

/// Another writer reports Ready too early. The due time comes before the correction.
#[tokio::test(start_paused = true)]
async fn a_due_time_ignores_another_writers_ready_state() {
    let (engine, requests) = engine();
    let manifest = |version, state: &str, fields| {
        let mut manifest = written(version, state, fields);
        manifest.metadata.generation = Some(1);
        let condition = json!({"type": "Installation", "status": "False", "reason": "Ready", "message": "",
                               "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
        manifest.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
        manifest
    };
    engine.state().write().apply_manifest(manifest(1, "Processing", 9));
    engine.state().write().apply_manifest(manifest(2, "Ready", 8));
    assert!(engine.state().read().manifests.is_ready("m"), "or this shows nothing");
    let key = WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() };
    let cause = Some(Trigger::Due { at: Timestamp::UNIX_EPOCH });
    engine.queue().push(key, Push { class: Class::Rollout, trigger: cause, guards: Vec::new() });
    work_once(&engine).await;
    assert!(!requests.lock().is_empty(), "it is read");
}

#[tokio::test(start_paused = true)]
async fn a_forged_manifest_status_is_checked_before_its_kyma() {
    let (engine, requests) = engine();
    engine.state().write().apply_manifest(written(1, "Ready", 9));
    let cause = |change| Trigger::Kcp { object: manifest_key(), change };
    for (causes, reads) in [
        (vec![Change::ManifestStatusOverwritten], false),
        (vec![Change::ManifestStatusOverwritten, Change::Changed], true),
    ] {
        engine.state().write().apply_manifest(written(2, "Ready", 9));
        let forged = engine.state().write().apply_manifest(written(3, "Error", 8));
        assert!(forged.iter().any(|(key, _)| matches!(key, WorkKey::Manifest { .. })), "{forged:?}");
        requests.lock().clear();
        for cause in causes.into_iter().map(cause) {
            let key = WorkKey::Kyma { kyma: "harbour".into() };
            engine.queue().push(key, Push { class: Class::Resync, trigger: Some(cause), guards: Vec::new() });
        }
        assert_eq!(work_once(&engine).await, OutcomeKind::Done);
        assert_eq!(!requests.lock().is_empty(), reads, "{:?}", requests.lock());
        // The postponed check follows the Manifest's reconcile.
        let key = WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() };
        assert!(engine.state().write().take_suspicion(&key).is_some());
        if !reads {
            assert_eq!(work_once(&engine).await, OutcomeKind::Done);
            assert!(!requests.lock().is_empty(), "it is not forgotten");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_overwritten_during_a_pause_is_checked_afterwards() {
    let (engine, _) = engine();
    engine.state().write().apply_manifest(written(1, "Ready", 9));
    engine.set_mode(Mode::Paused);
    let forged = engine.state().write().apply_manifest(written(2, "Ready", 8));
    let [(key, change)] = forged.as_slice() else { panic!("{forged:?}") };
    let cause = Trigger::Kcp { object: key.clone(), change: *change };
    engine.queue().push(key.clone(), Push { class: Class::Resync, trigger: Some(cause), guards: Vec::new() });
    assert_eq!(work_once(&engine).await, OutcomeKind::Waiting);
    assert!(engine.state().read().doubts_manifests_of("harbour"), "nothing was set right");
    engine.set_mode(Mode::Live);
    assert_eq!(work_once(&engine).await, OutcomeKind::Done);
    assert!(!engine.state().read().doubts_manifests_of("harbour"));
}

#[test]
fn a_failure_is_reported_with_its_status_state() {
    let report = |state| Report { state, message: String::new(), is_found: false };
    for (finish, state) in [
        (Outcome::failed(report(State::Warning)), Some(State::Warning)),
        (Outcome::retried(report(State::Error), "module", None), Some(State::Error)),
        (Outcome::waiting("what".into()), None),
    ] {
        assert_eq!(finish.report().map(|report| report.state), state, "{finish:?}");
    }
}

#[tokio::test]
async fn a_kyma_with_several_kubeconfig_secrets_is_accessed_with_none_of_them() {
    let (engine, requests) = engine();
    for name in ["kubeconfig-a", "kubeconfig-b"] {
        let secret = SecretRef { name: name.into(), uid: name.into(), resource_version: "1".into() };
        engine.dispatcher.kcp.index_mut().apply_secret("harbour", name, Some(secret));
    }
    let refused = engine.dispatcher.clusters.access("harbour").await.unwrap().map(drop).unwrap_err();
    assert!(refused.message().contains("(kubeconfig-a, kubeconfig-b)"), "{}", refused.message());
    assert!(requests.lock().is_empty(), "{:?}", requests.lock());
}
