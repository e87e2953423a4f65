//! Metrics under the Go agent's names (see `docs/reference/metrics.md`).

use tidewatch_telemetry::{
    metrics::{MetricsError, Registry},
    prometheus::{Gauge, IntCounter, IntCounterVec},
};

const REASONS: [&str; 4] = ["invalid-subresource", "missing-address-or-contract", "request-setup", FAILED];
const FAILED: &str = "failed-request";

#[derive(Clone, Debug)]
pub(crate) struct Known {
    duration: Gauge,
    requests: IntCounter,
    failed: IntCounterVec,
}

impl Known {
    pub(crate) fn register(registry: &Registry) -> Result<Self, MetricsError> {
        let registry = registry.named_as("watcher");
        let none = "Always 0: this agent is no admission webhook.";
        registry.counter("admission_request_total", none)?;
        registry.counter("admission_request_error_total", none)?;
        let fips = f64::from(u8::from(tidewatch_tls::provider().fips()));
        registry.gauge_fn(
            "fips_mode",
            "Whether the cryptography in use is approved by FIPS 140.",
            move || fips,
        )?;
        let failed = registry.counter_vec(
            "failed_kcp_total",
            "Requests to the control plane that failed, by reason.",
            &["error_reason"],
        )?;
        for reason in REASONS {
            failed.with_label_values(&[reason]);
        }
        Ok(Self {
            duration: registry.gauge(
                "request_duration",
                "From the observation of the latest reported change to the answer to its request, in seconds.",
            )?,
            requests: registry
                .counter("kcp_requests_total", "Requests with events to the control plane, failed ones included.")?,
            failed,
        })
    }

    /// `seconds` is the age of the latest event.
    pub(crate) fn answered(&self, seconds: f64) {
        self.requests.inc();
        self.duration.set(seconds);
    }

    pub(crate) fn failed(&self) {
        self.requests.inc();
        self.failed.with_label_values(&[FAILED]).inc();
    }
}
