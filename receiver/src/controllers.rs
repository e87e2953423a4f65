//! Go's controller-runtime metrics for the Go manager's dashboards.

use std::time::Duration;

use http::{Method, StatusCode};
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};
use tidewatch_engine::{Engine, WorkKey, history::Record};
use tidewatch_telemetry::metrics::{MetricsError, Registry};

use crate::lease;

/// Host label of all runtimes, to bound the series.
pub const RUNTIMES: &str = "runtimes";
const CONTROLLERS: [&str; 5] =
    ["kyma", "manifest", "mandatory-module-deletion", "mandatory-module-installation", "watcher"];
const RESULTS: [&str; 4] = ["error", "requeue", "requeue_after", "success"];
/// Seconds.
const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Seconds.
const QUEUE_BUCKETS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];

const fn controller(key: &WorkKey) -> Option<&'static str> {
    match key {
        WorkKey::Kyma { .. } => Some("kyma"),
        WorkKey::Manifest { .. } => Some("manifest"),
        WorkKey::Mandatory { .. } => Some("mandatory-module-installation"),
        WorkKey::Release { .. } => Some("mandatory-module-deletion"),
        WorkKey::Watcher { .. } => Some("watcher"),
        _ => None,
    }
}

/// Metrics of finished reconciles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    reconciles: IntCounterVec,
    errors: IntCounterVec,
    final_errors: IntCounterVec,
    panics: IntCounterVec,
    leads: IntGaugeVec,
    seconds: HistogramVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    queued: HistogramVec,
    worked: HistogramVec,
    answers: IntCounterVec,
}

impl ControllerMetrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let (runtime, queue) = (registry.named_as("controller_runtime"), registry.named_as("workqueue"));
        let of = ["controller"];
        let queues = ["controller", "name"];
        let metrics = Self {
            reconciles: runtime.counter_vec(
                "reconcile_total",
                "Finished reconciles, by how they end.",
                &["controller", "result"],
            )?,
            errors: runtime.counter_vec("reconcile_errors_total", "Reconciles that have failed.", &of)?,
            final_errors: runtime.counter_vec(
                "terminal_reconcile_errors_total",
                "Failed reconciles that are not tried again before a change.",
                &of,
            )?,
            panics: runtime.counter_vec("reconcile_panics_total", "Reconciles that have panicked.", &of)?,
            leads: registry.named_as("leader_election").int_gauge_vec(
                "master_status",
                "Whether this process holds the Lease.",
                &["name"],
            )?,
            seconds: runtime.histogram_vec(
                "reconcile_time_seconds",
                "From the start of a reconcile to its end.",
                &of,
                &RECONCILE_BUCKETS,
            )?,
            adds: queue.counter_vec(
                "adds_total",
                "Keys that were queued, counted when they are done.",
                &queues,
            )?,
            retries: queue.counter_vec(
                "retries_total",
                "Keys that are queued again by themselves.",
                &queues,
            )?,
            queued: queue.histogram_vec(
                "queue_duration_seconds",
                "From the first cause of a reconcile to its start.",
                &queues,
                &QUEUE_BUCKETS,
            )?,
            worked: queue.histogram_vec(
                "work_duration_seconds",
                "From the start of a reconcile to its end.",
                &queues,
                &QUEUE_BUCKETS,
            )?,
            answers: registry.named_as("rest_client").counter_vec(
                "requests_total",
                "Requests to API servers, by status code.",
                &["code", "host", "method"],
            )?,
        };
        for name in CONTROLLERS {
            for result in RESULTS {
                metrics.reconciles.with_label_values(&[name, result]);
            }
            for counter in [&metrics.errors, &metrics.final_errors, &metrics.panics] {
                counter.with_label_values(&[name]);
            }
            for counter in [&metrics.adds, &metrics.retries] {
                counter.with_label_values(&[name, name]);
            }
        }
        metrics.leads.with_label_values(&[lease::NAME]).set(0);
        Ok(metrics)
    }

    /// Marks this process as leader.
    pub fn leads(&self) {
        self.leads.with_label_values(&[lease::NAME]).set(1);
    }

    /// Counts a request to `host`. Unknown codes share a label.
    pub fn answered(&self, host: &str, method: &Method, code: Option<StatusCode>) {
        let code = match &code {
            None => "<error>",
            Some(code) if code.canonical_reason().is_none() => "other",
            Some(code) => code.as_str(),
        };
        self.answers.with_label_values(&[code, host, method.as_str()]).inc();
    }

    /// Counts a panic.
    pub fn panicked(&self, key: &WorkKey) {
        if let Some(name) = controller(key) {
            self.reconciles.with_label_values(&[name, "error"]).inc();
            for counter in [&self.errors, &self.panics] {
                counter.with_label_values(&[name]).inc();
            }
        }
    }

    /// Counts a finished reconcile.
    pub fn reconciled(&self, key: &WorkKey, record: &Record) {
        let Some(name) = controller(key) else { return };
        let (of, queue) = ([name], [name, name]);
        let again = record.next_try_seconds.is_some();
        let failed = record.is_error();
        let result = match (failed, again) {
            (true, _) => "error",
            (false, true) => "requeue_after",
            (false, false) => "success",
        };
        self.reconciles.with_label_values(&[name, result]).inc();
        if failed {
            self.errors.with_label_values(&of).inc();
        }
        if failed && !again {
            self.final_errors.with_label_values(&of).inc();
        }
        if again {
            self.retries.with_label_values(&queue).inc();
        }
        self.adds.with_label_values(&queue).inc();
        self.seconds.with_label_values(&of).observe(record.work_seconds);
        self.queued.with_label_values(&queue).observe(record.queued_seconds);
        self.worked.with_label_values(&queue).observe(record.work_seconds);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    keys: f64,
    /// Sum of all keys.
    seconds: f64,
    longest: f64,
}

fn sums<'a>(keys: impl Iterator<Item = (&'a WorkKey, Duration)>) -> [Sums; CONTROLLERS.len()] {
    let mut sums = [Sums::default(); CONTROLLERS.len()];
    for (key, age) in keys {
        let Some(name) = controller(key) else { continue };
        if let Some((_, sum)) = CONTROLLERS.iter().zip(&mut sums).find(|(of, _)| **of == name) {
            sum.keys += 1.0;
            sum.seconds += age.as_secs_f64();
            sum.longest = sum.longest.max(age.as_secs_f64());
        }
    }
    sums
}

/// Registers metrics computed at each scrape. Controllers share `workers`.
pub fn register_sizes(registry: &Registry, engine: &Engine, workers: usize) -> Result<(), MetricsError> {
    let (runtime, queue) = (registry.named_as("controller_runtime"), registry.named_as("workqueue"));
    runtime.gauge_vec_fn(
        "max_concurrent_reconciles",
        "Reconciles at the same time, at most; of all kinds together.",
        &["controller"],
        move |set| {
            for name in CONTROLLERS {
                #[allow(clippy::cast_precision_loss, reason = "there are far less than 2^52")]
                set(&[name], workers as f64);
            }
        },
    )?;
    let upgrades = engine.clone();
    registry.gauge_vec_fn(
        "agent_upgrades",
        "Upgrades of agents: waiting for their turn, under way, and not proven in time.",
        &["state"],
        move |set| {
            let counts = upgrades.agent_upgrades();
            let states =
                [("waiting", counts.waiting), ("upgrading", counts.upgrading), ("failed", counts.failed)];
            for (state, count) in states {
                #[allow(clippy::cast_precision_loss, reason = "there are far less than 2^52")]
                set(&[state], count as f64);
            }
        },
    )?;
    let all = engine.queue().clone();
    let working = move || {
        let now = all.now();
        all.inspect(|q| sums(q.in_flight().map(|(key, since)| (key, now.saturating_sub(since)))))
    };
    let all = engine.queue().clone();
    let waiting = move || all.inspect(|q| sums(q.waiting().map(|(key, _)| (key, Duration::ZERO))));
    let counted = working.clone();
    runtime.gauge_vec_fn(
        "active_workers",
        "Keys that are being reconciled.",
        &["controller"],
        move |set| {
            CONTROLLERS.iter().zip(counted()).for_each(|(name, sum)| set(&[name], sum.keys));
        },
    )?;
    let labels = ["controller", "name"];
    queue.gauge_vec_fn("depth", "Keys that wait for a worker.", &labels, move |set| {
        CONTROLLERS.iter().zip(waiting()).for_each(|(name, sum)| set(&[name, name], sum.keys));
    })?;
    let counted = working.clone();
    queue.gauge_vec_fn(
        "unfinished_work_seconds",
        "Sum of the ages of all running reconciles.",
        &labels,
        move |set| {
            CONTROLLERS.iter().zip(counted()).for_each(|(name, sum)| set(&[name, name], sum.seconds));
        },
    )?;
    queue.gauge_vec_fn(
        "longest_running_processor_seconds",
        "Age of the longest running reconcile.",
        &labels,
        move |set| {
            CONTROLLERS.iter().zip(working()).for_each(|(name, sum)| set(&[name, name], sum.longest));
        },
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tidewatch_api::State;
    use tidewatch_engine::key::OutcomeKind;
    use tidewatch_telemetry::BuildInfo;

    use super::*;

    fn record(outcome: OutcomeKind, next: Option<f64>) -> Record {
        Record {
            key: String::new(),
            triggers: Vec::new(),
            trigger_count: 0,
            class: "retry",
            outcome,
            state: (outcome == OutcomeKind::Failed).then_some(State::Error),
            is_found: false,
            has_read: true,
            message: String::new(),
            finished_at: Timestamp::UNIX_EPOCH,
            queued_seconds: 0.5,
            work_seconds: 0.25,
            stages: Vec::new(),
            next_try_seconds: next,
            next_try_for: None,
        }
    }

    #[test]
    fn keys_in_work_are_summed_by_controller() {
        let manifest = |name: &str| WorkKey::Manifest { kyma: "k".into(), name: name.into() };
        let (a, b, path) = (manifest("a"), manifest("b"), WorkKey::EventPath { kyma: "k".into() });
        let keys = [(&a, 1), (&b, 3), (&path, 7)].map(|(key, age)| (key, Duration::from_secs(age)));
        let sums = sums(keys.into_iter());
        let of = |name: &str| CONTROLLERS.iter().zip(sums).find(|(of, _)| **of == name).unwrap().1;
        let values = |name: &str| (of(name).keys, of(name).seconds, of(name).longest);
        assert_eq!((values("manifest"), values("kyma")), ((2.0, 4.0, 3.0), (0.0, 0.0, 0.0)));
    }

    #[test]
    fn reconciles_count_under_the_go_managers_controller_names() {
        let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
        let registry = Registry::new("p", build).unwrap();
        let metrics = ControllerMetrics::register(&registry).unwrap();
        let page = || registry.encode().unwrap();
        let kyma = WorkKey::Kyma { kyma: "k".into() };
        for (outcome, next) in [
            (OutcomeKind::Done, None),
            (OutcomeKind::Waiting, Some(1.0)),
            (OutcomeKind::Failed, Some(1.0)),
            (OutcomeKind::Failed, None),
        ] {
            metrics.reconciled(&kyma, &record(outcome, next));
        }
        metrics.reconciled(&WorkKey::EventPath { kyma: "k".into() }, &record(OutcomeKind::Done, None));
        metrics.panicked(&WorkKey::Release { module: "m".into() });
        let before = page();
        assert!(
            before.contains("\nleader_election_master_status{name=\"893110f7.kyma-project.io\"} 0\n"),
            "{before}"
        );
        metrics.leads();
        for line in [
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"success\"} 1",
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"requeue_after\"} 1",
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"error\"} 2",
            "controller_runtime_reconcile_total{controller=\"manifest\",result=\"error\"} 0",
            "controller_runtime_reconcile_errors_total{controller=\"kyma\"} 2",
            "controller_runtime_reconcile_panics_total{controller=\"mandatory-module-deletion\"} 1",
            "controller_runtime_reconcile_total{controller=\"mandatory-module-deletion\",result=\"error\"} 1",
            "leader_election_master_status{name=\"893110f7.kyma-project.io\"} 1",
            "controller_runtime_terminal_reconcile_errors_total{controller=\"kyma\"} 1",
            "controller_runtime_reconcile_time_seconds_count{controller=\"kyma\"} 4",
            "workqueue_adds_total{controller=\"kyma\",name=\"kyma\"} 4",
            "workqueue_retries_total{controller=\"kyma\",name=\"kyma\"} 2",
            "workqueue_queue_duration_seconds_sum{controller=\"kyma\",name=\"kyma\"} 2",
            "workqueue_work_duration_seconds_sum{controller=\"kyma\",name=\"kyma\"} 1",
        ] {
            assert!(page().contains(&format!("\n{line}\n")), "{line}\n{}", page());
        }
    }

    #[test]
    fn a_warning_does_not_count_as_an_error() {
        let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
        let registry = Registry::new("p", build).unwrap();
        let metrics = ControllerMetrics::register(&registry).unwrap();
        for next in [None, Some(1.0)] {
            let warns = Record { state: Some(State::Warning), ..record(OutcomeKind::Failed, next) };
            metrics.reconciled(&WorkKey::Kyma { kyma: "k".into() }, &warns);
        }
        let page = registry.encode().unwrap();
        for line in [
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"error\"} 0",
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"requeue_after\"} 1",
            "controller_runtime_reconcile_total{controller=\"kyma\",result=\"success\"} 1",
            "controller_runtime_reconcile_errors_total{controller=\"kyma\"} 0",
            "controller_runtime_terminal_reconcile_errors_total{controller=\"kyma\"} 0",
        ] {
            assert!(page.contains(&format!("\n{line}\n")), "{line}\n{page}");
        }
    }

    #[test]
    fn requests_are_counted_without_a_series_per_runtime() {
        let build = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };
        let registry = Registry::new("p", build).unwrap();
        let metrics = ControllerMetrics::register(&registry).unwrap();
        metrics.answered("kcp.example:443", &Method::GET, Some(StatusCode::OK));
        metrics.answered(RUNTIMES, &Method::PATCH, None);
        for code in 600..700 {
            metrics.answered(RUNTIMES, &Method::GET, StatusCode::from_u16(code).ok());
        }
        let page = registry.encode().unwrap();
        let all: Vec<&str> = page.lines().filter(|line| line.starts_with("rest_client_")).collect();
        let wanted = [
            r#"rest_client_requests_total{code="200",host="kcp.example:443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="<error>",host="runtimes",method="PATCH"} 1"#,
            r#"rest_client_requests_total{code="other",host="runtimes",method="GET"} 100"#,
        ];
        assert_eq!(all, wanted);
    }
}
