//! Errors of reads and writes of a runtime's objects.

use std::time::Duration;

use kube::core::response::StatusCause;
use tidewatch_deployer::refusal::{Cause, is_immutable};

use crate::{
    clusters::{
        error::{ErrorClass, RuntimeError},
        mapper::MapError,
    },
    error::chain,
    gate::Held,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error(transparent)]
    Kind(MapError),
    #[error(transparent)]
    Call(#[from] RuntimeError),
    #[error("{0} has no apiVersion, kind and name, or malformed metadata")]
    Malformed(String),
    #[error("an object of the module's manifest cannot be applied: {0}")]
    Unnamed(String),
    #[error(transparent)]
    Held(#[from] Held),
}

impl From<MapError> for ObjectError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Discovery(error) => Self::Call(error),
            missing @ MapError::KindMissing { .. } => Self::Kind(missing),
        }
    }
}

impl ObjectError {
    pub(crate) const fn is_kind_missing(&self) -> bool {
        matches!(self, Self::Kind(_))
    }

    pub(crate) fn group_of_kind(&self) -> Option<&str> {
        match self {
            Self::Kind(MapError::KindMissing { api_version, .. }) => {
                Some(api_version.split_once('/').map_or("", |(group, _)| group))
            }
            _ => None,
        }
    }

    /// Whether the failure may concern one kind only. API servers answer so for impossible names, and for kinds of an aggregated API
    /// server that is down.
    pub(crate) const fn is_of_one_kind(&self) -> bool {
        match self {
            Self::Call(error) => {
                !matches!(error.class, ErrorClass::Unauthorized | ErrorClass::Throttled { .. })
            }
            Self::Kind(_) | Self::Malformed(_) | Self::Unnamed(_) => true,
            Self::Held(_) => false,
        }
    }

    /// Whether a retry can help with the object unchanged.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            Self::Kind(_) | Self::Held(_) => true,
            // An apply gets 404 for a missing namespace, and no event reports that it exists again.
            Self::Call(error) => error.is_retryable() || matches!(error.class, ErrorClass::NotFound),
            Self::Malformed(_) | Self::Unnamed(_) => false,
        }
    }

    pub(crate) const fn discredits_client(&self) -> bool {
        matches!(self, Self::Call(error) if error.discredits_client())
    }

    pub(crate) const fn class(&self) -> &'static str {
        match self {
            Self::Kind(_) => "kind_missing",
            Self::Call(error) => error.metric_label(),
            Self::Malformed(_) | Self::Unnamed(_) => "malformed",
            Self::Held(_) => "held",
        }
    }

    pub(crate) const fn held(&self) -> Option<Held> {
        match self {
            Self::Held(held) => Some(*held),
            _ => None,
        }
    }

    /// Whether a 404 was returned; for an apply, the namespace is missing.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::NotFound))
    }

    /// Whether objects of the kind can only be created, never read.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Call(error) if error.status().is_some_and(|status| status.reason == "MethodNotAllowed"))
    }

    pub(crate) const fn is_namespace_terminating(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::NamespaceTerminating))
    }

    pub(crate) const fn is_refused(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Invalid))
    }

    /// Whether an immutable field was changed. The API server notes this at the end of a possibly long text.
    pub(crate) fn is_of_immutable_field(&self) -> bool {
        let is_immutability =
            |error: &RuntimeError| error.status().is_some_and(|status| is_immutable(&status.message));
        matches!(self, Self::Call(error) if self.is_refused() && is_immutability(error))
    }

    pub(crate) fn causes(&self) -> Vec<Cause> {
        let details = match self {
            Self::Call(error) if self.is_refused() => {
                error.status().and_then(|status| status.details.as_ref())
            }
            _ => None,
        };
        let causes = details.into_iter().flat_map(|details| &details.causes);
        let cause = |cause: &StatusCause| Cause {
            reason: cause.reason.clone(),
            field: cause.field.clone(),
            message: cause.message.clone(),
        };
        causes.map(cause).collect()
    }

    /// Whether an admission or conversion webhook did not answer, as while the module's own server is not running yet. Kubernetes has no
    /// reason for it, but uses these words in all versions.
    pub(crate) fn is_of_webhook(&self) -> bool {
        self.is_of_conversion() || self.message_contains("failed calling webhook")
    }

    pub(crate) fn is_of_conversion(&self) -> bool {
        self.message_contains("conversion webhook for ")
    }

    fn message_contains(&self, phrase: &str) -> bool {
        matches!(self, Self::Call(error) if error.message().is_some_and(|message| message.contains(phrase)))
    }

    /// Whether the API server asks to retry later, and the object is fine.
    pub(crate) const fn is_transient(&self) -> bool {
        matches!(self, Self::Held(_))
            || matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Throttled { .. } | ErrorClass::Conflict))
    }

    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Call(error) => error.retry_after(),
            _ => None,
        }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Unreachable | ErrorClass::Timeout))
    }

    /// Whether the whole runtime is unreachable, not only an aggregated API server behind it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_unreachable() && !self.is_answered()
    }

    /// Whether an API server has answered, if only with an error. The failure may then concern one kind, such as an aggregated API
    /// server's.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Call(error) if error.status().is_some())
    }

    /// The failure, with the API server's message or the underlying cause.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Call(error) => match error.message() {
                Some(message) => format!("{error} ({message})"),
                None => chain(error),
            },
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::clusters::objects::error::*;

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Step(#[source] std::io::Error);

    #[test]
    fn an_unanswered_call_names_its_operation_and_root_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let call = kube::Error::Service(Box::new(Step(refused)));
        let error = ObjectError::from(RuntimeError::from_kube("reading Kyma a/b", call));
        let message = error.message();
        assert!(message.starts_with("reading Kyma a/b: the cluster cannot be reached; "), "{message}");
        assert!(
            message.ends_with(": connection refused")
                && !message.contains("rror (")
                && !message.contains("ServiceError"),
            "{message}"
        );
    }
}
