//! An API server's audit log.

use std::path::PathBuf;

use anyhow::Result;

use crate::Harness;

/// Logs each request's metadata once: a watch at its start, other requests at their end.
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

/// The audit flags, if this harness enables them.
pub(super) fn flags(harness: &Harness, cluster: &str) -> Result<Vec<String>> {
    if !harness.audits() {
        return Ok(Vec::new());
    }
    let policy = harness.write(&format!("{cluster}/audit.yaml"), POLICY)?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log(harness, cluster).display()),
        // A slow disk must not drop entries.
        "--audit-log-mode=blocking-strict".to_owned(),
        "--audit-log-maxsize=1024".to_owned(),
    ])
}

/// Returns the path of a control plane's audit log.
#[must_use]
pub fn log(harness: &Harness, cluster: &str) -> PathBuf {
    harness.folder().join(cluster).join("audit.log")
}
