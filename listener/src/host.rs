//! Interface to the handler of events.

use tidewatch_wire::{v2, v3};

use crate::{
    deliveries::Ticket,
    identity::{Runtime, RuntimeLookup},
    refused::RefusedPeer,
    revocations::Revocations,
};

/// Handles events. Calls must not block connections.
pub trait Host: Send + Sync + 'static {
    /// Looks up a certificate's common name.
    fn lookup(&self, common_name: &str) -> RuntimeLookup;

    /// Runtimes whose connections and requests are refused; none by default.
    fn revocations(&self) -> Option<&Revocations> {
        None
    }

    /// Classifies a v2 manager.
    fn manager(&self, name: &str) -> Manager;

    /// Called per v3 request, before its events. Returns whether the agent must report all objects: without memory, a
    /// host cannot confirm a digest.
    fn received(&self, _runtime: &Runtime, request: &v3::Request<'_>) -> bool {
        request.resume.is_some()
    }

    /// Called per refused certificate. Names may be unverified. Peers control the rate, so bound stored data.
    fn refused(&self, _peer: &RefusedPeer) {}

    /// How far a restorable memory remembers this session, else 0; see [`v3::Response::mark`].
    fn mark(&self) -> u64 {
        0
    }

    /// Takes a new event. The ticket records its routes; dropped unused, the event is resent.
    fn take_v3(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
        event: &v3::Event<'_>,
        ticket: Ticket,
    ) -> Fate;

    /// Takes a v2 event for a [`Manager::Own`].
    ///
    /// Agents send it before the commit and never again, so the host must reconcile again later.
    fn take_v2(&self, runtime: &Runtime, manager: &str, event: &v2::WatchEvent) -> Fate;
}

/// A manager's relation to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// Its events are taken.
    Own,
    /// Exists, but its events are not taken.
    Other,
    /// Unknown.
    Unknown,
}

/// Result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Waits for a reconcile.
    Queued,
    /// Waits for another manager.
    Forwarded,
    /// Nothing depends on it.
    Unowned,
    /// Unwanted or implausible.
    Refused,
    /// No capacity: the sender must wait and resend.
    Overloaded,
    /// Route without capacity: the sender continues with other events.
    Full,
}

impl Fate {
    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Forwarded => "forwarded",
            Self::Unowned => "unowned",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
            Self::Full => "full",
        }
    }
}
