//! The control planes that the end-to-end suite runs on.

use anyhow::{Result, bail};

/// The environment variable that selects the backend: `fake` (default) or `real`.
pub const VARIABLE: &str = "TIDEWATCH_E2E";

/// A kind of control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The fake API server, in the test's process. Needs only Rust.
    Fake,
    /// kube-apiserver, etcd, controllers and kwok, built with Go.
    Real,
}

impl Backend {
    /// Returns the backend selected by the environment.
    ///
    /// # Errors If the variable is neither `fake` nor `real`.
    pub fn chosen() -> Result<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "fake") => Ok(Self::Fake),
            Ok("real") => Ok(Self::Real),
            Ok(other) => bail!("{VARIABLE}={other} names no backend: use fake or real"),
        }
    }
}
