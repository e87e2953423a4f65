//! Where things are and how long they live, for everything that is started.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use tidewatch_demo::files::write_private;

use crate::{Backend, Lifetime, Spec, Tools};

/// The logs of this many test runs are kept.
const KEPT_RUNS: usize = 5;
/// Nothing started here has anything to lose.
const GRACE: Duration = Duration::from_secs(1);

/// The programs, the folder for logs and files, and the lifetime of what is started.
#[derive(Clone, Debug)]
pub struct Harness {
    /// Only where control planes are real.
    tools: Option<Tools>,
    folder: PathBuf,
    lifetime: Lifetime,
    audits: bool,
}

impl Harness {
    /// For a test run on real control planes: processes end with us, logs are in a new folder under
    /// `target/test-logs`, of which the last five stay. Blocks like [`Tools::find`].
    pub fn for_tests() -> Result<Self> {
        Self::for_tests_on(Backend::Real)
    }

    /// For a test run on either backend. Blocks like [`Tools::find`] where control planes are real.
    pub fn for_tests_on(backend: Backend) -> Result<Self> {
        let all = target_folder().join("test-logs");
        let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
        let folder = all.join(format!("{now}-{}", std::process::id()));
        let harness = Self::on(backend, &folder, Lifetime::WithUs)?;
        prune(&all);
        Ok(harness)
    }

    /// For anything else on real control planes: logs and files in `folder` (made if absent). Blocks like
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

    /// API servers write audit logs.
    #[must_use]
    pub fn with_audit(self) -> Self {
        Self { audits: true, ..self }
    }

    /// Whether they do.
    #[must_use]
    pub const fn audits(&self) -> bool {
        self.audits
    }

    /// Which control planes [`crate::ControlPlane::start`] and which registries [`crate::Registry::start`] start.
    pub const fn backend(&self) -> Backend {
        if self.tools.is_some() { Backend::Real } else { Backend::Fake }
    }

    /// The programs of real control planes.
    ///
    /// # Errors
    /// On the fake API server: there are none.
    pub fn tools(&self) -> Result<&Tools> {
        self.tools.as_ref().context("the fake API server has no programs: run this on real control planes")
    }

    /// `promtool`, where control planes are real; without Go it cannot be built.
    pub fn promtool(&self) -> Result<Option<PathBuf>> {
        self.tools.as_ref().map(|tools| tools.extra("promtool")).transpose()
    }

    /// Where logs and files are, absolute.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A process named `name` (slashes make folders for its log, `<folder>/<name>.log`)
    /// that runs `program` with `args`; what else it needs is set on the result.
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

    /// Writes a file under the folder and returns its absolute path. Only its owner may read it: keys, tokens and
    /// kubeconfigs are written so.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        write_private(&path, content)?;
        Ok(path)
    }
}

/// Cargo's target folder of this workspace.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// Removes all but the newest runs. What cannot be read or removed stays: it is only disk.
fn prune(all: &Path) {
    let Ok(entries) = fs::read_dir(all) else { return };
    let mut runs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    runs.sort();
    runs.truncate(runs.len().saturating_sub(KEPT_RUNS));
    for run in runs {
        let _left = fs::remove_dir_all(run);
    }
}
