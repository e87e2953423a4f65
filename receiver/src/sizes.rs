//! Metrics computed at each scrape.

use tidewatch_engine::{Engine, queue::Class};
use tidewatch_listener::Deliveries;
use tidewatch_telemetry::metrics::{MetricsError, Registry};

use crate::{path_watch::PathWatch, paths::Paths};

/// No series names a runtime.
const PERCENTILES: [(&str, f64); 4] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("1", 1.0)];

/// Registers them.
pub fn register(
    registry: &Registry,
    engine: &Engine,
    deliveries: &Deliveries,
    paths: &PathWatch,
) -> Result<(), MetricsError> {
    let ledger = deliveries.clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of events is far below 2^52")]
    registry.gauge_fn(
        "events_held",
        "Events whose reconcile has not finished; --max-held-events limits them.",
        move || ledger.held() as f64,
    )?;
    register_queue(registry, engine)?;
    let waiting = engine.clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of Kymas is far below 2^52")]
    registry.gauge_fn(
        "maintenance_waiting",
        "Runtimes with an update that waits for a maintenance window.",
        move || waiting.waiting_for_windows() as f64,
    )?;
    let suspended = engine.clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of runtimes is far below 2^52")]
    registry.gauge_fn(
        "runtimes_suspended",
        "Runtimes that are suspended because they do not answer.",
        move || suspended.suspended_runtimes() as f64,
    )?;
    let policy = engine.clone();
    registry.gauge_fn(
        "central_policy_read_success",
        "Whether the ConfigMap of the platform's policy could be read the last time; 1 without one.",
        move || f64::from(u8::from(policy.state().read().policy.fault().is_none())),
    )?;
    let asked = engine.clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of registries is far below 2^52")]
    registry.gauge_vec_fn(
        "registry_breaker_open",
        "Registries that failed and are not asked for a while.",
        &["host"],
        move |set| {
            let (host, is_open, others) = asked.suspended_registries();
            if !host.is_empty() {
                set(&[&host], f64::from(u8::from(is_open)));
            }
            set(&["other"], others as f64);
        },
    )?;
    register_paths(registry, paths)
}

fn register_queue(registry: &Registry, engine: &Engine) -> Result<(), MetricsError> {
    let queue = engine.queue().clone();
    registry.gauge_vec_fn(
        "queue_ready",
        "Keys that wait for a worker, by class.",
        &["class"],
        move |set| {
            let sizes: Vec<(Class, usize)> = queue.inspect(|q| q.ready().collect());
            for (class, size) in sizes {
                #[allow(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
                set(&[class.label()], size as f64);
            }
        },
    )?;
    let queue = engine.queue().clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
    registry.gauge_fn("queue_retrying", "Keys that wait for their next try.", move || {
        queue.inspect(|q| q.delayed() as f64)
    })?;
    let queue = engine.queue().clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
    registry.gauge_fn(
        "queue_later",
        "Keys that are due at a set time: their turn in a rollout, a window, the end of a version.",
        move || queue.inspect(|q| q.scheduled() as f64),
    )?;
    let queue = engine.queue().clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
    registry.gauge_fn("queue_working", "Keys that are being reconciled.", move || {
        queue.inspect(|q| q.working() as f64)
    })
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of runtimes are far below 2^52"
)]
fn register_paths(registry: &Registry, paths: &PathWatch) -> Result<(), MetricsError> {
    let counted = paths.clone();
    registry.gauge_vec_fn(
        "runtimes",
        "Registered runtimes by the state of their event path.",
        &["state"],
        move |set| {
            for (state, count) in counted.inspect(|p, _| p.counts()) {
                set(&[state.label()], count as f64);
            }
        },
    )?;
    let ill = paths.clone();
    registry.gauge_fn(
        "event_path_ill",
        "1 while so many runtimes are unproven at once that the path itself must be ill.",
        move || f64::from(u8::from(ill.inspect(|p, _| p.ill()))),
    )?;
    let stale = paths.clone();
    registry.gauge_vec_fn(
        "canary_age_seconds",
        "Age of the runtimes' last canaries that came back, by percentile of the fleet.",
        &["percentile"],
        move |set| {
            let mut ages = stale.inspect(Paths::staleness);
            ages.sort_unstable();
            for (label, share) in PERCENTILES {
                let index = ((ages.len() as f64 * share).ceil() as usize).saturating_sub(1);
                if let Some(age) = ages.get(index) {
                    set(&[label], age.as_secs_f64());
                }
            }
        },
    )
}
