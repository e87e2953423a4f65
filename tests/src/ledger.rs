//! Checks `docs/requirements.md`: every requirement has a row, and every test it names exists.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

/// How many requirements each source document has.
const IDS: [(&str, u32); 5] = [("S0", 11), ("S1", 5), ("S2", 12), ("S3", 7), ("S4", 5)];

struct Row<'a> {
    id: &'a str,
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
                [id, _, state, shown_by] => Some(Row { id, state, shown_by }),
                _ => None,
            }
        })
        .collect()
}

/// Names of tests in a cell: words with `::` that start with a crate's name.
fn tests(cell: &str) -> impl Iterator<Item = &str> {
    cell.split([' ', ',', ';']).filter(|word| word.starts_with("tidewatch_") && word.contains("::"))
}

/// The file that holds `crate::path::test`, and the test's name.
fn locate(test: &str) -> Result<(PathBuf, &str)> {
    let mut parts: Vec<&str> = test.split("::").collect();
    let name = parts.pop().context("no test name")?;
    let krate = parts.remove(0);
    let folder = match krate.trim_start_matches("tidewatch_") {
        "tests" if parts.first() == Some(&"e2e") => {
            parts.remove(0);
            "tests/tests/e2e".to_owned()
        }
        known @ ("agent" | "certs" | "cli" | "engine" | "receiver" | "tests") => format!("{known}/src"),
        shared => format!("shared/{shared}/src"),
    };
    let folder = root().join(folder);
    // A test stands in a file of its own module, or in a `mod tests` of its parent's file.
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

/// Whether a function of that name stands directly below a test attribute.
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
    for (document, count) in IDS {
        for n in 1..=count {
            let id = format!("{document}.{n}");
            let found: Vec<&Row<'_>> = rows.iter().filter(|r| r.id == id).collect();
            ensure!(found.len() == 1, "{id} has {} rows", found.len());
            ensure!(
                ["yes", "part", "no"].contains(&found[0].state),
                "{id}: '{}' is no state",
                found[0].state
            );
            ensure!(
                found[0].state != "yes" || tests(found[0].shown_by).next().is_some(),
                "{id} is shown by no test"
            );
        }
    }
    ensure!(rows.len() == 40, "there are {} rows; a requirement has exactly one", rows.len());
    Ok(())
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
    assert!(locate("tidewatch_engine::plan::naming::tests::names_fit").is_ok());
    assert!(locate("tidewatch_engine::plan::naming::tests::names_fly").is_err());
    assert!(locate("tidewatch_wire::v2::tests::knows_its_paths").is_ok());
    assert!(locate("tidewatch_tests::e2e::skeleton::nothing").is_err());
    assert!(!is_test_in("fn helper() {}", "helper"));
}
