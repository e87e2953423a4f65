//! Which build this is.

use serde_json::{Value, json};

/// Name and version of the running program, shown at `/version` and in the metric `build_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The binary, as `tidewatch-agent`.
    pub name: &'static str,
    /// The package version.
    pub version: &'static str,
    /// The commit, from `TIDEWATCH_COMMIT` at build time; `unknown` for a build that did not set it.
    pub commit: &'static str,
}

impl BuildInfo {
    /// Describes the calling binary; callers pass `env!("CARGO_PKG_NAME")` and `env!("CARGO_PKG_VERSION")`.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        let commit = match option_env!("TIDEWATCH_COMMIT") {
            Some(commit) => commit,
            None => "unknown",
        };
        Self { name, version, commit }
    }

    /// The body of `/version`.
    pub fn to_json(&self) -> Value {
        json!({"name": self.name, "version": self.version, "commit": self.commit})
    }
}
