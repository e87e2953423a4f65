//! Verified events from runtimes, over mTLS, acknowledged when they are handled.
//!
//! An event's way: [`listener`] (TLS, limits) → [`intake`] (paths, bodies) → [`identity`] (who says so) → the
//! [`Host`], which decides what depends on it. [`deliveries`] remembers what was told until the host has finished,
//! and answers the agents.
//!
//! An operator needs none of these by name: a [`Listener`] yields a [stream](Events) of [`RuntimeEvent`]s, and
//! [`reconcile_requests`] turns it into what `kube`'s `Controller::reconcile_on` takes. See `docs/listener.md` and the
//! example `operator`.

/// The guide's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/listener.md")]
mod guide {}

pub mod admission;
mod bucket;
pub mod deliveries;
mod fair;
pub mod host;
pub mod identity;
pub mod intake;
mod known;
pub mod limits;
pub mod listener;
pub mod metrics;
pub mod operator;
mod peers;
pub mod pending;
mod refused;
mod shares;

pub use admission::Admission;
pub use deliveries::{Deliveries, Door, Guard, Ticket};
pub use host::{Fate, Host, Manager};
pub use identity::{Refusal, Runtime, RuntimeLookup};
pub use intake::Intake;
pub use limits::{Limits, Rate};
pub use metrics::Metrics;
pub use operator::{Ack, Events, Listener, RuntimeEvent, StartError};
pub use pending::{Pending, Started, reconcile_requests};
pub use refused::{LogLine, RefusalLog, RefusedPeer};
