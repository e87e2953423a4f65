use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

const POLICY: &str = r#"{
  "rules": [
    {"match": {"region": "northeurope|central│us"},
     "windows": [{"days": ["Sat"], "begin": "01:00:00+00:00", "end": "05:00:00+00:00"}]},
    {"match": {"globalAccountID": "acme"},
     "windows": [{"days": ["Sat"], "begin": "01:00:00+00:00", "end": "05:00:00+00:00"}]}
  ],
  "default": {"days": ["Wed"], "begin": "20:00:00Z", "end": "00:00:00Z"}
}"#;

fn lint(policy: &str, options: &[&str]) -> anyhow::Result<(Output, String)> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("policy.json"), policy)?;
    let output = Command::new(env!("CARGO_BIN_EXE_tidewatch"))
        .args(["lint", "windows", "policy.json", "--at", "2026-03-01T00:00:00Z"])
        .args(options)
        .current_dir(folder.path())
        .output()?;
    let text = String::from_utf8(output.stdout.clone())? + &String::from_utf8(output.stderr.clone())?;
    Ok((output, text))
}

#[test]
fn findings_are_printed_with_their_lines() {
    let (output, text) = lint(POLICY, &[]).unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(text);
}

#[test]
fn fleet_specific_values_are_options() {
    let (output, text) = lint(POLICY, &["--value", "globalAccountID=not-acme-2", "--strict"]).unwrap();
    assert!(!output.status.success());
    assert!(text.contains("policy.json:5: warning (anchor-matters): rules[1].match.globalAccountID: 'acme' matches inside of 'not-acme-2'"), "{text}");
    assert!(text.ends_with("tidewatch: policy.json has 3 warnings\n"), "{text}");
}

#[test]
fn findings_are_available_as_json() {
    let (output, _) = lint(POLICY, &["-o", "json", "--min", "5h"]).unwrap();
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(page["usable"], true);
    let too_short: Vec<_> = page["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| f["kind"] == "too-short")
        .map(|f| &f["field"])
        .collect();
    assert_eq!(too_short, ["rules[0].windows[0]", "rules[1].windows[0]", "default"]);
}

#[test]
fn an_error_names_its_line_and_field() {
    let bad = POLICY.replace("05:00:00+00:00\"}]}\n", "5 o'clock\"}]}\n");
    let (output, text) = lint(&bad, &[]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.starts_with(
            "tidewatch: policy.json: the maintenance policy cannot be used: line 6, rules[1].windows[0].end: '5 o'clock' is not a time"
        ),
        "{text}"
    );
    let (output, _) = lint(&bad, &["-o", "json"]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (page["error"]["line"].as_u64(), page["error"]["field"].as_str()),
        (Some(6), Some("rules[1].windows[0].end"))
    );
}

#[test]
fn an_oversized_file_is_refused() {
    let (output, text) = lint(&"é".repeat(200_000), &[]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("policy.json: has more than 262144 bytes"), "{text}");
}
