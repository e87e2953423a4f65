//! The demo's story on simulated clusters is recorded, and replayed.

mod common;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, ensure};
use tidewatch_demo::{report::Recorder, simulated::Simulated, story::World};
use tidewatch_engine::journal::{Answer, Content, Line};
use tidewatch_replay::{End, Item, Record};

use common::{decisions, played};

/// Plays the story, with a record.
async fn recorded(file: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let reporter = Recorder::default();
    let mut simulated = Simulated::start(folder.path()).await?.recorded(Some(file.to_owned()));
    let world = World::start(simulated.stage()?, &mut simulated, &reporter).await?;
    world.run(&reporter).await?;
    simulated.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_story_is_replayed_without_a_divergence_twice_the_same_and_a_changed_answer_shows() -> Result<()>
{
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("record");
    recorded(&file).await?;

    let text = std::fs::read_to_string(&file)?;
    for secret in ["client-key-data", "PRIVATE KEY", "Bearer ", "certificate-authority-data"] {
        ensure!(!text.contains(secret), "the record has {secret}");
    }
    ensure!(text.contains("cmVkYWN0ZWQ="), "a kubeconfig Secret was read, and is redacted");

    let record = Record::read(&file, |_, _| {})?;
    assert_eq!(record.end, End::Closed);
    let (record, first) = played(record).await?;
    let differences: Vec<_> = first.items.iter().filter(|i| matches!(i, Item::Divergence(_))).collect();
    assert_eq!(first.divergences, 0, "{differences:#?}");
    let begun = record.lines.iter().filter(|l| matches!(l.line, Line::Begin { .. })).count();
    assert_eq!(first.decisions, begun);
    let kinds: BTreeSet<&str> = decisions(&first).filter_map(|d| d.key.split('/').next()).collect();
    assert!(kinds.contains("Kyma") && kinds.contains("Manifest") && kinds.contains("Agent"), "{kinds:?}");
    ensure!(decisions(&first).any(|decision| decision.calls.iter().any(|call| call.to == "runtime/harbour")));

    let (mut record, second) = played(record).await?;
    assert_eq!(serde_json::to_string(&first)?, serde_json::to_string(&second)?);

    // The user's wish, as one reconcile has read it, was another one.
    let answer = record.lines.iter_mut().find_map(|line| match &mut line.line {
        Line::Answer { answer: Answer::Status { body: Content::Json(object), .. }, .. }
            if object["kind"] == "Kyma" && object["spec"]["modules"][0].is_object() =>
        {
            Some(object)
        }
        _ => None,
    });
    answer.context("no Kyma with a module was read")?["spec"]["modules"] = serde_json::json!([]);
    let (_, changed) = played(record).await?;
    let of_kyma = |item: &Item| matches!(item, Item::Divergence(d) if d.key == "Kyma/harbour");
    ensure!(changed.divergences > 0 && changed.items.iter().any(of_kyma), "{:#?}", changed.items);
    Ok(())
}
