use std::sync::OnceLock;

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tidewatch_certs::{AgentRequest, Ca, ClientRequest};
use tidewatch_planner::enrolment::{Decision, Requester, SIGNER, decide};
use tidewatch_tls::PeerIdentity;

use crate::{assert_message, certificate_of_pem};

const AGENT: &str = "system:serviceaccount:kyma-system:tidewatch-agent";
const RUNTIME: &str = "runtime-one";
const DOMAIN: &str = "one.runtimes.example";
/// Validity of the CA.
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// A `CertificateSigningRequest` of a runtime, or the PKCS#10 request in one: PEM or DER.
///
/// # Panics
/// If a promise is broken.
pub fn signing_request(data: &[u8]) {
    if let Ok(object) = serde_json::from_slice::<CertificateSigningRequest>(data) {
        return decided(&object);
    }
    pkcs10(data);
    let text = base64::engine::general_purpose::STANDARD.encode(data);
    pkcs10(
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
            .as_bytes(),
    );
}

fn decided(object: &CertificateSigningRequest) {
    let decision = |is_revoked| decide(object, Requester { runtime: RUNTIME, agent: AGENT, is_revoked });
    match decision(false) {
        Decision::None => assert_eq!(decision(true), Decision::None),
        Decision::Deny(denial) => {
            // A long user name is cut, not dropped.
            assert!(denial.to_string().chars().count() <= 512, "{denial}");
            assert!(!denial.reason().is_empty());
        }
        Decision::Sign { request, approve: _ } => {
            assert_eq!(object.spec.signer_name, SIGNER);
            assert_eq!(object.spec.username.as_deref(), Some(AGENT), "the agent alone gets a certificate");
            let of_servers = |usage: &String| usage.contains("server") || usage.contains("sign ");
            assert!(!object.spec.usages.iter().flatten().any(of_servers));
            assert!(matches!(decision(true), Decision::Deny(_)), "a revoked runtime gets none");
            pkcs10(&request);
        }
    }
}

fn ca() -> &'static Ca {
    static CA: OnceLock<Ca> = OnceLock::new();
    CA.get_or_init(|| {
        let ca = Ca::create("fuzz", YEAR, Timestamp::UNIX_EPOCH);
        #[expect(clippy::unwrap_used, reason = "the CA is no input")]
        ca.unwrap()
    })
}

/// Whatever an accepted request says, its certificate has the registered names only.
fn pkcs10(pem: &[u8]) {
    let request = match AgentRequest::parse(pem) {
        Ok(request) => request,
        Err(error) => return assert_message(&error.to_string()),
    };
    assert!(pem.len() <= 8 * 1024);
    let client = ClientRequest {
        runtime_id: RUNTIME.to_owned(),
        dns_names: vec![DOMAIN.to_owned()],
        organizations: Vec::new(),
        validity: SignedDuration::from_hours(1),
    };
    let signed = ca().sign_client(&request, &client, Timestamp::MIN, Timestamp::UNIX_EPOCH);
    assert!(signed.is_ok(), "an accepted request can be signed");
    let identity = signed.ok().and_then(|signed| certificate_of_pem(signed.cert_pem.as_bytes()));
    let identity = identity.and_then(|der| PeerIdentity::from_leaf(&der).ok());
    assert!(identity.is_some_and(|identity| {
        identity.common_name == RUNTIME
            && identity.dns_names == [DOMAIN]
            && identity.uris.is_empty()
            && identity.ip_addrs.is_empty()
    }));
}
