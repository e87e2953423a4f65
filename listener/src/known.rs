//! Metrics under the Go listener's names (`docs/reference/metrics.md`).

use std::time::Duration;

use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec};
use tidewatch_telemetry::metrics::{MetricsError, Registry};

const SERVER: &str = "lifecycle-manager";
const BY_SERVER: [&str; 1] = ["server_name"];

#[derive(Clone, Debug)]
pub(crate) struct Known {
    duration: GaugeVec,
    requests: IntCounterVec,
    inflight: IntGaugeVec,
    too_large: IntCounterVec,
    unverified: IntCounterVec,
}

impl Known {
    pub(crate) fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let registry = registry.named_as("watcher_listener");
        let counter = |name: &str, help: &str| {
            let counter = registry.counter_vec(name, help, &BY_SERVER)?;
            counter.with_label_values(&[SERVER]);
            Ok(counter)
        };
        counter("request_errors_total", "Always 0: the Go listener has the name, and never counts.")?;
        let known = Self {
            duration: registry.gauge_vec(
                "request_duration",
                "How long the last event of the v2 contract took, in seconds.",
                &BY_SERVER,
            )?,
            requests: counter("requests_total", "Requests on the event port.")?,
            inflight: registry.int_gauge_vec(
                "inflight_requests",
                "Requests that are being answered, polls that wait among them.",
                &BY_SERVER,
            )?,
            too_large: counter(
                "exceeding_size_limit_requests_total",
                "Requests with a body above the limit.",
            )?,
            unverified: registry.counter_vec(
                "failed_verification_requests_total",
                "Requests of peers whose identity could not be verified.",
                &["server_name", "request_uri_label"],
            )?,
        };
        known.inflight.with_label_values(&[SERVER]);
        Ok(known)
    }

    pub(crate) fn begin(&self) -> InFlight {
        self.requests.with_label_values(&[SERVER]).inc();
        let gauge = self.inflight.with_label_values(&[SERVER]);
        gauge.inc();
        InFlight(gauge)
    }

    pub(crate) fn took(&self, time: Duration) {
        self.duration.with_label_values(&[SERVER]).set(time.as_secs_f64());
    }

    pub(crate) fn was_too_large(&self) {
        self.too_large.with_label_values(&[SERVER]).inc();
    }

    /// `endpoint` is from a fixed set, since paths are unbounded.
    pub(crate) fn was_not_verified(&self, endpoint: &str) {
        self.unverified.with_label_values(&[SERVER, endpoint]).inc();
    }
}

pub(crate) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
