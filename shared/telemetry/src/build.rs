//! Build information.

use serde_json::{Value, json};

/// Version for `/version` and `build_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// Binary.
    pub name: &'static str,
    /// Package version.
    pub version: &'static str,
    /// `TIDEWATCH_COMMIT` at build time, or `unknown`.
    pub commit: &'static str,
}

impl BuildInfo {
    /// Takes `CARGO_PKG_NAME` and `CARGO_PKG_VERSION` of the binary.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        let commit = match option_env!("TIDEWATCH_COMMIT") {
            Some(commit) => commit,
            None => "unknown",
        };
        Self { name, version, commit }
    }

    /// Body of `/version`.
    pub fn to_json(&self) -> Value {
        json!({"name": self.name, "version": self.version, "commit": self.commit})
    }
}
