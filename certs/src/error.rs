//! Certificate errors.

use jiff::Timestamp;

/// Error of a CA or certificate.
///
/// Contains no key text. Key parsers' errors are omitted, since they quote lines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not positive, or too long.
    #[error("cannot issue for the validity {0:#}: it must be positive and end before the year 10000")]
    Validity(jiff::SignedDuration),

    /// Not 1 to 64 characters (X.509).
    #[error("the common name has {0} characters: 1 to 64 are allowed")]
    CommonName(usize),

    /// Unusable name.
    #[error(
        "'{value}' cannot be used as {kind} in a certificate: use non-empty ASCII of at most {limit} characters"
    )]
    Name {
        /// `a DNS name` or `an organization`.
        kind: &'static str,
        /// Value, cut to 64 characters.
        value: String,
        /// Longest value.
        limit: usize,
    },

    /// The CA has expired.
    #[error("the CA expired at {0}: create a new CA before issuing")]
    CaExpired(Timestamp),

    /// Not one PEM certificate.
    #[error("the certificate cannot be parsed: give one PEM block CERTIFICATE")]
    ParseCertificate(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The certificate may not sign.
    #[error(
        "the certificate is not a CA: it needs the basic constraint CA:TRUE and the key usage keyCertSign"
    )]
    NotACa,

    /// The key cannot be parsed.
    #[error("the CA key cannot be parsed: give one PEM block PRIVATE KEY (PKCS#8)")]
    ParseKey,

    /// The key does not match.
    #[error("the CA key does not belong to the CA certificate: give the two of one Secret")]
    KeyMismatch,

    /// Crypto library error.
    #[error("cannot {0}")]
    Crypto(&'static str, #[source] rcgen::Error),
}
