//! A Kubernetes client per runtime, for thousands of runtimes.
//!
//! The client that kube builds by default does not fit. It speaks HTTP/1.1 only, never closes idle connections, retries for minutes inside
//! a call, and has no deadline and no response cap.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Response, StatusCode,
    header::{self, RETRY_AFTER},
};
use http_body_util::Limited;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        self,
        connect::{
            HttpConnector,
            dns::{GaiResolver, Name},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _};
use rustls::{
    ClientConfig, RootCertStore,
    client::{Resumption, WebPkiServerVerifier},
    crypto::CryptoProvider,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
};
use tower::{BoxError, Service, ServiceBuilder};
use tracing::Instrument;

use super::{
    call_limiter::{CallLimiter, Effect},
    counted::CountedLayer,
    error::{ErrorClass, RuntimeError, TooManyRequests},
    kubeconfig::RuntimeAccess,
    mapper::{Mapper, Pool},
    policy::AddressPolicy,
};

/// User agent towards API servers.
pub const USER_AGENT: &str = concat!("tidewatch-receiver/", env!("CARGO_PKG_VERSION"));

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls to a runtime come in rare bursts; a connection is worth keeping for one burst only.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_PER_HOST: usize = 2;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADERS: u32 = 64 * 1024;
const MAX_RETRY_AFTER: u64 = 3600;

/// Bounds of a client's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Deadline of each call, up to the last byte of the answer. Default 30 s.
    pub deadline: Duration,
    /// Largest answer in bytes. Default 16 MiB.
    pub response: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30), response: 16 * 1024 * 1024 }
    }
}

/// Connections and crypto provider shared by all clients. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector<PolicyResolver>,
    provider: Arc<CryptoProvider>,
    policy: Arc<AddressPolicy>,
    kinds: Pool,
    counted: Option<CountedLayer>,
    /// Verifier with the system's roots. Shared, since roots per client take 100 KiB more each.
    system: Arc<OnceLock<Arc<WebPkiServerVerifier>>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Connector {
    /// Returns a connector that refuses addresses denied by `policy`, including resolved ones.
    pub fn new(policy: Arc<AddressPolicy>) -> Self {
        let resolver = PolicyResolver { inner: GaiResolver::new(), policy: Arc::clone(&policy) };
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(KEEP_ALIVE));
        Self {
            http,
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            policy,
            kinds: Pool::default(),
            counted: None,
            system: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn trusting(self, roots: RootCertStore) -> Self {
        let verifier = self.verifier(roots).unwrap();
        Self { system: Arc::new(OnceLock::from(verifier)), ..self }
    }

    /// Reports the answers of all clients to `counted`.
    #[must_use]
    pub fn counted(self, counted: CountedLayer) -> Self {
        Self { counted: Some(counted), ..self }
    }

    /// The enforced policy; parse kubeconfigs with the same one.
    pub fn policy(&self) -> &AddressPolicy {
        &self.policy
    }

    /// Builds a client without connecting. Needs a running tokio runtime: the client keeps one task until its last clone is dropped.
    pub fn client(&self, access: &RuntimeAccess, limits: Limits) -> Result<RuntimeClient, RuntimeError> {
        let failed = |source: BoxError| {
            RuntimeError::new(ErrorClass::Invalid, "build the client of the kubeconfig", Some(source))
        };
        let tls = self.tls(access).map_err(failed)?;
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        let https = match &access.tls_server_name {
            Some(name) => https.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
            None => https,
        };
        let https = https.enable_all_versions().wrap_connector(self.http.clone());

        // The pool resends a request only if it was never sent, because the server had closed the kept connection. A sent request is never
        // repeated.
        let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .http2_max_header_list_size(MAX_HEADERS)
            .build(https);

        let mut config = kube::Config::new(access.server.clone());
        config.auth_info.token = access.token.clone().map(Into::into);
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
        let cap = limits.response;
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .layer(config.extra_headers_layer().map_err(|error| failed(error.into()))?)
            .option_layer(config.auth_layer().map_err(|error| failed(error.into()))?)
            .map_result(move |result| guard(result, cap))
            .option_layer(self.counted.clone())
            .service(http);
        let kube = kube::Client::new(service, access.namespace.clone());
        let mapper = Arc::new(Mapper::sharing(self.kinds.clone()));
        Ok(RuntimeClient { kube, deadline: limits.deadline, mapper, limiter: None })
    }

    fn tls(&self, access: &RuntimeAccess) -> Result<ClientConfig, BoxError> {
        let verifier = match &access.ca {
            Some(certificates) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates {
                    roots.add(certificate.clone())?;
                }
                self.verifier(roots)?
            }
            None => self.system_verifier()?,
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(verifier);
        let mut config = match &access.identity {
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_slice(&identity.key_pem)?;
                config.with_client_auth_cert(identity.chain.clone(), key)?
            }
            None => config.with_no_client_auth(),
        };
        // Connections are few and short; a session cache would only cost memory per runtime.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl Connector {
    fn verifier(&self, roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, BoxError> {
        let provider = Arc::clone(&self.provider);
        Ok(WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
    }

    /// The system's trust, as client-go uses it for a kubeconfig without a CA.
    fn system_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, BoxError> {
        if let Some(verifier) = self.system.get() {
            return Ok(Arc::clone(verifier));
        }
        let mut roots = RootCertStore::empty();
        // An unreadable certificate does not disable the others.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(NoSystemRoots.into());
        }
        let verifier = self.verifier(roots)?;
        Ok(Arc::clone(self.system.get_or_init(|| verifier)))
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the kubeconfig has no certificate-authority-data, and this system has no root certificates to verify its server by; put the CA \
     inline into the kubeconfig, or install the system's root certificates"
)]
struct NoSystemRoots;

/// Caps the body. Turns 429 into an error while its headers are available.
fn guard<B, E: Into<BoxError>>(
    result: Result<Response<B>, E>,
    cap: usize,
) -> Result<Response<Limited<B>>, BoxError> {
    let response = result.map_err(Into::into)?;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        let seconds =
            response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds.min(MAX_RETRY_AFTER)));
        return Err(Box::new(TooManyRequests { retry_after }));
    }
    Ok(response.map(|body| Limited::new(body, cap)))
}

/// A runtime's client with its deadline and REST mapping. Clones share connections and mapping.
#[derive(Clone)]
pub struct RuntimeClient {
    kube: kube::Client,
    deadline: Duration,
    mapper: Arc<Mapper>,
    limiter: Option<CallLimiter>,
}

impl std::fmt::Debug for RuntimeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeClient").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl RuntimeClient {
    /// Wraps a client built elsewhere, such as for tests or the control plane.
    pub fn new(kube: kube::Client, deadline: Duration) -> Self {
        Self { kube, deadline, mapper: Arc::new(Mapper::new()), limiter: None }
    }

    pub(crate) fn limited_by(self, limiter: CallLimiter) -> Self {
        Self { limiter: Some(limiter), ..self }
    }

    pub(crate) fn with_mapper(self, mapper: Arc<Mapper>) -> Self {
        Self { mapper, ..self }
    }

    /// The REST mapping, to keep beyond the client's life.
    pub(crate) fn shared_mapper(&self) -> Arc<Mapper> {
        Arc::clone(&self.mapper)
    }

    /// The kube client, for `Api` values. Await their calls within [`Self::call`] only.
    pub fn kube(&self) -> kube::Client {
        self.kube.clone()
    }

    /// The runtime's REST mapping.
    pub fn mapper(&self) -> &Mapper {
        &self.mapper
    }

    /// Awaits one API call under the deadline and classifies its error. `name` names the call in messages: `apply Deployment a/b`. After
    /// cancellation, the API server may still have executed the call.
    pub async fn call<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RuntimeError> {
        match self.run(Effect::Reads, name, || Ok::<_, Infallible>(()), call).await {
            Ok(result) => result,
            Err(never) => match never {},
        }
    }

    /// Awaits a write. `check` runs when the call's turn comes; its error prevents the write.
    pub(crate) fn write_if<T, N>(
        &self,
        name: &str,
        check: impl FnOnce() -> Result<(), N>,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> impl Future<Output = Result<Result<T, RuntimeError>, N>> {
        self.run(Effect::Writes, name, check, call)
    }

    async fn run<T, N>(
        &self,
        effect: Effect,
        name: &str,
        check: impl FnOnce() -> Result<(), N>,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, RuntimeError>, N> {
        let started = tokio::time::Instant::now();
        let span = tracing::debug_span!("runtime_call", call = name, error = tracing::field::Empty);
        let turn = self.limiter.as_ref().and_then(CallLimiter::turn);
        // Boxed: these futures are large, and so would be all their callers.
        let call = async move {
            if let Some(turn) = turn {
                turn.await;
            }
            check()?;
            Ok(call.await)
        };
        let call = Box::pin(call.instrument(span.clone()));
        let result = match &self.limiter {
            Some(limiter) => limiter.within(self.deadline, call).await,
            None => tokio::time::timeout(self.deadline, call).await,
        };
        let took = tokio::time::Instant::now().duration_since(started);
        tracing::trace!(call = name, ms = took.as_millis(), "call to a runtime");
        let result = match result {
            Ok(Err(prevented)) => return Err(prevented),
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(RuntimeError::from_kube(name, error)),
            Err(elapsed) => Err(RuntimeError::new(ErrorClass::Timeout, name, Some(elapsed.into()))),
        };
        if let Err(error) = &result {
            span.record("error", error.metric_label());
        }
        if let Some(limiter) = &self.limiter {
            limiter.ended(effect, started, result.as_ref().err().is_none_or(RuntimeError::is_answered));
        }
        Ok(result)
    }
}

/// Resolves names and filters denied addresses, so that a name cannot bypass the deny-list. Literal addresses are checked when the
/// kubeconfig is parsed.
#[derive(Clone)]
struct PolicyResolver {
    inner: GaiResolver,
    policy: Arc<AddressPolicy>,
}

#[derive(Debug, thiserror::Error)]
#[error("the server's name resolves to an address that the deny-list forbids")]
struct Denied;

type Resolved = Result<std::vec::IntoIter<SocketAddr>, Box<dyn Error + Send + Sync>>;

impl Service<Name> for PolicyResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Resolved> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.inner.call(name);
        let policy = Arc::clone(&self.policy);
        Box::pin(async move {
            let addresses = resolving.await?;
            let allowed: Vec<_> =
                addresses.filter(|address| policy.denies_resolved(address.ip()).is_none()).collect();
            if allowed.is_empty() { Err(Denied.into()) } else { Ok(allowed.into_iter()) }
        })
    }
}
