//! Errors of servers and connections.

use std::{io, net::SocketAddr};

/// Startup errors.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Certificate creation failed.
    #[error("the simulated API servers' certificates could not be made")]
    Certificates(#[source] tidewatch_certs::Error),
    /// Invalid TLS configuration.
    #[error("the TLS library refused the simulated API servers' configuration")]
    Tls(#[source] rustls::Error),
    /// Port in use or foreign address.
    #[error("cannot listen on {0}; choose another address or port 0")]
    Listen(SocketAddr, #[source] io::Error),
    /// Duplicate cluster name.
    #[error("there is a cluster {0} already; choose another name")]
    Exists(String),
    /// Name unusable in a path.
    #[error("'{0}' is no name for a cluster; use lower-case letters, digits, '-' and '.'")]
    Name(String),
    /// Unknown cluster.
    #[error("there is no cluster {0}")]
    Missing(String),
}

/// Ends the connection unanswered.
#[derive(Debug, thiserror::Error)]
#[error("the simulated server drops the connection")]
pub(crate) struct Dropped;
