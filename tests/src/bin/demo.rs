//! `make demo`: the product at work on real control planes.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tidewatch_tests::{
    Harness, Lifetime, binaries,
    cluster::ADMIN,
    env::Environment,
    harness::target_folder,
    process::end_recorded,
    report::{Line, Reporter, Terminal},
    story::{RUNTIMES, World},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// Shows an event's way: three real control planes, a registry, the receiver, two agents, one module.
#[derive(Parser)]
#[command(name = "tidewatch-demo")]
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
    },
    /// End what `up --keep` has left running.
    Down,
}

/// In the demo's folder: links to programs.
const BIN: &str = "bin";

fn main() -> ExitCode {
    let Args { command } = Args::parse();
    let terminal = Terminal::default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.say(&format!("no tokio runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let kept = matches!(command, Command::Up { keep: true });
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

/// Ends, with an error, when somebody asks this program to end.
async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => bail!("it was told to end"),
        _ = interrupt.recv() => bail!("it was interrupted"),
    }
}

/// What was to be left running outlives this program: it is ended when there is no whole demo to try.
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
    folder().join("pids")
}

async fn run(command: Command, terminal: &Terminal) -> Result<()> {
    match command {
        Command::Up { keep } => Box::pin(up(keep, terminal)).await,
        Command::Down => {
            let ended = down().await?;
            terminal.say(&format!("{ended} processes ended"));
            Ok(())
        }
    }
}

async fn down() -> Result<usize> {
    let ended = end_recorded(&pids(), Duration::from_secs(10)).await?;
    for left in ["etcd-data", "env", BIN] {
        let path = folder().join(left);
        let _absent =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
    }
    Ok(ended)
}

async fn up(keep: bool, terminal: &Terminal) -> Result<()> {
    if down().await? > 0 {
        terminal.say("A demo that was kept running has been ended.");
    }
    terminal.say(
        "Tidewatch on real control planes: one as KCP, two as runtimes. No step begins without an event: nothing\n\
         polls a runtime to find a change, so one whose event is lost ends this demo with an error. (A reconcile\n\
         that waits for a deletion it has begun looks again, after 200 ms to 30 s.)\n\n\
         \u{20}   time  what happened                                                                  took",
    );
    let lifetime = if keep { Lifetime::Detached { pids: pids() } } else { Lifetime::WithUs };
    let started = Instant::now();
    terminal.working("starting etcd, a registry and three control planes");
    let env = Environment::start(Harness::new(&folder(), lifetime)?).await?;
    let what = "etcd, registry, 3 x kube-apiserver and kube-controller-manager ready";
    terminal.done(Line { what: what.to_owned(), took: Instant::now().duration_since(started), seq: None });
    let world = World::start(&env, terminal).await?;
    world.run(terminal).await?;
    let last = if keep {
        to_try(&write_env(&env, &world)?)
    } else {
        "\nDone. `make demo KEEP=1` leaves it running to try things; logs are in target/demo.".to_owned()
    };
    terminal.finish();
    terminal.say(&last);
    Ok(())
}

/// Shell variables for scripts.
fn write_env(env: &Environment, world: &World<'_>) -> Result<PathBuf> {
    let agent = world.agents.first().context("there is no agent")?;
    let mut lines = Vec::new();
    let mut set = |name: &str, value: String| lines.push(format!("export {name}='{value}'"));
    for (name, cluster) in [
        ("KCP_KUBECONFIG", &env.kcp),
        ("RUNTIME1_KUBECONFIG", &env.runtime1),
        ("RUNTIME2_KUBECONFIG", &env.runtime2),
    ] {
        let path =
            env.harness.write(&format!("{}.kubeconfig", cluster.name()), &cluster.kubeconfig_yaml(ADMIN)?)?;
        set(name, path.display().to_string());
    }
    set("RECEIVER_URL", world.receiver.url.clone());
    set("RECEIVER_ADMIN_URL", world.receiver.admin.clone());
    set("AGENT1_ADMIN_URL", agent.admin.clone());
    set("CA_FILE", world.receiver.ca_file.display().to_string());
    set("AGENT1_CERT", agent.identity.cert.display().to_string());
    set("AGENT1_KEY", agent.identity.key.display().to_string());
    set("REGISTRY_URL", env.registry.url());
    set("BIN", link_programs(env)?.display().to_string());
    let text = format!("{}\n", lines.join("\n"));
    env.harness.write("env", &text)
}

/// A folder with what the control planes are made of, kubectl, and our own command.
fn link_programs(env: &Environment) -> Result<PathBuf> {
    let bin = env.harness.folder().join(BIN);
    std::fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    let tools = env.harness.tools().folder();
    let mut programs = vec![binaries::find("tidewatch")?];
    for entry in std::fs::read_dir(tools).with_context(|| format!("cannot read {}", tools.display()))? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        programs.extend((!hidden).then_some(path));
    }
    for program in programs {
        let name = program.file_name().context("a program has no name")?;
        std::os::unix::fs::symlink(&program, bin.join(name))
            .with_context(|| format!("cannot link {} into {}", program.display(), bin.display()))?;
    }
    Ok(bin)
}

fn to_try(env: &std::path::Path) -> String {
    let id = RUNTIMES[0].1;
    format!(
        "\nEverything is still running. Three things to try, after: . {}\n\n\
         1. Enable the module, and watch it become Ready (Ctrl-C ends the watching):\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n kyma-system patch kyma default --type merge -p \
         '{{\"spec\":{{\"modules\":[{{\"name\":\"lighthouse\"}}]}}}}'\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n kyma-system get kyma default -w\n\
         2. Break it, and look for it again:\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n lighthouse-system delete deployment lighthouse-keeper\n\
         \u{20}  $BIN/kubectl --kubeconfig $RUNTIME1_KUBECONFIG -n lighthouse-system get deployments\n\
         3. Ask why each reconcile was made:\n\
         \u{20}  $BIN/tidewatch explain {id}\n\n\
         `make demo-down` ends it.",
        env.display()
    )
}
