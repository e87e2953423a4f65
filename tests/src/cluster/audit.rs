//! An API server's audit log: who has asked it for what.

use std::path::PathBuf;

use anyhow::Result;

use crate::Harness;

/// Every request once, by its head: a watch when it begins to be answered, all else when it is answered.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [watch]
  omitStages: [ResponseComplete]
- level: Metadata
";

/// The flags by which an API server writes it, if this harness wants it.
pub(super) fn flags(harness: &Harness, cluster: &str) -> Result<Vec<String>> {
    if !harness.audits() {
        return Ok(Vec::new());
    }
    let policy = harness.write(&format!("{cluster}/audit.yaml"), POLICY)?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log(harness, cluster).display()),
        // What was answered is in it: nothing is left out because the disk is slow.
        "--audit-log-mode=blocking-strict".to_owned(),
        "--audit-log-maxsize=1024".to_owned(),
    ])
}

/// Where a control plane's is.
#[must_use]
pub fn log(harness: &Harness, cluster: &str) -> PathBuf {
    harness.folder().join(cluster).join("audit.log")
}
