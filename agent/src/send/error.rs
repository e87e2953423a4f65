//! Errors of sending.

use super::proxy::tunnel::TunnelError;
use std::{io, time::Duration};
use tidewatch_tls::HandshakeFailure;
use tidewatch_wire::ISSUED_BEFORE_REGISTRATION;

/// Errors of sending; all are retried.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Unreachable receiver.
    #[error("the receiver cannot be reached; check receiver.url, its DNS name and the network")]
    Connect(#[source] io::Error),
    /// No certificate yet.
    #[error(
        "this agent has no certificate yet; the control plane signs the certificate signing request in the runtime"
    )]
    NotEnrolled,
    /// Unreachable proxy.
    #[error("the proxy cannot be reached; check receiver.proxy or HTTPS_PROXY, its DNS name and the network")]
    Proxy(#[source] io::Error),
    /// The proxy opened no tunnel.
    #[error("the proxy opens no tunnel")]
    Tunnel(#[from] TunnelError),
    /// Failed TLS handshake.
    #[error("the TLS handshake with the receiver failed ({failure}); check the certificates")]
    Handshake {
        /// The kind.
        failure: HandshakeFailure,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The receiver refused the agent by a TLS alert.
    #[error("{}", refusal(*.0))]
    Refused(HandshakeFailure),
    /// The agent must not use the connection any longer.
    #[error("{}", unusable(.0))]
    Unusable(&'static str),
    /// The connection broke.
    #[error("the connection to the receiver broke")]
    Broken(#[source] hyper::Error),
    /// The connection ended.
    #[error("the connection to the receiver was closed")]
    Closed,
    /// No answer in time.
    #[error("the receiver did not answer in time")]
    Timeout,
    /// The receiver answered with an error.
    #[error("the receiver answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The message, shortened.
        message: String,
        /// Requested wait.
        retry_after: Option<Duration>,
    },
    /// The answer violates the contract.
    #[error(
        "the receiver's answer does not match the contract; do the versions of agent and receiver match?"
    )]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is for another run.
    #[error("the receiver answered for another epoch")]
    OtherEpoch,
    /// The request cannot be encoded (a defect).
    #[error("the request could not be made")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl SendError {
    /// Returns a stable word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::NotEnrolled => "not_enrolled",
            Self::Proxy(_) => "proxy_connect",
            Self::Tunnel(error) => error.label(),
            Self::Handshake { failure, .. } => failure.label(),
            Self::Refused(failure) => match failure {
                HandshakeFailure::UnknownCa => "refused_unknown_ca",
                HandshakeFailure::Expired => "refused_expired",
                HandshakeFailure::NoCertificate => "refused_no_certificate",
                HandshakeFailure::BadCertificate => "refused_bad_certificate",
                _ => "refused",
            },
            Self::Unusable(reason) => reason,
            Self::Broken(_) => "broken",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Status { status: 429, .. } => "status_429",
            Self::Status { status: 500.., .. } => "status_5xx",
            Self::Status { .. } => "status_4xx",
            Self::Malformed(_) => "malformed",
            Self::OtherEpoch => "other_epoch",
            Self::Request(_) => "request",
        }
    }

    /// Whether receiver or proxy found the request too large.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Status { status: 413, .. })
    }

    /// Whether the receiver wants another certificate.
    pub fn wants_certificate(&self) -> bool {
        matches!(self, Self::Status { message, .. } if message.starts_with(ISSUED_BEFORE_REGISTRATION))
    }

    /// Whether the connection is unusable.
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::NotEnrolled
            | Self::Proxy(_)
            | Self::Tunnel(_)
            | Self::Handshake { .. }
            | Self::Refused(_)
            | Self::Unusable(_)
            | Self::Broken(_)
            | Self::Closed
            | Self::Timeout => true,
            // Another one needs a new handshake.
            Self::Status { .. } => self.wants_certificate(),
            Self::Malformed(_) | Self::OtherEpoch | Self::Request(_) => false,
        }
    }
}

fn refusal(failure: HandshakeFailure) -> &'static str {
    match failure {
        HandshakeFailure::UnknownCa => {
            "the receiver does not trust this certificate's issuer; use a certificate of the CA that the receiver \
             trusts for clients, or add its CA there"
        }
        HandshakeFailure::Expired => {
            "the receiver reports that this certificate has expired or is not valid yet; renew receiver.certFile and \
             compare the clocks of both sides"
        }
        HandshakeFailure::NoCertificate => {
            "the receiver reports that it was shown no certificate; check receiver.certFile"
        }
        HandshakeFailure::BadCertificate => {
            "the receiver refuses this certificate (not for clients, revoked or malformed); check receiver.certFile"
        }
        HandshakeFailure::Timeout | HandshakeFailure::Protocol | HandshakeFailure::Io => {
            "the receiver has ended the TLS connection by an alert; do both sides speak TLS 1.3?"
        }
    }
}

fn unusable(reason: &str) -> &'static str {
    match reason {
        "expired" => "this agent's certificate has expired; renew receiver.certFile and receiver.keyFile",
        "untrusted" => {
            "this agent no longer trusts the receiver's certificate; compare it with receiver.caFile"
        }
        _ => "the connection must not be used any longer",
    }
}
