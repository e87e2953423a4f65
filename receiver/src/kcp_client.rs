//! Client for KCP's API server.

use std::{
    path::PathBuf,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, header::USER_AGENT};
use kube::{
    Client, Config as KubeConfig,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tidewatch_engine::clusters::{self, Answered, CountedLayer};
use tower::{Layer, Service, timeout::TimeoutLayer};
use tracing::Instrument;

use crate::config::StartError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a watch's bookmark interval of one minute, the first sometimes two (Kubernetes 1.36): an idle connection is half-open.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Returns KCP's `host:port`; no runtime's kubeconfig may name it.
pub(crate) fn own_server(kube: &KubeConfig) -> Option<String> {
    kube.cluster_url.host().map(|h| format!("{h}:{}", kube.cluster_url.port_u16().unwrap_or(443)))
}

/// Returns a client. `deadline` limits the wait for a response or a watch's start; else hanging calls block workers until [`READ_TIMEOUT`].
pub(crate) fn kcp_client(
    config: KubeConfig,
    deadline: Duration,
    counted: Option<Answered>,
) -> Result<Client, StartError> {
    let builder = ClientBuilder::try_from(config).map_err(|e| StartError::Kube(e.into()))?;
    let counted = counted.unwrap_or_else(|| Arc::new(|_, _| ()));
    let builder = builder.with_layer(&CountedLayer::new(counted)).with_layer(&TimeoutLayer::new(deadline));
    Ok(builder.with_layer(&SpanLayer).build())
}

/// Client layer that creates a span for each call: its method and path, without query and body, and the status code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanLayer;

impl<S> Layer<S> for SpanLayer {
    type Service = Spanned<S>;

    fn layer(&self, inner: S) -> Spanned<S> {
        Spanned(inner)
    }
}

/// Service of [`SpanLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Spanned<S>(S);

impl<S, A, B> Service<Request<A>> for Spanned<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let span = tracing::debug_span!("kcp_call", method, path, status = tracing::field::Empty);
        let noted = span.clone();
        let answer = span.in_scope(|| self.0.call(request));
        let answer = answer.inspect(move |answer| {
            if let Ok(answer) = answer {
                noted.record("status", answer.status().as_u16());
            }
        });
        answer.instrument(span).boxed()
    }
}

pub(crate) async fn kube_config(path: Option<PathBuf>) -> Result<KubeConfig, StartError> {
    let failed = |e| StartError::Kube(unusable(e));
    let mut config = match path {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            KubeConfig::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(failed)?
        }
        None => KubeConfig::incluster().map_err(|e| StartError::Kube(e.into()))?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.headers.push((USER_AGENT, HeaderValue::from_static(clusters::USER_AGENT)));
    // The queue retries; hidden retries would outlast a call's deadline.
    config.default_retry = false;
    Ok(config)
}

/// Omits the file's text, which holds credentials.
fn unusable(error: KubeconfigError) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        KubeconfigError::ReadConfig(error, file) => format!("{}: {error}", file.display()).into(),
        KubeconfigError::Parse(error) => {
            let line = error.location().map_or(0, |at| at.line());
            format!("line {line} of the kubeconfig cannot be read").into()
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use tidewatch_telemetry::chain;

    use super::*;

    #[tokio::test]
    async fn an_unreadable_kubeconfig_shows_none_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, "users:\n- user: {token: very-secret\n").unwrap();
        let message = chain(&kube_config(Some(file.clone())).await.unwrap_err()).to_string();
        assert!(message.contains("line ") && !message.contains("very-secret"), "{message}");
        std::fs::remove_file(&file).unwrap();
        let message = chain(&kube_config(Some(file.clone())).await.unwrap_err()).to_string();
        assert_eq!(message.matches("No such file").count(), 1, "{message}");
        assert!(message.contains(&file.display().to_string()), "{message}");
    }
}
