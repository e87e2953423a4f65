use std::{error::Error, sync::Arc, time::Duration};

use super::{reference::Digest, render::RenderError};

/// Failure to read or write an artifact. Messages have hosts, repositories and digests, but no credentials or URL
/// queries.
///
/// Cheap to clone, for all callers of a shared download.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OciError {
    /// DNS, TCP or TLS failure.
    #[error("registry {registry} cannot be reached; check its address, the network and its certificate")]
    Unreachable {
        /// `host[:port]`.
        registry: String,
        /// HTTP client error, without the URL.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The registry or its token service refused access.
    #[error("registry {registry} refused access to {repository}; check the credentials of this registry")]
    Unauthorized {
        /// `host[:port]`.
        registry: String,
        /// Repository.
        repository: String,
    },
    /// No such manifest or blob.
    #[error("{subject} is not in the registry; check the component name, version and registry address")]
    NotFound {
        /// Missing content.
        subject: String,
    },
    /// Content with a wrong digest, discarded.
    #[error(
        "{subject} has digest {found}, expected {expected}; the registry's content is damaged or tampered with"
    )]
    DigestMismatch {
        /// Content.
        subject: String,
        /// Expected digest.
        expected: Digest,
        /// Actual digest.
        found: Digest,
    },
    /// Content above the limit.
    #[error("{subject} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// Content.
        subject: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// Malformed content.
    #[error("{subject} is malformed: {reason}")]
    Malformed {
        /// Content.
        subject: String,
        /// Reason.
        reason: String,
    },
    /// Unusable manifests.
    #[error("{subject} holds no usable Kubernetes manifests")]
    Manifests {
        /// File.
        subject: String,
        /// Document and reason.
        #[source]
        source: RenderError,
    },
    /// HTTP 429.
    #[error("registry {registry} limits our request rate; try again later")]
    RateLimited {
        /// `host[:port]`.
        registry: String,
        /// Requested wait, at most one hour.
        retry_after: Option<Duration>,
    },
    /// The deadline passed.
    #[error("{subject} took longer than {} ms", after.as_millis())]
    Timeout {
        /// Operation.
        subject: String,
        /// Deadline.
        after: Duration,
    },
    /// Other HTTP status.
    #[error("registry {registry} answered with status {status}")]
    Status {
        /// `host[:port]`.
        registry: String,
        /// Status code.
        status: u16,
        /// Requested wait, at most one hour.
        retry_after: Option<Duration>,
    },
    /// The breaker is open.
    #[error("registry {registry} failed; further requests are suspended for a while")]
    CircuitOpen {
        /// `host[:port]`.
        registry: String,
        /// Wait, at most one hour.
        retry_after: Duration,
        /// Last failure.
        #[source]
        cause: Arc<Self>,
    },
    /// The version exists with other content. A descriptor contains the registry's name, so other names differ, too.
    #[error("{subject} exists in the registry with other content; the content includes the registry's name")]
    Exists {
        /// Pushed reference.
        subject: String,
    },
    /// The registry rejected a push.
    #[error("registry {registry} refused the push: {reason}; its log may contain the cause")]
    Refused {
        /// `host[:port]`.
        registry: String,
        /// Reason.
        reason: String,
    },
    /// Invalid reference, base URL, digest or credential.
    #[error("{subject} is not valid: {reason}")]
    Invalid {
        /// Input.
        subject: &'static str,
        /// Reason.
        reason: String,
    },
    /// Plain HTTP to a host that is neither loopback nor listed as insecure.
    #[error("plain http to registry {registry} is refused; use https or list it as insecure")]
    PlainHttp {
        /// `host[:port]`.
        registry: String,
    },
    /// The HTTP client cannot be built.
    #[error("the registry client cannot be built; check the system's certificate store")]
    Client {
        /// Cause.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl OciError {
    /// Stable metrics label of a variant.
    pub const fn metric_label(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Unauthorized { .. } => "unauthorized",
            Self::NotFound { .. } => "not_found",
            Self::DigestMismatch { .. } => "digest_mismatch",
            Self::TooLarge { .. } => "too_large",
            Self::Malformed { .. } => "malformed",
            Self::Manifests { .. } => "manifests",
            Self::RateLimited { .. } => "rate_limited",
            Self::Timeout { .. } => "timeout",
            Self::Status { .. } => "status",
            Self::CircuitOpen { .. } => "left_alone",
            Self::Exists { .. } => "exists",
            Self::Refused { .. } => "refused",
            Self::Invalid { .. } => "invalid",
            Self::PlainHttp { .. } => "plain_http",
            Self::Client { .. } => "client",
        }
    }

    /// Whether a retry may succeed. Missing content or access may follow; damaged or oversized content stays.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NotFound { .. }
            | Self::RateLimited { .. }
            | Self::Timeout { .. }
            | Self::CircuitOpen { .. }
            | Self::Unauthorized { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Wait demanded by the registry or the breaker.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Status { retry_after, .. } => *retry_after,
            Self::CircuitOpen { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    pub(super) fn malformed(subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { subject: subject.into(), reason: reason.into() }
    }
}
