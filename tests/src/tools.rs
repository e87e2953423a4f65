//! Where the programs are: kube-apiserver, etcd, kubectl and the rest.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// A folder of programs.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// The folder `TIDEWATCH_TOOLS` names, or else the one of `tests/tools/build.sh`,
    /// which builds what is missing. Blocks: 50 ms when all is there, many minutes the
    /// first time (progress goes to standard error).
    pub fn find() -> Result<Self> {
        if let Some(folder) = std::env::var_os("TIDEWATCH_TOOLS").filter(|folder| !folder.is_empty()) {
            return Ok(Self { folder: folder.into() });
        }
        Self::build(&[])
    }

    /// A program that is not for the control planes, and is therefore in a group of its own name: from the same folder if
    /// it is there, else built as above.
    pub fn extra(&self, name: &str) -> Result<PathBuf> {
        self.get(name).or_else(|_| Self::build(&[name])?.get(name))
    }

    fn build(groups: &[&str]) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build.sh");
        let output = Command::new(&script)
            .args(groups)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", script.display()))?;
        if !output.status.success() {
            bail!("{} ended with {}; its standard error says why", script.display(), output.status);
        }
        let folder = String::from_utf8(output.stdout).context("build.sh printed a path that is not UTF-8")?;
        Ok(Self { folder: folder.trim_end().into() })
    }

    /// The folder itself, e.g. for a user's PATH.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a program (or of `kwok-stages`) in the folder.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            bail!("there is no {name} in {}: unset TIDEWATCH_TOOLS to have it built", self.folder.display());
        }
        Ok(path)
    }
}
