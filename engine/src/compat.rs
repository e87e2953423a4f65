//! What only a take-over from the Go manager needs.

pub mod legacy_watcher;
