//! Why an object in a runtime could not be read or written, and what follows from it.

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

/// Why an object in a runtime could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    /// The runtime does not know the kind (yet).
    #[error(transparent)]
    Kind(MapError),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] RuntimeError),
    /// The object is not one.
    #[error("{0} has no apiVersion, kind and name, or malformed metadata")]
    Malformed(String),
    /// The API server is to make up its name.
    #[error("an object of the module's manifest cannot be applied: {0}")]
    Unnamed(String),
    /// Nothing may be written now.
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
    /// Whether the kind, not the object, is missing.
    pub(crate) const fn is_kind_missing(&self) -> bool {
        matches!(self, Self::Kind(_))
    }

    /// The group of the kind that is missing.
    pub(crate) fn group_of_kind(&self) -> Option<&str> {
        match self {
            Self::Kind(MapError::KindMissing { api_version, .. }) => {
                Some(api_version.split_once('/').map_or("", |(group, _)| group))
            }
            _ => None,
        }
    }

    /// Whether a look for one kind may fail like this while the rest of the runtime is well: an API server answers so for a name
    /// that no kind can have, and for the kinds of a server behind it that is down.
    pub(crate) const fn is_of_one_kind(&self) -> bool {
        match self {
            Self::Call(error) => {
                !matches!(error.class, ErrorClass::Unauthorized | ErrorClass::Throttled { .. })
            }
            Self::Kind(_) | Self::Malformed(_) | Self::Unnamed(_) => true,
            Self::Held(_) => false,
        }
    }

    /// Whether trying again can help without anybody changing the object.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            Self::Kind(_) | Self::Held(_) => true,
            // What an apply does not find is its namespace, and no event says that it is there again.
            Self::Call(error) => error.is_retryable() || matches!(error.class, ErrorClass::NotFound),
            Self::Malformed(_) | Self::Unnamed(_) => false,
        }
    }

    /// Whether the client should be built anew.
    pub(crate) const fn discredits_client(&self) -> bool {
        matches!(self, Self::Call(error) if error.discredits_client())
    }

    /// The kind of failure, in a word.
    pub(crate) const fn class(&self) -> &'static str {
        match self {
            Self::Kind(_) => "kind_missing",
            Self::Call(error) => error.metric_label(),
            Self::Malformed(_) | Self::Unnamed(_) => "malformed",
            Self::Held(_) => "held",
        }
    }

    /// Whether it is no failure: nothing may be written now.
    pub(crate) const fn held(&self) -> Option<Held> {
        match self {
            Self::Held(held) => Some(*held),
            _ => None,
        }
    }

    /// Whether what an object needs is not there: for an apply, its namespace.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::NotFound))
    }

    /// Whether no object of the kind can be read, as of one whose objects are only made.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Call(error) if error.status().is_some_and(|status| status.reason == "MethodNotAllowed"))
    }

    /// Whether the object's namespace is being deleted, so that nothing can be made in it.
    pub(crate) const fn is_of_leaving_namespace(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::NamespaceTerminating))
    }

    /// Whether the API server does not take the object as it is.
    pub(crate) const fn is_refused(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Invalid))
    }

    /// Whether the API server does not take a change because a field can only be set when the object is made. It says so at the end of
    /// what may be a long text.
    pub(crate) fn is_of_immutable(&self) -> bool {
        let words = |error: &RuntimeError| error.status().is_some_and(|status| is_immutable(&status.message));
        matches!(self, Self::Call(error) if self.is_refused() && words(error))
    }

    /// The fields that the API server does not take.
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

    /// Whether an admission or conversion webhook could not be asked, as where the module's own server does not run yet. Kubernetes has
    /// no reason or cause for it, but these words, in all versions.
    pub(crate) fn is_of_webhook(&self) -> bool {
        self.is_of_conversion() || self.says("failed calling webhook")
    }

    /// Whether the objects cannot be had in the version in which they were asked for, since the webhook that converts them does not
    /// answer, or not as it should.
    pub(crate) fn is_of_conversion(&self) -> bool {
        self.says("conversion webhook for ")
    }

    fn says(&self, words: &str) -> bool {
        matches!(self, Self::Call(error) if error.message().is_some_and(|message| message.contains(words)))
    }

    /// Whether the API server asks to come back later, and nothing is wrong with the object.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Held(_))
            || matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Throttled { .. } | ErrorClass::Conflict))
    }

    /// How long the API server asked us to wait, if it did.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Call(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Whether nobody answered at all.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Call(error) if matches!(error.class, ErrorClass::Unreachable | ErrorClass::Timeout))
    }

    /// Whether the runtime is out of reach as a whole: not where an API server says so of a server behind it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_unreachable() && !self.is_answered()
    }

    /// Whether an API server has answered, if only with an error. What is wrong may be wrong with this one thing then, such as with
    /// the server behind it that serves one kind.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Call(error) if error.status().is_some())
    }

    /// What failed, with the API server's own words or the underlying cause.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Call(error) => match error.message() {
                Some(words) => format!("{error} ({words})"),
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
    fn a_call_without_an_answer_names_what_it_began_with_and_no_step_of_a_library() {
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
