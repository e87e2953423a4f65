//! What can go wrong with certificates.

use jiff::Timestamp;

/// Why a CA could not be made or read, or a certificate not issued.
///
/// The text of a key never appears in a message; for keys the parser's own error is left
/// out as well, since PEM parsers quote the line they failed on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The duration asked for is zero, negative, or ends after what a certificate can say.
    #[error("cannot issue for the validity {0:#}: it must be positive and end before the year 10000")]
    Validity(jiff::SignedDuration),

    /// A common name is empty or longer than X.509 allows (64 characters).
    #[error("the common name has {0} characters: 1 to 64 are allowed")]
    CommonName(usize),

    /// A DNS name or an organization cannot be written into a certificate.
    #[error(
        "'{value}' cannot be used as {what} in a certificate: use non-empty ASCII of at most {limit} characters"
    )]
    Name {
        /// Which field it is: `a DNS name` or `an organization`.
        what: &'static str,
        /// The value, cut to 64 characters.
        value: String,
        /// How long it may be.
        limit: usize,
    },

    /// The CA itself has ended, so nothing it issues could be verified.
    #[error("the CA expired at {0}: create a new CA before issuing")]
    CaExpired(Timestamp),

    /// The text given as CA certificate is not one PEM certificate.
    #[error("the CA certificate cannot be parsed: give one PEM block CERTIFICATE")]
    ParseCertificate(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The certificate given as CA may not sign others.
    #[error(
        "the certificate is not a CA: it needs the basic constraint CA:TRUE and the key usage keyCertSign"
    )]
    NotACa,

    /// The text given as private key is not a PEM key this crate can sign with.
    #[error("the CA key cannot be parsed: give one PEM block PRIVATE KEY (PKCS#8)")]
    ParseKey,

    /// The private key is not the one of the certificate.
    #[error("the CA key does not belong to the CA certificate: give the two of one Secret")]
    KeyMismatch,

    /// Making a key or signing failed inside the crypto library.
    #[error("cannot {0}")]
    Crypto(&'static str, #[source] rcgen::Error),
}
