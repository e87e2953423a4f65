//! From a Kyma's name to a client of its runtime.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{Lost, Shared, chain, gate::Gated, kcp_writes::lost};
use crate::{
    runtime::{KubeconfigError, Limits, RuntimeAccess, RuntimeClient, RuntimeError, SecretVersion},
    stages::{Stage, stage},
};

/// Key of the kubeconfig in its Secret (contract, section 2.3).
const KUBECONFIG: &str = "config";

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAccess {
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
    /// Whether the cluster is to be taken as deleted (contract, section 2.3).
    pub(super) const fn cluster_is_gone(&self) -> bool {
        matches!(self, Self::NoSecret(_))
    }

    pub(super) fn message(&self) -> String {
        chain(self)
    }
}

impl Shared {
    fn gated(&self, client: RuntimeClient, kyma: &str) -> Gated {
        Gated::new(client, self.gate.clone(), kyma)
    }

    /// A client of the runtime, from the cache or newly made.
    pub(super) async fn access(&self, kyma: &str) -> Result<Result<Gated, NoAccess>, Lost> {
        let mut secrets = self.state.read().secrets_of(kyma);
        let reference = match (secrets.pop(), secrets.is_empty()) {
            (None, _) => return Ok(Err(NoAccess::NoSecret(kyma.to_owned()))),
            (Some(one), true) => one,
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
        // A new client may be of a new cluster: what was prepared there before does not count.
        self.prepared.forget(kyma);
        self.agents.forget(kyma);
        let built = self.runtimes.get_or_build(kyma, &version, || self.connector.client(&access, limits));
        Ok(built
            .map(|client| self.gated(client, kyma))
            .map_err(|source| NoAccess::Unusable { secret: reference.name, source }))
    }
}
