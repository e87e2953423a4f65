//! API server clients for thousands of agents.
//!
//! Each has one HTTP/2 connection; a standalone agent has one per watch.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body::{Body as HttpBody, Frame};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::time::{Instant, Sleep, sleep};
use tower::{BoxError, ServiceBuilder};

use crate::names;

/// As in the agent.
const SILENCE: Duration = Duration::from_secs(75);
const CONNECT: Duration = Duration::from_secs(10);
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(10);

/// Shared configuration.
#[derive(Clone)]
pub struct Connectors {
    tls: ClientConfig,
    http: HttpConnector,
}

impl Connectors {
    /// Trusts the given CA.
    pub fn new(ca_pem: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).context("the CA of the API servers")?)?;
        let mut tls = ClientConfig::builder_with_provider(tidewatch_tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Connections are long-lived: tickets only cost memory.
        tls.resumption = Resumption::disabled();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        Ok(Self { tls, http })
    }

    /// A client with its own connection.
    pub fn client(&self, url: &str, token: &str) -> Result<Client> {
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(self.tls.clone())
            .https_only()
            .enable_http2()
            .wrap_connector(self.http.clone());
        let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http2_only(true)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING_ANSWER)
            .build(https);
        let mut config = Config::new(url.parse()?);
        config.auth_info.token = Some(token.to_owned().into());
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .map_request(|mut request: Request<Body>| {
                request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(names::AGENT));
                request
            })
            .map_result(|result: Result<http::Response<_>, _>| {
                result.map(|response| response.map(Heard::new)).map_err(BoxError::from)
            })
            .service(http);
        Ok(Client::new(service, "default"))
    }
}

/// A body that fails after [`SILENCE`].
struct Heard<B> {
    body: Pin<Box<B>>,
    silence: Pin<Box<Sleep>>,
}

impl<B> Heard<B> {
    fn new(body: B) -> Self {
        Self { body: Box::pin(body), silence: Box::pin(sleep(SILENCE)) }
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Heard<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = self.body.as_mut().poll_frame(context) {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match self.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err("nothing was heard for 75 s".into()))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn};

    use super::*;

    struct Never;

    impl HttpBody for Never {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_response_body_times_out() {
        let mut body = Box::pin(Heard::new(Never));
        let started = Instant::now();
        let frame = poll_fn(|context| body.as_mut().poll_frame(context)).await;
        assert!(frame.unwrap().is_err());
        assert!(started.elapsed() >= SILENCE);
    }
}
