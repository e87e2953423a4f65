//! Prints findings. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::findings::{Finding, Level};

/// Returns the findings as JSON.
pub(super) fn json(findings: &[Finding]) -> Value {
    let groups = grouped(findings).map(|group| {
        let checks = group.iter().map(|finding| {
            let Finding { check, level, message, remedy, .. } = finding;
            let mut value = json!({"check": check, "result": level.name()});
            for (field, text) in [("message", message), ("remedy", remedy)] {
                if !text.is_empty() {
                    value[field] = Value::from(text.as_str());
                }
            }
            value
        });
        json!({"name": group.first().map(|finding| finding.group), "checks": checks.collect::<Vec<_>>()})
    });
    json!({"success": !findings.iter().any(Finding::has_failed), "groups": groups.collect::<Vec<_>>()})
}

/// Returns the findings as text; `symbols` for terminals.
pub(super) fn text(findings: &[Finding], symbols: bool) -> String {
    let mut out = String::new();
    for group in grouped(findings) {
        let title = group.first().map_or("", |finding| finding.group);
        let _ = writeln!(out, "{title}\n{}", "-".repeat(title.len()));
        for Finding { check, level, message, remedy, .. } in group {
            let mark = if symbols { level.symbol() } else { level.mark() };
            let colon = if message.is_empty() { "" } else { ": " };
            let _ = writeln!(out, "{mark} {check}{colon}{message}");
            if !remedy.is_empty() {
                let indent = " ".repeat(mark.chars().count() + 1);
                let _ = writeln!(out, "{indent}-> {remedy}");
            }
        }
        out.push('\n');
    }
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let _ = writeln!(
        out,
        "{} checks: {} failed, {} warnings",
        findings.len(),
        count(Level::Failed),
        count(Level::Warning)
    );
    out
}

fn grouped(findings: &[Finding]) -> impl Iterator<Item = &[Finding]> {
    findings.chunk_by(|a, b| a.group == b.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_grouped_and_each_failure_has_its_remedy() {
        let findings = [
            Finding::good("control plane", "its API server answers", "v1.36.0"),
            Finding::new("runtimes", "harbour: access", Level::Failed, "no Secret", "register it"),
            Finding::new("runtimes", "quay: events", Level::Warning, "asleep", "wake it"),
            Finding::new("runtimes", "pier", Level::Skipped, "left alone", ""),
        ];
        insta::assert_snapshot!(text(&findings, true));
        assert!(text(&findings, false).contains("[fail] harbour: access: no Secret\n       -> register it"));
        let json = json(&findings);
        assert_eq!(json["success"], false);
        assert_eq!(json["groups"][1]["checks"][0]["remedy"], "register it");
        assert!(json["groups"][0]["checks"][0].get("remedy").is_none(), "{json}");
    }
}
