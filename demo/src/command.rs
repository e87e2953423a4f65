//! `tidewatch demo`: the demo on simulated clusters.

use std::{
    env, fs,
    io::{IsTerminal, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    files, kept,
    process::{Lifetime, Process, Spec, end_recorded, record},
    report::{Line, Reporter, Terminal, WORKING},
    simulated::Simulated,
    story::World,
    wait,
};

const LEVEL: &str =
    "info,tidewatch_engine=debug,tidewatch_receiver=debug,tidewatch_listener=debug,tidewatch_agent=debug";
/// For a kept demo's end.
const END: Duration = Duration::from_secs(20);
/// All connections are local.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// Show the life of a module in a timeline, on simulated clusters in one process.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Demo {
    /// Leave everything running until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Return after the timeline, and leave everything running until `tidewatch demo down`.
    #[arg(long, requires = "keep")]
    detach: bool,
    /// Marks the process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
    /// Tell the story in one cluster, which the receiver manages itself (`docs/operate/single-cluster.md`).
    #[arg(long, conflicts_with = "keep")]
    single: bool,
    /// End a running demo of the same folder without asking.
    #[arg(long)]
    force: bool,
    /// Folder for log, certificates, kubeconfigs and the file of variables [default: target/demo].
    #[arg(long, global = true, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// End a running demo.
    Down,
}

/// Runs the command.
pub async fn run(demo: Demo) -> Result<()> {
    let Demo { keep, detach, detached, single, force, folder, action } = demo;
    let target = || env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = folder.unwrap_or_else(|| target().join("demo"));
    if matches!(action, Some(Action::Down)) && !folder.exists() {
        Terminal::default().say(&format!("there is no {}, so no demo is running there", folder.display()));
        return Ok(());
    }
    files::make(&folder)?;
    let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
    let ends_another = action.is_none() && !detached && kept::may_be_ended(&folder, force)?;
    let terminal = Terminal::default();
    let result = if matches!(action, Some(Action::Down)) {
        let ended = down(&folder).await;
        ended.map(|ended| terminal.say(&ended_processes(ended)))
    } else {
        without_proxies()?;
        if !detached {
            down(&folder).await?;
        }
        if ends_another {
            terminal.say("The demo that was running has been ended.");
        }
        if detach {
            Box::pin(in_background(&folder, &terminal)).await
        } else {
            let end = if single {
                End::Single
            } else if detached {
                End::Detached
            } else if keep {
                End::Kept
            } else {
                End::AtOnce
            };
            Box::pin(up(&folder, end, &terminal)).await
        }
    };
    terminal.finish();
    result.with_context(|| format!("the demo failed; logs are in {}", folder.display()))
}

/// Restarts without proxies: changing one's own environment is unsound.
pub fn without_proxies() -> Result<()> {
    if PROXIES.iter().all(|name| env::var_os(name).is_none()) {
        return Ok(());
    }
    let program = env::current_exe().context("the path of this program is not known")?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1));
    for name in PROXIES {
        command.env_remove(name);
    }
    Err(command.exec()).context("cannot begin again without proxies")
}

fn ended_processes(count: usize) -> String {
    format!("{count} {} ended", if count == 1 { "process" } else { "processes" })
}

async fn down(folder: &Path) -> Result<usize> {
    let ended = end_recorded(&folder.join(kept::PIDS), END).await?;
    kept::clear(folder);
    Ok(ended)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    AtOnce,
    /// As `AtOnce`, with one cluster.
    Single,
    Kept,
    Detached,
}

impl End {
    const fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Detached)
    }
}

async fn up(folder: &Path, end: End, terminal: &Terminal) -> Result<()> {
    let _taken = files::take(folder, "--folder")?;
    let log = fs::File::create(folder.join("tidewatch.log")).context("cannot make the log")?;
    tidewatch_telemetry::logging::to_file(log, LEVEL)?;
    let is_single = end == End::Single;
    terminal.say(&kept::intro(if is_single {
        "Tidewatch in a single simulated cluster: it manages the cluster in which it runs."
    } else {
        "Tidewatch on simulated control planes: one as KCP, two as runtimes, all in this process."
    }));
    let started = Instant::now();
    terminal.working("starting a registry and simulated control planes");
    let mut simulated =
        if is_single { Simulated::single(folder).await? } else { Simulated::start(folder).await? };
    let count = if is_single { 1 } else { 3 };
    let what = format!("registry, {count} x simulated API server with its controllers ready");
    terminal.done(Line { what, took: Instant::now().duration_since(started), seq: None });
    // One for both: no signal is lost.
    let mut told = Box::pin(interrupted());
    let played = tokio::select! {
        played = Box::pin(play(folder, end, terminal, &mut simulated)) => played,
        how = &mut told => Err(anyhow!(how)),
    };
    let result = match played {
        Ok(()) if end.is_kept() => tokio::select! {
            how = told => {
                terminal.say(&format!("\nEnded: {how}."));
                Ok(())
            }
            broken = simulated.broken() => Err(anyhow!("{broken} has ended")),
        },
        played => played,
    };
    simulated.end().await;
    if end.is_kept() {
        kept::clear(folder);
        let _absent = fs::remove_file(folder.join(kept::PIDS));
    }
    result
}

async fn play(folder: &Path, end: End, terminal: &Terminal, simulated: &mut Simulated) -> Result<()> {
    if end == End::Single {
        let (client, registry) = simulated.single_stage()?;
        let world = World::start_single(client, &registry, simulated, terminal).await?;
        world.run(terminal).await?;
        terminal.finish();
        terminal.say("\nDone. docs/operate/single-cluster.md installs it in a cluster of yours.");
        return Ok(());
    }
    let world = World::start(simulated.stage()?, simulated, terminal).await?;
    world.run(terminal).await?;
    if end == End::AtOnce {
        terminal.finish();
        terminal.say("\nDone. `make demo KEEP=1` (`tidewatch demo --keep`) leaves it running to try things.");
        return Ok(());
    }
    let own = env::current_exe().context("the path of this program is not known")?;
    let bin = kept::link(folder, &own, kept::kubectl().as_slice())?;
    if end == End::Kept {
        // For `tidewatch demo down`.
        let called = env::args_os().next().context("the name of this program is not known")?;
        record(&folder.join(kept::PIDS), std::process::id(), Path::new(&called))?;
    }
    let env = simulated.variables(&bin)?.write(folder)?;
    if end == End::Kept {
        terminal.finish();
        terminal.say(&to_try(&env, "Ctrl-C ends it."));
    }
    Ok(())
}

fn to_try(env: &Path, end: &str) -> String {
    let lacking = if env.with_file_name(kept::BIN).join("kubectl").exists() {
        ""
    } else {
        "\nNo kubectl was found on PATH: $BIN has none. Use one from elsewhere with the same kubeconfigs."
    };
    format!("{}{lacking}", kept::to_try(env, end))
}

async fn in_background(folder: &Path, terminal: &Terminal) -> Result<()> {
    let program = env::current_exe().context("the path of this program is not known")?;
    let args = ["demo", "--keep", "--detached", "--folder"].map(str::to_owned).into_iter();
    let kubectl = kept::kubectl().and_then(|kubectl| kubectl.parent().map(Path::to_owned));
    let spec = Spec {
        name: "the demo".to_owned(),
        program,
        args: args.chain([folder.display().to_string()]).collect(),
        env: kubectl
            .map(|tools| ("TIDEWATCH_TOOLS".to_owned(), tools.display().to_string()))
            .into_iter()
            .collect(),
        log: folder.join("demo.log"),
        grace: END,
        scratch: None,
        lifetime: Lifetime::Detached { pids: folder.join(kept::PIDS) },
    };
    let (process, env) = (Process::start(&spec)?, folder.join(kept::ENV));
    let result = tokio::select! {
        followed = follow(&process, &env, terminal) => followed,
        interrupted = interrupted() => Err(anyhow!(interrupted)),
    };
    match result {
        Ok(()) => {
            terminal.finish();
            let end = "`make demo-down` (`tidewatch demo down`) ends it.";
            terminal.say(&to_try(&env, end));
            Ok(())
        }
        Err(error) => {
            let ended = down(folder).await?;
            terminal.say(&format!("\nNothing is left running: {}.", ended_processes(ended)));
            Err(error)
        }
    }
}

async fn follow(process: &Process, until: &Path, terminal: &Terminal) -> Result<()> {
    let mut log = fs::File::open(process.log()).context("the log cannot be read")?;
    let mut pending = String::new();
    loop {
        // This order shows the last output.
        let (done, ended) = (until.exists(), process.ended());
        log.read_to_string(&mut pending).context("the log cannot be read")?;
        while let Some((line, rest)) = pending.split_once('\n') {
            match line.strip_prefix(WORKING) {
                Some(what) if std::io::stderr().is_terminal() => terminal.working(what),
                _ => terminal.say(line),
            }
            pending = rest.to_owned();
        }
        match (done, ended) {
            (true, _) => return Ok(()),
            (false, Some(status)) => bail!("it ended early, with {status}"),
            (false, None) => wait::pause().await,
        }
    }
}

/// Waits for SIGTERM or SIGINT.
pub async fn interrupted() -> String {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return "it cannot listen to signals".to_owned();
    };
    tokio::select! {
        _ = terminate.recv() => "it was told to end (SIGTERM)".to_owned(),
        _ = interrupt.recv() => "it was interrupted".to_owned(),
    }
}
