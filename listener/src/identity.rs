//! Checks certificates against registered Kymas. Pure.
//!
//! The handshake has checked chain and validity. The common name must be the runtime id of one Kyma, and its domain a
//! name in the certificate.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use tidewatch_tls::{IdentityError, PeerIdentity};

/// Kymas of a runtime id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeLookup {
    /// None.
    Unknown,
    /// One.
    One {
        /// Name.
        kyma: String,
        /// Domain required in the certificate. Without one, all are refused.
        domain: Option<String>,
        /// Certificates that are valid from an earlier time are refused; `None`: none is.
        registered: Option<Timestamp>,
    },
    /// Several.
    Ambiguous(usize),
    /// Not loaded yet.
    Starting,
}

/// A verified runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Runtime id.
    pub id: String,
    /// Kyma.
    pub kyma: String,
    /// Client certificate (DER).
    pub certificate: Arc<[u8]>,
    /// Latest renewal, with a tenth of the lifetime left. Usual is after two thirds.
    pub renewed_by: Timestamp,
    /// Certificate end.
    pub not_after: Timestamp,
}

fn renewed_by(peer: &PeerIdentity) -> Timestamp {
    let tenth = peer.not_after.duration_since(peer.not_before).checked_div(10).unwrap_or_default();
    peer.not_after.saturating_sub(tenth).unwrap_or(peer.not_after)
}

/// Reason to refuse a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No identity.
    #[error(transparent)]
    Certificate(#[from] IdentityError),
    /// No Kyma.
    #[error("no Kyma is registered for runtime id '{0}'; register the runtime, or use its own certificate")]
    Unknown(String),
    /// Several Kymas.
    #[error("{1} Kymas are registered for runtime id '{0}'; a runtime id must be registered once")]
    Ambiguous(String, usize),
    /// Kymas are not loaded yet.
    #[error("this process has just started and does not know the runtimes yet; try again in a moment")]
    Starting,
    /// An operator has revoked the runtime's certificates.
    #[error(
        "the certificates of runtime id '{0}' are revoked; an operator admits it again by: tidewatch certs admit {0}"
    )]
    Revoked(String),
    /// The certificate belongs to a former registration of the runtime, which may have ended because of it.
    #[error(
        "the certificate of runtime id '{0}' is older than the runtime's registration; request another one"
    )]
    Outdated(String),
    /// The Kyma has no domain.
    #[error(
        "the Kyma of runtime id '{0}' has no skr-domain annotation to check the certificate against; set it"
    )]
    NoDomain(String),
    /// The certificate lacks the domain.
    #[error("the certificate of runtime id '{0}' does not carry the domain registered for it; issue it anew")]
    OtherDomain(String),
}

impl Refusal {
    /// HTTP status.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Certificate(IdentityError::NoCertificate) => StatusCode::UNAUTHORIZED,
            Self::Certificate(_) => StatusCode::BAD_REQUEST,
            Self::Starting => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// Metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Certificate(error) => error.label(),
            Self::Unknown(_) => "unknown_runtime",
            Self::Ambiguous(..) => "ambiguous_runtime",
            Self::Starting => "starting",
            Self::Revoked(_) => "revoked",
            Self::Outdated(_) => "issued_before_registration",
            Self::NoDomain(_) => "no_domain",
            Self::OtherDomain(_) => "san_mismatch",
        }
    }
}

/// Checks the certificate against the registration.
pub fn identify(peer: &PeerIdentity, lookup: RuntimeLookup) -> Result<Runtime, Refusal> {
    let id = peer.common_name.clone();
    match lookup {
        RuntimeLookup::Unknown => Err(Refusal::Unknown(id)),
        RuntimeLookup::Ambiguous(n) => Err(Refusal::Ambiguous(id, n)),
        RuntimeLookup::Starting => Err(Refusal::Starting),
        RuntimeLookup::One { domain: None, .. } => Err(Refusal::NoDomain(id)),
        RuntimeLookup::One { registered: Some(registered), .. } if peer.not_before < registered => {
            Err(Refusal::Outdated(id))
        }
        RuntimeLookup::One { kyma, domain: Some(domain), .. } => {
            if carries(peer, &domain) {
                let (certificate, renewed_by) = (Arc::clone(&peer.certificate), renewed_by(peer));
                Ok(Runtime { id, kyma, certificate, renewed_by, not_after: peer.not_after })
            } else {
                Err(Refusal::OtherDomain(id))
            }
        }
    }
}

/// Whether a name is the domain. Ignores case. Wildcards never match: they could impersonate other runtimes.
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
        RuntimeLookup::One { kyma: "harbour".into(), domain: domain.map(Into::into), registered: None }
    }

    #[test]
    fn the_registered_domain_must_be_in_the_certificate() {
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
    fn a_certificate_from_before_the_registration_is_refused() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let peer = PeerIdentity { not_before: at(100), ..peer(&["a.example"]) };
        for (registered, is_refused) in
            [(None, false), (Some(99), false), (Some(100), false), (Some(101), true)]
        {
            let lookup = RuntimeLookup::One {
                kyma: "harbour".into(),
                domain: Some("a.example".into()),
                registered: registered.map(at),
            };
            let refusal = identify(&peer, lookup).err();
            let wanted = is_refused.then_some("issued_before_registration");
            assert_eq!(refusal.map(|refusal| refusal.label()), wanted, "{registered:?}");
        }
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
