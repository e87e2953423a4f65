//! Tests on control planes, in one binary so that they start only once.

#![allow(clippy::too_many_lines, reason = "a story is read from top to bottom")]

mod availability;
mod bad_input_agent;
mod bad_input_engine;
mod bad_input_receiver;
mod bundles;
mod canary;
mod catalog;
mod channels;
mod control_plane;
mod corpus;
mod crds;
mod deletion;
mod demo;
mod dependencies;
mod derived_watches;
mod drift;
mod enrolment;
mod external_modules;
mod faults;
mod field_drift;
mod field_inputs;
mod field_objects;
mod foreign_writes;
mod lease;
mod lifecycle;
mod managed;
mod mandatory;
mod operator;
mod orphans;
mod readiness;
mod reporting;
mod resync;
mod routes;
mod runtime_kyma;
mod service;
mod shutdown;
mod single_cluster;
mod takeover;
mod triggers;
mod upgrade;
mod versions;
mod watcher_path;
mod watchers;
mod windows;
