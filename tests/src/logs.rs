//! Checks that no log event has a field `message`: JSON uses that name for the event's text.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// Fields of each log event in a source.
fn fields(source: &str) -> impl Iterator<Item = &str> {
    let events = source.split("tracing::").skip(1).filter(|rest| {
        ["trace!(", "debug!(", "info!(", "warn!(", "error!("].iter().any(|level| rest.starts_with(level))
    });
    let arguments =
        events.filter_map(|rest| rest.split_once("!(")?.1.split_once(");").map(|(inside, _)| inside));
    arguments.flat_map(|inside| inside.split(',').map(str::trim))
}

fn is_second_text(field: &str) -> bool {
    field.trim_start_matches(['%', '?']) == "message" || field.starts_with("message =")
}

/// Adds the Rust files below `folder` to `found`.
pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn no_log_event_has_a_second_message_field() -> Result<()> {
    let mut all = Vec::new();
    for part in [
        "agent/src",
        "deployer/src",
        "engine/src",
        "listener/src",
        "oci/src",
        "planner/src",
        "receiver/src",
        "shared",
    ] {
        sources(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(part), &mut all)?;
    }
    ensure!(all.len() > 100, "{} sources", all.len());
    for path in all {
        let source = fs::read_to_string(&path)?;
        let second = fields(&source).find(|field| is_second_text(field));
        ensure!(second.is_none(), "{}: call it detail, not {second:?}", path.display());
    }
    Ok(())
}

#[test]
fn a_second_message_field_is_detected() {
    let found = |source: &str| fields(source).any(is_second_text);
    assert!(
        found("tracing::warn!(%key, message, \"failed\");") && found("tracing::info!(message = x(), \"y\");")
    );
    assert!(!found("tracing::warn!(%key, detail = message, \"failed\");") && !found("let message = 7;"));
}
