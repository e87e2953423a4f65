use serde_json::json;
use tidewatch_engine::{EngineConfig, history::Observer, stages::StageTime};
use tidewatch_telemetry::BuildInfo;

use super::*;

fn kyma() -> WorkKey {
    WorkKey::Kyma { kyma: "k".into() }
}

fn manifest() -> WorkKey {
    WorkKey::Manifest { kyma: "k".into(), name: "m".into() }
}

/// A failed reconcile has the state Error.
fn ended(outcome: OutcomeKind, all: &[Stage]) -> Record {
    let stages = all.iter().map(|stage| StageTime { stage: *stage, seconds: 0.1 }).collect();
    let state = (outcome == OutcomeKind::Failed).then_some(State::Error);
    Record { outcome, state, stages, ..record(None, 0.0) }
}

#[test]
fn requeue_reasons_use_the_go_managers_words() {
    use Stage::{Apply, Connect, Delete, Prepare, ReadKcp, ReadRuntime, Render, WriteKcp, WriteRuntime};
    let of = |key: &WorkKey, outcome, all: &[Stage]| requeue(key, &ended(outcome, all));
    let failed = |key: &WorkKey, all: &[Stage]| of(key, OutcomeKind::Failed, all).unwrap().0;
    assert_eq!(
        of(&kyma(), OutcomeKind::Waiting, &[ReadKcp, Connect]),
        Some(("processing_kyma_state", "intended"))
    );
    assert_eq!(of(&kyma(), OutcomeKind::Unreported, &[]), Some(("kyma_retrieval", "unexpected")));
    assert_eq!(failed(&kyma(), &[ReadKcp, Connect, WriteKcp]), "sync_context_retrieval");
    assert_eq!(failed(&kyma(), &[ReadKcp, Connect, Prepare, WriteKcp, WriteRuntime]), "crds_sync");
    assert_eq!(failed(&kyma(), &[ReadKcp, Prepare, ReadRuntime]), "spec_replacement_from_remote");
    assert_eq!(failed(&manifest(), &[ReadKcp, Render, WriteKcp]), "manifest_render_resources");
    assert_eq!(failed(&manifest(), &[ReadKcp, Render, WriteKcp, Apply]), "manifest_sync_resources");
    assert_eq!(failed(&manifest(), &[ReadKcp, WriteKcp]), "manifest_retrieval");
    let waiting = |all: &[Stage]| of(&manifest(), OutcomeKind::Waiting, all).unwrap().0;
    assert_eq!(waiting(&[ReadKcp, Apply, Delete]), "manifest_prune_diff_not_finished");
    assert_eq!(waiting(&[ReadKcp, Apply]), "manifest_sync_resources_enqueue_required");
    assert_eq!(waiting(&[ReadKcp, Delete, WriteKcp]), "manifest_pre_delete_enqueue_required");
    assert_eq!(failed(&manifest(), &[ReadKcp, Delete]), "manifest_pre_delete");
    assert_eq!(failed(&manifest(), &[ReadKcp, Apply, Delete]), "manifest_prune_diff");
    assert_eq!(of(&kyma(), OutcomeKind::Waiting, &[ReadKcp, Delete, WriteKcp]).unwrap().0, "kyma_deletion");
    assert_eq!(of(&WorkKey::Watcher { name: "w".into() }, OutcomeKind::Failed, &[]), None);
}

#[test]
fn a_warning_counts_as_an_intended_requeue() {
    for (key, word) in
        [(kyma(), "processing_kyma_state"), (manifest(), "manifest_sync_resources_enqueue_required")]
    {
        let warns = Record { state: Some(State::Warning), ..ended(OutcomeKind::Failed, &[Stage::Apply]) };
        assert_eq!(requeue(&key, &warns), Some((word, "intended")));
    }
}

#[test]
fn refused_credentials_are_reported_as_unauthorized() {
    for (key, word) in [(kyma(), "kyma_unauthorized"), (manifest(), "manifest_unauthorized")] {
        let refused = Record {
            next_try_for: Some(Reason::Failed("unauthorized")),
            ..ended(OutcomeKind::Failed, &[Stage::Apply])
        };
        assert_eq!(requeue(&key, &refused), Some((word, "unexpected")));
        let other = Record { next_try_for: Some(Reason::Failed("forbidden")), ..refused };
        assert_ne!(requeue(&key, &other).unwrap().0, word);
    }
}

#[test]
fn every_requeue_reason_has_a_series_from_the_start() {
    let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
    let registry = Registry::new("p", build).unwrap();
    let metrics = KlmMetrics::register(&registry, false).unwrap();
    assert_eq!(series(&metrics.requeues), REASONS.len() * TYPES.len());
    let waiting = |all: &[Stage]| requeue(&manifest(), &ended(OutcomeKind::Waiting, all)).unwrap();
    let counted = [
        requeue(&kyma(), &ended(OutcomeKind::Failed, &[])).unwrap(),
        waiting(&[Stage::Delete]),
        waiting(&[]),
    ];
    assert!(counted.iter().all(|(reason, kind)| REASONS.contains(reason) && TYPES.contains(kind)));
}

#[test]
fn an_unrenewed_certificate_is_reported_while_its_kyma_exists() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let certificates = Certificates::default();
    let values = |now| {
        let mut values = Vec::new();
        certificates.each(
            |kyma| kyma != "gone",
            at(now),
            |kyma, value| values.push((kyma.to_owned(), value)),
        );
        values
    };
    certificates.seen("k", at(900));
    certificates.seen("gone", at(900));
    assert_eq!(values(899), [("k".to_owned(), 0.0)]);
    assert_eq!(values(900), [("k".to_owned(), 1.0)]);
    certificates.seen("k", at(1_800));
    assert_eq!(values(900), [("k".to_owned(), 0.0)], "it was renewed");
}

fn record(next: Option<f64>, seconds: f64) -> Record {
    Record {
        key: String::new(),
        triggers: Vec::new(),
        trigger_count: 0,
        class: "retry",
        outcome: OutcomeKind::Waiting,
        state: None,
        is_found: false,
        has_read: true,
        message: String::new(),
        finished_at: Timestamp::UNIX_EPOCH,
        queued_seconds: 0.0,
        work_seconds: seconds,
        stages: Vec::new(),
        next_try_seconds: next,
        next_try_for: None,
    }
}

#[test]
fn only_requeues_and_long_manifest_reconciles_are_counted() {
    let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
    let registry = Registry::new("p", build).unwrap();
    let metrics = KlmMetrics::register(&registry, true).unwrap();
    let count = || metrics.requeues.with_label_values(&["processing_kyma_state", "intended"]).get();
    metrics.reconciled(&kyma(), &record(None, 1.0));
    assert_eq!(count(), 0);
    metrics.reconciled(&kyma(), &record(Some(1.0), 100.0));
    assert_eq!(count(), 1);
    let page = || registry.encode().unwrap();
    assert!(!page().contains("reconcile_duration_seconds{"), "{}", page());
    metrics.reconciled(&manifest(), &record(None, 75.5));
    assert!(page().contains("\nreconcile_duration_seconds{manifest_name=\"m\"} 75.5\n"), "{}", page());
    metrics.reconciled(&manifest(), &record(None, 0.5));
    assert!(!page().contains("reconcile_duration_seconds{"), "{}", page());
    for n in 0..=LONG_RECONCILES {
        let key = WorkKey::Manifest { kyma: "k".into(), name: format!("m{n}") };
        metrics.reconciled(&key, &record(None, 60.0));
    }
    assert_eq!(page().matches("\nreconcile_duration_seconds{").count(), LONG_RECONCILES);
    let plain = Registry::new("p", build).unwrap();
    KlmMetrics::register(&plain, false).unwrap().reconciled(&manifest(), &record(None, 75.5));
    assert!(!plain.encode().unwrap().contains("reconcile_duration_seconds"));
}

#[test]
fn kyma_and_module_series_have_their_labels() {
    let kyma = |domain: &str| -> KymaSeries {
        let kyma: Kyma = serde_json::from_value(json!({
            "metadata": {"name": "harbour", "annotations": {"skr-domain": domain},
                         "labels": {"kyma-project.io/instance-id": "i-7"}},
            "spec": {"channel": "regular"}, "status": {"state": "Warning"}
        }))
        .unwrap();
        KymaSeries::from(&kyma)
    };
    let of = |shoot: &str| KymaSeries {
        name: "harbour".into(),
        state: State::Warning,
        shoot: shoot.into(),
        instance: "i-7".into(),
    };
    assert_eq!(kyma("c-12.kyma.example.com"), of("c-12"));
    assert_eq!(kyma("kyma.example"), of(""));
    let manifest = |labels: serde_json::Value, unmanaged: &str| -> Manifest {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "labels": labels,
                         "annotations": {"operator.kyma-project.io/is-unmanaged": unmanaged}},
            "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}},
            "status": {"state": "Ready"}
        }))
        .unwrap()
    };
    let plain = json!({"operator.kyma-project.io/module-name": "guard"});
    let mandatory = json!({"operator.kyma-project.io/module-name": "guard",
                           "operator.kyma-project.io/mandatory-module": "true"});
    let guard = |state| Some(ModuleSeries { name: "guard".into(), state });
    assert_eq!(mandatory_module(&manifest(plain, "false")), None);
    assert_eq!(mandatory_module(&manifest(mandatory.clone(), "false")), guard(State::Ready));
    assert_eq!(mandatory_module(&manifest(mandatory, "true")), guard(State::Unmanaged));
    assert_eq!(mandatory_module(&manifest(json!({}), "false")), None);
}

struct Unseen;

impl Observer for Unseen {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}

    fn reachable(&self, _kyma: &str, _reachable: bool) {}
}

/// One Kyma with two modules, one mandatory; no KCP.
fn engine() -> Engine {
    let kcp = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let engine =
        Engine::new(kcp, EngineConfig::default(), Arc::new(Unseen), Arc::new(Timestamp::now)).unwrap();
    let kyma: Kyma = serde_json::from_value(json!({
        "metadata": {"name": "harbour"}, "spec": {"channel": "regular"},
        "status": {"state": "Ready", "modules": [{"name": "beam", "state": "Ready"}]}
    }))
    .unwrap();
    let guard: Manifest = serde_json::from_value(json!({
        "metadata": {"name": "m", "labels": {labels::KYMA_NAME: "harbour", labels::MODULE_NAME: "guard",
                     "operator.kyma-project.io/mandatory-module": "true"}},
        "spec": {"remote": true, "install": {"name": "raw-manifest", "source": {}}},
        "status": {"state": "Ready"}
    }))
    .unwrap();
    {
        let mut state = engine.state().write();
        state.apply_kyma(kyma);
        state.apply_manifest(guard);
    }
    engine
}

#[tokio::test]
async fn only_a_leading_receiver_exports_object_metrics() {
    let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
    let (registry, engine) = (Registry::new("p", build).unwrap(), engine());
    let certificates = register_objects(&registry.named_as("lifecycle_mgr"), &engine).unwrap();
    certificates.seen("harbour", Timestamp::UNIX_EPOCH);
    let all = ["kyma_state", "mandatory_module_state", "module_state", "self_signed_cert_not_renew"];
    // A standby keeps its data.
    for (mode, values) in [
        (Mode::Live, &all[..]),
        (Mode::Standby, &all[..0]),
        (Mode::Paused, &all[..]),
        (Mode::Standby, &all[..0]),
    ] {
        let label = mode.label();
        engine.set_mode(mode);
        let page = registry.encode().unwrap();
        let shown: Vec<_> =
            all.into_iter().filter(|name| page.contains(&format!("\nlifecycle_mgr_{name}{{"))).collect();
        assert_eq!(shown, values, "{label}\n{page}");
    }
}

#[test]
fn exactly_one_state_has_value_1() {
    let mut values = Vec::new();
    for_each_state(&KYMA_STATES, State::Ready, |state, value| values.push((state, value)));
    let ready = [("Processing", 0.0), ("Deleting", 0.0), ("Ready", 1.0), ("Error", 0.0), ("Warning", 0.0)];
    assert_eq!(values, ready);
}

#[test]
fn certificates_count_as_expiring_14_days_before() {
    let now = Timestamp::UNIX_EPOCH;
    let ends_in = |hours: i64| is_close(now + SignedDuration::from_hours(hours), now);
    assert_eq!([14 * 24, 14 * 24 - 1, -1].map(ends_in), [false, true, true]);
    assert!(CLOSE_HELP.contains(&format!("{} days", CLOSE_TO_EXPIRY.as_hours() / 24)), "{CLOSE_HELP}");
}
