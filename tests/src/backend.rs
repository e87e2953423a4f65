//! Which control planes the end-to-end suite runs on.

use anyhow::{Result, bail};

/// The variable that chooses, with the values `fake` (the default) and `real`.
pub const VARIABLE: &str = "TIDEWATCH_E2E";

/// The two kinds of control planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The fake API server of this project, in the test's process: needs Rust alone.
    Fake,
    /// kube-apiserver, etcd, controllers and kwok, built with Go.
    Real,
}

impl Backend {
    /// The one that the environment chooses.
    ///
    /// # Errors
    /// If the variable has another value than `fake` or `real`.
    pub fn chosen() -> Result<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "fake") => Ok(Self::Fake),
            Ok("real") => Ok(Self::Real),
            Ok(other) => bail!("{VARIABLE}={other} names no backend: use fake or real"),
        }
    }
}
