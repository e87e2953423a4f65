//! Receives events from runtimes over mTLS and acknowledges them after their reconciles.
//!
//! An event passes [`listener`], [`intake`], [`identity`] and the [`Host`]; [`deliveries`] remembers it.
//!
//! Kubernetes operators use a [`Listener`], its [stream](Events) of [`RuntimeEvent`]s and [`reconcile_requests`]. See
//! `docs/reference/listener.md` and the example `operator`.

/// Compiles the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/reference/listener.md")]
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
pub mod revocations;
mod shares;

pub use admission::Admission;
pub use deliveries::{Deliveries, Door, Guard, Ticket};
pub use host::{Fate, Host, Manager};
pub use identity::{Refusal, Runtime, RuntimeLookup};
pub use intake::{Intake, RefusedRequest};
pub use limits::{Limits, Rate};
pub use metrics::Metrics;
pub use operator::{Ack, Events, Listener, RuntimeEvent, StartError};
pub use pending::{Pending, Started, reconcile_requests};
pub use refused::{LogLine, RefusalLog, RefusedPeer};
pub use revocations::Revocations;
