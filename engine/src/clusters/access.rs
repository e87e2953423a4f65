//! Builds the client of a Kyma's runtime.

use std::{convert::Infallible, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use tidewatch_api::{
    names::{self, labels},
    object::{Gvk, ObjectRef},
};
use tokio::time::Instant;

use super::{
    budget::{Budgets, limited},
    cache::{ClientCache, SecretVersion},
    client::{Connector, Limits, RuntimeClient},
    counted::CountedLayer,
    error::RuntimeError,
    gated::Gated,
    kubeconfig::{KubeconfigError, RuntimeAccess},
    objects::ObjectError,
    record::{Cluster, Record, Records},
};
use crate::{
    config::EngineConfig,
    error::{Error, chain},
    history::Observer,
    kcp::Kcp,
    key::Queue,
    outcome::{Outcome, error_report},
    pace::next_try,
    stages::{Stage, stage},
};

/// Key of the kubeconfig in its Secret.
const KUBECONFIG: &str = "config";

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAccess {
    #[error(
        "there is no kubeconfig Secret labelled operator.kyma-project.io/kyma-name={0}; tried again when one appears"
    )]
    NoSecret(String),
    #[error(
        "several kubeconfig Secrets are labelled with this Kyma's name ({0}); tried again when one is left"
    )]
    Ambiguous(String),
    #[error(
        "the kubeconfig Secret '{0}' names another cluster, and this receiver manages only its own (--single-cluster); tried again when \
         the Secret is gone"
    )]
    OtherCluster(String),
    #[error("the kubeconfig Secret '{0}' has no key 'config'; tried again when it changes")]
    NoKey(String),
    #[error("the kubeconfig in Secret '{secret}' is refused; tried again when it changes")]
    Refused {
        secret: String,
        #[source]
        source: KubeconfigError,
    },
    #[error("no client can be made of the kubeconfig in Secret '{secret}'; tried again when it changes")]
    Unusable {
        secret: String,
        #[source]
        source: RuntimeError,
    },
}

impl NoAccess {
    /// Whether the cluster may be deleted. Confirm with [`Clusters::confirm_deleted`] first.
    pub(crate) const fn cluster_is_gone(&self) -> bool {
        matches!(self, Self::NoSecret(_))
    }

    pub(crate) fn message(&self) -> String {
        chain(self)
    }
}

/// Idle time after which a client is dropped.
const CLIENT_IDLE: Duration = Duration::from_mins(1);

/// How long a Secret must be missing before its cluster counts as deleted. A recreated Secret is missing for a moment.
const DELETED_AFTER: Duration = Duration::from_secs(10);

/// The runtimes' clients, and the limits that protect the fleet from one runtime.
pub(crate) struct Clusters {
    pub(super) kcp: Kcp,
    config: Arc<EngineConfig>,
    pub(super) runtimes: ClientCache,
    connector: Connector,
    pub(super) budgets: Arc<Budgets>,
    /// What the engine remembers of each runtime.
    pub(crate) records: Records,
    pub(super) queue: Queue,
}

impl Clusters {
    pub(crate) fn new(
        kcp: Kcp,
        config: Arc<EngineConfig>,
        queue: Queue,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let counted = CountedLayer::new(Arc::new(move |method, code| observer.answered(method, code)));
        Self {
            kcp,
            runtimes: ClientCache::default(),
            connector: Connector::new(Arc::new(config.addresses.clone())).counted(counted),
            budgets: Arc::new(Budgets::new(config.limits.workers)),
            records: Records::default(),
            config,
            queue,
        }
    }

    /// Drops the clients of idle runtimes; their records stay.
    pub(crate) fn drop_idle_clients(&self) {
        self.runtimes.drop_idle(CLIENT_IDLE);
    }

    pub(crate) fn forget(&self, kyma: &str) {
        self.runtimes.invalidate(kyma);
        self.budgets.forget(kyma);
        self.records.remove(kyma);
    }

    pub(crate) fn count_suspended(&self) -> usize {
        self.budgets.count()
    }

    /// Returns how to wait before the cluster counts as deleted; `None` once confirmed.
    ///
    /// Treating a cluster as deleted leaves everything in it behind. So two fresh lists, at least ten seconds apart, must have no such
    /// Secret.
    pub(crate) async fn confirm_deleted(&self, kyma: &str) -> Result<Option<Outcome>, Error> {
        let api: Api<Secret> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        let params = ListParams::default().labels(&format!("{}={kyma}", labels::KYMA_NAME)).limit(1);
        let list = stage(Stage::ReadKcp, api.list_metadata(&params)).await;
        let list = list.map_err(|e| Error::kcp(format!("listing the kubeconfig Secrets of {kyma}"), e))?;
        if !list.items.is_empty() {
            self.records.change_existing(kyma, |record| record.no_secret_since = None);
            return Ok(Some(Outcome::recheck_soon("a kubeconfig Secret has just appeared".into())));
        }
        let now = Instant::now();
        let since = self.records.change(kyma, |record| now - *record.no_secret_since.get_or_insert(now));
        if since < DELETED_AFTER {
            let reason =
                "there is no kubeconfig Secret; looking again before the cluster is taken as deleted";
            let at = self.kcp.now() + DELETED_AFTER.saturating_sub(since);
            return Ok(Some(Outcome::waiting(reason.into()).due_at(Some(at))));
        }
        Ok(None)
    }

    /// Drops the runtime's client and distrusts everything learned with it.
    pub(crate) fn discredit(&self, kyma: &str) {
        self.runtimes.invalidate(kyma);
        self.records.change_existing(kyma, Record::doubt);
    }

    fn gated(&self, client: RuntimeClient, kyma: &str) -> Gated {
        Gated::new(client, self.kcp.gate.clone(), kyma)
    }

    pub(crate) async fn access(&self, kyma: &str) -> Result<Result<Gated, NoAccess>, Error> {
        let mut secrets = self.kcp.index().secrets.of(kyma);
        if self.config.single_cluster {
            return Ok(match secrets.pop() {
                None => Ok(self.own_cluster(kyma)),
                Some(secret) => Err(NoAccess::OtherCluster(secret.name)),
            });
        }
        let reference = match (secrets.pop(), secrets.is_empty()) {
            (None, _) => return Ok(Err(NoAccess::NoSecret(kyma.to_owned()))),
            (Some(one), true) => {
                self.records.change_existing(kyma, |record| record.no_secret_since = None);
                one
            }
            (Some(one), false) => {
                secrets.push(one);
                let names: Vec<_> = secrets.into_iter().map(|s| s.name).collect();
                return Ok(Err(NoAccess::Ambiguous(names.join(", "))));
            }
        };
        let version = SecretVersion { uid: reference.uid, resource_version: reference.resource_version };
        // The cache has no client of this Secret version: read the Secret.
        if let Ok(client) = self.runtimes.get_or_build(kyma, &version, || Err(())) {
            return Ok(Ok(self.gated(client, kyma)));
        }
        let api: Api<Secret> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        let secret = match stage(Stage::Connect, api.get_opt(&reference.name)).await {
            Ok(Some(secret)) => secret,
            Ok(None) => return Ok(Err(NoAccess::NoSecret(kyma.to_owned()))),
            Err(error) => return Err(Error::kcp(format!("reading Secret {}", reference.name), error)),
        };
        let version = SecretVersion {
            uid: secret.metadata.uid.clone().unwrap_or_default(),
            resource_version: secret.metadata.resource_version.clone().unwrap_or_default(),
        };
        let Some(config) = secret.data.as_ref().and_then(|d| d.get(KUBECONFIG)) else {
            return Ok(Err(NoAccess::NoKey(reference.name)));
        };
        let text = String::from_utf8_lossy(&config.0);
        let access = match RuntimeAccess::parse(&text, &self.config.addresses) {
            Ok(access) => access,
            Err(source) => return Ok(Err(NoAccess::Refused { secret: reference.name, source })),
        };
        let limits = Limits { deadline: self.config.limits.call_deadline, ..Limits::default() };
        let built = self.connected(kyma, &version, || self.connector.client(&access, limits));
        Ok(built
            .map(|client| self.gated(client, kyma))
            .map_err(|source| NoAccess::Unusable { secret: reference.name, source }))
    }

    /// The client of KCP's own cluster. It has no Secret, so it is always the same version.
    fn own_cluster(&self, kyma: &str) -> Gated {
        let version = SecretVersion { uid: String::new(), resource_version: String::new() };
        let deadline = self.config.limits.call_deadline;
        let make = || Ok::<_, Infallible>(RuntimeClient::new(self.kcp.client.clone(), deadline));
        let Ok(client) = self.connected(kyma, &version, make);
        let object = ObjectRef {
            gvk: Gvk::of(names::API_VERSION, "Kyma"),
            namespace: self.kcp.namespace.to_string(),
            name: kyma.to_owned(),
        };
        self.gated(client, kyma).of_own_cluster(object)
    }

    /// The cached client of this Secret version, or a new one with what is known about its cluster.
    fn connected<E>(
        &self,
        kyma: &str,
        version: &SecretVersion,
        make: impl FnOnce() -> Result<RuntimeClient, E>,
    ) -> Result<RuntimeClient, E> {
        self.runtimes.get_or_build(kyma, version, || {
            let cluster = self.records.change(kyma, |record| record.reach(version));
            let client = make()?;
            let client = match cluster {
                Cluster::Known(mapper) => client.with_mapper(mapper),
                Cluster::Doubted | Cluster::New => client,
            };
            self.records.change(kyma, |record| record.reached(version, client.shared_mapper()));
            Ok(limited(client, kyma, &self.budgets, &self.queue))
        })
    }

    /// Ends a reconcile that failed at a runtime. The error decides about the client and the backoff.
    pub(crate) fn failed_at(&self, kyma: &str, error: ObjectError) -> Result<Outcome, Error> {
        if let ObjectError::Held(held) = error {
            return Err(held.into());
        }
        if error.discredits_client() {
            self.discredit(kyma);
        }
        let retry_after = error.retry_after();
        let report = error_report(format!("{}; {}", error.message(), next_try(self.kcp.now(), retry_after)));
        Ok(Outcome::retried(report, error.class(), retry_after))
    }
}
