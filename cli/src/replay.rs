//! `tidewatch replay`: plays a receiver's record, and shows each decision.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use tidewatch_replay::{Decision, Divergence, End, Item, Options, Record, Replayed};

use crate::{
    explain::because,
    output::{Format, print},
    progress::Bar,
};

/// Records from this size on are worth a progress bar, in bytes.
const LARGE: u64 = 16 * 1024 * 1024;
/// Runtimes that are named to somebody who has named another.
const NAMED: usize = 10;
/// Something differs. 2 is what a wrong command line ends with.
const DIVERGED: u8 = 3;

/// Play a record of a receiver (its --record) on the same code, and show each decision and what differs from the record.
///
/// Ends with 0 if nothing differs, with 3 if something does, and with 1 if the record cannot be played.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The record.
    file: PathBuf,
    /// Show this runtime only: its id, or its Kyma's name. All are played.
    #[arg(long, value_name = "ID")]
    runtime: Option<String>,
    /// Play up to this time of the record, in milliseconds from its start.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64))]
    until: Option<u64>,
}

/// Runs it.
pub(crate) async fn run(replay: Replay, output: Format) -> anyhow::Result<ExitCode> {
    // A replay is a computation on one thread, with a clock of its own.
    tokio::task::spawn_blocking(move || play(&replay, output)).await.context("the replay has panicked")?
}

fn play(replay: &Replay, output: Format) -> anyhow::Result<ExitCode> {
    let Replay { file, runtime, until } = replay;
    let bar = Bar::default();
    let record = Record::read(file, |done, size| bar.at("reading", done, size, size >= LARGE))?;
    bar.reset();
    let kyma = runtime.as_deref().map(|runtime| kyma_of(&record, runtime)).transpose()?;
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a record are far below 2^52")]
    let options = Options { until: until.map(|until| until as f64) };
    let (lines, large) = (record.lines.len(), bar.is_large());
    let replayed = tidewatch_replay::replay(&record, &options, |done| {
        bar.at("replaying", done as u64, lines as u64, large);
    })?;
    bar.finish();
    let shown = Replayed { items: of(&replayed, kyma.as_deref()), ..replayed };
    print(&match output {
        Format::Json => format!("{:#}", document(&record, &shown)),
        Format::Text => text(&record, &shown),
    })?;
    Ok(if shown.divergences == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIVERGED) })
}

/// The Kyma of a runtime.
fn kyma_of(record: &Record, runtime: &str) -> anyhow::Result<String> {
    let known = record.runtimes();
    if let Some(kyma) = known.get(runtime).or_else(|| known.values().find(|kyma| *kyma == runtime)) {
        return Ok(kyma.clone());
    }
    let (all, names) = (known.len(), known.into_keys().take(NAMED).collect::<Vec<_>>().join(", "));
    bail!("the record has no runtime '{runtime}'; it has {all}: {names}")
}

fn of(replayed: &Replayed, kyma: Option<&str>) -> Vec<Item> {
    let about = |item: &&Item| match (kyma, item) {
        (Some(kyma), Item::Decision(_) | Item::Divergence(_)) => item.kyma() == kyma,
        _ => true,
    };
    replayed.items.iter().filter(about).cloned().collect()
}

fn document(record: &Record, replayed: &Replayed) -> Value {
    let end = match record.end {
        End::Closed => "closed",
        End::Full(_) => "full",
        End::CutOff => "cut off",
    };
    json!({
        "record": {"program": record.start.program, "version": record.start.version, "started": record.start.started,
                   "milliseconds": record.duration(), "lines": record.lines.len(), "end": end},
        "items": replayed.items,
        "decisions": replayed.decisions,
        "divergences": replayed.divergences,
    })
}

fn text(record: &Record, replayed: &Replayed) -> String {
    let start = &record.start;
    let mut out = format!(
        "record of {} {}, begun {}: {:.1} s, {} lines\n",
        start.program,
        start.version,
        start.started,
        record.duration() / 1000.0,
        record.lines.len()
    );
    for item in &replayed.items {
        match item {
            Item::Decision(decision) => tell(&mut out, decision),
            Item::Divergence(divergence) => tell_divergence(&mut out, divergence),
            Item::Note { at, text } => {
                let _ = writeln!(out, "{at:>12.1}  note: {text}");
            }
        }
    }
    let _ = writeln!(out, "{} decisions, {} divergences", replayed.decisions, replayed.divergences);
    out
}

fn tell(out: &mut String, decision: &Decision) {
    let Decision { began, ended, key, causes, outcome, message, next, calls, kyma: _ } = decision;
    let took = ended
        .map_or_else(|| "not ended in the record".to_owned(), |end| format!("took {:.0} ms", end - began));
    let _ = writeln!(out, "{began:>12.1}  {key:<40} {outcome:<8} {took}");
    let name = Value::from(key.as_str());
    for cause in causes.iter().filter_map(|cause| serde_json::to_value(cause).ok()) {
        let _ = writeln!(out, "                {}", because(&name, &cause));
    }
    for call in calls {
        let _ = writeln!(out, "                {} {} {} -> {}", call.to, call.method, call.path, call.answer);
    }
    if !message.is_empty() {
        let _ = writeln!(out, "                {message}");
    }
    if let Some(next) = next {
        let _ = writeln!(out, "                again after {next:.1} s, unless something asks before");
    }
}

fn tell_divergence(out: &mut String, divergence: &Divergence) {
    let Divergence { at, key, what, recorded, kyma: _ } = divergence;
    let _ = writeln!(out, "{at:>12.1}  DIVERGENCE in {key}: {what}");
    for recorded in recorded {
        let _ = writeln!(out, "                the record has: {recorded}");
    }
}
