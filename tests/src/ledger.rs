//! Checks `docs/requirements.md` and `docs/requirements.yaml`: rows, texts, states, and that each named test exists.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use tidewatch_api::yaml;

/// Id and text of every requirement, one per line. Prevents missing or shortened rows.
const REQUIREMENTS: &str = include_str!("ledger.txt");
/// Requirements per source document.
const IDS: [(&str, usize); 5] = [("S0", 11), ("S1", 5), ("S2", 12), ("S3", 7), ("S4", 5)];

/// Tests by requirement id.
type Tests = BTreeMap<String, Vec<String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rows of the tables: id, text, state, note.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| S"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn tests() -> Result<Tests> {
    let text = fs::read_to_string(root().join("docs/requirements.yaml"))?;
    let (tests, repeated) = yaml::read(&text, yaml::options(10_000, 10), |text, options| {
        serde_saphyr::from_str_with_options::<Tests>(text, options)
    })?;
    ensure!(repeated.is_none(), "docs/requirements.yaml: {repeated:?}");
    Ok(tests)
}

/// Returns a fault of a state and its number of tests.
fn fault(state: &str, note: &str, tests: usize) -> Option<&'static str> {
    match state {
        "yes" if tests == 0 => Some("'yes' has no test"),
        "part" if tests == 0 && !note.contains("no test") => {
            Some("'part' has no test and does not say 'no test'")
        }
        "yes" | "part" | "no" => None,
        _ => Some("the state is none of yes, part, no"),
    }
}

/// Finds the source of `crate::path::test`.
fn locate(test: &str) -> Result<()> {
    let mut parts: Vec<&str> = test.split("::").collect();
    let name = parts.pop().context("no test name")?;
    let krate = parts.remove(0);
    let krate =
        krate.strip_prefix("tidewatch_").context("a test's name begins with its crate's: tidewatch_")?;
    let folder = match krate {
        "tests" if parts.first() == Some(&"e2e") => {
            parts.remove(0);
            "tests/tests/e2e".to_owned()
        }
        "fleet_sim" => "sim/fleet/tests".to_owned(),
        known @ ("agent" | "certs" | "cli" | "deployer" | "engine" | "listener" | "oci" | "planner"
        | "receiver" | "tests") => {
            format!("{known}/src")
        }
        shared => format!("shared/{shared}/src"),
    };
    let folder = root().join(folder);
    // A test is in its module's file, or in a `mod tests` of the parent's file.
    let in_own_file = folder.join(parts.join("/")).with_extension("rs");
    let parent = &parts[..parts.len().saturating_sub(1)];
    let in_parent = folder.join(parent.join("/")).with_extension("rs");
    for file in [in_own_file, in_parent, folder.join(parent.join("/")).join("mod.rs")] {
        if file.is_file() && is_test_in(&fs::read_to_string(&file)?, name) {
            return Ok(());
        }
    }
    anyhow::bail!("{test} does not exist")
}

/// Whether this function has a test attribute.
fn is_test_in(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(i, line)| {
        line.contains(&format!("fn {name}("))
            && lines[i.saturating_sub(4)..i]
                .iter()
                .any(|l| l.starts_with("#[test]") || l.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_requirement_has_one_row_with_a_state() -> Result<()> {
    let (text, tests) = (fs::read_to_string(root().join("docs/requirements.md"))?, tests()?);
    let rows = rows(&text);
    let ids: Vec<_> = IDS
        .iter()
        .flat_map(|(document, count)| (1..=*count).map(move |n| format!("{document}.{n}")))
        .collect();
    let pinned: Vec<_> = REQUIREMENTS.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(pinned.iter().map(|(id, _)| *id).eq(&ids), "ledger.txt does not list {ids:?}");
    ensure!(tests.keys().all(|id| ids.contains(id)), "docs/requirements.yaml has an unknown id");
    ensure!(rows.len() == pinned.len(), "docs/requirements.md has {} rows", rows.len());
    for (row, (id, wanted)) in rows.iter().zip(pinned) {
        let [found, text, state, note] = row[..] else { anyhow::bail!("{row:?} has not four cells") };
        ensure!((found, text) == (id, wanted), "'{found} {text}' instead of '{id} {wanted}'");
        let fault = fault(state, note, tests.get(id).map_or(0, Vec::len));
        ensure!(fault.is_none(), "{id}: {}", fault.unwrap_or_default());
    }
    Ok(())
}

#[test]
fn a_state_without_its_tests_is_a_fault() {
    assert!(fault("yes", "", 0).is_some());
    assert!(fault("part", "most of it", 0).is_some());
    assert!(fault("nearly", "", 1).is_some());
    assert!(fault("part", "most of it; no test", 0).is_none());
    assert!(fault("yes", "", 1).is_none());
    assert!(fault("no", "", 0).is_none());
}

#[test]
fn every_named_test_exists() -> Result<()> {
    for (id, tests) in tests()? {
        for test in tests {
            locate(&test).with_context(|| format!("docs/requirements.yaml, {id}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_missing_test_is_a_fault() {
    assert!(locate("tidewatch_planner::naming::tests::manifest_names_fit_kubernetes_limits").is_ok());
    assert!(locate("tidewatch_planner::naming::tests::names_fly").is_err());
    assert!(locate("planner::naming::tests::manifest_names_fit_kubernetes_limits").is_err());
    assert!(locate("tidewatch_wire::v2::tests::event_paths_name_their_manager").is_ok());
    assert!(locate("tidewatch_tests::e2e::lifecycle::nothing").is_err());
    assert!(!is_test_in("fn helper() {}", "helper"));
}
