//! The agent's metrics.

use crate::{known::Known, observe::condition::Conditions};
use tidewatch_telemetry::{
    metrics::{LAG_SECONDS, MetricsError, Registry},
    prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge},
};

/// Prefix of all names.
pub const PREFIX: &str = "tidewatch_agent";

/// Handles of the metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    watches: WatchMetrics,
    configuration_changes: IntCounterVec,
    /// Dropped keys of removed watches.
    pub forgotten: IntCounter,
    /// Canary changes, by result.
    pub canaries: IntCounterVec,
    /// Canary round trips.
    pub canary: Histogram,
    /// Digest writes, by result.
    pub digests: IntCounterVec,
    /// Name writes, by result.
    pub names: IntCounterVec,
    /// Names kept for other managers.
    pub names_kept: IntGauge,
    /// Names beyond the storage's capacity.
    pub names_left_out: IntGauge,
    /// Attempts to keep a name beyond the limit.
    pub names_not_kept: IntCounter,
    /// Unacknowledged keys.
    pub dirty: IntGauge,
    /// Unsent keys.
    pub unsent: IntGauge,
    /// 1 while connected to the receiver.
    pub connected: IntGauge,
    /// Connections made.
    pub connections: IntCounter,
    /// Connections ended by the agent, by reason.
    pub connections_ended: IntCounterVec,
    /// Pauses of the process.
    pub pauses: IntCounter,
    /// TLS reloads, by result.
    pub tls_reloads: IntCounterVec,
    /// By `result`.
    pub enrolments: IntCounterVec,
    /// Certificate expiry in Unix seconds.
    pub certificate_not_after: IntGauge,
    /// Answered batches.
    pub batches_sent: IntCounter,
    /// Failed requests, by reason.
    pub failures: IntCounterVec,
    /// Events in answered requests.
    pub events_sent: IntCounter,
    /// Events acknowledged by all routes.
    pub acknowledged: IntCounter,
    /// Events refused by a route.
    pub refused: IntCounter,
    /// From observation to the request's answer.
    pub observed_to_sent: Histogram,
    /// From a key's first unreconciled change to its acknowledgement.
    pub observed_to_acknowledged: Histogram,
    /// From sending to acknowledgement.
    pub sent_to_acknowledged: Histogram,
    pub(crate) known: Known,
}

#[derive(Clone, Debug)]
struct WatchMetrics {
    changes: IntCounterVec,
    overflows: IntCounterVec,
    comparisons: IntCounterVec,
    checks: IntCounterVec,
}

impl WatchMetrics {
    fn register(registry: &Registry, conditions: &Conditions) -> Result<Self, MetricsError> {
        let table = conditions.clone();
        registry.gauge_vec_fn("watch_objects", "Objects remembered, by watch.", &["watch"], move |set| {
            #[expect(clippy::cast_precision_loss, reason = "a count of objects is far below 2^52")]
            table.for_each(|name, condition| set(&[name], condition.objects as f64));
        })?;
        let table = conditions.clone();
        let help = "1 for the state each watch is in.";
        registry.gauge_vec_fn("watch_state", help, &["watch", "reason"], move |set| {
            table.for_each(|name, condition| set(&[name, condition.reason.as_str()], 1.0));
        })?;
        Ok(Self {
            changes: registry.counter_vec("changes_observed_total", "Changes seen, by watch.", &["watch"])?,
            overflows: registry.counter_vec(
                "objects_not_tracked_total",
                "Events about objects beyond maxObjectsPerWatch, which are not reported, by watch.",
                &["watch"],
            )?,
            comparisons: registry.counter_vec(
                "digest_comparisons_total",
                "First lists and demanded resyncs, by watch and whether all was as it had been reconciled.",
                &["watch", "result"],
            )?,
            checks: registry.counter_vec(
                "watch_checks_total",
                "Checks for events that a watch has missed, by kind of check and by result.",
                &["by", "result"],
            )?,
        })
    }
}

impl Metrics {
    /// Registers the metrics, except those of the configuration.
    pub fn register(registry: &Registry, conditions: &Conditions) -> Result<Self, MetricsError> {
        let histogram = |name, help| registry.histogram(name, help, LAG_SECONDS);
        Ok(Self {
            watches: WatchMetrics::register(registry, conditions)?,
            configuration_changes: registry.counter_vec(
                "configuration_changes_total",
                "Changed configurations that were read, by source and result.",
                &["source", "result"],
            )?,
            forgotten: registry.counter(
                "keys_forgotten_total",
                "Dirty keys dropped because the configuration no longer has their watch.",
            )?,
            canary: registry.histogram(
                "canary_seconds",
                "From a canary's observation to its acknowledgement.",
                LAG_SECONDS,
            )?,
            canaries: registry.counter_vec(
                "canary_changes_total",
                "Changes that the agent made to its canary, by result.",
                &["result"],
            )?,
            digests: registry.counter_vec(
                "digest_writes_total",
                "Writes of the digest of the reconciled state to the runtime, by result.",
                &["result"],
            )?,
            names: registry.counter_vec(
                "names_writes_total",
                "Writes of the names of objects that other managers watch, by result.",
                &["result"],
            )?,
            names_kept: registry.int_gauge("kept_names", "Names kept for other managers.")?,
            names_left_out: registry
                .int_gauge("left_out_names", "Names for other managers that exceed the storage.")?,
            names_not_kept: registry.counter(
                "names_not_kept_total",
                "Reports and lists of objects without a kept name, because of maxKeptNames.",
            )?,
            dirty: registry.int_gauge("dirty_keys", "Changed objects that are not acknowledged.")?,
            unsent: registry.int_gauge("unsent_keys", "Changed objects that are not sent.")?,
            connected: registry.int_gauge("connected", "1 while there is a connection to the receiver.")?,
            connections: registry.counter("connections_total", "Connections made to the receiver.")?,
            connections_ended: registry.counter_vec(
                "connections_ended_total",
                "Connections that the agent ended by itself, by reason.",
                &["reason"],
            )?,
            pauses: registry.counter(
                "pauses_total",
                "Times that the process did not run for a while, or the clock was set.",
            )?,
            enrolments: registry.counter_vec(
                "enrolments_total",
                "Certificates that the agent has requested, by result.",
                &["result"],
            )?,
            tls_reloads: registry.counter_vec(
                "tls_reloads_total",
                "Changes of the TLS files, by result.",
                &["result"],
            )?,
            certificate_not_after: registry.int_gauge(
                "certificate_not_after_timestamp_seconds",
                "When the certificate in use ends, in seconds since 1970.",
            )?,
            batches_sent: registry
                .counter("batches_sent_total", "Requests with events that were answered.")?,
            failures: registry.counter_vec(
                "send_failures_total",
                "Failed connections, batches, polls and heartbeats, by kind and reason.",
                &["what", "reason"],
            )?,
            events_sent: registry.counter("events_sent_total", "Events in answered requests.")?,
            acknowledged: registry
                .counter("events_acknowledged_total", "Events acknowledged by all routes.")?,
            refused: registry.counter("events_refused_total", "Events that a route refused.")?,
            observed_to_sent: histogram(
                "observed_to_sent_seconds",
                "From a change's observation to the answer to the request that carried it.",
            )?,
            observed_to_acknowledged: histogram(
                "observed_to_acknowledged_seconds",
                "From an object's first unreconciled change to its acknowledgement.",
            )?,
            sent_to_acknowledged: histogram(
                "sent_to_acknowledged_seconds",
                "From a change's sending to its acknowledgement.",
            )?,
            known: Known::register(registry)?,
        })
    }

    /// Removes a watch's series.
    pub fn forget(&self, watch: &str) {
        for counters in [&self.watches.changes, &self.watches.overflows] {
            // The series may be missing.
            let _ = counters.remove_label_values(&[watch]);
        }
        for result in ["equal", "different"] {
            let _ = self.watches.comparisons.remove_label_values(&[watch, result]);
        }
    }

    /// Records a read configuration.
    pub fn configuration(&self, source: &str, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.configuration_changes.with_label_values(&[source, result]).inc();
    }

    /// Records an observed change.
    pub fn observed(&self, watch: &str) {
        self.watches.changes.with_label_values(&[watch]).inc();
    }

    /// Records a comparison with the digest.
    pub fn compared(&self, watch: &str, different: bool) {
        let result = if different { "different" } else { "equal" };
        self.watches.comparisons.with_label_values(&[watch, result]).inc();
    }

    /// Records a list or replay check.
    pub fn checked(&self, check: &str, result: &str) {
        self.watches.checks.with_label_values(&[check, result]).inc();
    }

    /// Records an event beyond the limit.
    pub fn overflow(&self, watch: &str) {
        self.watches.overflows.with_label_values(&[watch]).inc();
    }
}
