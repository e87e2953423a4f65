//! Reconcilers: one for each kind of [`WorkKey`], each with the parts that it uses.

pub(crate) mod agent_certificate;
pub(crate) mod agent_config;
pub(crate) mod agent_install;
pub(crate) mod applied;
pub(crate) mod catalog;
pub(crate) mod dispatch;
pub(crate) mod echoes;
mod event_path;
pub(crate) mod followups;
pub(crate) mod kyma;
mod kyma_deletion;
mod legacy_certificate;
pub(crate) mod legacy_watcher;
mod local_templates;
mod mandatory;
pub(crate) mod manifest;
pub(crate) mod owners;
mod paused;
pub(crate) mod prepare;
mod pull_secret;
pub(crate) mod registry_limiter;
mod restore;
pub(crate) mod runtime_kyma;
pub(crate) mod sources;
pub(crate) mod suspended;
pub(crate) mod windows;

use std::sync::Arc;

use kube::Client;
use tidewatch_oci::OciError;

use self::{
    agent_certificate::AgentCertificateReconciler,
    agent_config::{AgentConfigReconciler, WatcherReconciler},
    agent_install::AgentInstaller,
    applied::AppliedStates,
    catalog::CatalogReconciler,
    dispatch::Dispatcher,
    echoes::EchoFilter,
    event_path::EventPathReconciler,
    followups::FollowUps,
    kyma::{KymaReconciler, execute::Executor, failures::Failures, needs::WaitingKymas},
    kyma_deletion::KymaDeletion,
    legacy_watcher::LegacyWatcherReconciler,
    mandatory::{MandatoryReconciler, ReleaseReconciler},
    manifest::{
        ManifestReconciler, agent_watches::AgentWatches, failures::ManifestFailures, remove::Removal,
        remover::Remover, source::Bundles, sync::Syncer,
    },
    owners::RuntimeOwners,
    paused::PauseNotice,
    prepare::Preparer,
    pull_secret::PullSecrets,
    restore::Restorer,
    sources::Registries,
    windows::Windows,
};
use crate::{
    agent_upgrades::AgentUpgrades,
    clusters::Clusters,
    config::EngineConfig,
    engine::Engine,
    error::Error,
    events::Notifier,
    history::{Observer, ReconcileHistory},
    kcp::{Clock, Kcp},
    key::{Queue, WorkKey},
    outcome::Outcome,
    queue::{Class, worker::WorkQueue},
    trigger::Triggers,
};

pub use echoes::Version;

/// The reconcilers, one for each kind of key.
pub(crate) struct Reconcilers {
    pub(crate) kyma: KymaReconciler,
    pub(crate) manifest: ManifestReconciler,
    pub(crate) mandatory: MandatoryReconciler,
    pub(crate) release: ReleaseReconciler,
    pub(crate) catalog: CatalogReconciler,
    pub(crate) agent_config: AgentConfigReconciler,
    pub(crate) agent_certificate: AgentCertificateReconciler,
    pub(crate) event_path: EventPathReconciler,
    pub(crate) legacy_watcher: LegacyWatcherReconciler,
    pub(crate) watcher: WatcherReconciler,
}

impl Reconcilers {
    /// Reconciles a key. The large futures are boxed.
    pub(crate) async fn reconcile(
        &self,
        key: &WorkKey,
        class: Class,
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        match key {
            WorkKey::Kyma { kyma } => Box::pin(self.kyma.reconcile(kyma, class, triggers)).await,
            WorkKey::EventPath { kyma } => self.event_path.reconcile(kyma).await,
            WorkKey::Manifest { kyma, name } => {
                Box::pin(self.manifest.reconcile(key, kyma, name, triggers)).await
            }
            WorkKey::AgentConfig { kyma } => Box::pin(self.agent_config.reconcile(kyma, triggers)).await,
            WorkKey::AgentCertificate { kyma } => self.agent_certificate.reconcile(kyma).await,
            WorkKey::Catalog { kyma } => self.catalog.reconcile(kyma, triggers).await,
            WorkKey::LegacyWatcher { kyma } => self.legacy_watcher.reconcile(kyma).await,
            WorkKey::Mandatory { kyma } => self.mandatory.reconcile(kyma, class, triggers).await,
            WorkKey::Release { module } => self.release.reconcile(module).await,
            WorkKey::Watcher { name } => self.watcher.reconcile(name).await,
        }
    }
}

/// The engine's queue: polls and catalogs take at most a fifth of the workers each.
fn queue_of(config: &EngineConfig) -> Queue {
    let queue = WorkQueue::new(config.limits.per_runtime);
    queue.cap(Class::Poll, config.limits.workers / 5);
    // At least one: only this class brings catalogs.
    queue.cap(Class::Catalog, (config.limits.workers / 5).max(1));
    queue
}

/// Parts that several reconcilers share.
struct Parts {
    kcp: Kcp,
    clusters: Arc<Clusters>,
    config: Arc<EngineConfig>,
    queue: Queue,
    registries: Arc<Registries>,
    windows: Arc<Windows>,
    echoes: Arc<EchoFilter>,
    states: Arc<AppliedStates>,
    followups: Arc<FollowUps>,
    owners: Arc<RuntimeOwners>,
    failures: Arc<Failures>,
    watched: Arc<AgentWatches>,
    restorer: Arc<Restorer>,
    installer: Arc<AgentInstaller>,
    notifier: Arc<Notifier>,
}

/// Wires an engine.
pub(crate) fn engine(
    client: Client,
    config: EngineConfig,
    observer: Arc<dyn Observer>,
    clock: Clock,
) -> Result<Engine, OciError> {
    let kcp = Kcp::new(client, &config.namespace, clock);
    kcp.index_mut().readers.restrict(&config.restricted_modules);
    if config.single_cluster {
        kcp.index_mut().serve_own_cluster();
    }
    let (config, queue) = (Arc::new(config.clone()), queue_of(&config));
    let (echoes, states) = (Arc::<EchoFilter>::default(), Arc::<AppliedStates>::default());
    let clusters =
        Arc::new(Clusters::new(kcp.clone(), Arc::clone(&config), queue.clone(), Arc::clone(&observer)));
    let followups = Arc::new(FollowUps::new(kcp.clone(), Arc::clone(&clusters), queue.clone(), &config));
    let (notifier, upgrades) = (Arc::new(Notifier::new(kcp.clone())), AgentUpgrades::new());
    let parts = Parts {
        registries: Arc::new(Registries::new(kcp.clone(), Arc::clone(&config))?),
        windows: Arc::default(),
        owners: Arc::new(RuntimeOwners { kcp: kcp.clone(), clusters: Arc::clone(&clusters) }),
        failures: Arc::new(Failures::new(
            kcp.clone(),
            Arc::clone(&clusters),
            Arc::clone(&notifier),
            Arc::clone(&observer),
        )),
        watched: Arc::new(AgentWatches { kcp: kcp.clone(), followups: Arc::clone(&followups) }),
        restorer: Arc::new(Restorer {
            kcp: kcp.clone(),
            states: Arc::clone(&states),
            echoes: Arc::clone(&echoes),
        }),
        installer: Arc::new(AgentInstaller {
            kcp: kcp.clone(),
            config: Arc::clone(&config),
            upgrades: upgrades.clone(),
        }),
        kcp,
        clusters,
        config,
        queue,
        echoes,
        states,
        followups,
        notifier,
    };
    let (registries, windows) = (Arc::clone(&parts.registries), Arc::clone(&parts.windows));
    let dispatcher = Arc::new(parts.dispatcher(observer));
    Ok(Engine { dispatcher, registries, windows, upgrades })
}

impl Parts {
    fn dispatcher(self, observer: Arc<dyn Observer>) -> Dispatcher {
        let executor = Arc::new(Executor { kcp: self.kcp.clone(), queue: self.queue.clone() });
        Dispatcher {
            pause: PauseNotice { kcp: self.kcp.clone(), clusters: Arc::clone(&self.clusters) },
            reconcilers: Reconcilers {
                kyma: self.kyma(Arc::clone(&executor)),
                manifest: self.manifest(),
                mandatory: self.mandatory(executor),
                release: ReleaseReconciler { kcp: self.kcp.clone() },
                catalog: self.catalog(),
                agent_config: self.agent_config(),
                agent_certificate: AgentCertificateReconciler {
                    kcp: self.kcp.clone(),
                    clusters: Arc::clone(&self.clusters),
                    config: Arc::clone(&self.config),
                    owners: Arc::clone(&self.owners),
                },
                event_path: EventPathReconciler {
                    kcp: self.kcp.clone(),
                    followups: Arc::clone(&self.followups),
                    notifier: Arc::clone(&self.notifier),
                },
                legacy_watcher: LegacyWatcherReconciler {
                    kcp: self.kcp.clone(),
                    clusters: Arc::clone(&self.clusters),
                },
                watcher: WatcherReconciler { kcp: self.kcp.clone() },
            },
            history: ReconcileHistory::default(),
            kcp: self.kcp,
            clusters: self.clusters,
            config: self.config,
            queue: self.queue,
            echoes: self.echoes,
            states: self.states,
            failures: self.failures,
            observer,
        }
    }

    fn kyma(&self, executor: Arc<Executor>) -> KymaReconciler {
        let pull_secrets =
            Arc::new(PullSecrets { kcp: self.kcp.clone(), name: self.config.pull_secret.clone() });
        KymaReconciler {
            kcp: self.kcp.clone(),
            clusters: Arc::clone(&self.clusters),
            config: Arc::clone(&self.config),
            queue: self.queue.clone(),
            registries: Arc::clone(&self.registries),
            notifier: Arc::clone(&self.notifier),
            windows: Arc::clone(&self.windows),
            waiting: WaitingKymas::default(),
            followups: Arc::clone(&self.followups),
            owners: Arc::clone(&self.owners),
            failures: Arc::clone(&self.failures),
            preparer: Preparer {
                kcp: self.kcp.clone(),
                clusters: Arc::clone(&self.clusters),
                restorer: Arc::clone(&self.restorer),
                echoes: Arc::clone(&self.echoes),
            },
            pull_secrets: Arc::clone(&pull_secrets),
            executor,
            deletion: KymaDeletion {
                kcp: self.kcp.clone(),
                clusters: Arc::clone(&self.clusters),
                queue: self.queue.clone(),
                owners: Arc::clone(&self.owners),
                failures: Arc::clone(&self.failures),
                pull_secrets,
                installer: Arc::clone(&self.installer),
                notifier: Arc::clone(&self.notifier),
            },
        }
    }

    fn mandatory(&self, executor: Arc<Executor>) -> MandatoryReconciler {
        MandatoryReconciler {
            kcp: self.kcp.clone(),
            clusters: Arc::clone(&self.clusters),
            config: Arc::clone(&self.config),
            registries: Arc::clone(&self.registries),
            executor,
            followups: Arc::clone(&self.followups),
            waiting: WaitingKymas::default(),
            notifier: Arc::clone(&self.notifier),
        }
    }

    fn catalog(&self) -> CatalogReconciler {
        CatalogReconciler {
            kcp: self.kcp.clone(),
            clusters: Arc::clone(&self.clusters),
            queue: self.queue.clone(),
            owners: Arc::clone(&self.owners),
            restorer: Arc::clone(&self.restorer),
            echoes: Arc::clone(&self.echoes),
        }
    }

    fn agent_config(&self) -> AgentConfigReconciler {
        AgentConfigReconciler {
            kcp: self.kcp.clone(),
            clusters: Arc::clone(&self.clusters),
            config: Arc::clone(&self.config),
            queue: self.queue.clone(),
            followups: Arc::clone(&self.followups),
            owners: Arc::clone(&self.owners),
            watched: Arc::clone(&self.watched),
            installer: Arc::clone(&self.installer),
        }
    }

    fn manifest(&self) -> ManifestReconciler {
        let failures =
            Arc::new(ManifestFailures { kcp: self.kcp.clone(), clusters: Arc::clone(&self.clusters) });
        let bundles =
            Arc::new(Bundles::new(self.kcp.clone(), Arc::clone(&self.config), Arc::clone(&self.registries)));
        let remover = Arc::new(Remover {
            kcp: self.kcp.clone(),
            queue: self.queue.clone(),
            states: Arc::clone(&self.states),
        });
        let syncer = Arc::new(Syncer {
            kcp: self.kcp.clone(),
            states: Arc::clone(&self.states),
            echoes: Arc::clone(&self.echoes),
            watched: Arc::clone(&self.watched),
            remover: Arc::clone(&remover),
        });
        ManifestReconciler {
            kcp: self.kcp.clone(),
            clusters: Arc::clone(&self.clusters),
            config: Arc::clone(&self.config),
            owners: Arc::clone(&self.owners),
            watched: Arc::clone(&self.watched),
            failures: Arc::clone(&failures),
            bundles: Arc::clone(&bundles),
            removal: Removal {
                kcp: self.kcp.clone(),
                owners: Arc::clone(&self.owners),
                watched: Arc::clone(&self.watched),
                failures,
                bundles,
                remover,
                syncer: Arc::clone(&syncer),
                notifier: Arc::clone(&self.notifier),
            },
            syncer,
            states: Arc::clone(&self.states),
            notifier: Arc::clone(&self.notifier),
            echoes: Arc::clone(&self.echoes),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
