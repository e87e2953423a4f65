//! Decides about the certificate signing request of a runtime's agent.
//!
//! The API server of the runtime writes `spec.username`; everything else in the request is the requester's word. So the username
//! decides, and the certificate names the runtime as KCP has registered it, whatever the request says.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

/// Signer name of agents' requests.
pub const SIGNER: &str = "tidewatch.kyma-project.io/agent";

/// Key usages that a request may name. The certificate has those of a TLS client in any case.
const USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do: it is decided, or for another signer.
    None,
    /// Sign this PEM text. `approve`: write the condition Approved first.
    Sign {
        /// PKCS#10 request (PEM), unverified.
        request: Vec<u8>,
        /// Whether the request has no condition Approved yet.
        approve: bool,
    },
    /// Deny it.
    Deny(Denial),
}

/// A reason to deny a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Another user than the agent's service account.
    #[error(
        "the user '{user}' is not the agent of this runtime; only {agent} gets a certificate of this signer"
    )]
    User {
        /// The requester.
        user: String,
        /// The agent.
        agent: String,
    },
    /// Usages that an agent does not need.
    #[error("the usage '{0}' is not for agents; request 'digital signature' and 'client auth'")]
    Usage(String),
    /// The runtime is revoked.
    #[error(
        "the certificates of this runtime are revoked; an operator admits it again by: tidewatch certs admit {0}"
    )]
    Revoked(String),
    /// The request itself is refused.
    #[error("{0}")]
    Request(String),
}

impl Denial {
    /// Reason of the condition Denied, one CamelCase word.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::User { .. } => "WrongUser",
            Self::Usage(_) => "WrongUsage",
            Self::Revoked(_) => "Revoked",
            Self::Request(_) => "InvalidRequest",
        }
    }
}

/// The runtime whose agent may request a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// Runtime id.
    pub runtime: &'a str,
    /// Username of the agent, `system:serviceaccount:NAMESPACE:NAME`.
    pub agent: &'a str,
    /// Whether the runtime's certificates are revoked.
    pub is_revoked: bool,
}

/// Decides about a request.
#[must_use]
pub fn decide(request: &CertificateSigningRequest, requester: Requester<'_>) -> Decision {
    let (spec, status) = (&request.spec, request.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let has = |type_: &str| conditions.iter().any(|condition| condition.type_ == type_);
    let is_signed =
        status.and_then(|status| status.certificate.as_ref()).is_some_and(|pem| !pem.0.is_empty());
    if spec.signer_name != SIGNER || is_signed || has("Denied") || has("Failed") {
        return Decision::None;
    }
    let user = spec.username.as_deref().unwrap_or_default();
    if user != requester.agent {
        let (user, agent) = (user.chars().take(256).collect(), requester.agent.to_owned());
        return Decision::Deny(Denial::User { user, agent });
    }
    if requester.is_revoked {
        return Decision::Deny(Denial::Revoked(requester.runtime.to_owned()));
    }
    let usages = spec.usages.as_deref().unwrap_or_default();
    if let Some(usage) = usages.iter().find(|usage| !USAGES.contains(&usage.as_str())) {
        return Decision::Deny(Denial::Usage(usage.chars().take(64).collect()));
    }
    Decision::Sign { request: spec.request.0.clone(), approve: !has("Approved") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AGENT: &str = "system:serviceaccount:kyma-system:tidewatch-agent";

    fn request(change: impl FnOnce(&mut serde_json::Value)) -> CertificateSigningRequest {
        let mut request = json!({
            "metadata": {"name": "tidewatch-agent"},
            "spec": {"request": "cGVt", "signerName": SIGNER, "username": AGENT,
                     "usages": ["digital signature", "client auth"]}
        });
        change(&mut request);
        serde_json::from_value(request).unwrap()
    }

    fn decided(change: impl FnOnce(&mut serde_json::Value)) -> Decision {
        decide(&request(change), Requester { runtime: "r1", agent: AGENT, is_revoked: false })
    }

    #[test]
    fn the_agents_own_request_is_signed() {
        let sign = |approve| Decision::Sign { request: b"pem".to_vec(), approve };
        assert_eq!(decided(|_| {}), sign(true));
        let approved = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        assert_eq!(
            decided(|request| request["status"] = approved),
            sign(false),
            "a crash came after the approval"
        );
    }

    #[test]
    fn decided_and_foreign_requests_are_left_alone() {
        for status in [
            json!({"certificate": "cGVt"}),
            json!({"conditions": [{"type": "Denied", "status": "True"}]}),
            json!({"conditions": [{"type": "Failed", "status": "True"}]}),
        ] {
            assert_eq!(decided(|request| request["status"] = status.clone()), Decision::None, "{status}");
        }
        assert_eq!(
            decided(|request| request["spec"]["signerName"] = "example.com/other".into()),
            Decision::None
        );
    }

    #[test]
    fn requests_of_others_and_for_other_usages_are_denied() {
        let reason = |decision| match decision {
            Decision::Deny(denial) => denial.reason(),
            other => panic!("{other:?}"),
        };
        for user in [
            "",
            "admin",
            "system:serviceaccount:kyma-system:other",
            "system:serviceaccount:default:tidewatch-agent",
        ] {
            assert_eq!(
                reason(decided(|request| request["spec"]["username"] = user.into())),
                "WrongUser",
                "{user}"
            );
        }
        for usage in ["server auth", "cert sign", "any"] {
            assert_eq!(
                reason(decided(|request| request["spec"]["usages"] = json!(["client auth", usage]))),
                "WrongUsage"
            );
        }
        let revoked = Requester { runtime: "r1", agent: AGENT, is_revoked: true };
        let denied = decide(&request(|_| {}), revoked);
        let Decision::Deny(denial) = denied else { panic!("{denied:?}") };
        assert_eq!(denial.reason(), "Revoked");
        assert!(denial.to_string().contains("tidewatch certs admit r1"), "{denial}");
    }
}
