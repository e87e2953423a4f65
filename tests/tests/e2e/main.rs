//! Everything that needs real control planes, in one binary so that they start once.

mod availability;
mod bad_input_agent;
mod bad_input_engine;
mod bad_input_receiver;
mod bundles;
mod canary;
mod catalog;
mod channels;
mod control_plane;
mod crds;
mod deletion;
mod demo;
mod dependencies;
mod derived;
mod drift;
mod external;
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
mod takeover;
mod two_places;
mod upgrade;
mod versions;
mod watcher_path;
mod watchers;
mod windows;
