//! Failed handshakes.

use rustls::{AlertDescription, CertificateError, Error};
use std::{fmt, io};

/// Reason of a failed handshake, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeFailure {
    /// Untrusted CA, also a trusted name with another key.
    UnknownCa,
    /// Not valid now, on the verifier's clock.
    Expired,
    /// No client certificate.
    NoCertificate,
    /// Other certificate fault.
    BadCertificate,
    /// Too slow.
    Timeout,
    /// Unsupported version, or not TLS.
    Protocol,
    /// Broken connection.
    Io,
}

impl HandshakeFailure {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::UnknownCa,
        Self::Expired,
        Self::NoCertificate,
        Self::BadCertificate,
        Self::Timeout,
        Self::Protocol,
        Self::Io,
    ];

    /// Classifies tokio-rustls errors of either side.
    pub fn from_io(error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return Self::from_tls(tls);
        }
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io }
    }

    /// Classifies rustls errors.
    pub fn from_tls(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => Self::from_certificate(error),
            Error::AlertReceived(alert) => Self::from_alert(*alert),
            _ => Self::Protocol,
        }
    }

    /// Metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownCa => "unknown_ca",
            Self::Expired => "expired",
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Io => "io",
        }
    }

    fn from_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            _ => Self::BadCertificate,
        }
    }

    fn from_alert(alert: AlertDescription) -> Self {
        match alert {
            // rustls sends `DecryptError` for a CA's wrong signature.
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::UnknownCa,
            AlertDescription::CertificateExpired => Self::Expired,
            AlertDescription::CertificateRequired | AlertDescription::NoCertificate => Self::NoCertificate,
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => Self::BadCertificate,
            _ => Self::Protocol,
        }
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
