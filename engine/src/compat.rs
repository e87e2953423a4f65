//! Migration from the Go manager.

pub mod legacy_watcher;
