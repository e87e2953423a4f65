//! The cluster: requests in, answers out. No I/O, clock or runtime.

mod addresses;
mod admission;
mod certificates;
mod cluster;
mod controllers;
mod decode;
mod definitions;
mod delete;
mod deletion;
mod escalation;
mod log;
mod objects;
mod options;
mod owners;
mod read;
mod refusal;
mod render;
mod request;
mod reviews;
mod rights;
mod rules;
mod scale;
mod schedule;
mod selector;
mod served;
mod state;
mod target;
mod watch;
mod write;

pub use cluster::Cluster;
pub(crate) use cluster::check_shape;
pub use refusal::Refusal;
pub use request::{Answer, Listed, Outcome, Request};
pub use state::Options;
pub use target::{ListOptions, PatchKind, Query, Repeated, Target, Verb};
pub use watch::{EventType, WatchEvent, Watching};
