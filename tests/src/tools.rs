//! Paths of programs such as kube-apiserver, etcd and kubectl.

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
    /// Returns the folder from `TIDEWATCH_TOOLS` or `tests/tools/build.sh`, which builds missing programs.
    /// Blocks 50 ms, or many minutes for the first build (progress on standard error).
    pub fn find() -> Result<Self> {
        if let Some(folder) = std::env::var_os("TIDEWATCH_TOOLS").filter(|folder| !folder.is_empty()) {
            return Ok(Self { folder: folder.into() });
        }
        Self::build(&[])
    }

    /// Returns a program outside the control planes, from this folder or built on demand.
    pub fn extra(&self, name: &str) -> Result<PathBuf> {
        self.get(name).or_else(|_| Self::build(&[name])?.get(name))
    }

    /// Returns the folder of cert-manager's CRDs, from this folder or downloaded on demand.
    pub fn cert_manager_crds(&self) -> Result<PathBuf> {
        const FOLDER: &str = "cert-manager-crds";
        self.get(FOLDER).or_else(|_| Self::build(&["cert-manager"])?.get(FOLDER))
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

    /// Returns the folder, e.g. for a user's PATH.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a program or `kwok-stages`.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            bail!("there is no {name} in {}: unset TIDEWATCH_TOOLS to have it built", self.folder.display());
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const PROGRAMS: [&str; 7] = [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kwok",
        "registry",
    ];

    fn put_program(path: &Path, script: &str) {
        fs::write(path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn prebuilt_programs_need_no_go() {
        let folder = tempfile::tempdir().unwrap();
        let [assets, path] = ["assets", "path"].map(|name| folder.path().join(name));
        fs::create_dir_all(assets.join("kwok-stages")).unwrap();
        fs::create_dir_all(&path).unwrap();
        put_program(&path.join("go"), "#!/bin/sh\nexit 1\n");
        for program in PROGRAMS {
            put_program(&assets.join(program), "");
        }
        let run = || {
            let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build.sh"))
                .envs([("PATH", path.as_str()), ("KUBEBUILDER_ASSETS", "assets")])
                .env("TIDEWATCH_CACHE", folder.path().join("cache"))
                .current_dir(folder.path())
                .output()
                .unwrap()
        };
        fs::rename(assets.join("kwok-stages"), assets.join("elsewhere")).unwrap();
        assert!(!run().status.success(), "without stage files it asks Go where they are");

        fs::rename(assets.join("elsewhere"), assets.join("kwok-stages")).unwrap();
        let output = run();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tools = Tools { folder: String::from_utf8(output.stdout).unwrap().trim_end().into() };
        for program in PROGRAMS.into_iter().chain(["kwok-stages"]) {
            let assets = assets.canonicalize().unwrap();
            assert_eq!(tools.get(program).unwrap().canonicalize().unwrap(), assets.join(program));
        }
    }
}
