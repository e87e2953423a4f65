//! Checks `/metrics` with `promtool` and against `docs/reference/metrics.md`.

use std::{
    collections::BTreeSet,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

/// The metrics reference.
const REFERENCE: &str = include_str!("../../docs/reference/metrics.md");

/// Fails on any output of `promtool check metrics`. Blocks briefly.
pub fn check(promtool: &Path, page: &str) -> Result<()> {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", promtool.display()))?;
    // promtool reads all input before it writes.
    child.stdin.take().context("promtool has no standard input")?.write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "promtool: {}", String::from_utf8_lossy(&said));
    Ok(())
}

/// Fails on any finding of `promtool check rules`, or if a test of the chart's rules fails. Blocks briefly.
pub fn check_rules(promtool: &Path) -> Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts/tidewatch");
    for (command, file) in [("check", "files/alerts.yaml"), ("test", "tests/rules_test.yaml")] {
        let output = Command::new(promtool).args([command, "rules"]).arg(chart.join(file)).output();
        let output = output.with_context(|| format!("cannot run {}", promtool.display()))?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "promtool: {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

/// Fails if a metric with `prefix` is not in the reference, or has another type or undocumented labels.
pub fn documented(page: &str, prefix: &str) -> Result<()> {
    documented_in(REFERENCE, page, prefix)
}

fn documented_in(reference: &str, page: &str, prefix: &str) -> Result<()> {
    // Columns: name, type, unit, labels, clock, meaning.
    let section = section(reference, prefix)?;
    for line in page.lines() {
        let Some((full, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let Some(name) = full.strip_prefix(prefix) else { continue };
        let row = section.lines().find(|row| row.starts_with(&format!("| `{name}` |")));
        let Some(row) = row else { bail!("{full} is not in docs/reference/metrics.md") };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        ensure!(cells.get(2) == Some(&kind), "{full} is a {kind}, and in docs/reference/metrics.md: {row}");
        let filled = |column: usize| cells.get(column).is_some_and(|cell| !cell.is_empty());
        ensure!(filled(3) && filled(6), "{full} has no unit or no meaning: {row}");
        if full.ends_with("_seconds") {
            ensure!(filled(5) && cells.get(3) == Some(&"seconds"), "{full} has no clock: {row}");
        }
        for label in labels(page, full) {
            let told = cells.get(4).is_some_and(|cell| cell.contains(&format!("`{label}`")));
            ensure!(told, "{full} has the label {label}, which is not in docs/reference/metrics.md: {row}");
        }
    }
    Ok(())
}

/// Returns the section of one program and prefix. Each has its own, because names overlap.
fn section<'a>(reference: &'a str, prefix: &str) -> Result<&'a str> {
    let named = format!("`{prefix}…`");
    let is_of = |section: &&str| section.lines().next().is_some_and(|heading| heading.contains(&named));
    let found = reference.split("\n## ").find(is_of);
    found.with_context(|| format!("docs/reference/metrics.md has no section for {prefix}"))
}

/// Label names of all series of a metric.
fn labels<'a>(page: &'a str, name: &str) -> BTreeSet<&'a str> {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = rest.strip_prefix("_bucket").unwrap_or(rest);
        rest.strip_prefix('{')?.rsplit_once('}').map(|(labels, _)| labels)
    });
    let names = series.flat_map(|labels| labels.split("\",")).filter_map(|l| l.split_once('='));
    names.map(|(name, _)| name.trim_matches(',')).filter(|name| *name != "le").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP p_a_total A.\n# TYPE p_a_total counter\np_a_total{what=\"x\"} 1\n\
                        p_a_total{what=\"x\",why=\"y\"} 1\n\
                        # TYPE p_b_seconds histogram\np_b_seconds_bucket{kind=\"k\",le=\"1\"} 1\n\
                        # TYPE process_x gauge\nprocess_x 1\n";
    const GOOD: &str = "# M\n\n## One (`p_…`)\n| `a_total` | counter | things | `what`, `why` | | all |\n\
                        | `b_seconds` | histogram | seconds | `kind` | ours | b |\n\n## Two (`q_…`)\n| `a_total` | gauge | x | | | x |\n";

    /// All sources of the programs.
    fn sources(folder: &Path, found: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// Checks sources, because some series appear only after an event.
    #[test]
    fn every_documented_metric_is_registered() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut code = String::new();
        for folder in ["agent/src", "engine/src", "listener/src", "receiver/src", "shared"] {
            sources(&root.join(folder), &mut code);
        }
        let code: String = code.split_whitespace().collect();
        let ways = [
            "counter(",
            "counter_vec(",
            "gauge(",
            "gauge_vec(",
            "gauge_fn(",
            "gauge_vec_fn(",
            "histogram(",
            "histogram_vec(",
        ];
        let mut named = 0;
        for name in REFERENCE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')) {
            named += 1;
            let registered = ways.iter().any(|way| code.contains(&format!("{way}\"{}\"", name.0)));
            assert!(registered, "{} is in docs/reference/metrics.md only", name.0);
        }
        assert!(named > 40, "{named}");
    }

    /// A panel or a rule with a misspelled metric stays empty or silent.
    #[test]
    fn alerts_and_dashboards_name_documented_metrics() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts/tidewatch/files");
        let dashboards = std::fs::read_dir(files.join("dashboards")).unwrap();
        let mut named = 0;
        for file in dashboards.map(|entry| entry.unwrap().path()).chain([files.join("alerts.yaml")]) {
            let text = std::fs::read_to_string(&file).unwrap();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for prefix in ["tidewatch_receiver_", "tidewatch_agent_", "lifecycle_mgr_"] {
                let rows = section(REFERENCE, prefix).unwrap();
                for name in words.clone().filter_map(|word| word.strip_prefix(prefix)) {
                    named += 1;
                    let of_histogram =
                        ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                    let is_documented = rows.contains(&format!("| `{name}` | "))
                        || of_histogram
                            .is_some_and(|name| rows.contains(&format!("| `{name}` | histogram |")));
                    assert!(
                        is_documented,
                        "{prefix}{name} of {} is not in docs/reference/metrics.md",
                        file.display()
                    );
                }
            }
        }
        assert!(named > 90, "{named}");
    }

    #[test]
    fn a_metrics_page_must_match_its_reference() {
        documented_in(GOOD, PAGE, "p_").unwrap();
        for (good, bad) in [
            ("`b_seconds`", "`c_seconds`"),
            ("counter", "gauge"),
            ("`what`, ", ""),
            (", `why`", ""),
            ("`kind`", ""),
            ("| b |", "| |"),
            ("| ours |", "| |"),
            ("| seconds |", "| ms |"),
            ("| things |", "| |"),
            ("(`p_…`)", ""),
        ] {
            assert!(documented_in(&GOOD.replacen(good, bad, 1), PAGE, "p_").is_err(), "{good} -> {bad}");
        }
    }
}
