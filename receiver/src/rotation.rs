//! Keeps the certificates of the leader: renews its own, rotates the CA, and hands new ones to the listener and the engine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::RwLock;
use rustls::ServerConfig;
use serde_json::json;
use tidewatch_api::{
    Kyma,
    names::{CA_SECRET, SERVER_SECRET},
};
use tidewatch_certs::rotation::{Step, until};
use tidewatch_drain::ShutdownSignal;
use tidewatch_engine::{Engine, Issuer};
use tidewatch_telemetry::{
    Reply, chain,
    metrics::{MetricsError, Registry},
};
use tidewatch_tls::Store;
use tidewatch_wire::v3::configuration;

use crate::{
    path_watch::PathWatch,
    pki::{CaRecord, Material, Pki, PkiError},
};

/// Path of the page.
pub const PAGE: &str = "/certificates";
const RETRY: Duration = Duration::from_secs(30);
/// Interval of looks at the agents' trust while the next CA is published. No request is made.
const LOOK: Duration = Duration::from_secs(1);

/// The certificates in use, for the page. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CertificateState(Arc<RwLock<Option<InUse>>>);

#[derive(Clone, Debug)]
struct InUse {
    ca: CaRecord,
    /// What agents that trust all CAs report.
    trust: String,
    server_renewed: Timestamp,
    deadline: Option<Timestamp>,
}

/// Keeps the certificates.
pub struct Keeper {
    /// The Secrets.
    pub pki: Pki,
    /// Of the listener.
    pub store: Arc<Store<ServerConfig>>,
    /// Gets the CA.
    pub engine: Engine,
    /// The trust of agents.
    pub paths: PathWatch,
    /// Whether all Kymas are known.
    pub loaded: Arc<AtomicBool>,
    /// For the page.
    pub state: CertificateState,
}

impl Keeper {
    /// Runs until shutdown. Only the leader runs it. A failure keeps the certificates in use, and is retried.
    pub async fn run(self, client: Client, namespace: String, stop: ShutdownSignal) {
        let mut changes = std::pin::pin!(changes(&client, &namespace));
        loop {
            let wait = match self.look().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the certificates cannot be kept up to date; the last ones stay");
                    RETRY
                }
            };
            tokio::select! {
                () = stop.signaled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.trusted() => {}
                Some(()) = changes.next() => {}
            }
        }
    }

    /// Returns the wait until the next look.
    async fn look(&self) -> Result<Duration, PkiError> {
        let now = Timestamp::now();
        let Material { ca, server, renew_at } = self.pki.load(now).await?;
        if let Err(error) = self.store.replace(&server, now) {
            tracing::warn!(error = %chain(&error), "the receiver's certificate cannot be used; the last one stays");
        }
        self.hand_over(&ca, renew_at)?;
        if self.pki.rotate(&ca, self.is_trusted(), now).await? {
            return Ok(Duration::ZERO);
        }
        let next = self.pki.deadline(&ca).unwrap_or(renew_at).min(renew_at);
        Ok(until(next, now).max(LOOK))
    }

    /// Hands a changed CA to the engine.
    fn hand_over(&self, ca: &CaRecord, renew_at: Timestamp) -> Result<(), PkiError> {
        let deadline = self.pki.deadline(ca);
        let trust = configuration(&ca.files.ca_bundle_pem);
        let in_use = InUse { ca: ca.clone(), trust, server_renewed: renew_at, deadline };
        let before = self.state.0.write().replace(in_use);
        if before.is_none_or(|before| before.ca.files != ca.files) {
            self.engine.replace_authority(Issuer { ca: ca.ca()?, bundle: ca.files.ca_bundle_pem.clone() });
        }
        Ok(())
    }

    /// Whether all agents trust the published CA.
    fn is_trusted(&self) -> bool {
        self.loaded.load(Ordering::Acquire) && self.state.lagging(&self.engine, &self.paths, 1).is_empty()
    }

    /// Waits until all agents trust the next CA; for ever in other steps.
    async fn trusted(&self) {
        if self.state.step() != Some(Step::Publishing) {
            std::future::pending::<()>().await;
        }
        while !self.is_trusted() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl CertificateState {
    /// The step of the rotation, if the certificates are kept here.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.0.read().as_ref().map(|in_use| in_use.ca.rotation.step)
    }

    /// Kymas whose agents have not proven that they trust all CAs, at most `most`. Agents of revoked and skipped Kymas cannot.
    #[must_use]
    pub fn lagging(&self, engine: &Engine, paths: &PathWatch, most: usize) -> Vec<String> {
        let Some(trust) = self.0.read().as_ref().map(|in_use| in_use.trust.clone()) else {
            return Vec::new();
        };
        let kymas = {
            let state = engine.state().read();
            let is_revoked = |id: &str| state.revoked.as_ref().is_some_and(|revoked| revoked.contains(id));
            let counts = |kyma: &Kyma| !kyma.is_skipped() && !kyma.runtime_id().is_some_and(is_revoked);
            let kymas = state.kymas.iter().filter(|(_, kyma)| counts(kyma));
            kymas.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        paths.inspect(|paths, _| {
            let lagging = kymas.into_iter().filter(|kyma| paths.trust(kyma) != Some(&trust));
            lagging.take(most).collect()
        })
    }

    /// Adds the metrics of the certificates. Only the leader with an own CA shows them.
    pub fn register(
        &self,
        registry: &Registry,
        engine: &Engine,
        paths: &PathWatch,
    ) -> Result<(), MetricsError> {
        let state = self.clone();
        registry.gauge_vec_fn(
            "certificate_not_after_timestamp_seconds",
            "End of a certificate that the receiver keeps.",
            &["certificate"],
            move |set| state.inspect(|in_use| set(&["ca"], seconds(in_use.ca.rotation.ca.not_after))),
        )?;
        let state = self.clone();
        registry.gauge_vec_fn(
            "certificate_due_timestamp_seconds",
            "Time of the next renewal of a certificate, or of the next step of the CA's rotation.",
            &["certificate"],
            move |set| {
                state.inspect(|in_use| {
                    set(&["server"], seconds(in_use.server_renewed));
                    if let Some(deadline) = in_use.deadline {
                        set(&["ca"], seconds(deadline));
                    }
                });
            },
        )?;
        let (state, engine, paths) = (self.clone(), engine.clone(), paths.clone());
        registry.gauge_vec_fn(
            "certificate_lagging_runtimes",
            "Runtimes whose agents have not proven that they trust the newest CA.",
            &[],
            move |set| {
                if state.step().is_some() {
                    #[allow(clippy::cast_precision_loss, reason = "there are far less than 2^52")]
                    set(&[], state.lagging(&engine, &paths, usize::MAX).len() as f64);
                }
            },
        )
    }

    fn inspect(&self, show: impl FnOnce(&InUse)) {
        if let Some(in_use) = self.0.read().as_ref() {
            show(in_use);
        }
    }

    /// The page: the CA, the rotation, and each runtime's certificate. Without an own CA, an empty object.
    #[must_use]
    pub fn page(&self, engine: &Engine, paths: &PathWatch) -> Reply {
        let Some(InUse { ca, trust, server_renewed, deadline }) = self.0.read().clone() else {
            return Reply::json(&json!({}));
        };
        let kymas = engine.state().read().kymas.uids();
        let runtimes: Vec<_> = paths.inspect(|paths, tick| {
            let runtime = |(kyma, _): (String, String)| {
                let ends = paths.view(&kyma, tick).and_then(|view| view.not_after);
                let trusts = paths.trust(&kyma) == Some(&trust);
                json!({"kyma": kyma, "certificateEnds": ends, "trusts": trusts})
            };
            kymas.into_iter().map(runtime).collect()
        });
        Reply::json(&json!({
            "ca": {"ends": ca.rotation.ca.not_after, "step": ca.rotation.step.label(), "since": ca.rotation.since,
                   "deadline": deadline, "requested": ca.rotation.requested},
            "server": {"renewed": server_renewed},
            "runtimes": runtimes,
        }))
    }
}

#[allow(clippy::cast_precision_loss, reason = "seconds are far less than 2^52")]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

/// Changes of the Secrets by others.
fn changes(client: &Client, namespace: &str) -> impl Stream<Item = ()> + use<> {
    let of = |name: &'static str| {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let one = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(200);
        watcher(secrets, one).default_backoff().filter_map(move |event| {
            std::future::ready(match event {
                Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => Some(()),
                Ok(watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::InitDone) => None,
                Err(error) => {
                    tracing::warn!(%error, name, "a Secret cannot be watched");
                    None
                }
            })
        })
    };
    futures::stream::select(of(CA_SECRET), of(SERVER_SECRET))
}
