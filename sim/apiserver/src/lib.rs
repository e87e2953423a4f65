//! Simulated Kubernetes API servers, thousands in one process.
//!
//! [`Cluster`] is a value: [`Cluster::apply`] takes a request and answers it, without I/O, clock or runtime. What it
//! does not simulate it refuses with 501; `docs/simulator.md` says what that is.

mod authz;
mod faults;
mod fields;
mod http;
mod json;
mod kinds;
mod object;
mod patch;
mod proto;
pub mod registry;
mod schema;
pub mod script;
mod store;
mod unacceptable;

pub use authz::{Access, Rule, User};
pub use faults::{Call, Fault, Faults, NoFaults};
pub use http::{Hosted, Server, ServerOptions, StartError, Token};
pub use object::{Shared, shared};
pub use store::{
    Answer, Cluster, Listed, Options, Outcome, PatchKind, Query, Refusal, Repeated, Request, Said, Target,
    Verb, WatchEvent, Watching,
};
pub use unacceptable::{Unacceptable, unacceptable};
