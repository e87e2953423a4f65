//! From a Kyma's name to a client of its runtime.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use parking_lot::Mutex;
use tidewatch_api::names::labels;
use tokio::time::Instant;

use super::{budget::counted, reached::Before};
use crate::{
    clusters::{KubeconfigError, Limits, RuntimeAccess, RuntimeClient, RuntimeError, SecretVersion},
    gate::Gated,
    kcp::writes::lost,
    reconcile::{Lost, Outcome, Shared, chain},
    stages::{Stage, stage},
};

/// Key of the kubeconfig in its Secret (contract, section 2.3).
const KUBECONFIG: &str = "config";

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAccess {
    /// There is no Secret.
    #[error(
        "there is no kubeconfig Secret labelled operator.kyma-project.io/kyma-name={0}; tried again when one appears"
    )]
    NoSecret(String),
    /// There are several.
    #[error(
        "several kubeconfig Secrets are labelled with this Kyma's name ({0}); tried again when one is left"
    )]
    Ambiguous(String),
    /// It has no kubeconfig.
    #[error("the kubeconfig Secret '{0}' has no key 'config'; tried again when it changes")]
    NoKey(String),
    /// It is not one we use.
    #[error("the kubeconfig in Secret '{secret}' is refused; tried again when it changes")]
    Refused {
        /// The Secret.
        secret: String,
        /// Why.
        #[source]
        source: KubeconfigError,
    },
    /// No client can be made of it.
    #[error("no client can be made of the kubeconfig in Secret '{secret}'; tried again when it changes")]
    Unusable {
        /// The Secret.
        secret: String,
        /// Why.
        #[source]
        source: RuntimeError,
    },
}

impl NoAccess {
    /// Whether the cluster may be deleted (contract, section 2.3); see [`Shared::doubts`] before it is taken as such.
    pub(crate) const fn cluster_is_gone(&self) -> bool {
        matches!(self, Self::NoSecret(_))
    }

    pub(crate) fn message(&self) -> String {
        chain(self)
    }
}

/// How long a cluster without a kubeconfig Secret is not taken as deleted: one that is made anew is gone for a moment.
const BELIEVED_AFTER: Duration = Duration::from_secs(10);

/// Since when clusters have had no kubeconfig Secret, of those whose Kyma or Manifest is being deleted.
#[derive(Debug, Default)]
pub(crate) struct Gone(Mutex<HashMap<String, Instant>>);

impl Gone {
    pub(crate) fn forget(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }

    /// How long it has been so.
    fn since(&self, kyma: &str) -> Duration {
        let now = Instant::now();
        now.duration_since(*self.0.lock().entry(kyma.to_owned()).or_insert(now))
    }
}

impl Shared {
    /// What is to be waited for before a cluster without a kubeconfig Secret is taken as deleted, which leaves everything
    /// in it behind. `None` if there is no doubt: two fresh lists, ten seconds or more apart, had no such Secret.
    pub(crate) async fn doubts(&self, kyma: &str) -> Result<Option<Outcome>, Lost> {
        let api: Api<Secret> = Api::namespaced(self.kcp.clone(), &self.config.namespace);
        let params = ListParams::default().labels(&format!("{}={kyma}", labels::KYMA_NAME)).limit(1);
        let list = stage(Stage::ReadKcp, api.list_metadata(&params)).await;
        let list = list.map_err(|e| lost(format!("listing the kubeconfig Secrets of {kyma}"), e))?;
        if !list.items.is_empty() {
            self.gone.forget(kyma);
            return Ok(Some(Outcome::recheck_soon("a kubeconfig Secret has just appeared".into())));
        }
        let since = self.gone.since(kyma);
        if since < BELIEVED_AFTER {
            let what = "there is no kubeconfig Secret; looking again before the cluster is taken as deleted";
            let at = self.now() + BELIEVED_AFTER.saturating_sub(since);
            return Ok(Some(Outcome::waiting(what.into()).due_at(Some(at))));
        }
        Ok(None)
    }

    /// The runtime's client may not be used any more, and what was learned by it is in doubt.
    pub(crate) fn discredit(&self, kyma: &str) {
        self.runtimes.invalidate(kyma);
        self.reached.doubt(kyma);
    }

    fn gated(&self, client: RuntimeClient, kyma: &str) -> Gated {
        Gated::new(client, self.gate.clone(), kyma)
    }

    /// A client of the runtime, from the cache or newly made.
    pub(crate) async fn access(&self, kyma: &str) -> Result<Result<Gated, NoAccess>, Lost> {
        let mut secrets = self.look().secrets_of(kyma);
        let reference = match (secrets.pop(), secrets.is_empty()) {
            (None, _) => return Ok(Err(NoAccess::NoSecret(kyma.to_owned()))),
            (Some(one), true) => {
                self.gone.forget(kyma);
                one
            }
            (Some(one), false) => {
                secrets.push(one);
                let names: Vec<_> = secrets.into_iter().map(|s| s.name).collect();
                return Ok(Err(NoAccess::Ambiguous(names.join(", "))));
            }
        };
        let version = SecretVersion { uid: reference.uid, resource_version: reference.resource_version };
        // Without a fitting client in the cache, the Secret has to be read first.
        if let Ok(client) = self.runtimes.get_or_build(kyma, &version, || Err(())) {
            return Ok(Ok(self.gated(client, kyma)));
        }
        let api: Api<Secret> = Api::namespaced(self.kcp.clone(), &self.config.namespace);
        let secret = match stage(Stage::Connect, api.get_opt(&reference.name)).await {
            Ok(Some(secret)) => secret,
            Ok(None) => return Ok(Err(NoAccess::NoSecret(kyma.to_owned()))),
            Err(error) => return Err(lost(format!("reading Secret {}", reference.name), error)),
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
        let limits = Limits { deadline: self.config.call_deadline, ..Limits::default() };
        let before = self.reached.before(kyma, &version);
        if !matches!(before, Before::Known(_)) {
            // What was prepared there before does not count.
            self.prepared.forget(kyma);
            self.agents.forget(kyma);
            self.exchanged.forget(kyma);
        }
        if matches!(before, Before::Nothing) {
            self.catalogs.forget(kyma);
        }
        let built = self.runtimes.get_or_build(kyma, &version, || {
            let client = self.connector.client(&access, limits)?;
            let client = match before {
                Before::Known(mapper) => client.knowing(mapper),
                Before::Doubted | Before::Nothing => client,
            };
            self.reached.by(kyma, &version, client.shared_mapper());
            Ok(counted(client, kyma, &self.budgets, &self.queue))
        });
        Ok(built
            .map(|client| self.gated(client, kyma))
            .map_err(|source| NoAccess::Unusable { secret: reference.name, source }))
    }
}
