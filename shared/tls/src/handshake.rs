//! Why a handshake failed, in few words.

use rustls::{AlertDescription, CertificateError, Error};
use std::{fmt, io};

/// The reason of a failed handshake: few enough for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeFailure {
    /// The certificate was not issued by a CA that the other side trusts. A CA of the right name but with
    /// another key counts too.
    UnknownCa,
    /// The certificate is outside of its validity, on the verifier's clock.
    Expired,
    /// The client showed no certificate.
    NoCertificate,
    /// The certificate has another fault: wrong name, wrong purpose, revoked, malformed.
    BadCertificate,
    /// The peer did not finish in time.
    Timeout,
    /// The peer does not speak our TLS: other versions, or not TLS at all.
    Protocol,
    /// The connection broke.
    Io,
}

impl HandshakeFailure {
    /// All of them, to show each from the start.
    pub const ALL: [Self; 7] = [
        Self::UnknownCa,
        Self::Expired,
        Self::NoCertificate,
        Self::BadCertificate,
        Self::Timeout,
        Self::Protocol,
        Self::Io,
    ];

    /// Classifies the error of tokio-rustls' accept or connect, whichever side found the fault.
    pub fn from_io(error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return Self::from_tls(tls);
        }
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io }
    }

    /// Classifies an error of rustls.
    pub fn from_tls(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => Self::from_certificate(error),
            Error::AlertReceived(alert) => Self::from_alert(*alert),
            _ => Self::Protocol,
        }
    }

    /// A stable word for metrics and logs.
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
            // rustls sends DecryptError for a certificate whose signature its CA did not make.
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
