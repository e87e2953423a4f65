//! The engine's metrics (`docs/reference/metrics.md`).

use prometheus::{HistogramVec, IntCounter, IntCounterVec};
use tidewatch_engine::{WorkKey, history::Record};
use tidewatch_telemetry::metrics::{LAG_SECONDS, MetricsError, Registry};

/// The engine's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Polls and resyncs, by reason.
    pub checks: IntCounterVec,
    /// Events that were echoes.
    pub echoes: IntCounter,
    reconciles: IntCounterVec,
    queued: HistogramVec,
    work: HistogramVec,
    stages: HistogramVec,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, MetricsError> {
        Ok(Self {
            checks: registry.counter_vec(
                "looks_total",
                "Runtimes reconciled without an event, by reason.",
                &["reason"],
            )?,
            echoes: registry.counter(
                "seen_events_total",
                "Events that asked for nothing: a reconcile had read, written or deleted that very version of the object.",
            )?,
            reconciles: registry.counter_vec(
                "reconciles_total",
                "Finished reconciles, by kind, class and outcome.",
                &["kind", "class", "outcome"],
            )?,
            queued: registry.histogram_vec(
                "queued_seconds",
                "From the first cause of a reconcile to its start.",
                &["kind", "class"],
                LAG_SECONDS,
            )?,
            work: registry.histogram_vec(
                "work_seconds",
                "From the start of a reconcile to its end.",
                &["kind", "outcome"],
                LAG_SECONDS,
            )?,
            stages: registry.histogram_vec(
                "stage_seconds",
                "Time of reconciles per stage.",
                &["kind", "stage"],
                LAG_SECONDS,
            )?,
        })
    }

    /// Counts a finished reconcile.
    pub fn reconciled(&self, key: &WorkKey, record: &Record) {
        let (kind, outcome) = (key.kind(), record.outcome.label());
        self.reconciles.with_label_values(&[kind, record.class, outcome]).inc();
        self.queued.with_label_values(&[kind, record.class]).observe(record.queued_seconds);
        self.work.with_label_values(&[kind, outcome]).observe(record.work_seconds);
        for time in &record.stages {
            self.stages.with_label_values(&[kind, time.stage.label()]).observe(time.seconds);
        }
    }
}
