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
async fn a_runtime_that_hangs_is_parked_for_longer_each_time() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    assert!(
        !budget.failed(Effect::Reads, now, seconds(20), 0.0)
            && !budget.failed(Effect::Reads, now, seconds(20), 0.0)
    );
    assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Try(false), "it is only suspected");
    assert!(budget.failed(Effect::Reads, now, seconds(20), 0.0));
    for pause in [15, 30, 60, 120, 240, 480, 720, 720] {
        assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Wait(seconds(pause)));
        now += seconds(pause);
        assert_eq!(budget.admit(&key("b"), now, Press::No), Verdict::Try(true));
        assert_eq!(
            budget.admit(&key("c"), now, Press::Heard),
            Verdict::Wait(WHILE_TRYING),
            "one tries for all"
        );
        assert!(!budget.failed(Effect::Reads, now, seconds(20), 0.0), "it was parked before");
    }
    assert_eq!(budget.admit(&key("a"), now, Press::Kcp), Verdict::Try(false));
    assert!(!budget.failed(Effect::Reads, now, seconds(20), 0.0));
    assert_eq!(budget.admit(&key("d"), now, Press::No), Verdict::Wait(seconds(720)), "as it was");
    assert_eq!(budget.admit(&key("d"), now, Press::Heard), Verdict::Try(true));
    assert_eq!(budget.refused.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_at_once_costs_little_and_what_is_long_past_nothing() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    for _ in 0..100 {
        assert!(!budget.failed(Effect::Reads, now, Duration::ZERO, 0.0));
        now += seconds(9);
    }
    now += WINDOW;
    assert_eq!((0..15).filter(|_| budget.failed(Effect::Reads, now, Duration::ZERO, 0.0)).count(), 1);
    assert!(budget.lost.len() <= CALLS);
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_it_and_what_was_not_done_is() {
    let budgets = Budgets::new(16);
    let hang = |kyma: &str| {
        (0..3).flat_map(|_| budgets.ended(kyma, Effect::Reads, seconds(20), false).0).collect::<Vec<_>>()
    };
    assert_eq!(hang("harbour"), [WorkKey::Kyma { kyma: "harbour".into() }], "its status is to say so");
    assert!(budgets.parked("harbour").is_some() && budgets.parked("pier").is_none());
    budgets.runtimes.lock().get_mut("harbour").unwrap().admit(&key("a"), Instant::now(), Press::No);
    assert_eq!(budgets.ended("harbour", Effect::Reads, seconds(1), true).0, [key("a")]);
    assert!(budgets.runtimes.lock().is_empty() && budgets.count() == 0);
    hang("harbour");
    budgets.runtimes.lock().get_mut("harbour").unwrap().admit(&key("b"), Instant::now(), Press::No);
    assert_eq!(budgets.wake("harbour"), [key("b")]);
    assert!(budgets.wake("pier").is_empty() && budgets.parked("harbour").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_answers_what_is_read_and_no_writes_is_parked() {
    let (mut budget, mut now) = (Budget::default(), Instant::now());
    for parked in [false, false, true] {
        assert!(!budget.answered(Effect::Reads, now) || budget.lost.is_empty());
        assert_eq!(budget.failed(Effect::Writes, now, seconds(20), 0.0), parked);
    }
    assert!(!budget.answered(Effect::Reads, now), "that it answers what is read is nothing new");
    assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Wait(seconds(15)));
    now += seconds(15);
    assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Try(true));
    assert!(!budget.answered(Effect::Reads, now));
    assert!(!budget.failed(Effect::Writes, now, seconds(20), 0.0));
    assert!(!budget.tried(), "the try is over already");
    assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Wait(seconds(30)), "longer each time");
    // The suspension ends without any write, and with an answered write.
    now += seconds(30);
    assert_eq!(budget.admit(&key("a"), now, Press::No), Verdict::Try(true));
    assert!(!budget.answered(Effect::Reads, now) && budget.tried());
    assert!(budget.answered(Effect::Writes, now));
    // A probe without a call proves nothing.
    assert_eq!(budget.admit(&key("a"), now, Press::Heard), Verdict::Try(true));
    assert!(!budget.tried() && budget.until.is_some());
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_answered_forgive_what_reads_have_cost() {
    let (mut budget, now) = (Budget::default(), Instant::now());
    budget.failed(Effect::Reads, now, seconds(20), 0.0);
    budget.failed(Effect::Writes, now, seconds(20), 0.0);
    assert!(!budget.answered(Effect::Reads, now), "a write is lost still");
    assert_eq!(budget.lost.len(), 1);
    assert!(budget.answered(Effect::Reads, now + WINDOW + seconds(1)), "and is forgotten after a while");
}

proptest! {
    #[test]
    fn nobody_is_parked_for_more_than_a_quarter_of_an_hour_and_there_is_always_a_way_out(
        steps in proptest::collection::vec((0_u8..5, 0_u64..1000, 0.0_f64..1.0), 1..80)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (mut budget, mut now) = (Budget::default(), runtime.block_on(async { Instant::now() }));
        for (what, number, spread) in steps {
            let effect = if number % 2 == 0 { Effect::Reads } else { Effect::Writes };
            match what {
                0 => now += seconds(number),
                1 => drop(budget.failed(effect, now, seconds(number % 21), spread)),
                2 => drop(budget.tried()),
                3 if number % 3 == 0 => drop(budget.answered(effect, now)),
                _ => {
                    let press = [Press::No, Press::Heard, Press::Kcp][usize::from(what) % 3];
                    if let Verdict::Wait(wait) = budget.admit(&key("a"), now, press) {
                        prop_assert!(wait <= Duration::from_mins(15) && press != Press::Kcp);
                    }
                }
            }
        }
        let _over = budget.tried();
        prop_assert!(matches!(budget.admit(&key("a"), now, Press::Heard), Verdict::Try(_)));
        let _over = budget.tried();
        let later = now + Duration::from_mins(15);
        prop_assert!(matches!(budget.admit(&key("a"), later, Press::No), Verdict::Try(_)));
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
async fn a_runtime_that_a_manifest_has_found_silent_cannot_be_reached_for_its_kyma() {
    let reach = Arc::new(Reach::default());
    let (engine, calls, _) = engine_observed_by(Arc::clone(&reach) as _, Arc::default());
    for _ in 0..3 {
        engine.dispatcher.clusters.budgets.ended("harbour", Effect::Reads, seconds(20), false);
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
    let (engine, heard) = tests::engine_observed_by(observer, move |_, path| {
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
    let client = counted(client, "harbour", &clusters.budgets, engine.queue());
    let version = SecretVersion { uid: "u".into(), resource_version: "1".into() };
    clusters.runtimes.get_or_build("harbour", &version, || Ok::<_, ()>(client)).unwrap();
    (engine, calls, heard)
}

async fn work_once(engine: &Engine) -> (WorkKey, OutcomeKind, String) {
    let lease = engine.queue().next().await;
    let key = lease.key().clone();
    Arc::clone(&engine.dispatcher).work(lease).await;
    let record = engine.history().of("harbour").pop().unwrap();
    (key, record.outcome, record.message)
}

#[tokio::test(start_paused = true)]
async fn a_parked_runtime_costs_nothing_until_it_is_heard_of() {
    let answers = Arc::new(AtomicUsize::new(0));
    let (engine, calls, heard) = engine(Arc::clone(&answers));
    let kyma = WorkKey::Kyma { kyma: "harbour".into() };
    let want = |key: &WorkKey, trigger: Trigger| {
        engine
            .queue()
            .push(key.clone(), Push { class: Class::UserEdit, trigger: Some(trigger), guards: Vec::new() });
    };
    want(&kyma, Trigger::Start);
    for _ in 0..3 {
        let (_, outcome, _) = work_once(&engine).await;
        assert_eq!(outcome, OutcomeKind::Failed);
    }
    let told = engine.history().of("harbour").pop().unwrap().message;
    assert!(told.contains("is left alone until 1970-01-01T00:0"), "{told}");
    assert_eq!((calls.load(Ordering::SeqCst), engine.parked_runtimes()), (3, 1));
    // The Kyma is requeued to report the Manifest's failure; the Manifest's retry is refused.
    heard.lock().clear();
    let (_, outcome, told) = work_once(&engine).await;
    assert_eq!((outcome, calls.load(Ordering::SeqCst)), (OutcomeKind::Waiting, 3));
    assert!(told.contains("left alone"), "{told}");
    assert!(
        heard.lock().iter().any(|line| line.starts_with("PATCH") && line.ends_with("/kymas/harbour/status"))
    );
    // An event allows one probe.
    let event = || Trigger::Event {
        epoch: "e".into(),
        seq: 1,
        watch: "w".into(),
        object: object(),
        span: crate::spans::EventSpan::default(),
    };
    want(&kyma, event());
    assert_eq!(work_once(&engine).await.1, OutcomeKind::Failed);
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(work_once(&engine).await.1, OutcomeKind::Waiting);
    // A canary requeues the rest at once; this time the runtime answers.
    answers.store(1, Ordering::SeqCst);
    let before = engine.queue().now();
    want(&WorkKey::EventPath { kyma: "harbour".into() }, event());
    assert!(matches!(work_once(&engine).await.0, WorkKey::EventPath { .. }));
    let (key, outcome, told) = work_once(&engine).await;
    assert_eq!((key, outcome, engine.queue().now()), (kyma, OutcomeKind::Failed, before), "{told}");
    assert!(told.contains("forbids") && told.contains("next try within 5 min"), "{told}");
    assert_eq!(engine.parked_runtimes(), 0);
    assert!(engine.dispatcher.clusters.budgets.runtimes.lock().is_empty());
}

#[test]
fn what_the_engine_asks_of_itself_is_no_reason_to_pass_a_parked_runtimes_time() {
    let kcp = |change| Trigger::Kcp { object: WorkKey::Kyma { kyma: "harbour".into() }, change };
    for own in
        [Change::ManifestStatus, Change::ManifestDeleted, Change::StatusOverwritten, Change::FinalizerRemoved]
    {
        assert_eq!(Press::of(&[kcp(own), Trigger::Start]), Press::No, "{own:?}");
    }
    for users in [Change::Changed, Change::ModuleRelease, Change::Kubeconfig] {
        assert_eq!(Press::of(&[kcp(Change::ManifestStatus), kcp(users)]), Press::Kcp, "{users:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_runtime_that_is_gone_has_cost_is_forgotten() {
    let budgets = Budgets::new(16);
    budgets.ended("gone", Effect::Reads, seconds(1), false);
    tokio::time::advance(WINDOW).await;
    assert_eq!((budgets.count(), budgets.runtimes.lock().len()), (0, 1));
    tokio::time::advance(seconds(1)).await;
    assert_eq!((budgets.count(), budgets.runtimes.lock().len()), (0, 0));
    for _ in 0..20 {
        budgets.ended("parked", Effect::Reads, seconds(20), false);
    }
    tokio::time::advance(WINDOW).await;
    assert_eq!(budgets.runtimes.lock().len(), 1, "until it answers, or its Kyma is gone");
    budgets.count();
    assert_eq!(budgets.runtimes.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn suspects_share_a_quarter_of_the_workers() {
    let (engine, ..) = engine(Arc::default());
    let clusters = &engine.dispatcher.clusters;
    for kyma in ["a", "b", "c", "d", "e"] {
        clusters.budgets.ended(kyma, Effect::Reads, seconds(1), false);
    }
    let leave = |kyma: &str| clusters.admit(&WorkKey::Kyma { kyma: kyma.into() }, &[]);
    let mut held = Vec::new();
    for kyma in ["a", "b", "c", "d"] {
        held.push(leave(kyma).unwrap());
    }
    assert!(matches!(leave("e"), Err(Refusal::Crowded(_))), "16 workers, 4 of them for suspects");
    assert!(leave("well").is_ok());
    held.pop();
    assert!(leave("e").is_ok());
}
