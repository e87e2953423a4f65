//! What the intake asks of whoever handles the events.

use tidewatch_wire::{v2, v3};

use crate::{
    deliveries::Ticket,
    identity::{Runtime, RuntimeLookup},
    refused::RefusedPeer,
};

/// Handles what the intake has accepted. No call may block: connections wait for it.
pub trait Host: Send + Sync + 'static {
    /// What is registered under the common name of a certificate.
    fn lookup(&self, common_name: &str) -> RuntimeLookup;

    /// Who the manager in a v2 path is.
    fn manager(&self, name: &str) -> Manager;

    /// Called once for each accepted v3 request, heartbeats and polls included, before its events. Returns whether the
    /// agent must report everything again. A host without a memory of its own cannot confirm what an agent's stored
    /// digest claims.
    fn heard(&self, _runtime: &Runtime, request: &v3::Request<'_>) -> bool {
        request.resume.is_some()
    }

    /// Called for each peer that is refused because of its certificate. Its names are verified only if it says so, and
    /// it comes as often as peers try: what is kept of it must be bounded.
    fn refused(&self, _peer: &RefusedPeer) {}

    /// How far the memory behind the host remembers this session, if it can be restored from a backup; see
    /// [`v3::Response::mark`]. Without such a memory it is always 0.
    fn mark(&self) -> u64 {
        0
    }

    /// Takes an event that is new to this session. The ticket says where it went: to each route that has to handle
    /// it, held or done. A ticket that is dropped unused gives the event back, and the agent sends it again.
    fn take_v3(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
        event: &v3::Event<'_>,
        ticket: Ticket,
    ) -> Fate;

    /// Takes an event of the v2 contract for a manager that is [`Manager::Own`]. It is told before the change is
    /// committed and is never asked for again: the host has to look twice.
    fn take_v2(&self, runtime: &Runtime, manager: &str, event: &v2::WatchEvent) -> Fate;
}

/// Who a manager is to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// The host takes its events.
    Own,
    /// It exists, but the host does not take its events.
    Other,
    /// Nobody knows it.
    Unknown,
}

/// What became of an event at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits for work to be done.
    Queued,
    /// It waits for another manager's service.
    Forwarded,
    /// Nothing depends on the object.
    Unowned,
    /// It is not wanted: its sender has no business with it, or says of it what cannot be.
    Refused,
    /// There is no room for it: it was given back, and the sender is asked to wait before it tries again.
    Overloaded,
    /// There is no room for it on its route: it was given back, and the sender goes on with everything else.
    Full,
}

impl Fate {
    /// A stable word for metrics.
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
