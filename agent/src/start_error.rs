use crate::{config::ConfigError, send::SendError};
use std::{io, net::SocketAddr, path::PathBuf};
use tidewatch_telemetry::{logging::LoggingError, metrics::MetricsError};
use tidewatch_tls::{BundleError, FilesError};

/// Errors that prevent a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Wrong configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Wrong logging configuration.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// Unreadable TLS files.
    #[error(transparent)]
    TlsFiles(#[from] FilesError),
    /// Unusable TLS file.
    #[error("{file:?}, which the receiver section names, cannot be used")]
    Tls {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: BundleError,
    },
    /// No access to the runtime's API server.
    #[error("no access to the runtime's API server; give kubeconfig or run in a pod with a service account")]
    Kube(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Wrong metric declaration (a defect).
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The admin address cannot be bound.
    #[error("the admin endpoint cannot listen on {addr}; is the port in use?")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The receiver's host is invalid.
    #[error("the receiver's host cannot be used; check receiver.url")]
    Receiver(#[from] SendError),
    /// Threads or signals are unavailable.
    #[error("the runtime could not be started")]
    Runtime(#[source] io::Error),
}
