//! Child processes that end for certain: when their handle drops, and when this process
//! dies in any way, by panic, Ctrl-C or SIGKILL.
//!
//! A program runs under a small shell script (`watchdog.sh`) whose standard input is a
//! pipe that this process holds. The kernel closes the pipe with us, the script sees the
//! end of its input and ends the program: SIGTERM, a grace, SIGKILL. Script and program
//! have a process group of their own, so that Ctrl-C reaches only us.

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
/// Survives the hang-up of the terminal it was started from; `exec` keeps the pid.
const DETACHED: &str = "trap '' HUP; exec \"$0\" \"$@\"";
/// What of our environment a program gets; the rest is named in its [`Spec`], so that no
/// KUBECONFIG or proxy of the user changes a test.
const KEPT_ENV: [&str; 3] = ["PATH", "HOME", "TMPDIR"];
/// How long the kernel may take to end what was killed.
const KILLED: Duration = Duration::from_secs(5);
/// How long a process may be between two programs (`exec`).
const REPLACING: Duration = Duration::from_millis(500);
/// "No such process", in Linux.
const ESRCH: i32 = 3;
/// Of a log, not more than this is read for its tail.
const TAIL_BYTES: u64 = 256 * 1024;

/// How long a process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as its handle and this process.
    WithUs,
    /// Until [`end_recorded`] is called with this file, in which its pid is written down.
    /// Dropping the handle does nothing.
    Detached {
        /// The record, one line per process; made if absent.
        pids: PathBuf,
    },
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// A short name for messages, e.g. `kcp/kube-apiserver`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment besides PATH, HOME and TMPDIR.
    pub env: Vec<(String, String)>,
    /// Where standard output and error go; truncated at the start.
    pub log: PathBuf,
    /// How long between SIGTERM and SIGKILL; tenths of a second count.
    pub grace: Duration,
    /// A folder to make before the start and to remove after the end (not when detached).
    pub scratch: Option<PathBuf>,
    /// How long it lives.
    pub lifetime: Lifetime,
}

/// A running process. Dropping it ends the process, unless detached, and waits for that:
/// at most its grace.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Mutex<Child>,
    /// Open as long as the program may run.
    pipe: Option<ChildStdin>,
}

impl Process {
    /// Starts a program; it is not waited for.
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

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it was started with, to start it again.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn detached(&self) -> bool {
        matches!(self.spec.lifetime, Lifetime::Detached { .. })
    }

    /// Its pid: of the program when detached, of its watchdog otherwise.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.spec.log
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// The last `lines` lines of its output, or why there are none.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.spec.log, lines).unwrap_or_else(|error| format!("(no log: {error:#})"))
    }

    /// Like [`wait::until`], but fails at once when the process ends first; in both cases
    /// with the end of its log.
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

    /// Kills the program itself (SIGKILL): it has no time for anything. Returns when it is gone; its folder stays only if
    /// it has none of its own ([`Spec::scratch`]).
    pub async fn kill(&self) -> Result<()> {
        let pid = if self.detached() { self.pid() } else { self.program_pid().await? };
        signal("KILL", &[pid]);
        let gone = || async { Ok(self.ended()) };
        wait::until(&format!("{} to be gone after SIGKILL", self.spec.name), KILLED, gone).await?;
        Ok(())
    }

    /// Stops the program itself where it is (SIGSTOP): its connections stay, and nobody answers.
    pub async fn freeze(&self) -> Result<()> {
        signal("STOP", &[self.program_pid().await?]);
        Ok(())
    }

    /// Lets it go on after [`Process::freeze`].
    pub async fn thaw(&self) -> Result<()> {
        signal("CONT", &[self.program_pid().await?]);
        Ok(())
    }

    /// The program's pid, of which only the watchdog knows; the program may not have taken its place yet.
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

    /// Begins to end it without waiting: so that many can end at the same time before
    /// they are dropped one after the other. Does nothing when detached.
    pub fn begin_end(&mut self) {
        drop(self.pipe.take());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.detached() {
            self.begin_end();
            // Bounded: the watchdog kills after the grace. An error means it is gone.
            let _gone = self.child.lock().wait();
        }
    }
}

/// Ends every process written down in `pids` (SIGTERM, then SIGKILL to what is left after
/// `grace`), removes the file and returns how many were running. A pid that belongs to
/// another program by now is left alone; no file means there is nothing to end. While it
/// cannot be told whether they run, or one does not end, the file stays.
pub async fn end_recorded(pids: &Path, grace: Duration) -> Result<usize> {
    end_recorded_in(Path::new("/proc"), pids, grace).await
}

/// How many of the processes written down in `pids` run.
pub fn running_recorded(pids: &Path) -> Result<usize> {
    let text = recorded(pids)?.unwrap_or_default();
    Ok(running_of(Path::new("/proc"), &text)?.len())
}

/// What is written down; `None` without a file.
fn recorded(pids: &Path) -> Result<Option<String>> {
    match fs::read_to_string(pids) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", pids.display())),
    }
}

/// Those that run of the processes that a text names.
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
        // One that ended may have removed it itself.
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
    // Both streams append: two writers at positions of their own would overwrite each other.
    File::create(path)
        .and_then(|_| OpenOptions::new().append(true).open(path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes down a process for [`end_recorded`]; `program` is the first word of its command line.
pub fn record(pids: &Path, pid: u32, program: &Path) -> Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(pids)
        .and_then(|mut file| writeln!(file, "{pid} {}", program.display()))
        .with_context(|| format!("cannot record pid {pid} in {}", pids.display()))
}

/// Whether `pid` runs and its command line is that of `program`, by the kernel's table of
/// processes (`/proc`). A zombie has no command line, and neither has, for the moment of it, a
/// process whose program is just being replaced: the latter is looked at again, for up to
/// [`REPLACING`].
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
        // Itself, as a script of its interpreter, and not yet put in the place of its shell.
        [first, ..] if first == program => true,
        [_, second, ..] if second == program => true,
        [_, _, script, fourth, ..] => script == DETACHED && fourth == program,
        _ => false,
    })
}

/// Whether the process has a state (`/proc/<pid>/stat`) that is not dead and not a zombie.
fn lives(folder: &Path) -> bool {
    fs::read_to_string(folder.join("stat")).is_ok_and(|stat| {
        // The name, in brackets, may itself hold brackets and spaces.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
    })
}

/// The beginning of the command line of a process, its parts ended by NUL; `None` when there
/// is none of that pid. In one call of the kernel: two may see two programs.
fn command_line(folder: &Path, pid: u32) -> Result<Option<Vec<u8>>> {
    let mut line = vec![0; 4096];
    match File::open(folder.join("cmdline")).and_then(|mut file| file.read(&mut line)) {
        Ok(length) => {
            line.truncate(length);
            Ok(Some(line))
        }
        // Not there, or gone while it was read, or somebody else's.
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at process {pid}")),
    }
}

/// By the shell's own `kill`: the program of that name is not everywhere.
fn signal(signal: &str, pids: &[u32]) {
    if !pids.is_empty() {
        // Fails when one has ended meanwhile, which is what is wanted.
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
