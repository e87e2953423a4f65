//! Metrics: a prefix, the process' own figures and constructors that declare a metric where it is registered.
//!
//! Each component has one struct of metrics with a `register(&Registry)`, the only place that knows their names,
//! units and labels. Sizes are computed at scrape time ([`Registry::gauge_fn`]), so they cannot drift.

use crate::BuildInfo;
use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, TextEncoder,
    core::{Collector, Desc},
    process_collector::ProcessCollector,
    proto::MetricFamily,
};

/// Buckets in seconds for waits on the event path: from an idle path's millisecond to a retried day.
pub const LAG_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    86400.0,
];

/// A metric could not be registered or encoded: its name or a label is not valid, or it was registered twice.
#[derive(Debug, thiserror::Error)]
#[error("metric {name:?} could not be registered; its name must be valid and used once")]
pub struct MetricsError {
    /// The metric's full name.
    pub name: String,
    #[source]
    source: prometheus::Error,
}

/// The metrics of one process. Cheap to clone; all clones are the same registry.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: prometheus::Registry,
    prefix: String,
}

impl Registry {
    /// A registry whose metrics are named `<prefix>_<name>`, with the process' memory, CPU, file descriptors and
    /// threads under their conventional names and `<prefix>_build_info`.
    pub fn new(prefix: &str, build: BuildInfo) -> Result<Self, MetricsError> {
        let registry = Self { inner: prometheus::Registry::new(), prefix: prefix.to_owned() };
        registry.add("process", ProcessCollector::for_self())?;
        let labels = &["version", "commit"];
        let info = registry.int_gauge_vec("build_info", "1, with the build as labels.", labels)?;
        info.with_label_values(&[build.version, build.commit]).set(1);
        Ok(registry)
    }

    /// The same registry for a component: its metrics are named `<prefix>_<component>_<name>`.
    #[must_use]
    pub fn component(&self, component: &str) -> Self {
        Self { inner: self.inner.clone(), prefix: self.full(component) }
    }

    /// The same registry for metrics that keep the names of another program, which begin with this; with nothing, they are as they are
    /// given.
    #[must_use]
    pub fn named_as(&self, prefix: &str) -> Self {
        Self { inner: self.inner.clone(), prefix: prefix.to_owned() }
    }

    /// A counter; `name` ends in `_total`.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.made(name, IntCounter::with_opts(self.opts(name, help)))
    }

    /// Counters by label; `name` ends in `_total`.
    pub fn counter_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, MetricsError> {
        self.made(name, IntCounterVec::new(self.opts(name, help), labels))
    }

    /// A whole number that goes up and down.
    pub fn int_gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.made(name, IntGauge::with_opts(self.opts(name, help)))
    }

    /// Whole numbers by label that go up and down.
    pub fn int_gauge_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, MetricsError> {
        self.made(name, IntGaugeVec::new(self.opts(name, help), labels))
    }

    /// A number that goes up and down; `name` ends in its unit.
    pub fn gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.made(name, Gauge::with_opts(self.opts(name, help)))
    }

    /// Numbers by label that go up and down; `name` ends in their unit.
    pub fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, MetricsError> {
        self.made(name, GaugeVec::new(self.opts(name, help), labels))
    }

    /// A distribution over `buckets`; `name` ends in its unit.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, MetricsError> {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec());
        self.made(name, Histogram::with_opts(opts))
    }

    /// Distributions by label over `buckets`; `name` ends in its unit.
    pub fn histogram_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, MetricsError> {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec());
        self.made(name, HistogramVec::new(opts, labels))
    }

    /// A gauge computed at each scrape. `value` must be quick and must not block.
    pub fn gauge_fn(
        &self,
        name: &str,
        help: &str,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<(), MetricsError> {
        self.gauge_vec_fn(name, help, &[], move |set| set(&[], value()))
    }

    /// Gauges by label computed at each scrape: `values` calls its argument once per series. A series that is not
    /// set in a scrape is not shown in it.
    pub fn gauge_vec_fn(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl Fn(&mut dyn FnMut(&[&str], f64)) + Send + Sync + 'static,
    ) -> Result<(), MetricsError> {
        let gauges = self.valid(name, GaugeVec::new(self.opts(name, help), labels))?;
        self.add(name, Computed { gauges, values: Mutex::new(Box::new(values)) })
    }

    /// All metrics in the Prometheus text format.
    pub fn encode(&self) -> Result<String, MetricsError> {
        let text = TextEncoder::new().encode_to_string(&self.inner.gather());
        text.map_err(|source| MetricsError { name: self.prefix.clone(), source })
    }

    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            return name.to_owned();
        }
        format!("{}_{name}", self.prefix)
    }

    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(self.full(name), help)
    }

    fn valid<T>(&self, name: &str, made: prometheus::Result<T>) -> Result<T, MetricsError> {
        made.map_err(|source| MetricsError { name: self.full(name), source })
    }

    fn add(&self, name: &str, metric: impl Collector + 'static) -> Result<(), MetricsError> {
        self.valid(name, self.inner.register(Box::new(metric)))
    }

    fn made<M>(&self, name: &str, made: prometheus::Result<M>) -> Result<M, MetricsError>
    where
        M: Collector + Clone + 'static,
    {
        let metric = self.valid(name, made)?;
        self.add(name, metric.clone())?;
        Ok(metric)
    }
}

/// How many series a metric has.
pub fn series(metric: &impl Collector) -> usize {
    metric.collect().iter().map(|family| family.get_metric().len()).sum()
}

type Values = Box<dyn Fn(&mut dyn FnMut(&[&str], f64)) + Send + Sync>;

struct Computed {
    gauges: GaugeVec,
    /// Locked for a whole scrape: two at once would reset each other's series.
    values: Mutex<Values>,
}

impl Collector for Computed {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = self.values.lock();
        self.gauges.reset();
        values(&mut |labels, value| match self.gauges.get_metric_with_label_values(labels) {
            Ok(gauge) => gauge.set(value),
            Err(error) => tracing::warn!(%error, "a computed metric was given the wrong number of labels"),
        });
        self.gauges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    fn registry() -> Registry {
        Registry::new("tidewatch_test", BuildInfo { name: "test", version: "1.2.3", commit: "abc" }).unwrap()
    }

    #[test]
    fn names_carry_prefix_and_component() {
        let registry = registry();
        let sends = registry.component("send").counter_vec("batches_total", "Batches.", &["reason"]).unwrap();
        sends.with_label_values(&["timeout"]).inc_by(2);
        let text = registry.encode().unwrap();
        assert!(text.contains("tidewatch_test_send_batches_total{reason=\"timeout\"} 2\n"), "{text}");
        assert!(text.contains("tidewatch_test_build_info{commit=\"abc\",version=\"1.2.3\"} 1\n"), "{text}");
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    }

    #[test]
    fn a_name_is_used_once_and_valid() {
        let registry = registry();
        registry.counter("a_total", "A.").unwrap();
        assert_eq!(registry.int_gauge("a_total", "A.").unwrap_err().name, "tidewatch_test_a_total");
        assert!(registry.gauge("not valid", "No.").is_err());
        assert!(registry.gauge_fn("not-valid", "No.", || 0.0).is_err());
    }

    #[test]
    fn computed_gauges_follow_their_source() {
        let registry = registry();
        let size = Arc::new(AtomicUsize::new(2));
        let source = Arc::clone(&size);
        registry
            .gauge_vec_fn("items", "Items.", &["n"], move |set| {
                for n in 0..source.load(Ordering::Relaxed) {
                    set(&[&n.to_string()], 1.0);
                }
            })
            .unwrap();
        assert!(registry.encode().unwrap().contains("tidewatch_test_items{n=\"1\"} 1\n"));
        size.store(1, Ordering::Relaxed);
        let text = registry.encode().unwrap();
        assert!(text.contains("items{n=\"0\"}") && !text.contains("items{n=\"1\"}"), "{text}");
    }
}
