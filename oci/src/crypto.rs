//! The process-wide TLS provider.

use std::sync::OnceLock;

/// Installs aws-lc-rs as the process-wide rustls provider, if there is none. Idempotent.
///
/// The HTTP library panics without one, and `oci-client` accepts no other way. Other code names its provider
/// explicitly.
pub fn install_crypto_provider() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // Another provider is installed, and stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
}
