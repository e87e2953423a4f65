//! Listeners.

use std::{
    collections::{BTreeSet, HashMap},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tidewatch_certs::Issued;
use tidewatch_drain::{Drain, ShutdownSignal};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use super::{
    answer,
    error::StartError,
    handle::Exchange,
    hosted::Hosted,
    tls::{Trust, subject},
};
use crate::{
    faults::{Faults, NoFaults},
    store::{Cluster, Options, Refusal},
};

/// Longest sleep without due work.
const IDLE: Duration = Duration::from_hours(1);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Per HTTP/2 connection; agents use one per watch.
const STREAMS: u32 = 256;

/// Server settings.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address; port 0: any.
    pub listen: SocketAddr,
    /// Clock of all clusters.
    pub clock: fn() -> Timestamp,
    /// Fault injection.
    pub faults: Arc<dyn Faults>,
    /// Maximum connections on all ports; more wait.
    pub max_connections: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            clock: Timestamp::now,
            faults: Arc::new(NoFaults),
            max_connections: 65_536,
        }
    }
}

/// Serves clusters below `/clusters/<name>`. Clones share the server.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    trust: Trust,
    options: ServerOptions,
    drain: Drain,
    clusters: RwLock<HashMap<String, Arc<Hosted>>>,
    /// Clusters by due time.
    due: Mutex<BTreeSet<(Timestamp, String)>>,
    sooner: Notify,
    connections: Arc<Semaphore>,
}

impl Server {
    /// Serves until drained.
    pub async fn start(options: ServerOptions, drain: &Drain) -> Result<Self, StartError> {
        let trust = Trust::create((options.clock)())?;
        let (listener, address) = bind(options.listen).await?;
        let connections = Arc::new(Semaphore::new(options.max_connections));
        let shared = Arc::new(Shared {
            address,
            trust,
            drain: drain.clone(),
            clusters: RwLock::default(),
            due: Mutex::default(),
            sooner: Notify::new(),
            connections,
            options,
        });
        drain.spawn("simulated-api-servers", accept(Arc::clone(&shared), listener, None));
        drain.spawn("simulated-controllers", tick(Arc::clone(&shared), drain.watch()));
        Ok(Self { shared })
    }

    /// Adds a cluster without users.
    pub fn add(&self, name: &str, options: Options) -> Result<Arc<Hosted>, StartError> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || !name.chars().all(valid) {
            return Err(StartError::Name(name.to_owned()));
        }
        let mut cluster = Cluster::new(options, (self.shared.options.clock)());
        cluster.sign_tokens_with(random_key());
        let hosted = Arc::new(Hosted::new(name, cluster));
        match self.shared.clusters.write().entry(name.to_owned()) {
            std::collections::hash_map::Entry::Occupied(_) => Err(StartError::Exists(name.to_owned())),
            std::collections::hash_map::Entry::Vacant(entry) => Ok(Arc::clone(entry.insert(hosted))),
        }
    }

    /// Removes a cluster and ends its requests. Its own port ([`Server::listen`]) stays.
    pub fn remove(&self, name: &str) -> bool {
        let removed = self.shared.clusters.write().remove(name);
        if let Some(hosted) = &removed {
            hosted.interrupt();
        }
        removed.is_some()
    }

    /// Returns a cluster.
    pub fn cluster(&self, name: &str) -> Option<Arc<Hosted>> {
        self.shared.clusters.read().get(name).cloned()
    }

    /// Opens a port with the cluster at `/`, for clients without path support.
    pub async fn listen(&self, name: &str) -> Result<SocketAddr, StartError> {
        let hosted = self.cluster(name).ok_or_else(|| StartError::Missing(name.to_owned()))?;
        let (listener, address) = bind((self.shared.address.ip(), 0).into()).await?;
        let task = accept(Arc::clone(&self.shared), listener, Some(hosted));
        self.shared.drain.spawn("simulated-api-server", task);
        Ok(address)
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Returns a cluster's URL.
    pub fn url(&self, name: &str) -> String {
        format!("https://{}/clusters/{name}", self.shared.address)
    }

    /// Returns the server and client CA.
    pub fn ca_pem(&self) -> &str {
        self.shared.trust.ca_pem()
    }

    /// Issues a client certificate for [`Hosted::allow_certificate`] or [`Hosted::allow_certificates`].
    pub fn issue(&self, common_name: &str, organizations: &[&str]) -> Result<Issued, tidewatch_certs::Error> {
        self.shared.trust.issue(common_name, organizations, (self.shared.options.clock)())
    }

    /// Returns a self-contained kubeconfig.
    pub fn kubeconfig(&self, cluster: &str, token: &str) -> String {
        self.kubeconfig_for(cluster, &self.url(cluster), token)
    }

    /// As [`Server::kubeconfig`], for [`Server::listen`].
    pub fn kubeconfig_for(&self, cluster: &str, url: &str, token: &str) -> String {
        let ca = BASE64_STANDARD.encode(self.ca_pem());
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {ca}\nusers:\n- name: {cluster}\n  user:\n    token: {token}\ncontexts:\n\
             - name: {cluster}\n  context:\n    cluster: {cluster}\n    user: {cluster}\ncurrent-context: {cluster}\n"
        )
    }
}

fn random_key() -> [u8; 32] {
    let mut key = [0; 32];
    let random = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    key.iter_mut().zip(random.as_flattened()).for_each(|(byte, random)| *byte = *random);
    key
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let wrong = |error| StartError::Listen(address, error);
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}

/// `only`: the port's own cluster.
async fn accept(shared: Arc<Shared>, listener: TcpListener, only: Option<Arc<Hosted>>) {
    let watch = shared.drain.watch();
    loop {
        let accepted = async {
            let permit = Arc::clone(&shared.connections).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            () = watch.signaled() => return,
            (Ok(permit), accepted) = accepted => match accepted {
                Ok((stream, _)) => (permit, stream),
                // Without file descriptors, a retry fails at once.
                Err(error) => {
                    tracing::warn!(%error, "the simulated API servers cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            else => return,
        };
        let (shared, only) = (Arc::clone(&shared), only.clone());
        let drain = shared.drain.clone();
        drain.spawn("simulated-connection", async move {
            connection(shared, stream, only).await;
            drop(permit);
        });
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, only: Option<Arc<Hosted>>) {
    _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(Arc::clone(&shared.trust.config));
    let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let subject = subject(stream.get_ref().1.peer_certificates());
    let watch = shared.drain.watch();
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let shared = Arc::clone(&shared);
        let (only, subject) = (only.clone(), subject.clone());
        async move {
            let (parts, body) = request.into_parts();
            let Some(Route { hosted, prefix, path }) = find(&shared, only, parts.uri.path()) else {
                return Ok(answer::refusal(&Refusal::unknown_path()));
            };
            let cluster = Arc::clone(&hosted);
            let exchange = Exchange {
                hosted,
                faults: Arc::clone(&shared.options.faults),
                clock: shared.options.clock,
                prefix,
                path,
                subject,
            };
            let answer = exchange.answer(parts, body).await;
            schedule(&shared, &cluster);
            answer
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS).keep_alive_interval(None);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        () = watch.signaled() => {}
        // Client disconnects are no errors.
        _ = serving => {}
    }
}

/// A request's cluster and path.
struct Route {
    hosted: Arc<Hosted>,
    /// The cluster's path; empty on its own port.
    prefix: String,
    /// Path below the prefix.
    path: String,
}

fn find(shared: &Shared, only: Option<Arc<Hosted>>, path: &str) -> Option<Route> {
    if let Some(hosted) = only {
        return Some(Route { hosted, prefix: String::new(), path: path.to_owned() });
    }
    let below = path.strip_prefix("/clusters/")?;
    let (name, rest) = below.split_once('/').unwrap_or((below, ""));
    let hosted = shared.clusters.read().get(name).cloned()?;
    Some(Route { hosted, prefix: format!("/clusters/{name}"), path: format!("/{rest}") })
}

/// Schedules due work.
fn schedule(shared: &Shared, hosted: &Hosted) {
    let Some(at) = hosted.next_due() else { return };
    let mut due = shared.due.lock();
    due.insert((at, hosted.name().to_owned()));
    drop(due);
    shared.sooner.notify_one();
}

/// Runs due work.
async fn tick(shared: Arc<Shared>, watch: ShutdownSignal) {
    loop {
        let now = (shared.options.clock)();
        let next = shared.due.lock().first().cloned();
        let wait = match next {
            Some((at, name)) if at <= now => {
                shared.due.lock().remove(&(at, name.clone()));
                let hosted = shared.clusters.read().get(&name).cloned();
                if let Some(hosted) = hosted {
                    hosted.with(|cluster| cluster.run_due(hosted.now(now)));
                    schedule(&shared, &hosted);
                }
                continue;
            }
            Some((at, _)) => Duration::try_from(at.duration_since(now)).unwrap_or_default(),
            None => IDLE,
        };
        tokio::select! {
            () = watch.signaled() => return,
            () = shared.sooner.notified() => {}
            () = tokio::time::sleep(wait.min(IDLE)) => {}
        }
    }
}
