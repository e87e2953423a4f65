//! The intake's metrics. Names, units, labels and meaning are documented in `docs/metrics.md`.

use http::StatusCode;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tidewatch_telemetry::metrics::{MetricsError, Registry};
use tidewatch_tls::HandshakeFailure;
use tidewatch_wire::v3::Change;

use crate::host::Fate;

/// All of them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open connections of agents.
    pub connections: IntGauge,
    /// Connections that the listener ended, by reason.
    pub connections_ended: IntCounterVec,
    /// Requests sent away, or whose events were, by limit.
    pub throttled: IntCounterVec,
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
}

impl Metrics {
    /// Declares them all.
    pub fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let metrics = Self {
            connections: registry.int_gauge("connections", "Open mTLS connections.")?,
            connections_ended: registry.counter_vec(
                "connections_ended_total",
                "Connections that the listener ended, by reason.",
                &["reason"],
            )?,
            throttled: registry.counter_vec(
                "throttled_requests_total",
                "Requests that were sent away, or whose events were not taken, by the limit they met.",
                &["limit"],
            )?,
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

    /// Counts an event.
    pub fn event(&self, contract: &str, change: Option<Change>, fate: Fate) {
        let change = match change {
            Some(Change::Changed) => "changed",
            Some(Change::Gone) => "gone",
            None => "unknown",
        };
        self.events.with_label_values(&[contract, change, fate.label()]).inc();
    }
}
