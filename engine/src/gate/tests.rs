use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::json;
use tidewatch_api::object::ObjectRef;

use super::*;
use crate::{
    clusters::{
        Gated, RuntimeClient,
        objects::{self, ObjectError},
    },
    scripted,
};

#[derive(Default)]
struct Seen {
    reads: AtomicUsize,
    writes: AtomicUsize,
    dry: AtomicUsize,
    deletions: Mutex<Vec<String>>,
}

/// A runtime with ConfigMaps that accepts and counts all calls.
fn runtime(gate: &Gate) -> (Gated, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let shared = Arc::clone(&seen);
    let client = scripted::client(move |request| {
        let counter = if request.is_read() { &shared.reads } else { &shared.writes };
        counter.fetch_add(1, Ordering::SeqCst);
        // A deletion has the flag in its body.
        let dry = request.query.contains("dryRun=All") || request.body["dryRun"] == json!(["All"]);
        shared.dry.fetch_add(usize::from(dry), Ordering::SeqCst);
        if request.method == "DELETE" {
            shared.deletions.lock().push(request.body.to_string());
        }
        match request.path.as_str() {
            "/api/v1" => scripted::kinds("v1", "configmaps", "ConfigMap", true),
            _ => (200, config_map()),
        }
    });
    (Gated::new(RuntimeClient::new(client, Duration::from_secs(5)), gate.clone(), "harbour"), seen)
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_writes_waiting_for_the_rate_limit() {
    let gate = Gate::default();
    let (runtime, seen) = runtime(&gate);
    let slow_calls = || Arc::new(tokio::sync::Semaphore::new(1));
    let rate = crate::clusters::rate::RateLimit::new(tokio::time::Instant::now());
    while rate.wait().is_none() {}
    let limiter = crate::clusters::call_limiter::CallLimiter {
        slow_calls: slow_calls(),
        own_slow_calls: slow_calls(),
        observer: Arc::new(|_, _, _| {}),
        rate: Arc::new(rate),
    };
    let runtime = Gated::new(RuntimeClient::clone(&runtime).limited_by(limiter), gate.clone(), "harbour");
    let permit = runtime.permit();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::namespaced(runtime.kube(), "n");
    let params = kube::api::DeleteParams::default();
    let write = runtime.write("deleting it", maps.delete("a", &params));
    let pause = async {
        tokio::task::yield_now().await;
        gate.set(Mode::Paused);
    };
    let (written, ()) = futures::future::join(write, pause).await;
    assert!(permit.is_ok() && written.is_err(), "the permit came before the pause, and the turn after");
    assert_eq!(seen.writes.load(Ordering::SeqCst), 0);
}

fn config_map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}})
}

/// Calls every writer; returns the messages of held writes.
async fn write_everything(runtime: &Gated) -> Vec<String> {
    let (body, id) = (config_map(), ObjectRef::of(&config_map()).unwrap());
    let results = [
        objects::apply(runtime, &body, "m").await.map(drop),
        objects::apply_subresource(runtime, "status", &body, "m").await,
        objects::create(runtime, &body, "m").await.map(drop),
        objects::delete(runtime, &id, "u").await.map(drop),
    ];
    let held = results.into_iter().filter_map(Result::err);
    held.map(|error| {
        assert!(matches!(error, ObjectError::Held(_)), "{error}");
        error.message()
    })
    .collect()
}

#[tokio::test]
async fn nothing_is_written_while_paused() {
    let gate = Gate::default();
    let (runtime, seen) = runtime(&gate);
    for (mode, writes) in [(Mode::Paused, 0), (Mode::Standby, 0), (Mode::Live, 4)] {
        let label = mode.label();
        gate.set(mode);
        let held = write_everything(&runtime).await;
        assert_eq!(seen.writes.load(Ordering::SeqCst), writes, "{label}");
        assert_eq!(held.len(), 4 - writes, "{label}");
        assert!(held.iter().all(|message| message.contains(label)), "{held:?}");
    }
    gate.set(Mode::Paused);
    assert!(objects::get(&runtime, &ObjectRef::of(&config_map()).unwrap()).await.unwrap().is_some());
}

#[tokio::test]
async fn deletion_carries_the_uid_precondition() {
    let (runtime, seen) = runtime(&Gate::default());
    objects::delete(&runtime, &ObjectRef::of(&config_map()).unwrap(), "the-uid").await.unwrap();
    let deletions = seen.deletions.lock();
    assert_eq!(deletions.len(), 1);
    assert!(deletions[0].contains(r#""preconditions":{"uid":"the-uid"}"#), "{}", deletions[0]);
}

#[derive(Default)]
struct Writes(Mutex<Vec<DryRunWrite>>);

impl Recorder for Writes {
    fn record(&self, write: DryRunWrite) {
        self.0.lock().push(write);
    }
}

#[tokio::test]
async fn a_dry_run_stores_nothing_and_records_every_write() {
    let (gate, writes) = (Gate::default(), Arc::new(Writes::default()));
    gate.set(Mode::DryRun(Arc::clone(&writes) as Arc<dyn Recorder>));
    let (runtime, seen) = runtime(&gate);
    assert!(write_everything(&runtime).await.is_empty());
    assert_eq!((seen.writes.load(Ordering::SeqCst), seen.dry.load(Ordering::SeqCst)), (4, 4));
    let writes = writes.0.lock();
    let operations: Vec<_> = writes.iter().map(|write| write.operation).collect();
    assert_eq!(operations, ["apply", "status", "create", "delete"]);
    assert!(writes.iter().all(|write| write.side == Side::Runtime { kyma: "harbour".into() }));
    assert!(writes.iter().all(|write| write.object == "ConfigMap n/c"));
}

#[test]
fn a_mode_change_returns_held_keys() {
    let gate = Gate::default();
    let kyma = WorkKey::Kyma { kyma: "a".into() };
    let path = WorkKey::EventPath { kyma: "a".into() };
    assert!(!gate.hold(&kyma), "nothing is held while it is live");
    gate.set(Mode::Paused);
    assert!(gate.hold(&kyma) && gate.hold(&kyma));
    assert!(gate.begin(&path).is_ok(), "a pause lets KCP's conditions be written");
    gate.set(Mode::Standby);
    assert!(gate.begin(&path).is_err());
    assert!(gate.hold(&kyma));
    assert_eq!(gate.set(Mode::Live), BTreeSet::from([kyma]));
    assert!(gate.set(Mode::Live).is_empty());
}

#[test]
fn a_pause_holds_keys_changing_runtimes() {
    let gate = Gate::default();
    gate.set(Mode::Paused);
    let kyma = || "harbour".to_owned();
    for held in [
        WorkKey::Kyma { kyma: kyma() },
        WorkKey::Manifest { kyma: kyma(), name: "m".into() },
        WorkKey::Catalog { kyma: kyma() },
        WorkKey::Mandatory { kyma: kyma() },
        WorkKey::Release { module: "guard".into() },
    ] {
        assert!(gate.begin(&held).is_err() && gate.hold(&held), "{held}");
        assert!(gate.set(Mode::Paused).contains(&held), "{held}: requeued when the mode changes");
    }
    for allowed in [WorkKey::EventPath { kyma: kyma() }, WorkKey::Watcher { name: "w".into() }] {
        assert!(gate.begin(&allowed).is_ok(), "{allowed}");
    }
}
