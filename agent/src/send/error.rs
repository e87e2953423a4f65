//! Why something was not sent.

use super::proxy::TunnelError;
use std::{io, time::Duration};
use tidewatch_tls::HandshakeFailure;

/// Why a connection or a request failed. All of them are tried again.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The receiver's host cannot be reached.
    #[error("the receiver cannot be reached; check receiver.url, its DNS name and the network")]
    Connect(#[source] io::Error),
    /// The proxy's host cannot be reached.
    #[error("the proxy cannot be reached; check receiver.proxy or HTTPS_PROXY, its DNS name and the network")]
    Proxy(#[source] io::Error),
    /// The proxy opened no tunnel.
    #[error("there is no way through the proxy")]
    Tunnel(#[from] TunnelError),
    /// The receiver and the agent do not trust each other.
    #[error("the TLS handshake with the receiver failed ({failure}); check the certificates")]
    Handshake {
        /// The kind of failure.
        failure: HandshakeFailure,
        /// The failure.
        #[source]
        source: io::Error,
    },
    /// The receiver has said by a TLS alert that it does not let this agent in.
    #[error("{}", refusal(*.0))]
    Refused(HandshakeFailure),
    /// The agent may not use the connection any more.
    #[error("{}", unusable(.0))]
    Unusable(&'static str),
    /// The HTTP/2 connection broke.
    #[error("the connection to the receiver broke")]
    Broken(#[source] hyper::Error),
    /// The connection ended.
    #[error("the connection to the receiver was closed")]
    Closed,
    /// There was no answer in time.
    #[error("the receiver did not answer in time")]
    Timeout,
    /// The receiver answered with an error.
    #[error("the receiver answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The receiver's words, shortened.
        message: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The answer is not what the contract says.
    #[error("the receiver's answer cannot be understood; do the versions of agent and receiver fit?")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is for another run of the agent.
    #[error("the receiver answered for another epoch")]
    OtherEpoch,
    /// The request could not be written as JSON or HTTP; a defect.
    #[error("the request could not be made")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl SendError {
    /// A stable word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
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

    /// Whether the request was too large for the receiver, or for a proxy before it.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Status { status: 413, .. })
    }

    /// Whether the connection is of no more use.
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::Proxy(_)
            | Self::Tunnel(_)
            | Self::Handshake { .. }
            | Self::Refused(_)
            | Self::Unusable(_)
            | Self::Broken(_)
            | Self::Closed
            | Self::Timeout => true,
            Self::Status { .. } | Self::Malformed(_) | Self::OtherEpoch | Self::Request(_) => false,
        }
    }
}

/// What the receiver's alert means, and what to do.
fn refusal(failure: HandshakeFailure) -> &'static str {
    match failure {
        HandshakeFailure::UnknownCa => {
            "the receiver does not trust this certificate's issuer; use a certificate of the CA that the receiver \
             trusts for clients, or add its CA there"
        }
        HandshakeFailure::Expired => {
            "the receiver says that this certificate has expired or is not valid yet; renew receiver.certFile and \
             compare the clocks of both sides"
        }
        HandshakeFailure::NoCertificate => {
            "the receiver says that it was shown no certificate; check receiver.certFile"
        }
        HandshakeFailure::BadCertificate => {
            "the receiver refuses this certificate (not for clients, revoked or malformed); check receiver.certFile"
        }
        HandshakeFailure::Timeout | HandshakeFailure::Protocol | HandshakeFailure::Io => {
            "the receiver has ended the TLS connection by an alert; do both sides speak TLS 1.3?"
        }
    }
}

/// Why the agent itself ends a connection, and what to do.
fn unusable(reason: &str) -> &'static str {
    match reason {
        "expired" => "this agent's certificate has expired; renew receiver.certFile and receiver.keyFile",
        "untrusted" => {
            "this agent trusts the receiver's certificate no more; compare it with receiver.caFile"
        }
        _ => "the connection may not be used any more",
    }
}
