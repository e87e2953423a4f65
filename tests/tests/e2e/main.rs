//! Everything that needs real control planes, in one binary so that they start once.

mod availability;
mod bad_input_agent;
mod bad_input_engine;
mod bad_input_receiver;
mod canary;
mod control_plane;
mod crds;
mod deletion;
mod demo;
mod drift;
mod faults;
mod lease;
mod managed;
mod mandatory;
mod operator;
mod orphans;
mod resync;
mod routes;
mod service;
mod shutdown;
mod skeleton;
mod versions;
mod watcher_path;
mod watchers;
mod windows;
