//! Files of a kept demo.

use std::{
    env,
    ffi::OsStr,
    fmt::Write,
    fs,
    io::{self, IsTerminal},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tidewatch_telemetry::stdio;

use crate::{files::write_private, process::running_recorded, story::RUNTIMES};

/// File of variables.
pub const ENV: &str = "env";
/// Folder of programs.
pub const BIN: &str = "bin";
/// Record of kept processes.
pub const PIDS: &str = "pids";

/// Locations for users.
#[derive(Clone, Debug)]
pub struct Variables {
    /// KCP's kubeconfig.
    pub kcp: PathBuf,
    /// The runtimes' kubeconfigs.
    pub runtimes: [PathBuf; 2],
    /// Agents' URL.
    pub receiver: String,
    /// The receiver's admin URL.
    pub receiver_admin: String,
    /// Agent 1's admin URL.
    pub agent_admin: String,
    /// The event path's CA.
    pub ca: PathBuf,
    /// Agent 1's certificate.
    pub agent_cert: PathBuf,
    /// Agent 1's key.
    pub agent_key: PathBuf,
    /// The registry's URL.
    pub registry: String,
    /// The programs' folder.
    pub bin: PathBuf,
}

impl Variables {
    /// Writes a shell file.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(ENV);
        write_private(&path, &self.text())?;
        Ok(path)
    }

    fn text(&self) -> String {
        let file = |path: &Path| path.display().to_string();
        let all = [
            ("KCP_KUBECONFIG", file(&self.kcp)),
            ("RUNTIME1_KUBECONFIG", file(&self.runtimes[0])),
            ("RUNTIME2_KUBECONFIG", file(&self.runtimes[1])),
            ("RECEIVER_URL", self.receiver.clone()),
            ("RECEIVER_ADMIN_URL", self.receiver_admin.clone()),
            ("AGENT1_ADMIN_URL", self.agent_admin.clone()),
            ("CA_FILE", file(&self.ca)),
            ("AGENT1_CERT", file(&self.agent_cert)),
            ("AGENT1_KEY", file(&self.agent_key)),
            ("REGISTRY_URL", self.registry.clone()),
            ("BIN", file(&self.bin)),
        ];
        all.iter().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "export {name}='{value}'");
            text
        })
    }
}

/// Links `tidewatch` and other programs into a folder.
pub fn link(folder: &Path, tidewatch: &Path, others: &[PathBuf]) -> Result<PathBuf> {
    let bin = folder.join(BIN);
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    let link = |program: &Path, name: &OsStr| {
        symlink(program, bin.join(name))
            .with_context(|| format!("cannot link {} into {}", program.display(), bin.display()))
    };
    link(tidewatch, OsStr::new("tidewatch"))?;
    for program in others {
        link(program, program.file_name().context("a program has no name")?)?;
    }
    Ok(bin)
}

/// Removes a kept demo's files.
pub fn clear(folder: &Path) {
    for left in ["etcd-data", ENV, BIN] {
        let path = folder.join(left);
        let _absent = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

/// Returns whether a demo runs and may be ended, by `force` or a user's answer; fails if not. Ends nothing.
pub fn may_be_ended(folder: &Path, force: bool) -> Result<bool> {
    let running = running_recorded(&folder.join(PIDS))?;
    if running == 0 || force {
        return Ok(running > 0);
    }
    let asks = io::stdin().is_terminal() && io::stdout().is_terminal();
    if asks {
        stdio::line(&format!(
            "A demo is running in {}. End it, and begin a new one? [y/N]",
            folder.display()
        ));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(true);
        }
    }
    bail!(
        "a demo is running in {}, and was left alone; end it with `make demo-down` (`tidewatch demo down`), or begin anew with \
         FORCE=1 (`--force`)",
        folder.display()
    )
}

/// Finds kubectl.
pub fn kubectl() -> Option<PathBuf> {
    let named =
        ["TIDEWATCH_TOOLS", "KUBEBUILDER_ASSETS"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let caches = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let cache = env::var_os("TIDEWATCH_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(caches?.join("tidewatch")))
        .map(|cache| cache.join("tools"));
    // One folder per set of pins.
    let built = cache.into_iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
    named
        .chain(env::split_paths(&path))
        .chain(built)
        .map(|folder| folder.join("kubectl"))
        .find(|program| program.is_file())
}

/// Returns the timeline's head.
pub fn intro(on: &str) -> String {
    format!(
        "{on}\n\
         No step begins without an event: nothing polls a runtime to find a change, so one whose event is lost ends\n\
         this demo with an error. (A reconcile that waits for a deletion it has begun looks again, after\n\
         200 ms and ever more seldom, up to 5 min.)\n\n\
         \u{20}   time  what happened                                                                  took"
    )
}

/// Returns four suggestions.
pub fn to_try(env: &Path, end: &str) -> String {
    let id = RUNTIMES[0].1;
    format!(
        "\nEverything is still running. Four things to try, after: . {}\n\n\
         1. Enable the module, and watch it become Ready (Ctrl-C ends the watching):\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n kyma-system patch kyma default --type merge -p \
         '{{\"spec\":{{\"modules\":[{{\"name\":\"lighthouse\"}}]}}}}'\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n kyma-system get kyma default -w\n\
         2. Break it, and look for it again:\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n lighthouse-system delete deployment lighthouse-keeper\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n lighthouse-system get deployments\n\
         3. Ask why each reconcile was made:\n\
         \u{20}  $BIN/tidewatch explain {id}\n\
         4. Check the control plane, its runtimes and their certificates:\n\
         \u{20}  $BIN/tidewatch doctor --kubeconfig $KCP_KUBECONFIG\n\
         \u{20}  $BIN/tidewatch certs status --kubeconfig $KCP_KUBECONFIG\n\n\
         {end}",
        env.display()
    )
}
