//! `tidewatch demo --record` and `tidewatch replay`: what it says, and with what it ends.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

fn tidewatch(args: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewatch"));
    command.args(args).stdin(Stdio::null()).output().context("tidewatch does not run")
}

fn replay(file: &Path, args: &[&str]) -> Result<(Option<i32>, String, String)> {
    let file = file.to_str().context("a strange folder")?;
    let output = tidewatch(&[&["replay", file], args].concat())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_demo_is_replayed_the_same_in_each_process_and_differences_have_an_exit_code() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("demo.record");
    let path = |path: &Path| path.display().to_string();
    let demo = tidewatch(&["demo", "--folder", &path(folder.path()), "--record", &path(&file)])?;
    ensure!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));

    let (code, first, said) = replay(&file, &[])?;
    ensure!(code == Some(0) && first.ends_with(" decisions, 0 divergences\n"), "{code:?} {said}\n{first}");
    ensure!(first.contains("because of event #"), "{first}");
    assert_eq!(replay(&file, &[])?.1, first, "another process has other hashes and threads");

    let (_, json, _) = replay(&file, &["-o", "json"])?;
    let document: Value = serde_json::from_str(&json)?;
    assert_eq!((&document["divergences"], &document["record"]["end"]), (&0.into(), &"closed".into()));
    let (_, one, _) = replay(&file, &["--runtime", "runtime-harbour", "-o", "json"])?;
    let one: Value = serde_json::from_str(&one)?;
    let kymas = one["items"].as_array().into_iter().flatten().map(|item| &item["kyma"]);
    ensure!(kymas.clone().count() > 0 && kymas.clone().all(|kyma| kyma == "harbour"), "{one:#}");
    let (code, begin, _) = replay(&file, &["--until", "1"])?;
    ensure!(code == Some(0) && begin.ends_with("\n0 decisions, 0 divergences\n"), "{begin}");

    // Somebody else's answer: the first Kyma with a module that was read in the runtime is without it.
    let mut edited = false;
    let lines = fs::read_to_string(&file)?;
    let lines: Vec<String> = lines
        .lines()
        .map(|text| {
            let mut line: Value = serde_json::from_str(text)?;
            let modules = line.pointer_mut("/body/json/spec/modules");
            if let Some(modules) = modules.filter(|m| !edited && m.as_array().is_some_and(|m| !m.is_empty()))
            {
                *modules = Value::Array(Vec::new());
                edited = true;
            }
            Ok(line.to_string())
        })
        .collect::<Result<_>>()?;
    ensure!(edited, "no Kyma with a module was read");
    let other = folder.path().join("edited.record");
    fs::write(&other, lines.join("\n") + "\n")?;
    let (code, text, _) = replay(&other, &[])?;
    ensure!(code == Some(3) && text.contains("DIVERGENCE in Kyma/harbour: "), "{code:?}\n{text}");

    let cut = folder.path().join("cut.record");
    let whole = fs::read(&file)?;
    fs::write(&cut, &whole[..whole.len() * 2 / 3])?;
    let (code, text, _) = replay(&cut, &[])?;
    ensure!(code == Some(0) && text.contains("note: the record is cut off here"), "{code:?}\n{text}");
    Ok(())
}

#[test]
fn what_cannot_be_played_is_said() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("text");
    fs::write(&file, "hello\n")?;
    let (code, _, said) = replay(&file, &[])?;
    ensure!(code == Some(1) && said.contains("is no record"), "{said}");
    let (code, _, said) = replay(&folder.path().join("none"), &[])?;
    ensure!(code == Some(1) && said.contains("cannot be read"), "{said}");
    Ok(())
}
