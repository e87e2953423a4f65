//! Checks `docs/requirements.md`: every requirement has its row and text, and every named test exists.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

/// Id and text of every requirement, one per line. Prevents missing or shortened rows.
const REQUIREMENTS: &str = include_str!("ledger.txt");
/// Requirements per source document.
const IDS: [(&str, usize); 5] = [("S0", 11), ("S1", 5), ("S2", 12), ("S3", 7), ("S4", 5)];

struct Row<'a> {
    id: &'a str,
    text: &'a str,
    state: &'a str,
    shown_by: &'a str,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rows(text: &str) -> Vec<Row<'_>> {
    text.lines()
        .filter(|line| line.starts_with("| S"))
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            match cells[..] {
                [id, text, state, shown_by] => Some(Row { id, text, state, shown_by }),
                _ => None,
            }
        })
        .collect()
}

/// Test names in a cell: every word with `::`.
fn tests(cell: &str) -> impl Iterator<Item = &str> {
    cell.split([' ', ',', ';', '(', ')', '`'])
        .map(|word| word.trim_end_matches(['.', ':']))
        .filter(|word| word.contains("::"))
}

/// Returns a row's fault, other than missing tests.
fn fault(row: &Row<'_>) -> Option<&'static str> {
    let named = tests(row.shown_by).next().is_some();
    match row.state {
        "yes" if !named => Some("'yes' is shown by no test"),
        "part" if !named && !row.shown_by.contains("no test") => {
            Some("'part' names neither a test nor says 'no test'")
        }
        "yes" | "part" | "no" => None,
        _ => Some("that is no state: yes, part or no"),
    }
}

/// Returns the file and name of `crate::path::test`.
fn locate(test: &str) -> Result<(PathBuf, &str)> {
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
        if file.is_file() {
            let source = fs::read_to_string(&file)?;
            if is_test_in(&source, name) {
                return Ok((file, name));
            }
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
    let text = fs::read_to_string(root().join("docs/requirements.md"))?;
    let rows = rows(&text);
    for line in REQUIREMENTS.lines() {
        let (id, wanted) = line.split_once(' ').context("a requirement is an id and a text")?;
        let found: Vec<&Row<'_>> = rows.iter().filter(|r| r.id == id).collect();
        ensure!(found.len() == 1, "{id} has {} rows", found.len());
        ensure!(found[0].text == wanted, "{id} says '{}' instead of '{wanted}'", found[0].text);
        if let Some(fault) = fault(found[0]) {
            anyhow::bail!("{id}: {fault}");
        }
    }
    ensure!(rows.len() == REQUIREMENTS.lines().count(), "there are {} rows", rows.len());
    for (document, count) in IDS {
        let ids = |n: usize| format!("{document}.{n} ");
        let pinned = (1..=count).all(|n| REQUIREMENTS.lines().any(|line| line.starts_with(&ids(n))));
        ensure!(pinned && rows.iter().filter(|r| r.id.starts_with(document)).count() == count, "{document}");
    }
    Ok(())
}

#[test]
fn a_row_that_shows_nothing_is_noticed() {
    let row = |state, shown_by| Row { id: "S0.1", text: "t", state, shown_by };
    assert!(fault(&row("yes", "soon")).is_some());
    assert!(fault(&row("part", "most of it")).is_some());
    assert!(fault(&row("nearly", "a::b")).is_some());
    assert!(fault(&row("part", "most of it; no test")).is_none());
    assert!(fault(&row("yes", "by a::b")).is_none());
    assert!(fault(&row("no", "")).is_none());
    assert_eq!(tests("x: a::b, (engine::c); `d::e`.").collect::<Vec<_>>(), ["a::b", "engine::c", "d::e"]);
    assert!(locate("engine::plan::naming::tests::names_fit").is_err());
}

#[test]
fn every_test_that_is_named_exists() -> Result<()> {
    let text = fs::read_to_string(root().join("docs/requirements.md"))?;
    for row in rows(&text) {
        for test in tests(row.shown_by) {
            locate(test).with_context(|| format!("docs/requirements.md, row {}", row.id))?;
        }
    }
    Ok(())
}

#[test]
fn a_test_that_does_not_exist_is_noticed() {
    assert!(locate("tidewatch_planner::naming::tests::names_fit").is_ok());
    assert!(locate("tidewatch_planner::naming::tests::names_fly").is_err());
    assert!(locate("tidewatch_wire::v2::tests::knows_its_paths").is_ok());
    assert!(locate("tidewatch_tests::e2e::skeleton::nothing").is_err());
    assert!(!is_test_in("fn helper() {}", "helper"));
}
