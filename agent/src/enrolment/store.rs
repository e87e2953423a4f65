//! The agent's Secret and its certificate signing request in the runtime.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::Secret,
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use tidewatch_certs::{PrivateKeyPem, create_key, create_request};
use tidewatch_tls::FilesError;

use crate::{
    config::Enrolment,
    config_maps::{MANAGER, StoreError, within},
    send::Identity,
};

/// The signer in the control plane.
const SIGNER: &str = "tidewatch.kyma-project.io/agent";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Time for a decision about a request. The control plane finds a request within a minute, unless it is down.
const DECISION: Duration = Duration::from_mins(5);

/// A failed enrolment. All are retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnrolmentError {
    #[error(
        "the API server refused, or cannot be reached; the agent's role must allow its Secret and its request"
    )]
    Api(#[from] StoreError),
    #[error("the watch of the certificate signing request ended")]
    Watch(#[source] kube::runtime::wait::Error),
    #[error("the certificate signing request {0} is not decided after {wait} s; does the control plane reach this runtime?", wait = DECISION.as_secs())]
    Undecided(String),
    #[error("the control plane denies the certificate signing request: {0}")]
    Denied(String),
    #[error("the certificate signing request was deleted before a certificate was issued")]
    Deleted,
    #[error(
        "the control plane has issued a certificate of a CA that this agent does not trust, or for another runtime; the next one may fit"
    )]
    Unusable,
    #[error(
        "the new certificate is not valid at this node's time; compare the clocks of this node and of the control plane"
    )]
    Clock,
    #[error("the file of the receiver's CAs cannot be read")]
    Ca(#[from] FilesError),
    #[error("no request can be created")]
    Crypto(#[from] tidewatch_certs::Error),
}

impl EnrolmentError {
    /// A stable word for metrics.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Api(_) | Self::Watch(_) => "failed",
            Self::Undecided(_) => "undecided",
            Self::Denied(_) => "denied",
            Self::Deleted => "deleted",
            Self::Unusable | Self::Clock | Self::Ca(_) | Self::Crypto(_) => "unusable",
        }
    }
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Signed(Vec<u8>),
    Denied(String),
    Pending,
}

fn decision(request: &CertificateSigningRequest) -> Decision {
    let Some(status) = &request.status else { return Decision::Pending };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let refused = conditions.iter().find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"));
    match (refused, &status.certificate) {
        (Some(refused), _) => Decision::Denied(refused.message.clone().unwrap_or_default()),
        (None, Some(ByteString(certificate))) if !certificate.is_empty() => {
            Decision::Signed(certificate.clone())
        }
        _ => Decision::Pending,
    }
}

pub(super) struct Store {
    secrets: Api<Secret>,
    requests: Api<CertificateSigningRequest>,
    config: Enrolment,
}

impl Store {
    pub(super) fn new(client: Client, config: Enrolment) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &config.namespace),
            requests: Api::all(client),
            config,
        }
    }

    /// Reads the stored certificate and key; `None` if one is missing.
    pub(super) async fn read(&self) -> Result<Option<Identity>, EnrolmentError> {
        let secret = within(self.secrets.get_opt(&self.config.secret)).await?;
        let mut data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let mut take =
            |key| data.remove(key).map(|ByteString(value)| value).filter(|value| !value.is_empty());
        let (cert, key) = (take(CERTIFICATE), take(KEY));
        Ok(cert.zip(key).map(|(cert, key)| Identity { cert, key }))
    }

    /// Stores a certificate and its key. The Secret exists: the agent's role cannot create one.
    pub(super) async fn write(&self, Identity { cert, key }: &Identity) -> Result<(), EnrolmentError> {
        let secret = Secret {
            data: Some(BTreeMap::from([
                (CERTIFICATE.to_owned(), ByteString(cert.clone())),
                (KEY.to_owned(), ByteString(key.clone())),
            ])),
            ..Secret::default()
        };
        let patch = Patch::Merge(json!({"data": secret.data}));
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        within(self.secrets.patch_metadata(&self.config.secret, &params, &patch)).await?;
        Ok(())
    }

    /// Creates a key and a request, and waits for the certificate.
    pub(super) async fn request(&self) -> Result<Identity, EnrolmentError> {
        let name = &self.config.signing_request;
        let key = create_key()?;
        // A request is immutable, and one of an earlier run has a key that is lost.
        self.delete().await?;
        let request = request(&self.config, &key)?;
        within(self.requests.create(&PostParams::default(), &request)).await?;
        let is_decided = |request: Option<&CertificateSigningRequest>| {
            request.is_none_or(|request| decision(request) != Decision::Pending)
        };
        let decided = await_condition(self.requests.clone(), name, is_decided);
        let decided = tokio::time::timeout(DECISION, decided).await;
        let decided = decided.map_err(|_| EnrolmentError::Undecided(name.clone()))?;
        let request = decided.map_err(EnrolmentError::Watch)?.ok_or(EnrolmentError::Deleted)?;
        match decision(&request) {
            Decision::Signed(cert) => {
                self.delete().await?;
                Ok(Identity { cert, key: key.as_str().into() })
            }
            Decision::Denied(message) => Err(EnrolmentError::Denied(message)),
            Decision::Pending => Err(EnrolmentError::Deleted),
        }
    }

    async fn delete(&self) -> Result<(), EnrolmentError> {
        let (name, params) = (&self.config.signing_request, DeleteParams::default());
        match within(async { self.requests.delete(name, &params).await.map(drop) }).await {
            Err(StoreError::Api(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            result => Ok(result?),
        }
    }
}

/// Builds the request. Its label selects it for the agent's own watch, which tells the control plane of it at once.
fn request(
    config: &Enrolment,
    key: &PrivateKeyPem,
) -> Result<CertificateSigningRequest, tidewatch_certs::Error> {
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(config.signing_request.clone()),
            labels: Some(BTreeMap::from([("app.kubernetes.io/name".to_owned(), MANAGER.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(create_request(key)?.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}
