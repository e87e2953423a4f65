//! Errors of reconciles.

use std::time::Duration;

use tidewatch_deployer::transform::TransformError;
use tidewatch_oci::OciError;

use crate::{
    clusters::objects::ObjectError,
    gate,
    key::OutcomeKind,
    outcome::Next,
    pace,
    trigger::{Reason, Trigger},
};

/// Why a reconcile could not do its work.
///
/// Errors of the module or its runtime are [reported](Self::is_reported) in the status of the object. The others end the reconcile
/// without a status: they say nothing about the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{call} in KCP failed")]
    Kcp {
        call: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The plan used an outdated version; the watch will deliver the current one.
    #[error("{0}: KCP has another one than was seen")]
    Outdated(String),
    #[error(transparent)]
    Held(#[from] gate::Held),
    /// It waits for a slow resource, and the limit of waiting reconciles is reached.
    #[error("{0}; as many reconciles as may wait for it do; it is tried again in a moment")]
    Crowded(String),
    /// The runtime is suspended, for this time.
    #[error("{0}")]
    Suspended(String, Duration),
    #[error("the reconcile took longer than {} s", .0.as_secs())]
    Deadline(Duration),
    /// A call to the runtime failed.
    #[error("{}", .0.message())]
    Runtime(ObjectError),
    /// The runtime rejects the engine's CRDs or its namespace.
    #[error("{}", .0.message())]
    Crds(ObjectError),
    /// A registry did not deliver a layer of the module.
    #[error("the module's layer cannot be read: {}", chain(.0))]
    Registry(Box<OciError>),
    /// The module's objects cannot be adapted to their runtime.
    #[error("{0}")]
    Transform(Box<TransformError>),
    /// Only a change of the module, or of its runtime, helps.
    #[error("{0}")]
    Final(String),
    /// An error, with a message that tells more.
    #[error("{message}")]
    Described { message: String, error: Box<Self> },
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Held(held) => Self::Held(held),
            error => Self::Runtime(error),
        }
    }
}

impl Error {
    /// A failed call to KCP. A conflict means that the engine's copy is outdated.
    pub(crate) fn kcp(call: String, source: kube::Error) -> Self {
        if matches!(&source, kube::Error::Api(status) if status.code == 409) {
            return Self::Outdated(call);
        }
        Self::Kcp { call, source: Box::new(source) }
    }

    #[must_use]
    pub(crate) fn described(self, describe: impl FnOnce(&str) -> String) -> Self {
        let message = describe(&self.to_string());
        Self::Described { message, error: Box::new(self) }
    }

    /// Whether the status of the object tells it.
    pub(crate) fn is_reported(&self) -> bool {
        match self {
            Self::Runtime(_) | Self::Crds(_) | Self::Registry(_) | Self::Transform(_) | Self::Final(_) => {
                true
            }
            Self::Described { error, .. } => error.is_reported(),
            _ => false,
        }
    }

    /// Whether the API server asks to retry later. The module is not at fault.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Runtime(error) | Self::Crds(error) => error.is_transient(),
            Self::Described { error, .. } => error.is_transient(),
            _ => false,
        }
    }

    /// Whether to rebuild the runtime's client. A connection that delivered an answer works.
    pub(crate) fn discredits_client(&self) -> bool {
        match self {
            Self::Runtime(error) => {
                error.discredits_client() && (!error.is_unreachable() || error.is_cut_off())
            }
            Self::Described { error, .. } => error.discredits_client(),
            _ => false,
        }
    }

    /// Whether it may concern one object only, so that others can be tried.
    pub(crate) fn is_of_one_object(&self) -> bool {
        self.is_reported() && !self.is_transient() && !self.discredits_client()
    }

    /// The class of a reported error: a stable word for metrics.
    pub(crate) fn class(&self) -> &'static str {
        match self {
            Self::Runtime(error) | Self::Crds(error) => error.class(),
            // Not the runtime's credentials.
            Self::Registry(error) if error.metric_label() == "unauthorized" => "registry_unauthorized",
            Self::Registry(error) => error.metric_label(),
            Self::Transform(_) => "transform",
            Self::Described { error, .. } => error.class(),
            _ => "final",
        }
    }

    /// The wait that a server asked for.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Runtime(error) | Self::Crds(error) => error.retry_after(),
            Self::Registry(error) => error.retry_after(),
            Self::Described { error, .. } => error.retry_after(),
            _ => None,
        }
    }

    /// Whether a retry can succeed without a change of the module or its runtime.
    fn is_retryable(&self) -> bool {
        match self {
            Self::Runtime(error) | Self::Crds(error) => error.is_retryable(),
            // Mismatched content may be pushed again, and a registry sends no events.
            Self::Registry(error) => {
                error.is_retryable()
                    || matches!(**error, OciError::DigestMismatch { .. } | OciError::NotFound { .. })
            }
            // KCP may have failed to answer. The creation of the Secret is an event.
            Self::Transform(error) => matches!(**error, TransformError::Injection { .. }),
            Self::Final(_) => false,
            Self::Described { error, .. } => error.is_retryable(),
            _ => true,
        }
    }

    /// When the reconcile is due again without an event.
    pub(crate) fn retry(&self) -> Next {
        let backoff = |pace, at_least| Next::Backoff { pace, reason: self.reason(), at_least };
        match self {
            Self::Outdated(_) => backoff(pace::RECHECK_SOON, None),
            Self::Crowded(_) => backoff(pace::CROWDED, None),
            // The mode change requeues the key; this covers a change in between.
            Self::Held(_) => Next::After(pace::RETRY.longest),
            Self::Suspended(_, left) => backoff(pace::SUSPENDED, Some(*left)),
            error if error.is_retryable() => backoff(pace::RETRY, error.retry_after()),
            _ => Next::OnEvent,
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Kcp { .. } | Self::Outdated(_) => Reason::Kcp,
            Self::Held(_) => Reason::Held,
            Self::Crowded(_) => Reason::Crowded,
            Self::Suspended(..) => Reason::Suspended,
            Self::Deadline(_) => Reason::Deadline,
            reported => Reason::Failed(reported.class()),
        }
    }

    pub(crate) const fn kind(&self) -> OutcomeKind {
        match self {
            Self::Outdated(_) | Self::Held(_) | Self::Crowded(_) | Self::Suspended(..) => {
                OutcomeKind::Waiting
            }
            _ => OutcomeKind::Unreported,
        }
    }

    /// KCP's rejection of an object, which a retry would get again; `None` for another failure.
    pub(crate) fn refusal(&self) -> Option<String> {
        match self {
            Self::Kcp { call, source } => match source.as_ref() {
                kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
                    Some(format!("{call} in KCP was refused: {}", status.message))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The triggers that remain after a reconcile that did not begin or used outdated versions.
    ///
    /// Plain retries are dropped: they may wait and rely on earlier results.
    pub(crate) fn remaining(&self, triggers: &[Trigger]) -> Vec<Trigger> {
        let remains = |trigger: &&Trigger| match (self, trigger) {
            (_, Trigger::Retry { .. }) => false,
            (Self::Held(_) | Self::Outdated(_) | Self::Crowded(_), _) => true,
            // The event has had its probe, or another reconcile probes.
            (Self::Suspended(..), trigger) => trigger.is_full_look(),
            _ => false,
        };
        triggers.iter().filter(remains).cloned().collect()
    }
}

/// Starts of messages that libraries put before a cause. They help no reader.
const STEPS: [&str; 5] =
    ["client error (", "error sending request", "ServiceError: ", "HyperError: ", "tcp connect error"];

fn is_step(error: &dyn std::error::Error) -> bool {
    let text = error.to_string();
    error.source().is_some() && STEPS.iter().any(|step| text.starts_with(step))
}

/// An error with its sources, in one line, without the steps of libraries between them.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !is_step(error) && !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::{Gvk, ObjectRef};

    use super::*;
    use crate::key::WorkKey;

    #[test]
    fn retries_follow_the_kind_of_error() {
        let gone = || kube::Error::Api(kube::core::Status::failure("no", "Conflict").with_code(409).boxed());
        for (error, is_reported, retries) in [
            (Error::Final("f".into()), true, false),
            (Error::Final("f".into()).described(|f| format!("{f} there")), true, false),
            (ObjectError::Malformed("m".into()).into(), true, false),
            (Error::kcp("reading".into(), gone()), false, true),
            (Error::Deadline(Duration::ZERO), false, true),
            (Error::Crowded("c".into()), false, true),
        ] {
            assert_eq!(error.is_reported(), is_reported, "{error}");
            assert_eq!(error.retry() != Next::OnEvent, retries, "{error}");
        }
        assert!(matches!(Error::kcp("reading".into(), gone()), Error::Outdated(_)));
        let described = Error::Final("f".into()).described(|f| format!("{f}, since"));
        assert_eq!((described.to_string().as_str(), described.class()), ("f, since", "final"));
    }

    #[test]
    fn unseen_triggers_remain_after_a_reconcile() {
        let object = ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: "a".into() };
        let event = Trigger::Event {
            epoch: "e".into(),
            seq: 1,
            watch: "w".into(),
            object,
            span: crate::spans::EventSpan::default(),
        };
        let retry = Trigger::retry(&WorkKey::Kyma { kyma: "k".into() }, Reason::Waiting);
        let triggers = [event.clone(), retry, Trigger::SafetyResync];
        for (error, remaining) in [
            (Error::Crowded("c".into()), vec![event.clone(), Trigger::SafetyResync]),
            (Error::Outdated("o".into()), vec![event, Trigger::SafetyResync]),
            (Error::Suspended("s".into(), Duration::ZERO), vec![Trigger::SafetyResync]),
            (Error::Deadline(Duration::ZERO), vec![]),
            (Error::Final("f".into()), vec![]),
        ] {
            assert_eq!(error.remaining(&triggers), remaining, "{error}");
        }
    }
}
