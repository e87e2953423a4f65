//! `tidewatch lint`: checks operators' files.

use std::{fmt::Write, fs::File, io::Read, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tidewatch_planner::windows::{self, Field, Finding, Level, MAX_POLICY, PolicyError, Values};

use crate::output::{Format, print};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a policy of maintenance windows (the lifecycle manager's policy.json).
    Windows(Windows),
}

#[derive(Debug, Args)]
pub(crate) struct Windows {
    /// Policy (JSON).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Minimum remaining time of a window for an update to start.
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = duration)]
    min: Duration,
    /// Value of a Kyma to test the patterns with, for example region=westeurope (repeatable). Fields:
    /// globalAccountID, plan, region, platformRegion.
    #[arg(long = "value", value_name = "FIELD=VALUE", value_parser = field_value)]
    values: Vec<(Field, String)>,
    /// Time that decides whether a window is past [default: now].
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Fail on warnings.
    #[arg(long)]
    strict: bool,
}

pub(crate) fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let Command::Windows(command) = command;
    let now = command.at.unwrap_or_else(Timestamp::now);
    let text = read(&command)?;
    let file = command.file.display().to_string();
    let values = Values { extra: command.values };
    let findings = match windows::lint(&text, &values, now, command.min) {
        Ok(findings) => findings,
        Err(error) => {
            if output == Format::Json {
                output.print(&broken(&file, &error))?;
            }
            return Err(error).context(file);
        }
    };
    match output {
        Format::Json => output.print(&page(&file, &findings)),
        Format::Text => print(&lines(&file, &findings)),
    }?;
    let warnings = count(&findings, Level::Warning);
    if command.strict && warnings > 0 {
        bail!("{file} has {warnings} warnings");
    }
    Ok(())
}

fn read(command: &Windows) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", command.file.display());
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_POLICY)?.saturating_add(1);
    File::open(&command.file)
        .with_context(cannot)?
        .take(limit)
        .read_to_end(&mut bytes)
        .with_context(cannot)?;
    ensure!(
        bytes.len() <= MAX_POLICY,
        "{}: has more than {MAX_POLICY} bytes, the limit for a policy",
        command.file.display()
    );
    String::from_utf8(bytes).with_context(cannot)
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = SignedDuration::from_str(text).map_err(|e| e.to_string())?;
    Duration::try_from(parsed).map_err(|_| "a negative time".to_owned())
}

fn field_value(text: &str) -> Result<(Field, String), String> {
    let (name, value) = text.split_once('=').ok_or("write FIELD=VALUE")?;
    let field = Field::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        format!("there is no field '{name}'; there are {}", Field::ALL.map(Field::name).join(", "))
    })?;
    Ok((field, value.to_owned()))
}

fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|f| f.level == level).count()
}

/// `file:line:` is for editors.
fn lines(file: &str, findings: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { line, field, level, kind, message } in findings {
        let _ = writeln!(out, "{file}:{line}: {} ({}): {field}: {message}", level.name(), kind.name());
    }
    let [warnings, notes] = [Level::Warning, Level::Note].map(|level| count(findings, level));
    let _ = writeln!(out, "{file}: {warnings} warnings, {notes} notes");
    out
}

fn page(file: &str, findings: &[Finding]) -> Value {
    let list: Vec<_> = findings
        .iter()
        .map(|f| {
            json!({"line": f.line, "field": f.field, "level": f.level.name(), "kind": f.kind.name(), "message": f.message})
        })
        .collect();
    json!({"file": file, "usable": true, "findings": list})
}

fn broken(file: &str, error: &PolicyError) -> Value {
    json!({"file": file, "usable": false, "error": {
        "line": error.line(), "field": error.field(), "message": error.to_string()}})
}

#[cfg(test)]
mod tests {
    use tidewatch_planner::windows::MIN_WINDOW;

    use super::*;

    #[test]
    fn the_default_minimum_is_the_engines() {
        assert_eq!(duration("20m"), Ok(MIN_WINDOW));
        assert!(duration("-1m").is_err() && duration("x").is_err());
    }

    #[test]
    fn a_known_value_names_its_field() {
        assert_eq!(field_value("globalaccountid=a=b"), Ok((Field::GlobalAccountId, "a=b".to_owned())));
        assert_eq!(
            field_value("zone=x"),
            Err("there is no field 'zone'; there are globalAccountID, plan, region, platformRegion"
                .to_owned())
        );
        assert!(field_value("region").is_err());
    }
}
