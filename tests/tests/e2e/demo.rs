//! Interruption of the demo.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tidewatch_real_only::real_only;
use tidewatch_tests::{Tools, process::end_recorded, wait};

const SOON: Duration = Duration::from_mins(1);

fn recorded(pids: &Path) -> usize {
    fs::read_to_string(pids).map_or(0, |text| text.lines().count())
}

#[real_only("it plays the demo's processes on real control planes")]
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_demo_leaves_nothing_running() -> Result<()> {
    // `Tools::find` blocks: it can build.
    let tools = tokio::task::spawn_blocking(Tools::find).await??;
    for signal in ["TERM", "INT"] {
        let target = tempfile::tempdir()?;
        let pids = target.path().join("demo/pids");
        let demo = Command::new(env!("CARGO_BIN_EXE_tidewatch-real-demo"))
            .args(["up", "--keep"])
            .env("CARGO_TARGET_DIR", target.path())
            .env("TIDEWATCH_TOOLS", tools.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let begun = wait::until("the demo to start something", SOON, || async {
            Ok((recorded(&pids) >= 2).then_some(()))
        });
        let begun = begun.await;
        let told = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", signal, &demo.id().to_string()])
            .status()?;
        let ended = tokio::task::spawn_blocking(move || demo.wait_with_output()).await??;
        let left = end_recorded(&pids, SOON).await?;

        begun?;
        ensure!(told.success(), "SIG{signal} could not be sent");
        let said = String::from_utf8(ended.stdout).context("the demo printed something else than text")?;
        ensure!(ended.status.code() == Some(1), "SIG{signal}: {}: {said}", ended.status);
        ensure!(left == 0, "SIG{signal}: {left} processes were left running: {said}");
        ensure!(said.contains("Nothing is left running: ") && said.contains("make demo-down"), "{said}");
        ensure!(!said.contains("Nothing is left running: 0 "), "{said}");
    }
    Ok(())
}
