//! The agent's ConfigMaps in the runtime.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use std::time::Duration;
use tidewatch_delivery::backoff::Backoff;

/// Namespace of the ConfigMaps and the Kyma.
pub(crate) const NAMESPACE: &str = "kyma-system";
/// Field manager.
pub(crate) const MANAGER: &str = "tidewatch-agent";
const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_mins(1) };

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(
        "the API server refused or cannot be reached; the agent's role must allow its own ConfigMaps in {NAMESPACE}"
    )]
    Api(#[source] kube::Error),
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl StoreError {
    /// Whether retries are useless.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429)
    }
}

pub(crate) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, StoreError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(StoreError::Api),
        Err(_) => Err(StoreError::Timeout),
    }
}

/// Returns the uid of `kube-system`, which identifies the cluster.
pub(crate) async fn cluster(client: &Client) -> Result<String, StoreError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = within(namespaces.get_metadata_opt("kube-system")).await?;
    Ok(namespace.and_then(|namespace| namespace.metadata.uid).unwrap_or_default())
}
