//! Imports the figures of `cargo bench -p tidewatch-engine --bench planner --bench queue`.
//!
//! Each group has a function `ours` and one named `yardstick...`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Figure, Goal, Spec};
use crate::{harness::target_folder, report::Terminal};

const YARDSTICK: &str = "yardstick ";
/// Results older than this belong to another run of `make bench`.
const FRESH: Duration = Duration::from_hours(1);
/// Planning should cost less than its reads and writes.
const PLANNER_RATIO: f64 = 1.0;
/// 100,000 up-to-date Kymas per second on one core.
const PLAN_MICROSECONDS: f64 = 10.0;
/// 100,000 keys/s on one core: 5,000 runtimes with 30,400 Kymas and Manifests take 0.3 s.
const QUEUE_MICROSECONDS: f64 = 10.0;

struct Measured {
    function: String,
    /// Per element if the benchmark reports a count.
    nanoseconds: f64,
}

pub(super) fn entries(terminal: &Terminal) -> Vec<(Spec, Option<Figure>)> {
    let folder = target_folder().join("criterion");
    let groups = groups(&folder);
    if groups.is_empty() {
        terminal.say(
            "criterion has no results of the last hour; cargo bench -p tidewatch-engine --bench planner \
             --bench queue makes them",
        );
        let name = "planner and queue (criterion)".into();
        let yardstick = "none: not measured in this run".into();
        return vec![(Spec { name, unit: "us", goal: Goal::None, yardstick }, None)];
    }
    groups.into_iter().map(|(name, functions)| entry(name, &functions)).collect()
}

fn entry(name: String, functions: &[Measured]) -> (Spec, Option<Figure>) {
    let ours = functions.iter().find(|m| m.function == "ours");
    let bare = functions.iter().find_map(|m| Some((m.function.strip_prefix(YARDSTICK)?, m)));
    let goal = if name.contains("nothing changes") {
        Goal::AtMost(PLAN_MICROSECONDS)
    } else if name.starts_with("planner") {
        Goal::RatioAtMost(PLANNER_RATIO)
    } else {
        Goal::AtMost(QUEUE_MICROSECONDS)
    };
    let yardstick = match bare {
        Some((what, _)) => format!("measured here, right after: {what}"),
        None => "missing".to_owned(),
    };
    let figure = ours.map(|m| Figure {
        value: m.nanoseconds / 1e3,
        against: bare.map(|(_, bare)| bare.nanoseconds / 1e3),
    });
    (Spec { name, unit: "us", goal, yardstick }, figure)
}

/// Functions by group. Skips unreadable files.
fn groups(folder: &Path) -> BTreeMap<String, Vec<Measured>> {
    let mut groups: BTreeMap<String, Vec<Measured>> = BTreeMap::new();
    for group in folders(folder) {
        for function in folders(&group) {
            let new = function.join("new");
            if is_fresh(&new.join("estimates.json"))
                && let Ok((group, measured)) = read(&new)
            {
                groups.entry(group).or_default().push(measured);
            }
        }
    }
    groups
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders
}

fn is_fresh(file: &Path) -> bool {
    let written = fs::metadata(file).and_then(|m| m.modified());
    #[allow(clippy::disallowed_methods, reason = "compared with the file system's clock")]
    let age = written.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    age.is_ok_and(|age| age < FRESH)
}

fn read(new: &Path) -> Result<(String, Measured)> {
    let json =
        |name: &str| -> Result<Value> { Ok(serde_json::from_str(&fs::read_to_string(new.join(name))?)?) };
    let (benchmark, estimates) = (json("benchmark.json")?, json("estimates.json")?);
    let text = |field: &str| {
        benchmark[field].as_str().map(str::to_owned).with_context(|| format!("criterion wrote no {field}"))
    };
    let mean = estimates["mean"]["point_estimate"].as_f64().context("criterion wrote no mean")?;
    let elements = benchmark["throughput"]["Elements"].as_f64().filter(|n| *n > 0.0).unwrap_or(1.0);
    Ok((text("group_id")?, Measured { function: text("function_id")?, nanoseconds: mean / elements }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, group: &str, function: &str, mean: f64, throughput: Value) {
        let new = folder.join(group).join(function).join("new");
        fs::create_dir_all(&new).unwrap();
        let benchmark =
            serde_json::json!({"group_id": group, "function_id": function, "throughput": throughput});
        fs::write(new.join("benchmark.json"), benchmark.to_string()).unwrap();
        let estimates = serde_json::json!({"mean": {"point_estimate": mean}});
        fs::write(new.join("estimates.json"), estimates.to_string()).unwrap();
    }

    #[test]
    fn a_group_is_paired_with_its_yardstick() {
        let folder = tempfile::tempdir().unwrap();
        let many = serde_json::json!({"Elements": 10});
        write(folder.path(), "queue, a", "ours", 200_000.0, many.clone());
        write(folder.path(), "queue, a", "yardstick VecDeque", 40_000.0, many);
        fs::create_dir_all(folder.path().join("queue, a/report")).unwrap();
        let (name, functions) = groups(folder.path()).pop_first().unwrap();
        let (spec, figure) = entry(name, &functions);
        let figure = figure.unwrap();
        assert_eq!((figure.value, figure.against), (20.0, Some(4.0)));
        assert_eq!(spec.name, "queue, a");
        assert_eq!(spec.yardstick, "measured here, right after: VecDeque");
        assert_eq!(spec.goal, Goal::AtMost(QUEUE_MICROSECONDS));
    }
}
