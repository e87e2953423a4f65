//! The receiver's metrics. Names, units, labels and meaning are documented in `docs/metrics.md`.

use std::time::Duration;

use http::StatusCode;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};
use tidewatch_engine::{Outcome, WorkKey, history::Observer};
use tidewatch_telemetry::metrics::{LAG_SECONDS, MetricsError, Registry};
use tidewatch_tls::HandshakeFailure;
use tidewatch_wire::v3::Change;

/// Longest figure that is taken from an agent.
const MAX_RECONCILED_MS: f64 = 3_600_000.0;

/// All of them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open connections of agents.
    pub connections: IntGauge,
    /// Handshakes that failed, by reason.
    pub handshake_failures: IntCounterVec,
    /// Requests by endpoint and status.
    pub requests: IntCounterVec,
    /// Requests refused, by reason.
    pub refused: IntCounterVec,
    /// Events by what was seen and what was done.
    pub events: IntCounterVec,
    /// Answers that asked an agent to wait.
    pub overloads: IntCounter,
    /// Answers that asked an agent to report everything.
    pub resyncs: IntCounter,
    agent_reconciled: Histogram,
    reconciles: IntCounterVec,
    queued: HistogramVec,
    work: HistogramVec,
}

/// What became of an event at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is in the queue.
    Queued,
    /// Nothing of ours depends on the object.
    Unowned,
}

impl Metrics {
    /// Declares them all.
    pub fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let metrics = Self {
            connections: registry.int_gauge("connections", "Open mTLS connections.")?,
            handshake_failures: registry.counter_vec(
                "handshake_failures_total",
                "TLS handshakes that failed, by reason.",
                &["reason"],
            )?,
            requests: registry.counter_vec(
                "requests_total",
                "Requests on the event port, by endpoint and HTTP status.",
                &["endpoint", "code"],
            )?,
            refused: registry.counter_vec(
                "refused_requests_total",
                "Requests that were refused, by reason.",
                &["reason"],
            )?,
            events: registry.counter_vec(
                "events_total",
                "Events taken in, by contract version, change and fate.",
                &["contract", "change", "fate"],
            )?,
            overloads: registry.counter("overload_answers_total", "Answers that asked an agent to wait.")?,
            resyncs: registry
                .counter("resync_answers_total", "Answers that asked an agent to report every object again.")?,
            agent_reconciled: registry.histogram(
                "agent_observed_to_reconciled_seconds",
                "From an object's first unreconciled change to its acknowledgement, as the agents measure it.",
                LAG_SECONDS,
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
        };
        for reason in HandshakeFailure::ALL {
            metrics.handshake_failures.with_label_values(&[reason.label()]);
        }
        Ok(metrics)
    }

    /// Counts an answer.
    pub fn answered(&self, endpoint: &str, status: StatusCode) {
        self.requests.with_label_values(&[endpoint, status.as_str()]).inc();
    }

    /// Takes an agent's own figures, clamped: one agent's clock must not spoil the sum.
    pub fn reported(&self, milliseconds: &[u32]) {
        for figure in milliseconds {
            self.agent_reconciled.observe(f64::from(*figure).min(MAX_RECONCILED_MS) / 1000.0);
        }
    }

    /// Counts an event.
    pub fn event(&self, contract: &str, change: Option<Change>, fate: Fate) {
        let change = match change {
            Some(Change::Changed) => "changed",
            Some(Change::Gone) => "gone",
            Some(Change::Resync) => "resync",
            None => "unknown",
        };
        let fate = match fate {
            Fate::Queued => "queued",
            Fate::Unowned => "unowned",
        };
        self.events.with_label_values(&[contract, change, fate]).inc();
    }
}

impl Observer for Metrics {
    fn reconciled(
        &self,
        key: &WorkKey,
        class: &'static str,
        outcome: Outcome,
        queued: Duration,
        work: Duration,
    ) {
        self.reconciles.with_label_values(&[key.kind(), class, outcome.label()]).inc();
        self.queued.with_label_values(&[key.kind(), class]).observe(queued.as_secs_f64());
        self.work.with_label_values(&[key.kind(), outcome.label()]).observe(work.as_secs_f64());
    }
}
