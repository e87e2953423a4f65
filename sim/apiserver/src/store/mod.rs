//! The cluster: requests in, answers out. No I/O, clock or runtime.

mod admit;
mod aggregation;
mod authorize;
mod cluster;
mod controllers;
mod decode;
mod delete;
mod garbage;
mod log;
mod options;
mod owners;
mod read;
mod refusal;
mod request;
mod roles;
mod rules;
mod scale;
mod selector;
mod watch;
mod workloads;
mod write;

pub(crate) use cluster::check_shape;
pub use cluster::{Cluster, Options};
pub use refusal::Refusal;
pub use request::{Answer, Listed, Outcome, PatchKind, Query, Repeated, Request, Target, Verb};
pub use watch::{Said, WatchEvent, Watching};
