//! What can go wrong between us and a registry.

use std::{error::Error, sync::Arc, time::Duration};

use super::{Digest, RenderError};

/// A failure to read or write an artifact. Messages name hosts, repositories and digests, never credentials or URLs
/// with a query. Cheap to clone: one failed download is reported to all who waited for it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OciError {
    /// No connection, or it broke: DNS, TCP, TLS.
    #[error("registry {registry} cannot be reached; check its address, the network and its certificate")]
    Unreachable {
        /// Host and port.
        registry: String,
        /// What the HTTP client saw, without the URL.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The registry (or its token service) refused us.
    #[error("registry {registry} refused access to {repository}; check the credentials of this registry")]
    Unauthorized {
        /// Host and port.
        registry: String,
        /// Repository we asked for.
        repository: String,
    },
    /// There is no such manifest or blob.
    #[error("{what} is not in the registry; check the component name, version and registry address")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The bytes are not those that the digest promises. They were thrown away.
    #[error(
        "{what} has digest {found}, expected {expected}; the registry's content is damaged or tampered with"
    )]
    DigestMismatch {
        /// What was read.
        what: String,
        /// What the descriptor or manifest promises.
        expected: Digest,
        /// What the bytes hash to.
        found: Digest,
    },
    /// The answer is larger than we accept.
    #[error("{what} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// What was read.
        what: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// The content is not what it should be.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// What was read.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A module's manifests cannot be used.
    #[error("{what} holds no usable Kubernetes manifests")]
    Manifests {
        /// Which file.
        what: String,
        /// Which document and why.
        #[source]
        source: RenderError,
    },
    /// The registry asks us to come back later (HTTP 429).
    #[error("registry {registry} limits our request rate; try again later")]
    RateLimited {
        /// Host and port.
        registry: String,
        /// How long it asks us to wait, at most one hour; `None` if it did not say.
        retry_after: Option<Duration>,
    },
    /// The deadline passed.
    #[error("{what} took longer than {} ms", after.as_millis())]
    Timeout {
        /// What was being done.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// Any other HTTP status.
    #[error("registry {registry} answered with status {status}")]
    Status {
        /// Host and port.
        registry: String,
        /// HTTP status code.
        status: u16,
        /// How long it asks us to wait, at most one hour; `None` if it did not say.
        retry_after: Option<Duration>,
    },
    /// The registry did not work the last time, and is not asked now.
    #[error("registry {registry} is left alone for a while, since it did not work")]
    LeftAlone {
        /// Host and port.
        registry: String,
        /// When it is worth trying again, at most one hour.
        retry_after: Duration,
        /// What it did the last time.
        #[source]
        cause: Arc<Self>,
    },
    /// A version that is to be new is there with other content. A component's descriptor names the registry that it was pushed to.
    #[error(
        "{what} is in the registry already, with other content (or pushed by another name of the registry, which is in it)"
    )]
    Exists {
        /// What was to be pushed.
        what: String,
    },
    /// The registry has understood a push, and does not take it.
    #[error("registry {registry} did not take the push: {reason}; its log may say more")]
    Refused {
        /// Host and port.
        registry: String,
        /// What it says.
        reason: String,
    },
    /// A reference, base URL, digest or credential of the configuration is not usable.
    #[error("{what} is not valid: {reason}")]
    Invalid {
        /// Which input.
        what: &'static str,
        /// Why it is refused.
        reason: String,
    },
    /// Plain HTTP to a host that is neither loopback nor listed as insecure.
    #[error("plain http to registry {registry} is refused; use https or list it as insecure")]
    PlainHttp {
        /// Host and port.
        registry: String,
    },
    /// The HTTP client could not be built.
    #[error("the registry client cannot be built; check the system's certificate store")]
    Client {
        /// What the HTTP library says.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl OciError {
    /// A stable label for metrics; one per variant.
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
            Self::LeftAlone { .. } => "left_alone",
            Self::Exists { .. } => "exists",
            Self::Refused { .. } => "refused",
            Self::Invalid { .. } => "invalid",
            Self::PlainHttp { .. } => "plain_http",
            Self::Client { .. } => "client",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything. What is not in the registry yet
    /// may be pushed a moment later, so that is retryable too; damaged or oversized content is not.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NotFound { .. }
            | Self::RateLimited { .. }
            | Self::Timeout { .. }
            | Self::LeftAlone { .. }
            | Self::Unauthorized { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// How long the registry asked us to stay away, if it did, or is left alone.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Status { retry_after, .. } => *retry_after,
            Self::LeftAlone { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    pub(super) fn malformed(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), reason: reason.into() }
    }
}
