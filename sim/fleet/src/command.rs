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
const MOST: usize = 99_999;
/// Hidden command that runs the receiver.
pub const RECEIVER_COMMAND: &str = "simulate-receiver";

/// How the report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns, for a terminal.
    #[value(alias = "table")]
    Text,
    /// A document.
    Markdown,
    /// One JSON value.
    Json,
}

/// Play a scenario with thousands of simulated runtimes and their agents, and report what became of it.
///
/// The receiver is this same program, started as a process of its own, so that CPU time and memory are its alone. The
/// exit code is not 0 when something was lost: an object in a runtime that is not as it should be at the end.
#[derive(Debug, Args)]
pub struct Simulate {
    /// How the report, or the list, is printed.
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
    /// How many runtimes.
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = count(1..=MOST))]
    runtimes: usize,
    /// How many modules each of them has.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = count(1..=modules::MOST))]
    modules: usize,
    /// How many objects each module has, besides its default custom resource.
    #[arg(long, default_value_t = modules::FEWEST_OBJECTS, value_name = "COUNT", value_parser = count(modules::FEWEST_OBJECTS..=modules::MOST_OBJECTS))]
    objects: usize,
    /// What happens: a file, or one that is shipped (see --list).
    #[arg(long, default_value = "steady", value_name = "NAME|FILE")]
    scenario: String,
    /// Chooses what is left to chance; the same seed chooses the same.
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = seed, allow_negative_numbers = true)]
    seed: u64,
    /// Write the report to a file, too.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where logs, certificates and kubeconfigs go; those of an earlier simulation are removed first [default: target/simulate].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Let the receiver poll, as it does by default where events are not proven to arrive. Without, a lost event shows.
    #[arg(long)]
    polling: bool,
    /// Measure another receiver than this program's own.
    #[arg(long, value_name = "PROGRAM")]
    receiver: Option<PathBuf>,
    /// One more argument for the receiver (repeatable), as --receiver-arg=--workers=32.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    receiver_arg: Vec<String>,
    /// How often the agents compare each of their watches with a list, in seconds. Each real agent has a machine of its own for that;
    /// here thousands share one, and with many the lists alone take all of it.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=86_400))]
    agents_check: u64,
    /// How long a connection of an agent lasts, in seconds (`receiver.connectionAgeSeconds` of its configuration).
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=604_800))]
    agents_connection_age: u64,
    /// Start neither receiver nor agents: write kubeconfigs of KCP and runtimes into a folder, wait until Enter is
    /// pressed, then play the scenario and measure whatever controller works on them.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["receiver", "receiver_arg", "polling", "agents_check", "agents_connection_age"])]
    serve: Option<PathBuf>,
    /// With --serve: do not wait for Enter; the scenario's first step waits until all is as desired.
    #[arg(long, requires = "serve")]
    now: bool,
    /// Show the scenarios that are shipped, and do nothing.
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
    let mut told = Box::pin(interrupted());
    let started = tokio::select! {
        started = Box::pin(Run::start(settings, Arc::clone(&progress))) => started,
        how = &mut told => bail!(how),
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
        how = told => Err(anyhow::anyhow!(how)),
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
        progress.say(&format!("{folder}/kcp.kubeconfig and {folder}/runtimes/*.kubeconfig are written"));
        progress.say(&format!("modules are in the registry {}", run.fleet().registry.url()));
        if !simulate.now {
            progress.say("start your controller; press Enter to play the scenario, Ctrl-C to end");
            entered().await;
        }
    } else {
        run.register().await?;
    }
    run.play().await
}

/// Resolves on Enter; never at the end of input.
async fn entered() {
    let (tell, told) = oneshot::channel();
    // Reads of standard input cannot be cancelled.
    std::thread::spawn(move || {
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {
            let _late = tell.send(());
        }
    });
    if told.await.is_err() {
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
