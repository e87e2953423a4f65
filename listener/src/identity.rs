//! Who speaks: a verified certificate against the registered Kymas. Pure.
//!
//! The chain and validity were checked by the TLS handshake. Here the common name must be the runtime id
//! of exactly one Kyma, and the certificate must carry the domain that is registered for it (contract,
//! section 3.5: the CN rule of today and the SAN pinning of the first contract, together).

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use tidewatch_tls::{IdentityError, PeerIdentity};

/// What is registered under a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeLookup {
    /// Nothing.
    Unknown,
    /// One Kyma.
    One {
        /// Its name.
        kyma: String,
        /// The domain that its certificate must carry; without one nobody can speak for it.
        domain: Option<String>,
    },
    /// This many Kymas, so none can be meant.
    Ambiguous(usize),
    /// Who is registered is not known yet.
    Starting,
}

/// A runtime that has proven who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Its runtime id.
    pub id: String,
    /// The Kyma registered under it.
    pub kyma: String,
    /// The client certificate that proved it (DER).
    pub certificate: Arc<[u8]>,
    /// When it should have been renewed: a tenth of its life is left then. Whoever renews does so after two thirds of it, as a rule.
    pub renewed_by: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
}

fn renewed_by(peer: &PeerIdentity) -> Timestamp {
    let tenth = peer.not_after.duration_since(peer.not_before).checked_div(10).unwrap_or_default();
    peer.not_after.saturating_sub(tenth).unwrap_or(peer.not_after)
}

/// Why a peer is not listened to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The certificate gives no identity.
    #[error(transparent)]
    Certificate(#[from] IdentityError),
    /// Nobody has registered this runtime.
    #[error("no Kyma is registered for runtime id '{0}'; register the runtime, or use its own certificate")]
    Unknown(String),
    /// Several Kymas claim it.
    #[error("{1} Kymas are registered for runtime id '{0}'; a runtime id must be registered once")]
    Ambiguous(String, usize),
    /// Who is registered is not known yet.
    #[error("this process has just started and does not know the runtimes yet; try again in a moment")]
    Starting,
    /// There is nothing to pin the certificate to.
    #[error(
        "the Kyma of runtime id '{0}' has no skr-domain annotation to check the certificate against; set it"
    )]
    NoDomain(String),
    /// The certificate is not this runtime's.
    #[error("the certificate of runtime id '{0}' does not carry the domain registered for it; issue it anew")]
    OtherDomain(String),
}

impl Refusal {
    /// The HTTP status of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Certificate(IdentityError::NoCertificate) => StatusCode::UNAUTHORIZED,
            Self::Certificate(_) => StatusCode::BAD_REQUEST,
            Self::Starting => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// A stable word for metrics and answers.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Certificate(error) => error.label(),
            Self::Unknown(_) => "unknown_runtime",
            Self::Ambiguous(..) => "ambiguous_runtime",
            Self::Starting => "starting",
            Self::NoDomain(_) => "no_domain",
            Self::OtherDomain(_) => "san_mismatch",
        }
    }
}

/// Decides whether `peer` is the runtime it says it is.
pub fn identify(peer: &PeerIdentity, lookup: RuntimeLookup) -> Result<Runtime, Refusal> {
    let id = peer.common_name.clone();
    match lookup {
        RuntimeLookup::Unknown => Err(Refusal::Unknown(id)),
        RuntimeLookup::Ambiguous(n) => Err(Refusal::Ambiguous(id, n)),
        RuntimeLookup::Starting => Err(Refusal::Starting),
        RuntimeLookup::One { domain: None, .. } => Err(Refusal::NoDomain(id)),
        RuntimeLookup::One { kyma, domain: Some(domain) } => {
            if carries(peer, &domain) {
                let (certificate, renewed_by) = (Arc::clone(&peer.certificate), renewed_by(peer));
                Ok(Runtime { id, kyma, certificate, renewed_by, not_after: peer.not_after })
            } else {
                Err(Refusal::OtherDomain(id))
            }
        }
    }
}

/// Whether one of the certificate's names is the domain. DNS names do not care for case; no wildcard is
/// honoured, or one runtime's certificate could speak for another's.
fn carries(peer: &PeerIdentity, domain: &str) -> bool {
    peer.dns_names.iter().any(|name| name.eq_ignore_ascii_case(domain))
        || peer.uris.iter().any(|uri| uri == domain)
        || peer.ip_addrs.iter().any(|ip| ip.to_string() == domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(dns: &[&str]) -> PeerIdentity {
        PeerIdentity {
            common_name: "r1".into(),
            dns_names: dns.iter().map(|d| (*d).to_owned()).collect(),
            ip_addrs: vec!["10.1.2.3".parse().unwrap()],
            uris: vec!["spiffe://r1".into()],
            not_before: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::from_second(1_000).unwrap(),
            certificate: Arc::from(*b"der"),
        }
    }

    fn registered(domain: Option<&str>) -> RuntimeLookup {
        RuntimeLookup::One { kyma: "harbour".into(), domain: domain.map(Into::into) }
    }

    #[test]
    fn the_registered_domain_must_be_in_the_certificate() {
        // A tenth before its end, at 1,000 s.
        let renewed_by = Timestamp::from_second(900).unwrap();
        let certificate = Arc::from(*b"der");
        let not_after = Timestamp::from_second(1_000).unwrap();
        let runtime = Runtime { id: "r1".into(), kyma: "harbour".into(), certificate, renewed_by, not_after };
        for good in ["a.example", "A.Example", "spiffe://r1", "10.1.2.3"] {
            assert_eq!(
                identify(&peer(&["x", "a.example"]), registered(Some(good))),
                Ok(runtime.clone()),
                "{good}"
            );
        }
        for bad in ["b.example", "example", "*.example", "", "10.1.2.30"] {
            let refusal = identify(&peer(&["a.example"]), registered(Some(bad))).unwrap_err();
            assert_eq!((refusal.label(), refusal.status()), ("san_mismatch", StatusCode::FORBIDDEN), "{bad}");
        }
        let wildcard = identify(&peer(&["*.example"]), registered(Some("a.example")));
        assert_eq!(wildcard, Err(Refusal::OtherDomain("r1".into())));
    }

    #[test]
    fn an_unregistered_runtime_is_refused_with_its_reason() {
        let label = |lookup| identify(&peer(&["a"]), lookup).unwrap_err().label();
        assert_eq!(label(RuntimeLookup::Unknown), "unknown_runtime");
        assert_eq!(label(RuntimeLookup::Ambiguous(2)), "ambiguous_runtime");
        assert_eq!(label(RuntimeLookup::Starting), "starting");
        assert_eq!(Refusal::Starting.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(label(registered(None)), "no_domain");
        assert_eq!(Refusal::from(IdentityError::NoCertificate).status(), StatusCode::UNAUTHORIZED);
        assert_eq!(Refusal::from(IdentityError::EmptyCommonName).status(), StatusCode::BAD_REQUEST);
    }
}
