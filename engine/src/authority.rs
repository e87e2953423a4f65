//! The CA that signs agents' certificates.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use tidewatch_certs::{AgentRequest, Ca, ClientRequest, Error, RequestError, Signed};

/// The CA in use and the trust bundle of agents. It may be replaced while in use; empty before the first. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Authority(Arc<RwLock<Option<Arc<Issuer>>>>);

/// A CA, and the CAs that agents must trust meanwhile.
#[derive(Debug)]
pub struct Issuer {
    /// Signs certificates of agents.
    pub ca: Ca,
    /// CAs of the receiver (PEM): this one, and during a rotation the other one.
    pub bundle: String,
}

/// A request that is not signed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignError {
    /// The request is refused for good.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The CA cannot sign now.
    #[error("the certificate cannot be signed")]
    Ca(#[from] Error),
}

impl Authority {
    /// The issuer in use.
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.0.read().clone()
    }

    pub(crate) fn replace(&self, issuer: Issuer) {
        *self.0.write() = Some(Arc::new(issuer));
    }
}

impl Issuer {
    pub(crate) fn sign(
        &self,
        request: &[u8],
        client: &ClientRequest,
        earliest: Timestamp,
        now: Timestamp,
    ) -> Result<Signed, SignError> {
        Ok(self.ca.sign_client(&AgentRequest::parse(request)?, client, earliest, now)?)
    }
}
