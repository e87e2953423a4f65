use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tidewatch_demo::wait;

const SOON: Duration = Duration::from_mins(1);
const VARIABLES: [&str; 11] = [
    "KCP_KUBECONFIG",
    "RUNTIME1_KUBECONFIG",
    "RUNTIME2_KUBECONFIG",
    "RECEIVER_URL",
    "RECEIVER_ADMIN_URL",
    "AGENT1_ADMIN_URL",
    "CA_FILE",
    "AGENT1_CERT",
    "AGENT1_KEY",
    "REGISTRY_URL",
    "BIN",
];

fn tidewatch(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewatch"));
    command.arg("demo").args(args).arg("--folder").arg(folder).stdin(Stdio::null());
    command
}

fn shell(env: &Path, line: &str) -> Result<Output> {
    let line = format!(". '{}'; {line}", env.display());
    Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().context("there is no sh")
}

fn succeeded(what: &str, output: &Output) -> Result<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

async fn try_it(env: &Path, said: &str) -> Result<()> {
    let text = fs::read_to_string(env)?;
    let names: Vec<&str> =
        text.lines().filter_map(|line| Some(line.strip_prefix("export ")?.split_once('=')?.0)).collect();
    assert_eq!(names, VARIABLES);
    for line in text.lines() {
        let value = line.split_once('=').context("no value")?.1.trim_matches('\'');
        ensure!(value.contains("://") || Path::new(value).exists(), "{line} names nothing");
    }
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("   ")).collect();
    let lines: Vec<&str> = lines.into_iter().filter(|line| line.starts_with("$BIN/")).collect();
    assert_eq!(lines.len(), 7, "{said}");
    let kubectl = env.with_file_name("bin/kubectl").exists();
    assert_eq!(!kubectl, said.contains("No kubectl was found"));
    for line in lines.iter().filter(|line| kubectl || !line.contains("kubectl")) {
        // Later lines depend on earlier effects.
        wait::until(line, SOON, || async {
            Ok(Some(succeeded(line, &shell(env, line.trim_end_matches(" -w"))?)?))
        })
        .await?;
    }
    let why = succeeded("explain", &shell(env, "$BIN/tidewatch explain runtime-harbour")?)?;
    ensure!(why.contains("because of event #"), "{why}");
    // Agents follow their ConfigMap, as in a pod: the rotation passes its first step.
    succeeded("rotate", &shell(env, "$BIN/tidewatch certs rotate --kubeconfig $KCP_KUBECONFIG")?)?;
    wait::until("the next CA to sign", SOON, || async {
        let status = shell(env, "$BIN/tidewatch certs status --kubeconfig $KCP_KUBECONFIG")?;
        Ok(succeeded("status", &status)?.contains("retiring").then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_detached_demo_can_be_tried_and_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let said = succeeded("the demo", &tidewatch(folder.path(), &["--keep", "--detach"]).output()?)?;
    let env = folder.path().canonicalize()?.join("env");
    let tried = try_it(&env, &said).await;
    let again = tidewatch(folder.path(), &[]).output()?;
    let (refused, is_left) = (String::from_utf8_lossy(&again.stderr).into_owned(), env.exists());
    let down = succeeded("down", &tidewatch(folder.path(), &["down"]).output()?)?;
    tried?;
    ensure!(again.status.code() == Some(1) && is_left, "it was not left alone: {refused}");
    ensure!(refused.contains("make demo-down") && refused.contains("FORCE=1"), "{refused}");
    assert_eq!(down.trim(), "1 process ended");
    assert!(!env.exists());
    Ok(())
}

#[tokio::test]
async fn a_kept_demo_cleans_up_on_ctrl_c() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = fs::File::create(folder.path().join("said"))?;
    let mut demo = tidewatch(folder.path(), &["--keep"]).stdout(log.try_clone()?).stderr(log).spawn()?;
    let env: PathBuf = folder.path().join("env");
    let kept = wait::until("the demo to be there to try", SOON, || async { Ok(env.exists().then_some(())) });
    let kept = kept.await;
    let told = Command::new("sh").args(["-c", "kill -s INT \"$0\"", &demo.id().to_string()]).status()?;
    let ended = tokio::task::spawn_blocking(move || demo.wait()).await??;
    let said = fs::read_to_string(folder.path().join("said"))?;
    kept?;
    ensure!(told.success() && ended.success(), "{ended}: {said}");
    ensure!(!env.exists() && !folder.path().join("pids").exists(), "something is left: {said}");
    Ok(())
}

#[test]
fn the_demo_of_a_single_cluster_ends_by_itself() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let said = succeeded("the demo", &tidewatch(folder.path(), &["--single"]).output()?)?;
    for part in ["single-cluster mode: no port for agents", "-> restored", "CRDs stay"] {
        ensure!(said.contains(part), "{said}");
    }
    let kept = tidewatch(folder.path(), &["--single", "--keep"]).output()?;
    ensure!(kept.status.code() == Some(2), "a single cluster cannot be kept yet");
    Ok(())
}
