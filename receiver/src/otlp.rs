//! Export of spans to an OpenTelemetry collector: OTLP, protobuf over HTTP.

use std::time::Duration;

use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider},
};
use tidewatch_telemetry::logging::Extra;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, filter_fn},
};

/// Spans that wait for their export. When it is full, new spans are dropped.
const QUEUE: usize = 8192;
/// Time for the last spans at shutdown.
const FLUSH: Duration = Duration::from_secs(5);
/// Deadline of one export.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A running export.
pub struct Export(SdkTracerProvider);

impl Export {
    /// Starts the export to `endpoint`, a base URL such as `http://collector:4318`. Returns the layer that collects spans.
    ///
    /// Headers come from `OTEL_EXPORTER_OTLP_HEADERS`, sampling from `OTEL_TRACES_SAMPLER`.
    pub fn start(endpoint: &str) -> Result<(Self, Extra), ExporterBuildError> {
        // Collectors with TLS need a provider.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(TIMEOUT)
            .build()?;
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let resource = Resource::builder()
            .with_service_name("tidewatch-receiver")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider =
            SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tidewatch"));
        let spans = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("tidewatch_"));
        let layer = layer.with_filter(spans.with_max_level_hint(LevelFilter::DEBUG)).boxed();
        Ok((Self(provider), layer))
    }

    /// Exports the remaining spans, within 5 s.
    pub fn finish(self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH) {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read, Write},
        net::TcpListener,
    };

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Answers one request. Returns its first line and its body.
    fn collect(listener: &TcpListener) -> (String, Vec<u8>) {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let (mut first, mut length) = (String::new(), 0);
        stream.read_line(&mut first).unwrap();
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).unwrap();
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        (first, body)
    }

    #[test]
    fn exports_spans_of_the_product_at_shutdown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let collector = std::thread::spawn(move || collect(&listener));
        let (export, layer) = Export::start(&endpoint).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::debug_span!(target: "tidewatch_engine", "reconcile", kyma = "harbour").in_scope(|| {});
            tracing::debug_span!(target: "kube_client", "other").in_scope(|| {});
        });
        export.finish();
        let (first, body) = collector.join().unwrap();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(first, "POST /v1/traces HTTP/1.1\r\n");
        assert!(body.contains("reconcile") && body.contains("harbour"), "{body}");
        assert!(!body.contains("other"), "{body}");
    }
}
