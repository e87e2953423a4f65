//! Checks `docs/requirements.md` and `docs/requirements.yaml`: rows, texts, states, and that each named test exists. The threat model
//! names tests too, by function alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use tidewatch_api::yaml;

use crate::logs::sources;

/// Folders with Rust code.
const CODE: [&str; 14] = [
    "agent", "certs", "cli", "demo", "deployer", "engine", "fuzz", "listener", "oci", "planner", "receiver",
    "shared", "sim", "tests",
];

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

/// Names of the functions with a test attribute.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_attribute = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    (0..lines.len()).filter_map(move |at| {
        let (_, rest) = lines[at].split_once("fn ")?;
        let (name, _) = rest.split_once('(')?;
        lines[at.saturating_sub(4)..at].iter().any(is_attribute).then_some(name)
    })
}

/// Whether this function has a test attribute.
fn is_test_in(text: &str, name: &str) -> bool {
    tests_in(text).any(|test| test == name)
}

/// Names in backticks that can be functions, of the columns of tables with a heading that begins with `heading`.
fn names_in_columns<'a>(text: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let (mut names, mut column, mut was_table) = (BTreeSet::new(), None, false);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let is_table = line.starts_with('|');
        if is_table && !was_table {
            column = cells.iter().position(|cell| cell.starts_with(heading));
        }
        was_table = is_table;
        let Some(cell) = column.filter(|_| is_table).and_then(|column| cells.get(column)) else { continue };
        let is_name =
            |text: &&str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        names.extend(cell.split('`').skip(1).step_by(2).filter(is_name));
    }
    names
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
fn every_test_and_fuzz_target_of_the_threat_model_exists() -> Result<()> {
    let text = fs::read_to_string(root().join("docs/concepts/threat-model.md"))?;
    let mut files = Vec::new();
    for folder in CODE {
        sources(&root().join(folder), &mut files)?;
    }
    let code = files.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    let tests: BTreeSet<&str> = code.iter().flat_map(|text| tests_in(text)).collect();
    let named = names_in_columns(&text, "tests");
    ensure!(named.len() > 50, "only {} tests are named", named.len());
    let missing: Vec<_> = named.difference(&tests).collect();
    ensure!(missing.is_empty(), "these tests do not exist: {missing:?}");
    let targets = names_in_columns(&text, "fuzz target");
    let is_missing = |name: &&&str| !root().join(format!("fuzz/fuzz_targets/{name}.rs")).is_file();
    let missing: Vec<_> = targets.iter().filter(is_missing).collect();
    ensure!(
        targets.len() > 5 && missing.is_empty(),
        "these fuzz targets do not exist: {missing:?} of {targets:?}"
    );
    Ok(())
}

#[test]
fn names_are_read_from_the_headed_columns_only() {
    let text = "| `a` | tests of b |\n|---|---|\n| `c` | `d_1`, `e/f.rs` and `g` |\n\n| `h` |\n|---|\n| `i` |\n`j`\n";
    assert_eq!(names_in_columns(text, "tests"), BTreeSet::from(["d_1", "g"]));
    assert!(names_in_columns(text, "other").is_empty());
}

#[test]
fn a_missing_test_is_a_fault() {
    assert!(locate("tidewatch_planner::naming::tests::manifest_names_fit_kubernetes_limits").is_ok());
    assert!(locate("tidewatch_planner::naming::tests::names_fly").is_err());
    assert!(locate("planner::naming::tests::manifest_names_fit_kubernetes_limits").is_err());
    assert!(locate("tidewatch_wire::v2::tests::event_paths_name_their_manager").is_ok());
    assert!(locate("tidewatch_tests::e2e::lifecycle::nothing").is_err());
    assert!(!is_test_in("fn helper() {}", "helper"));
    assert!(is_test_in(
        "    #[tokio::test(flavor = \"multi_thread\")]\n    async fn it_works() {}",
        "it_works"
    ));
}
