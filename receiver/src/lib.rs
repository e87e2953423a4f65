//! `tidewatch-receiver`: receives agents' events, queues reconciles and runs the lifecycle engine.
//!
//! An event passes [`tidewatch_listener`], [`host`], [`route`] and the engine's queue.

pub mod agent_args;
pub mod app;
pub mod args;
pub mod claims;
pub mod config;
mod config_map;
pub mod controllers;
pub mod dry_run;
pub mod forward;
pub mod host;
pub mod kcp_client;
pub mod klm;
pub mod leader_endpoint;
pub mod lease;
pub mod limits;
pub mod maintenance;
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
mod own_cluster;
pub mod path_watch;
pub mod paths;
pub mod pause;
pub mod pki;
pub mod registry_credentials;
pub mod revocations;
pub mod rotation;
pub mod route;
pub mod runtimes_page;
pub mod sessions;
pub mod sizes;
pub mod switch;

pub use app::Bound;
pub use config::Config;
