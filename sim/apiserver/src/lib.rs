//! Simulates thousands of Kubernetes API servers in one process.
//!
//! [`Cluster::apply`] needs no I/O, clock or async runtime. Unsupported requests get 501 (`docs/develop/fake-apiserver.md`).

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
    Answer, Cluster, EventType, ListOptions, Listed, Options, Outcome, PatchKind, Query, Refusal, Repeated,
    Request, Target, Verb, WatchEvent, Watching,
};
pub use unacceptable::{Unacceptable, unacceptable};
