//! Errors of the API server as conditions.

use super::super::{condition::Reason, resolve::ResolveError};
use kube::{core::Status, runtime::watcher};

pub(super) fn condition_of(error: &ResolveError) -> (Reason, String) {
    let reason = match error {
        ResolveError::NotServed { .. } => Reason::WaitingForKind,
        ResolveError::NotWatchable(_) => Reason::NotWatchable,
        ResolveError::Api(kube::Error::Api(status)) if status.code == 401 => Reason::Unauthorized,
        ResolveError::Api(kube::Error::Api(status)) if status.code == 403 => Reason::Forbidden,
        ResolveError::Api(_) | ResolveError::Timeout => Reason::Unreachable,
    };
    let message = match error {
        ResolveError::Api(kube::Error::Api(status)) => format!("{error}: {}", status.message),
        // kube's Display includes its sources.
        ResolveError::Api(source) => format!("{error}: {source}"),
        other => other.to_string(),
    };
    (reason, message)
}

pub(super) fn status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        InitialListFailed(_) | WatchStartFailed(_) | WatchFailed(_) | NoResourceVersion => None,
    }
}

/// Whether conversion failed, for example without its webhook. The stored version still works.
///
/// Only these messages show it; the second comes from the API server's cache.
pub(super) fn is_of_conversion(error: &watcher::Error) -> bool {
    let parts = ["conversion webhook for ", "storage is (re)initializing"];
    status(error).is_some_and(|status| parts.iter().any(|part| status.message.contains(part)))
}

/// Prefers the API server's message; the watcher's Display includes its sources.
pub(super) fn message(error: &watcher::Error) -> String {
    status(error).map_or_else(|| error.to_string(), |status| status.message.clone())
}
