//! Child processes that end with their handle or this process, even by SIGKILL.
//!
//! `watchdog.sh` reads a pipe from this process. When the kernel closes it, the script sends SIGTERM and, after a grace, SIGKILL. An own
//! process group shields it from Ctrl-C.

use std::{
    fs::{self, File, OpenOptions},
    future::Future,
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wait;

const WATCHDOG: &str = include_str!("watchdog.sh");
/// Ignores the terminal's hang-up; `exec` keeps the pid.
const DETACHED: &str = "trap '' HUP; exec \"$0\" \"$@\"";
/// Inherited variables; a user's KUBECONFIG or proxy must not change a test.
const KEPT_ENV: [&str; 3] = ["PATH", "HOME", "TMPDIR"];
/// For a killed process to end.
const KILLED: Duration = Duration::from_secs(5);
/// Longest `exec`.
const REPLACING: Duration = Duration::from_millis(500);
/// Linux: no such process.
const ESRCH: i32 = 3;
const TAIL_BYTES: u64 = 256 * 1024;

/// A process's lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// That of handle and this process.
    WithUs,
    /// Until [`end_recorded`].
    Detached {
        /// Record, one line per process.
        pids: PathBuf,
    },
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// For messages, e.g. `kcp/kube-apiserver`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment besides PATH, HOME and TMPDIR.
    pub env: Vec<(String, String)>,
    /// Output file, truncated.
    pub log: PathBuf,
    /// SIGTERM to SIGKILL; in tenths of a second.
    pub grace: Duration,
    /// Folder removed after the end, unless detached.
    pub scratch: Option<PathBuf>,
    /// The lifetime.
    pub lifetime: Lifetime,
}

/// A process. Unless detached, dropping ends it within its grace.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Mutex<Child>,
    /// Its end stops the program.
    pipe: Option<ChildStdin>,
}

impl Process {
    /// Starts a program.
    pub fn start(spec: &Spec) -> Result<Self> {
        let Spec { name, program, args, env, log, grace, scratch, lifetime } = spec;
        let log_file = create_log(log)?;
        if let Some(scratch) = scratch {
            fs::create_dir_all(scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        }
        let mut command = Command::new("sh");
        match lifetime {
            Lifetime::WithUs => {
                let tenths = (grace.as_millis() / 100).to_string();
                command.args(["-c", WATCHDOG, "watchdog", &tenths]);
                command.arg(scratch.as_deref().unwrap_or(Path::new(""))).arg(program);
                command.stdin(Stdio::piped());
            }
            Lifetime::Detached { .. } => {
                command.args(["-c", DETACHED]).arg(program);
                command.stdin(Stdio::null());
            }
        }
        let mut child = command
            .args(args)
            .env_clear()
            .envs(KEPT_ENV.iter().filter_map(|key| Some((key, std::env::var_os(key)?))))
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdout(log_file.try_clone().context("cannot share the log file")?)
            .stderr(log_file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let process = Self { spec: spec.clone(), pipe: child.stdin.take(), child: Mutex::new(child) };
        if let Lifetime::Detached { pids } = lifetime {
            record(pids, process.pid(), program)?;
        }
        Ok(process)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the spec, for a restart.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn detached(&self) -> bool {
        matches!(self.spec.lifetime, Lifetime::Detached { .. })
    }

    /// Returns the program's pid if detached, else the watchdog's.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    /// Returns the output file.
    pub fn log(&self) -> &Path {
        &self.spec.log
    }

    /// Returns the exit status, once ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// Returns the output's last `lines`.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.spec.log, lines).unwrap_or_else(|error| format!("(no log: {error:#})"))
    }

    /// As [`wait::until`], but fails when the process ends.
    pub async fn ready<T, F, Fut>(&self, what: &str, timeout: Duration, mut probe: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<Option<T>>>,
    {
        let what = format!("{} {what}", self.spec.name);
        let ready = wait::until(&what, timeout, || {
            let ended = self.ended();
            let probed = probe();
            async move {
                match ended {
                    Some(status) => Ok(Some(Err(anyhow!("{} ended early, with {status}", self.spec.name)))),
                    None => probed.await.map(|value| value.map(Ok)),
                }
            }
        });
        ready.await.and_then(|value| value).map_err(|error| {
            error.context(format!(
                "{} is not ready; the end of {}:\n{}",
                self.spec.name,
                self.spec.log.display(),
                self.log_tail(15)
            ))
        })
    }

    /// Sends SIGKILL to the program and waits.
    pub async fn kill(&self) -> Result<()> {
        let pid = if self.detached() { self.pid() } else { self.program_pid().await? };
        signal("KILL", &[pid]);
        let gone = || async { Ok(self.ended()) };
        wait::until(&format!("{} to be gone after SIGKILL", self.spec.name), KILLED, gone).await?;
        Ok(())
    }

    /// Sends SIGSTOP; connections stay open.
    pub async fn freeze(&self) -> Result<()> {
        signal("STOP", &[self.program_pid().await?]);
        Ok(())
    }

    /// Resumes after [`Process::freeze`].
    pub async fn thaw(&self) -> Result<()> {
        signal("CONT", &[self.program_pid().await?]);
        Ok(())
    }

    /// Waits for the program's pid.
    pub async fn program_pid(&self) -> Result<u32> {
        let (proc, program) = (Path::new("/proc"), self.spec.program.display().to_string());
        let watchdog = self.pid();
        let children = proc.join(format!("{watchdog}/task/{watchdog}/children"));
        let found = || async {
            let text =
                fs::read_to_string(&children).with_context(|| format!("{} has ended", self.spec.name))?;
            for pid in text.split_whitespace().filter_map(|pid| pid.parse().ok()) {
                if runs(proc, pid, &program)? {
                    return Ok(Some(pid));
                }
            }
            Ok(None)
        };
        self.ready("to run", KILLED, found).await
    }

    /// Starts the end without waiting, unless detached.
    pub fn begin_end(&mut self) {
        drop(self.pipe.take());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.detached() {
            self.begin_end();
            // Bounded by the grace; an error means ended.
            let _gone = self.child.lock().wait();
        }
    }
}

/// Ends all processes in `pids`, after `grace` by SIGKILL. Returns their number. Skips pids of other programs. The file stays if one may
/// still run.
pub async fn end_recorded(pids: &Path, grace: Duration) -> Result<usize> {
    end_recorded_in(Path::new("/proc"), pids, grace).await
}

/// Counts running processes in `pids`.
pub fn running_recorded(pids: &Path) -> Result<usize> {
    let text = recorded(pids)?.unwrap_or_default();
    Ok(running_of(Path::new("/proc"), &text)?.len())
}

fn recorded(pids: &Path) -> Result<Option<String>> {
    match fs::read_to_string(pids) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", pids.display())),
    }
}

fn running_of(proc: &Path, text: &str) -> Result<Vec<u32>> {
    let recorded = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, program)| !program.is_empty())
        .filter_map(|(pid, program)| Some((pid.parse().ok()?, program)));
    let mut found = Vec::new();
    for (pid, program) in recorded {
        if runs(proc, pid, program)? {
            found.push(pid);
        }
    }
    Ok(found)
}

async fn end_recorded_in(proc: &Path, pids: &Path, grace: Duration) -> Result<usize> {
    let Some(text) = recorded(pids)? else { return Ok(0) };
    let running = || running_of(proc, &text);
    let all_ended = || async { Ok(running()?.is_empty().then_some(())) };
    let stays = || format!("{} names the processes that may still run", pids.display());
    let found = running().with_context(stays)?;
    signal("TERM", &found);
    if wait::until("the recorded processes to end", grace, all_ended).await.is_err() {
        signal("KILL", &running().with_context(stays)?);
        wait::until("the killed processes to end", KILLED, all_ended).await.with_context(stays)?;
    }
    match fs::remove_file(pids) {
        // The process may have removed it.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", pids.display()))
        }
        _ => Ok(found.len()),
    }
}

fn create_log(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // Both streams append, or they overwrite each other.
    File::create(path)
        .and_then(|_| OpenOptions::new().append(true).open(path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Records a process for [`end_recorded`] with its command line's first word.
pub fn record(pids: &Path, pid: u32, program: &Path) -> Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(pids)
        .and_then(|mut file| writeln!(file, "{pid} {}", program.display()))
        .with_context(|| format!("cannot record pid {pid} in {}", pids.display()))
}

/// Checks `/proc`. Command lines are empty for zombies and during `exec`, hence retries for [`REPLACING`].
fn runs(proc: &Path, pid: u32, program: &str) -> Result<bool> {
    let own = proc.join("self/cmdline");
    ensure!(own.exists(), "{} is not there: what runs cannot be told", own.display());
    let folder = proc.join(pid.to_string());
    let since = Instant::now();
    let mut line = command_line(&folder, pid)?;
    while line.as_ref().is_some_and(Vec::is_empty) && lives(&folder) && since.elapsed() < REPLACING {
        std::thread::sleep(Duration::from_millis(1));
        line = command_line(&folder, pid)?;
    }
    let Some(line) = line else { return Ok(false) };
    let line = String::from_utf8_lossy(&line);
    let args: Vec<&str> = line.split('\0').collect();
    Ok(match args[..] {
        // Program, script, or shell before `exec`.
        [first, ..] if first == program => true,
        [_, second, ..] if second == program => true,
        [_, _, script, fourth, ..] => script == DETACHED && fourth == program,
        _ => false,
    })
}

/// Neither dead nor a zombie.
fn lives(folder: &Path) -> bool {
    fs::read_to_string(folder.join("stat")).is_ok_and(|stat| {
        // The name may contain brackets and spaces.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
    })
}

/// NUL-separated. One read: two might see two programs.
fn command_line(folder: &Path, pid: u32) -> Result<Option<Vec<u8>>> {
    let mut line = vec![0; 4096];
    match File::open(folder.join("cmdline")).and_then(|mut file| file.read(&mut line)) {
        Ok(length) => {
            line.truncate(length);
            Ok(Some(line))
        }
        // Absent, gone while reading, or of another user.
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at process {pid}")),
    }
}

/// Uses the shell's builtin; the program may be absent.
fn signal(signal: &str, pids: &[u32]) {
    if !pids.is_empty() {
        // Fails if one has ended, which is fine.
        let _ended = Command::new("sh")
            .args(["-c", "for pid; do kill -s \"$0\" \"$pid\"; done", signal])
            .args(pids.iter().map(u32::to_string))
            .stderr(Stdio::null())
            .status();
    }
}

fn tail(path: &Path, lines: usize) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        bail!("{} is empty", path.display());
    }
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

#[cfg(test)]
mod tests;
