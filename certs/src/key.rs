//! Private keys.

use std::fmt;

/// A private key (PEM). `Debug` hides it, and `Display` is missing, to protect logs.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(String);

impl PrivateKeyPem {
    /// Wraps a PEM text, unparsed.
    pub fn new(pem: String) -> Self {
        Self(pem)
    }

    /// PEM text, which the caller must protect.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyPem([hidden])")
    }
}
