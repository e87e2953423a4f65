use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::json;
use tidewatch_api::{
    names,
    object::{Gvk, ObjectRef},
};

use super::*;
use crate::{
    clusters::cache::SecretVersion,
    engine::Engine,
    history::{Observer, Record},
    index::SecretRef,
    key::OutcomeKind,
    reconcile::tests::{self, not_found},
    scripted,
    trigger::Change,
};

fn key(name: &str) -> WorkKey {
    WorkKey::Manifest { kyma: "harbour".into(), name: name.into() }
}

fn object() -> ObjectRef {
    ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: "a".into() }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test(start_paused = true)]
async fn a_hanging_runtime_is_suspended_longer_each_time() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    assert!(
        !budget.failed(Effect::Reads, now, seconds(20), 0.0)
            && !budget.failed(Effect::Reads, now, seconds(20), 0.0)
    );
    assert_eq!(
        budget.admit(&key("a"), now, Origin::Engine),
        AdmissionDecision::Admit { is_probe: false },
        "it is only suspected"
    );
    assert!(budget.failed(Effect::Reads, now, seconds(20), 0.0));
    for pause in [15, 30, 60, 120, 240, 480, 720, 720] {
        assert_eq!(budget.admit(&key("a"), now, Origin::Engine), AdmissionDecision::Wait(seconds(pause)));
        now += seconds(pause);
        assert_eq!(budget.admit(&key("b"), now, Origin::Engine), AdmissionDecision::Admit { is_probe: true });
        assert_eq!(
            budget.admit(&key("c"), now, Origin::Runtime),
            AdmissionDecision::Wait(PROBE_WAIT),
            "one probe at a time"
        );
        assert!(!budget.failed(Effect::Reads, now, seconds(20), 0.0), "it was suspended before");
    }
    assert_eq!(budget.admit(&key("a"), now, Origin::Kcp), AdmissionDecision::Admit { is_probe: false });
    assert!(!budget.failed(Effect::Reads, now, seconds(20), 0.0));
    assert_eq!(
        budget.admit(&key("d"), now, Origin::Engine),
        AdmissionDecision::Wait(seconds(720)),
        "the suspension is unchanged"
    );
    assert_eq!(budget.admit(&key("d"), now, Origin::Runtime), AdmissionDecision::Admit { is_probe: true });
    assert_eq!(budget.refused.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn immediate_failures_cost_little_and_old_ones_nothing() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    for _ in 0..100 {
        assert!(!budget.failed(Effect::Reads, now, Duration::ZERO, 0.0));
        now += seconds(9);
    }
    now += WINDOW;
    assert_eq!((0..15).filter(|_| budget.failed(Effect::Reads, now, Duration::ZERO, 0.0)).count(), 1);
    assert!(budget.losses.len() <= MAX_LOSSES);
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_suspension_and_requeues_refused_keys() {
    let budgets = Budgets::new(16);
    let hang = |kyma: &str| {
        (0..3).flat_map(|_| budgets.call_ended(kyma, Effect::Reads, seconds(20), false).0).collect::<Vec<_>>()
    };
    assert_eq!(
        hang("harbour"),
        [WorkKey::Kyma { kyma: "harbour".into() }],
        "its status must report the suspension"
    );
    assert!(budgets.suspension("harbour").is_some() && budgets.suspension("pier").is_none());
    budgets.runtimes.lock().get_mut("harbour").unwrap().admit(&key("a"), Instant::now(), Origin::Engine);
    assert_eq!(budgets.call_ended("harbour", Effect::Reads, seconds(1), true).0, [key("a")]);
    assert!(budgets.runtimes.lock().is_empty() && budgets.count() == 0);
    hang("harbour");
    budgets.runtimes.lock().get_mut("harbour").unwrap().admit(&key("b"), Instant::now(), Origin::Engine);
    assert_eq!(budgets.allow_probe("harbour"), [key("b")]);
    assert!(budgets.allow_probe("pier").is_empty() && budgets.suspension("harbour").is_none());
}

#[tokio::test(start_paused = true)]
async fn suspends_a_runtime_answering_only_reads() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    for is_newly_suspended in [false, false, true] {
        assert!(!budget.answered(Effect::Reads, now) || budget.losses.is_empty());
        assert_eq!(budget.failed(Effect::Writes, now, seconds(20), 0.0), is_newly_suspended);
    }
    assert!(!budget.answered(Effect::Reads, now), "answered reads do not end the suspension");
    assert_eq!(budget.admit(&key("a"), now, Origin::Engine), AdmissionDecision::Wait(seconds(15)));
    now += seconds(15);
    assert_eq!(budget.admit(&key("a"), now, Origin::Engine), AdmissionDecision::Admit { is_probe: true });
    assert!(!budget.answered(Effect::Reads, now));
    assert!(!budget.failed(Effect::Writes, now, seconds(20), 0.0));
    assert!(!budget.end_probe(), "the probe has ended");
    assert_eq!(
        budget.admit(&key("a"), now, Origin::Engine),
        AdmissionDecision::Wait(seconds(30)),
        "longer each time"
    );
    // The suspension ends without any write, and with an answered write.
    now += seconds(30);
    assert_eq!(budget.admit(&key("a"), now, Origin::Engine), AdmissionDecision::Admit { is_probe: true });
    assert!(!budget.answered(Effect::Reads, now) && budget.end_probe());
    assert!(budget.answered(Effect::Writes, now));
    // A probe without a call proves nothing.
    assert_eq!(budget.admit(&key("a"), now, Origin::Runtime), AdmissionDecision::Admit { is_probe: true });
    assert!(!budget.end_probe() && budget.suspended_until.is_some());
}

#[tokio::test(start_paused = true)]
async fn answered_reads_clear_only_failed_reads() {
    let (mut budget, now) = (Budget::default(), Instant::now());
    budget.failed(Effect::Reads, now, seconds(20), 0.0);
    budget.failed(Effect::Writes, now, seconds(20), 0.0);
    assert!(!budget.answered(Effect::Reads, now), "the lost write still counts");
    assert_eq!(budget.losses.len(), 1);
    assert!(budget.answered(Effect::Reads, now + WINDOW + seconds(1)), "old losses are forgotten");
}

proptest! {
    #[test]
    fn suspension_is_at_most_15_minutes_and_always_ends(
        steps in proptest::collection::vec((0_u8..5, 0_u64..1000, 0.0_f64..1.0), 1..80)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (mut budget, mut now) = (Budget::default(), runtime.block_on(async { Instant::now() }));
        for (step, number, spread) in steps {
            let effect = if number % 2 == 0 { Effect::Reads } else { Effect::Writes };
            match step {
                0 => now += seconds(number),
                1 => drop(budget.failed(effect, now, seconds(number % 21), spread)),
                2 => drop(budget.end_probe()),
                3 if number % 3 == 0 => drop(budget.answered(effect, now)),
                _ => {
                    let origin = [Origin::Engine, Origin::Runtime, Origin::Kcp][usize::from(step) % 3];
                    if let AdmissionDecision::Wait(wait) = budget.admit(&key("a"), now, origin) {
                        prop_assert!(wait <= Duration::from_mins(15) && origin != Origin::Kcp);
                    }
                }
            }
        }
        let _ended = budget.end_probe();
        prop_assert!(!matches!(budget.admit(&key("a"), now, Origin::Runtime), AdmissionDecision::Wait(_)));
        let _ended = budget.end_probe();
        let later = now + Duration::from_mins(15);
        prop_assert!(!matches!(budget.admit(&key("a"), later, Origin::Engine), AdmissionDecision::Wait(_)));
    }
}

#[derive(Default)]
struct Reach(Mutex<Vec<bool>>);

impl Observer for Reach {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}
    fn reachable(&self, _: &str, reachable: bool) {
        self.0.lock().push(reachable);
    }
}

#[tokio::test(start_paused = true)]
async fn kyma_reports_its_suspended_runtime_unreachable() {
    let reach = Arc::new(Reach::default());
    let (engine, calls, _) = engine_observed_by(Arc::clone(&reach) as _, Arc::default());
    for _ in 0..3 {
        engine.dispatcher.clusters.budgets.call_ended("harbour", Effect::Reads, seconds(20), false);
    }
    let kyma = WorkKey::Kyma { kyma: "harbour".into() };
    engine
        .queue()
        .push(kyma, Push { class: Class::UserEdit, trigger: Some(Trigger::Start), guards: Vec::new() });
    assert_eq!(work_once(&engine).await.1, OutcomeKind::Waiting);
    assert_eq!((calls.load(Ordering::SeqCst), reach.0.lock().clone()), (0, vec![false]));
}

/// An engine whose runtime `harbour` receives calls and answers them or not.
fn engine(answers: Arc<AtomicUsize>) -> (Engine, Arc<AtomicUsize>, tests::Requests) {
    engine_observed_by(Arc::new(Reach::default()), answers)
}

fn engine_observed_by(
    observer: Arc<dyn Observer>,
    answers: Arc<AtomicUsize>,
) -> (Engine, Arc<AtomicUsize>, tests::Requests) {
    let kyma = || {
        json!({"apiVersion": names::API_VERSION, "kind": "Kyma", "metadata": {
            "name": "harbour", "namespace": "kcp-system", "uid": "u", "resourceVersion": "7", "generation": 1,
            "labels": {names::labels::MANAGED_BY: names::labels::MANAGED_BY_KCP}, "finalizers": [names::finalizers::KYMA]},
            "spec": {"channel": "regular"}})
    };
    let (engine, kcp_calls) = tests::engine_observed_by(observer, move |_, path| {
        if path.contains("/kymas/harbour") { (200, kyma()) } else { not_found() }
    });
    let secret = SecretRef { name: "s".into(), uid: "u".into(), resource_version: "1".into() };
    {
        let mut state = engine.state().write();
        state.apply_kyma(serde_json::from_value(kyma()).unwrap());
        state.apply_secret("harbour", "s", Some(secret));
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let recorder = Arc::clone(&calls);
    let client = scripted::client(move |_| {
        recorder.fetch_add(1, Ordering::SeqCst);
        (answers.load(Ordering::SeqCst) > 0).then(|| scripted::refused(403, "Forbidden", "no"))
    });
    let clusters = &engine.dispatcher.clusters;
    let client = RuntimeClient::new(client, seconds(20));
    let client = limited(client, "harbour", &clusters.budgets, engine.queue());
    let version = SecretVersion { uid: "u".into(), resource_version: "1".into() };
    clusters.runtimes.get_or_build("harbour", &version, || Ok::<_, ()>(client)).unwrap();
    (engine, calls, kcp_calls)
}

async fn work_once(engine: &Engine) -> (WorkKey, OutcomeKind, String) {
    let lease = engine.queue().next().await;
    let key = lease.key().clone();
    Arc::clone(&engine.dispatcher).work(lease).await;
    let record = engine.history().of("harbour").pop().unwrap();
    (key, record.outcome, record.message)
}

#[tokio::test(start_paused = true)]
async fn a_suspended_runtime_gets_no_calls_until_an_event() {
    let answers = Arc::new(AtomicUsize::new(0));
    let (engine, calls, kcp_calls) = engine(Arc::clone(&answers));
    let kyma = WorkKey::Kyma { kyma: "harbour".into() };
    let push = |key: &WorkKey, trigger: Trigger| {
        engine
            .queue()
            .push(key.clone(), Push { class: Class::UserEdit, trigger: Some(trigger), guards: Vec::new() });
    };
    push(&kyma, Trigger::Start);
    for _ in 0..3 {
        let (_, outcome, _) = work_once(&engine).await;
        assert_eq!(outcome, OutcomeKind::Failed);
    }
    let message = engine.history().of("harbour").pop().unwrap().message;
    assert!(message.contains("is suspended until 1970-01-01T00:0"), "{message}");
    assert_eq!((calls.load(Ordering::SeqCst), engine.suspended_runtimes()), (3, 1));
    // The Kyma is requeued to report the Manifest's failure; the Manifest's retry is refused.
    kcp_calls.lock().clear();
    let (_, outcome, message) = work_once(&engine).await;
    assert_eq!((outcome, calls.load(Ordering::SeqCst)), (OutcomeKind::Waiting, 3));
    assert!(message.contains("suspended until"), "{message}");
    assert!(
        kcp_calls
            .lock()
            .iter()
            .any(|line| line.starts_with("PATCH") && line.ends_with("/kymas/harbour/status"))
    );
    // An event allows one probe.
    let event = || Trigger::Event {
        epoch: "e".into(),
        seq: 1,
        watch: "w".into(),
        object: object(),
        span: crate::spans::EventSpan::default(),
    };
    push(&kyma, event());
    assert_eq!(work_once(&engine).await.1, OutcomeKind::Failed);
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(work_once(&engine).await.1, OutcomeKind::Waiting);
    // A canary requeues the rest at once; this time the runtime answers.
    answers.store(1, Ordering::SeqCst);
    let before = engine.queue().now();
    push(&WorkKey::EventPath { kyma: "harbour".into() }, event());
    assert!(matches!(work_once(&engine).await.0, WorkKey::EventPath { .. }));
    let (key, outcome, message) = work_once(&engine).await;
    assert_eq!((key, outcome, engine.queue().now()), (kyma, OutcomeKind::Failed, before), "{message}");
    assert!(message.contains("forbids") && message.contains("next try within 5 min"), "{message}");
    assert_eq!(engine.suspended_runtimes(), 0);
    assert!(engine.dispatcher.clusters.budgets.runtimes.lock().is_empty());
}

#[test]
fn engine_writes_do_not_interrupt_a_suspension() {
    let kcp = |change| Trigger::Kcp { object: WorkKey::Kyma { kyma: "harbour".into() }, change };
    for own in
        [Change::ManifestStatus, Change::ManifestDeleted, Change::StatusOverwritten, Change::FinalizerRemoved]
    {
        assert_eq!(Origin::of(&[kcp(own), Trigger::Start]), Origin::Engine, "{own:?}");
    }
    for users in [Change::Changed, Change::ModuleRelease, Change::Kubeconfig] {
        assert_eq!(Origin::of(&[kcp(Change::ManifestStatus), kcp(users)]), Origin::Kcp, "{users:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_deleted_runtime_expire() {
    let budgets = Budgets::new(16);
    budgets.call_ended("gone", Effect::Reads, seconds(1), false);
    tokio::time::advance(WINDOW).await;
    assert_eq!((budgets.count(), budgets.runtimes.lock().len()), (0, 1));
    tokio::time::advance(seconds(1)).await;
    assert_eq!((budgets.count(), budgets.runtimes.lock().len()), (0, 0));
    for _ in 0..20 {
        budgets.call_ended("suspended", Effect::Reads, seconds(20), false);
    }
    tokio::time::advance(WINDOW).await;
    assert_eq!(budgets.runtimes.lock().len(), 1, "until it answers, or its Kyma is gone");
    budgets.count();
    assert_eq!(budgets.runtimes.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn suspected_runtimes_share_a_quarter_of_the_workers() {
    let (engine, ..) = engine(Arc::default());
    let clusters = &engine.dispatcher.clusters;
    for kyma in ["a", "b", "c", "d", "e"] {
        clusters.budgets.call_ended(kyma, Effect::Reads, seconds(1), false);
    }
    let admit = |kyma: &str| clusters.admit(&WorkKey::Kyma { kyma: kyma.into() }, &[]);
    let mut admissions = Vec::new();
    for kyma in ["a", "b", "c", "d"] {
        admissions.push(admit(kyma).unwrap());
    }
    assert!(matches!(admit("e"), Err(Refusal::Crowded(_))), "16 workers, 4 of them for suspects");
    assert!(admit("well").is_ok());
    admissions.pop();
    assert!(admit("e").is_ok());
}
