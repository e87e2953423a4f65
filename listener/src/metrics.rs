//! Metrics of the intake, see `docs/reference/metrics.md`.

use http::StatusCode;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};
use tidewatch_telemetry::metrics::{LAG_SECONDS, MetricsError, Registry};
use tidewatch_tls::HandshakeFailure;
use tidewatch_wire::v3::Change;

use crate::{host::Fate, known::Known};

/// Clamp for agents' figures.
const MAX_RECONCILED_MS: f64 = 3_600_000.0;

/// Too many handshakes from an address.
pub(crate) const ADDRESS_SHARE: &str = "address_share";

/// Metrics of the intake.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open connections.
    pub connections: IntGauge,
    /// Ended connections.
    pub connections_ended: IntCounterVec,
    /// Throttled requests.
    pub throttled: IntCounterVec,
    /// Failed handshakes.
    pub handshake_failures: IntCounterVec,
    /// Requests.
    pub requests: IntCounterVec,
    /// Refused requests.
    pub refused: IntCounterVec,
    /// Events.
    pub events: IntCounterVec,
    /// Overload answers.
    pub overloads: IntCounter,
    /// Requests for full reports.
    pub resyncs: IntCounter,
    /// Panics.
    pub panics: IntCounter,
    agent_reconciled: Histogram,
    pub(crate) known: Known,
}

impl Metrics {
    /// Registers the metrics.
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
                "Throttled requests, or requests with throttled events, by exceeded limit.",
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
            resyncs: registry
                .counter("resync_answers_total", "Answers that asked an agent to report every object again.")?,
            panics: registry
                .counter("intake_panics_total", "Panics while handling requests and events: a defect.")?,
            agent_reconciled: registry.histogram(
                "agent_observed_to_reconciled_seconds",
                "From an object's first unreconciled change to its acknowledgement, as the agents measure it.",
                LAG_SECONDS,
            )?,
            known: Known::register(registry)?,
        };
        for reason in HandshakeFailure::ALL {
            metrics.handshake_failures.with_label_values(&[reason.label()]);
        }
        metrics.handshake_failures.with_label_values(&[ADDRESS_SHARE]);
        Ok(metrics)
    }

    /// Counts an answer.
    pub fn answered(&self, endpoint: &str, status: StatusCode) {
        self.requests.with_label_values(&[endpoint, status.as_str()]).inc();
    }

    /// Records an agent's times, clamped against wrong clocks.
    pub fn reported(&self, milliseconds: &[u32]) {
        for figure in milliseconds {
            self.agent_reconciled.observe(f64::from(*figure).min(MAX_RECONCILED_MS) / 1000.0);
        }
    }

    /// Counts a request's events.
    pub fn events_taken(&self, contract: &str, taken: &Taken) {
        for (change, fate, count) in &taken.0 {
            let labels = [contract, change_label(Some(*change)), fate.label()];
            self.events.with_label_values(&labels).inc_by(*count);
        }
    }

    /// Counts an event.
    pub fn event(&self, contract: &str, change: Option<Change>, fate: Fate) {
        self.events.with_label_values(&[contract, change_label(change), fate.label()]).inc();
    }
}

/// A request's events by change and result. One label lookup per event costs too much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken(Vec<(Change, Fate, u64)>);

impl Taken {
    /// Adds an event.
    pub fn add(&mut self, change: Change, fate: Fate) {
        match self.0.iter_mut().find(|(c, f, _)| (*c, *f) == (change, fate)) {
            Some((_, _, count)) => *count += 1,
            None => self.0.push((change, fate, 1)),
        }
    }
}

const fn change_label(change: Option<Change>) -> &'static str {
    match change {
        Some(Change::Changed) => "changed",
        Some(Change::Gone) => "gone",
        Some(Change::Resync) => "resync",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_request_are_counted_together() {
        let mut taken = Taken::default();
        taken.add(Change::Changed, Fate::Queued);
        taken.add(Change::Gone, Fate::Queued);
        taken.add(Change::Changed, Fate::Queued);
        taken.add(Change::Changed, Fate::Unowned);
        let build = tidewatch_telemetry::BuildInfo::new("t", "1");
        let registry = Registry::new("t", build).unwrap();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.events_taken("v3", &taken);
        let count = |change, fate| metrics.events.with_label_values(&["v3", change, fate]).get();
        assert_eq!(count("changed", "queued"), 2);
        assert_eq!(count("gone", "queued"), 1);
        assert_eq!(count("changed", "unowned"), 1);
        assert_eq!(count("gone", "unowned"), 0);
    }
}
