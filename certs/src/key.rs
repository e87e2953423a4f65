//! A private key that does not end up in logs.

use std::fmt;

/// A private key as PEM text. `Debug` hides it and there is no `Display`, so that a key
/// in a logged struct stays out of the log.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(String);

impl PrivateKeyPem {
    /// Wraps PEM text; it is not parsed here.
    pub(crate) fn new(pem: String) -> Self {
        Self(pem)
    }

    /// The PEM text. What is done with it is the caller's responsibility.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyPem([hidden])")
    }
}
