//! Metrics.
//!
//! A component declares its metrics in one `register(&Registry)`. Computed sizes ([`Registry::gauge_fn`]) cannot drift.

use crate::BuildInfo;
use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, TextEncoder,
    core::{Collector, Desc},
    process_collector::ProcessCollector,
    proto::MetricFamily,
};

/// Buckets of event path delays in seconds: 1 ms to a day.
pub const LAG_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    86400.0,
];

/// Invalid or duplicate metric.
#[derive(Debug, thiserror::Error)]
#[error("metric {name:?} could not be registered; its name must be valid and used once")]
pub struct MetricsError {
    /// Full name.
    pub name: String,
    #[source]
    source: prometheus::Error,
}

/// Metrics of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: prometheus::Registry,
    prefix: String,
}

impl Registry {
    /// Creates a registry for `<prefix>_<name>`, with build and process metrics.
    pub fn new(prefix: &str, build: BuildInfo) -> Result<Self, MetricsError> {
        let registry = Self { inner: prometheus::Registry::new(), prefix: prefix.to_owned() };
        registry.add("process", ProcessCollector::for_self())?;
        let labels = &["version", "commit"];
        let info = registry.int_gauge_vec("build_info", "1, with the build as labels.", labels)?;
        info.with_label_values(&[build.version, build.commit]).set(1);
        Ok(registry)
    }

    /// Returns the registry with prefix `<prefix>_<component>`.
    #[must_use]
    pub fn component(&self, component: &str) -> Self {
        Self { inner: self.inner.clone(), prefix: self.full(component) }
    }

    /// Returns the registry with another program's prefix, or none.
    #[must_use]
    pub fn named_as(&self, prefix: &str) -> Self {
        Self { inner: self.inner.clone(), prefix: prefix.to_owned() }
    }

    /// Adds a counter, named `*_total`.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.made(name, IntCounter::with_opts(self.opts(name, help)))
    }

    /// Adds labelled counters, named `*_total`.
    pub fn counter_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, MetricsError> {
        self.made(name, IntCounterVec::new(self.opts(name, help), labels))
    }

    /// Adds an integer gauge.
    pub fn int_gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.made(name, IntGauge::with_opts(self.opts(name, help)))
    }

    /// Adds labelled integer gauges.
    pub fn int_gauge_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, MetricsError> {
        self.made(name, IntGaugeVec::new(self.opts(name, help), labels))
    }

    /// Adds a gauge; `name` ends in its unit.
    pub fn gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.made(name, Gauge::with_opts(self.opts(name, help)))
    }

    /// Adds labelled gauges; `name` ends in the unit.
    pub fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, MetricsError> {
        self.made(name, GaugeVec::new(self.opts(name, help), labels))
    }

    /// Adds a histogram; `name` ends in its unit.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, MetricsError> {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec());
        self.made(name, Histogram::with_opts(opts))
    }

    /// Adds labelled histograms; `name` ends in the unit.
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

    /// Adds a gauge computed per scrape. `value` must not block.
    pub fn gauge_fn(
        &self,
        name: &str,
        help: &str,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<(), MetricsError> {
        self.gauge_vec_fn(name, help, &[], move |set| set(&[], value()))
    }

    /// Adds labelled gauges computed per scrape. Unset series are not shown.
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

    /// Encodes the Prometheus text format.
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

/// Number of series.
pub fn series(metric: &impl Collector) -> usize {
    metric.collect().iter().map(|family| family.get_metric().len()).sum()
}

type Values = Box<dyn Fn(&mut dyn FnMut(&[&str], f64)) + Send + Sync>;

struct Computed {
    gauges: GaugeVec,
    /// Locked, since parallel scrapes would reset each other.
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
    fn a_metric_name_must_be_unique_and_valid() {
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
