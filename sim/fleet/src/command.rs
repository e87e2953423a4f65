//! The `tidewatch simulate` command.

use std::{
    env, fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use serde_json::json;
use tidewatch_demo::{
    command::{interrupted, without_proxies},
    files,
};
use tidewatch_telemetry::stdio;
use tokio::sync::oneshot;

use crate::{
    modules::{self, Size},
    progress::Progress,
    receiver,
    report::Report,
    run::{Run, Settings},
    scenario::{SHIPPED, Scenario, Step},
};

/// Most runtimes: names have five digits.
const MAX_RUNTIMES: usize = 99_999;
/// Hidden command that runs the receiver.
pub const RECEIVER_COMMAND: &str = "simulate-receiver";

/// Output format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for a terminal.
    #[value(alias = "table")]
    Text,
    /// A document.
    Markdown,
    /// One JSON value.
    Json,
}

/// Play a scenario with thousands of simulated runtimes and their agents, and report the result.
///
/// The receiver is this program in a process of its own, which has its own CPU time and memory. The exit code
/// is not 0 if a change was lost: at the end, an object in a runtime differs from its desired state.
#[derive(Debug, Args)]
pub struct Simulate {
    /// Output format of the report or of --list.
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
    /// Number of runtimes.
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = count(1..=MAX_RUNTIMES))]
    runtimes: usize,
    /// Number of modules in each runtime.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = count(1..=modules::MAX_MODULES))]
    modules: usize,
    /// Number of objects in each module, without the default custom resource.
    #[arg(long, default_value_t = modules::MIN_OBJECTS, value_name = "COUNT", value_parser = count(modules::MIN_OBJECTS..=modules::MAX_OBJECTS))]
    objects: usize,
    /// Scenario: a file, or the name of a built-in scenario (see --list).
    #[arg(long, default_value = "steady", value_name = "NAME|FILE")]
    scenario: String,
    /// Seed of all random choices. The same seed gives the same choices.
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
    /// Write the report to a file also.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder for logs, certificates and kubeconfigs [default: target/simulate]. Files of an earlier
    /// simulation are removed first.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Let the receiver poll unproven runtimes, as outside of simulations. Without polling, a lost event is
    /// visible in the report.
    #[arg(long)]
    polling: bool,
    /// Receiver program to measure [default: this program's own receiver].
    #[arg(long, value_name = "PROGRAM")]
    receiver: Option<PathBuf>,
    /// Additional argument for the receiver, for example --receiver-arg=--workers=32 (repeatable).
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    receiver_arg: Vec<String>,
    /// Interval at which agents compare each watch with a list, in seconds. Increase it for large fleets: all
    /// agents share one machine, and the lists can use all of it.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=86_400))]
    agents_check: u64,
    /// Lifetime of an agent's connection, in seconds (`receiver.connectionAgeSeconds` of the agent's
    /// configuration).
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=604_800))]
    agents_connection_age: u64,
    /// Write kubeconfigs of KCP and runtimes into a folder, without a receiver and agents. After Enter, play
    /// the scenario and measure the controller that uses them.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["receiver", "receiver_arg", "polling", "agents_check", "agents_connection_age"])]
    serve: Option<PathBuf>,
    /// With --serve, do not wait for Enter. The scenario's first step waits for the desired state.
    #[arg(long, requires = "serve")]
    now: bool,
    /// List the built-in scenarios, and exit.
    #[arg(long)]
    list: bool,
}

fn count(range: RangeInclusive<usize>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(*range.start() as u64..=*range.end() as u64)
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

/// Returns whether the simulation passed.
pub async fn run(simulate: Simulate) -> Result<bool> {
    if simulate.list {
        list(simulate.output)?;
        return Ok(true);
    }
    without_proxies()?;
    let progress = Arc::new(Progress::new(simulate.runtimes));
    let (settings, _taken) = settings(&simulate)?;
    // Fails early. Without a report, the file stays empty.
    if let Some(out) = &simulate.out {
        writable("--out", out)?;
    }
    // One future, so that no signal is lost.
    let mut interruption = Box::pin(interrupted());
    let started = tokio::select! {
        started = Box::pin(Run::start(settings, Arc::clone(&progress))) => started,
        how = &mut interruption => bail!(how),
    };
    let run = match started {
        Ok(run) => run,
        Err(error) => {
            progress.finish();
            return Err(error);
        }
    };
    let played = tokio::select! {
        played = Box::pin(play(&run, &simulate, &progress)) => played,
        how = interruption => Err(anyhow::anyhow!(how)),
    };
    progress.finish();
    run.end().await;
    let report = played.context("the simulation came to no report")?;
    show(&report, simulate.output, simulate.out.as_deref())?;
    if simulate.output == Format::Json {
        stdio::note(&report.outcome());
    }
    Ok(report.is_clean())
}

fn writable(flag: &str, file: &Path) -> Result<()> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(file);
    opened
        .map(drop)
        .with_context(|| format!("{flag}: cannot write {}; its folder has to be there", file.display()))
}

fn settings(simulate: &Simulate) -> Result<(Settings, Vec<fs::File>)> {
    let Simulate { runtimes, modules, objects, seed, .. } = *simulate;
    let scenario = Scenario::load(&simulate.scenario)?;
    scenario.fits(modules)?;
    if simulate.serve.is_some()
        && let Some(step) = scenario.steps.iter().find(|step| step.needs_ours())
    {
        bail!(
            "the scenario {} cannot be played with --serve: it has the step '{}'",
            scenario.name,
            step.words()
        );
    }
    let target = || env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = simulate.folder.clone().unwrap_or_else(|| target().join("simulate"));
    let mut taken = vec![files::take(&folder, "--folder")?];
    let folder = empty(&folder)?;
    if let Some(served) = &simulate.serve {
        files::make(served)?;
        let it = served.canonicalize().with_context(|| format!("cannot open {}", served.display()))?;
        if it != folder {
            taken.push(files::take(served, "--serve")?);
        }
    }
    let receiver = match (&simulate.serve, &simulate.receiver) {
        (Some(_), _) => None,
        (None, Some(program)) => Some((program.clone(), None)),
        (None, None) => {
            let own = env::current_exe().context("the path of this program is not known")?;
            Some((own, Some(RECEIVER_COMMAND.to_owned())))
        }
    };
    let mut args = simulate.receiver_arg.clone();
    // Stalls of seconds must not end the run.
    if !scenario.steps.iter().any(Step::kills) && !args.iter().any(|arg| arg.starts_with("--lease")) {
        args.push("--lease=180".to_owned());
    }
    let receiver = receiver.map(|(program, command)| receiver::Settings {
        program,
        command,
        polling: simulate.polling,
        args,
        agents_check: simulate.agents_check,
        agents_connection_age: simulate.agents_connection_age,
    });
    let size = Size { modules, objects };
    Ok((Settings { runtimes, size, seed, scenario, folder, receiver }, taken))
}

/// Removes only files of earlier runs.
fn empty(folder: &Path) -> Result<PathBuf> {
    const OWN: [&str; 8] = [
        "agents",
        "agents.json",
        "agents.sock",
        "agents.log",
        "receiver",
        "receiver.log",
        "receiver.before.log",
        "kcp.kubeconfig",
    ];
    let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
    for own in OWN.map(|name| folder.join(name)) {
        let removed = if own.is_dir() { fs::remove_dir_all(&own) } else { fs::remove_file(&own) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", own.display()));
            }
            _ => {}
        }
    }
    Ok(folder)
}

async fn play(run: &Run, simulate: &Simulate, progress: &Progress) -> Result<Report> {
    if let Some(folder) = &simulate.serve {
        run.fleet().write_kubeconfigs(folder)?;
        run.register().await?;
        let folder = folder.display();
        progress.message(&format!("{folder}/kcp.kubeconfig and {folder}/runtimes/*.kubeconfig are written"));
        progress.message(&format!("modules are in the registry {}", run.fleet().registry.url()));
        if !simulate.now {
            progress.message("start your controller; press Enter to play the scenario, Ctrl-C to end");
            entered().await;
        }
    } else {
        run.register().await?;
    }
    run.play().await
}

/// Resolves on Enter; never at the end of input.
async fn entered() {
    let (confirm, confirmed) = oneshot::channel();
    // Reads of standard input cannot be cancelled.
    std::thread::spawn(move || {
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {
            let _late = confirm.send(());
        }
    });
    if confirmed.await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn show(report: &Report, format: Format, out: Option<&Path>) -> Result<()> {
    let text = match format {
        Format::Json => report.json(),
        Format::Markdown => report.text(true),
        Format::Text => report.text(false),
    };
    // A full disk must not lose the result.
    stdio::result(&text)?;
    if let Some(out) = out {
        fs::write(out, format!("{}\n", text.trim_end()))
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    Ok(())
}

fn list(format: Format) -> Result<()> {
    let shipped: Vec<(&str, String)> = SHIPPED
        .iter()
        .map(|(name, _)| anyhow::Ok((*name, Scenario::load(name)?.about)))
        .collect::<Result<_>>()?;
    let width = shipped.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let line = |(name, about): &(&str, String)| match format {
        Format::Markdown => format!("- `{name}`: {about}"),
        _ => format!("{name:<width$}  {about}"),
    };
    let text = match format {
        Format::Json => {
            let all: Vec<_> =
                shipped.iter().map(|(name, about)| json!({"name": name, "about": about})).collect();
            serde_json::to_string_pretty(&all)?
        }
        _ => shipped.iter().map(line).collect::<Vec<_>>().join("\n"),
    };
    Ok(stdio::result(&text)?)
}
