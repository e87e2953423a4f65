//! `make demo REAL=1`: the product on real control planes.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tidewatch_demo::kept::{self, Variables};
use tidewatch_telemetry::stdio;
use tidewatch_tests::{
    ControlPlane, Harness, Lifetime, binaries,
    cluster::ADMIN,
    env::Environment,
    harness::target_folder,
    process::end_recorded,
    report::{Line, Reporter, Terminal},
    story::World,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// Shows the life of a module on three real control planes, with a registry, the receiver and two agents.
#[derive(Parser)]
#[command(name = "tidewatch-real-demo")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the demo.
    Up {
        /// Leave everything running afterwards.
        #[arg(long)]
        keep: bool,
        /// End a running demo without asking.
        #[arg(long)]
        force: bool,
    },
    /// End the demo that `up --keep` left running.
    Down,
}

fn main() -> ExitCode {
    let Args { command } = Args::parse();
    if let Command::Up { force, .. } = command
        && let Err(error) = kept::may_be_ended(&folder(), force)
    {
        stdio::note(&format!("{error:#}"));
        return ExitCode::FAILURE;
    }
    let terminal = Terminal::default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.say(&format!("no tokio runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let kept = matches!(command, Command::Up { keep: true, .. });
    let result = runtime.block_on(async {
        let result = tokio::select! {
            result = run(command, &terminal) => result,
            interrupted = interrupted() => interrupted,
        };
        if result.is_err() && kept {
            end_kept(&terminal).await;
        }
        result
    });
    terminal.finish();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = folder();
            let logs = folder.canonicalize().unwrap_or(folder);
            terminal.say(&format!("\nThe demo failed: {error:#}\nLogs are in {}", logs.display()));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error on a termination signal.
async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => bail!("it was told to end"),
        _ = interrupt.recv() => bail!("it was interrupted"),
    }
}

/// Kept processes outlive this program, so an incomplete demo must be ended here.
async fn end_kept(terminal: &Terminal) {
    terminal.working("ending what was started");
    terminal.say(&match down().await {
        Ok(ended) => {
            format!("\nNothing is left running: {ended} processes ended. `make demo-down` makes sure of it.")
        }
        Err(error) => {
            format!("\nNot everything could be ended: {error:#}\n`make demo-down` tries it again.")
        }
    });
}

fn folder() -> PathBuf {
    target_folder().join("demo")
}

fn pids() -> PathBuf {
    folder().join(kept::PIDS)
}

async fn run(command: Command, terminal: &Terminal) -> Result<()> {
    match command {
        Command::Up { keep, .. } => Box::pin(up(keep, terminal)).await,
        Command::Down => {
            let ended = down().await?;
            terminal.say(&format!("{ended} processes ended"));
            Ok(())
        }
    }
}

async fn down() -> Result<usize> {
    let ended = end_recorded(&pids(), Duration::from_secs(10)).await?;
    kept::clear(&folder());
    Ok(ended)
}

async fn up(keep: bool, terminal: &Terminal) -> Result<()> {
    if down().await? > 0 {
        terminal.say("A demo that was kept running has been ended.");
    }
    terminal.say(&kept::intro("Tidewatch on real control planes: one as KCP, two as runtimes."));
    let lifetime = if keep { Lifetime::Detached { pids: pids() } } else { Lifetime::WithUs };
    let started = Instant::now();
    terminal.working("starting etcd, a registry and three control planes");
    let env = Environment::start(Harness::new(&folder(), lifetime)?).await?;
    let what = "etcd, registry, 3 x kube-apiserver and kube-controller-manager ready";
    terminal.done(Line { what: what.to_owned(), took: Instant::now().duration_since(started), seq: None });
    let world = World::start(&env, terminal).await?;
    world.run(terminal).await?;
    let last = if keep {
        kept::to_try(&write_env(&env, &world)?, "`make demo-down` ends it.")
    } else {
        "\nDone. `make demo REAL=1 KEEP=1` leaves it running to try things; logs are in target/demo."
            .to_owned()
    };
    terminal.finish();
    terminal.say(&last);
    Ok(())
}

/// Writes shell variables for scripts.
fn write_env(env: &Environment, world: &World) -> Result<PathBuf> {
    let agent = world.agents.first().context("there is no agent")?;
    let kubeconfig = |cluster: &ControlPlane| {
        env.harness.write(&format!("{}.kubeconfig", cluster.name()), &cluster.kubeconfig_yaml(ADMIN)?)
    };
    let variables = Variables {
        kcp: kubeconfig(&env.kcp)?,
        runtimes: [kubeconfig(&env.runtime1)?, kubeconfig(&env.runtime2)?],
        receiver: world.receiver.url.clone(),
        receiver_admin: world.receiver.admin.clone(),
        agent_admin: agent.admin.clone(),
        ca: world.receiver.ca_file.clone(),
        agent_cert: agent.identity.cert.clone(),
        agent_key: agent.identity.key.clone(),
        registry: env.registry.url(),
        bin: link_programs(env)?,
    };
    variables.write(env.harness.folder())
}

/// Links the control plane programs, kubectl and the product's command into one folder.
fn link_programs(env: &Environment) -> Result<PathBuf> {
    let tools = env.harness.tools()?.folder();
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(tools).with_context(|| format!("cannot read {}", tools.display()))? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        programs.extend((!hidden).then_some(path));
    }
    kept::link(env.harness.folder(), &binaries::find("tidewatch")?, &programs)
}
