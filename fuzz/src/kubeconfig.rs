use tidewatch_engine::clusters::{AddressPolicy, RuntimeAccess};

use crate::assert_message;

/// What every secret in the corpus contains.
const SECRET: &str = "hush-hush";

/// A runtime's kubeconfig, as it is in a Secret.
///
/// # Panics
/// If a promise is broken.
pub fn kubeconfig(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let policy = AddressPolicy::new(["kcp.example", "10.0.0.0/8", "[fd00::1]:6443"]);
    assert!(policy.is_ok());
    let policy = policy.unwrap_or_default();
    match RuntimeAccess::parse(text, &policy) {
        Err(error) => {
            let message = error.to_string();
            assert_message(&message);
            assert!(!message.contains(SECRET), "no secret is shown");
            assert!(!error.metric_label().is_empty());
        }
        Ok(access) => {
            assert!(text.len() <= 64 * 1024);
            let server = access.server();
            assert_eq!(server.scheme_str(), Some("https"));
            let host = server.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            assert!(!host.is_empty());
            assert_eq!(policy.denies_host(host, server.port_u16().unwrap_or(443)), None);
            assert!(server.authority().is_some_and(|authority| !authority.as_str().contains('@')));
            assert!(format!("{access:?}").len() <= server.to_string().len() + 64, "only the server is shown");
        }
    }
}
