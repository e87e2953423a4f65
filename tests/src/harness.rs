//! Paths and lifetimes of started processes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use tidewatch_demo::files::write_private;

use crate::{Backend, Lifetime, Spec, Tools};

/// Number of test runs with kept logs.
const KEPT_RUNS: usize = 5;
/// The processes have no state to save.
const GRACE: Duration = Duration::from_secs(1);

/// Programs, a folder for logs and files, and the processes' lifetime.
#[derive(Clone, Debug)]
pub struct Harness {
    /// Present with real control planes.
    tools: Option<Tools>,
    folder: PathBuf,
    lifetime: Lifetime,
    audits: bool,
}

impl Harness {
    /// For tests on real control planes. Processes end with this one; `target/test-logs` keeps the last five
    /// runs. Blocks like [`Tools::find`].
    pub fn for_tests() -> Result<Self> {
        Self::for_tests_on(Backend::Real)
    }

    /// For tests on either backend. Blocks like [`Tools::find`] for real control planes.
    pub fn for_tests_on(backend: Backend) -> Result<Self> {
        let all = target_folder().join("test-logs");
        let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
        let folder = all.join(format!("{now}-{}", std::process::id()));
        let harness = Self::on(backend, &folder, Lifetime::WithUs)?;
        prune(&all);
        Ok(harness)
    }

    /// For other uses of real control planes. Creates `folder` for logs and files. Blocks like
    /// [`Tools::find`].
    pub fn new(folder: &Path, lifetime: Lifetime) -> Result<Self> {
        Self::on(Backend::Real, folder, lifetime)
    }

    fn on(backend: Backend, folder: &Path, lifetime: Lifetime) -> Result<Self> {
        let tools = match backend {
            Backend::Real => Some(Tools::find()?),
            Backend::Fake => None,
        };
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
        Ok(Self { tools, folder, lifetime, audits: false })
    }

    /// Enables audit logs of API servers.
    #[must_use]
    pub fn with_audit(self) -> Self {
        Self { audits: true, ..self }
    }

    /// Returns whether audit logs are enabled.
    #[must_use]
    pub const fn audits(&self) -> bool {
        self.audits
    }

    /// Returns the backend for [`crate::ControlPlane::start`] and [`crate::Registry::start`].
    pub const fn backend(&self) -> Backend {
        if self.tools.is_some() { Backend::Real } else { Backend::Fake }
    }

    /// Returns the programs of real control planes.
    ///
    /// # Errors On the fake API server.
    pub fn tools(&self) -> Result<&Tools> {
        self.tools.as_ref().context("the fake API server has no programs: run this on real control planes")
    }

    /// Returns `promtool` with real control planes; its build needs Go.
    pub fn promtool(&self) -> Result<Option<PathBuf>> {
        self.tools.as_ref().map(|tools| tools.extra("promtool")).transpose()
    }

    /// Returns the absolute folder of logs and files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a process spec with the log `<folder>/<name>.log`. Slashes in `name` create folders.
    pub fn spec(&self, name: &str, program: &Path, args: Vec<String>) -> Spec {
        Spec {
            name: name.to_owned(),
            program: program.to_owned(),
            args,
            env: Vec::new(),
            log: self.folder.join(format!("{name}.log")),
            grace: GRACE,
            scratch: None,
            lifetime: self.lifetime.clone(),
        }
    }

    /// Writes a file and returns its absolute path. Only the owner can read it, because it can hold secrets.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        write_private(&path, content)?;
        Ok(path)
    }
}

/// Returns cargo's target folder.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// Removes old runs. Ignores errors: they cost only disk space.
fn prune(all: &Path) {
    let Ok(entries) = fs::read_dir(all) else { return };
    let mut runs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    runs.sort();
    runs.truncate(runs.len().saturating_sub(KEPT_RUNS));
    for run in runs {
        let _left = fs::remove_dir_all(run);
    }
}
