use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tidewatch;

#[test]
fn a_closed_output_pipe_ends_every_command_quietly() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["--help"][..],
        &["--version"],
        &["version"],
        &["completion", "bash"],
        &["simulate", "--list"],
        &["simulate", "--list", "-o", "json"],
        &["certs", "ca", "--force"],
        &["generate", "crds"],
        &["demo", "down", "--folder", "none"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_tidewatch"))
            .args(args)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{args:?}: {} {said}", output.status);
    }
}

#[test]
fn a_wrong_option_ends_every_command_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["--no-such"][..],
        &["no-such"],
        &["certs", "server"],
        &["certs", "client", "--runtime-id", "a"],
        &["certs", "ca", "-o", "markdown"],
        &["explain", "--admin", "nonsense"],
        &["explain", "a/b"],
        &["simulate", "--runtimes", "0"],
        &["simulate", "--modules", "1000"],
        &["simulate", "--objects", "0"],
        &["demo", "-o", "json"],
    ] {
        let (code, _, said) = tidewatch(folder.path(), args);
        assert!(code == Some(2) && said.starts_with("error: "), "{args:?}: {code:?} {said}");
    }
}

#[test]
fn version_and_scenario_list_are_available_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let json = |args: &[&str]| {
        let (code, out, said) = tidewatch(folder.path(), args);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        serde_json::from_str::<Value>(&out).unwrap()
    };
    assert_eq!(json(&["version", "-o", "json"])["version"], env!("CARGO_PKG_VERSION"));
    let list = json(&["simulate", "--list", "-o", "json"]);
    assert!(
        list.as_array().unwrap().iter().any(|one| one["name"] == "rollout" && one["about"].is_string()),
        "{list}"
    );
}
