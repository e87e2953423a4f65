//! A dry run's report.

use std::{collections::BTreeMap, fmt::Write as _};

use clap::ValueEnum;
use serde::Serialize;

use super::{
    book::{Change, Group, Page},
    fields::MAX_FIELDS,
};

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for a terminal.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// The result, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Only expected changes.
    Expected,
    /// Other changes.
    Changes,
    /// Not all was examined.
    Incomplete,
}

impl Verdict {
    /// Returns the exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Expected => 0,
            Self::Changes => 3,
            Self::Incomplete => 4,
        }
    }
}

/// A dry run's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The result.
    pub verdict: Verdict,
    /// Catalog and Watchers.
    pub control_plane: Entry,
    /// Changes by Kyma.
    pub runtimes: BTreeMap<String, Entry>,
    /// Reasons for an incomplete report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// Changes of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Labelled skip-reconciliation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
    /// Unexpected changes.
    pub changes: Vec<Write>,
    /// Replacement of the watcher.
    pub exchange: Vec<Write>,
    /// Own marks, ignored by the Go manager.
    pub marks: Vec<Write>,
    /// Not examined, with the reason.
    pub failures: Vec<String>,
    /// Found in Error or Warning, with the reason.
    pub troubles: Vec<String>,
    /// Used extensions, ignored by the Go manager.
    pub extensions: Vec<String>,
}

/// An object that would be written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// `kcp` or `runtime`.
    pub side: &'static str,
    /// The object.
    pub object: String,
    /// Operations.
    pub operations: Vec<&'static str>,
    /// Differing fields, at most 20; empty for creations, deletions and mere field manager changes.
    pub fields: Vec<String>,
    /// Whether more fields differ.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

impl From<Change> for Write {
    fn from(change: Change) -> Self {
        let Change { side, object, operations, fields } = change;
        let more = fields.len() > MAX_FIELDS;
        let fields = fields.into_iter().take(MAX_FIELDS).collect();
        Self { side, object, operations: operations.into_iter().collect(), fields, more }
    }
}

impl Entry {
    pub(super) fn of(page: Page, extensions: Vec<String>, left_alone: bool) -> Self {
        let Page { failures, troubles, .. } = page;
        let mut entry = Self { left_alone, failures, troubles, extensions, ..Self::default() };
        for change in page.changes {
            let list = match change.group() {
                Group::Exchange => &mut entry.exchange,
                Group::Mark => &mut entry.marks,
                Group::Change => &mut entry.changes,
            };
            list.push(change.into());
        }
        entry
    }
}

impl Report {
    pub(super) fn new(control_plane: Entry, runtimes: BTreeMap<String, Entry>, missing: Vec<String>) -> Self {
        let mut report = Self { verdict: Verdict::Expected, control_plane, runtimes, missing };
        let all = || report.runtimes.values().chain([&report.control_plane]);
        let verdict = if !report.missing.is_empty() || all().any(|entry| !entry.failures.is_empty()) {
            Verdict::Incomplete
        } else if all().any(|entry| !entry.changes.is_empty()) {
            Verdict::Changes
        } else {
            Verdict::Expected
        };
        report.verdict = verdict;
        report
    }

    /// Formats the report, without a final newline.
    #[must_use]
    pub fn render(&self, output: Output) -> String {
        match output {
            Output::Json => serde_json::to_string_pretty(self).unwrap_or_default(),
            Output::Text => self.text(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut same: BTreeMap<&Entry, Vec<&str>> = BTreeMap::new();
        for (kyma, entry) in &self.runtimes {
            same.entry(entry).or_default().push(kyma);
        }
        let mut all: Vec<_> = same.into_iter().collect();
        all.sort_by_key(|(_, kymas)| kymas.first().copied().unwrap_or_default());
        if self.control_plane != Entry::default() {
            paragraph(&mut text, "control plane", &self.control_plane);
        }
        for (entry, kymas) in all {
            let named = if kymas.len() > 1 { format!("{} runtimes: ", kymas.len()) } else { String::new() };
            paragraph(&mut text, &format!("{named}{}", kymas.join(", ")), entry);
        }
        let count = |is: &dyn Fn(&Entry) -> bool| self.runtimes.values().filter(|entry| is(entry)).count();
        let _ = writeln!(
            text,
            "{} runtimes: {} with changes that are not expected, {} not looked at, {} left alone, {} with fields of our own",
            self.runtimes.len(),
            count(&|entry| !entry.changes.is_empty()),
            count(&|entry| !entry.failures.is_empty()),
            count(&|entry| entry.left_alone),
            count(&|entry| !entry.extensions.is_empty()),
        );
        for reason in &self.missing {
            let _ = writeln!(text, "not complete: {reason}");
        }
        text.push_str(match self.verdict {
            Verdict::Expected => "nothing would change but the watcher's exchange; nothing was written",
            Verdict::Changes => "something would change besides the watcher's exchange; nothing was written",
            Verdict::Incomplete => "not everything could be looked at; nothing was written",
        });
        text
    }
}

fn paragraph(text: &mut String, title: &str, entry: &Entry) {
    let _ = writeln!(text, "{title}");
    if entry.left_alone {
        let _ = writeln!(text, "  left alone: skip-reconciliation");
    }
    // Deletions first.
    let (removed, changed): (Vec<&Write>, Vec<&Write>) =
        entry.changes.iter().partition(|write| matches!(write.operations.as_slice(), ["delete"]));
    for (words, writes) in [
        ("would be removed", removed),
        ("would change", changed),
        ("the watcher's exchange", entry.exchange.iter().collect()),
        ("marks that the Go manager ignores", entry.marks.iter().collect()),
    ] {
        if !writes.is_empty() {
            let _ = writeln!(text, "  {words}:");
        }
        for write in writes {
            let more = if write.more { ", …" } else { "" };
            let fields = match write.operations.as_slice() {
                ["create" | "delete"] => String::new(),
                _ if write.fields.is_empty() => ": field owners".to_owned(),
                _ => format!(": {}{more}", write.fields.join(", ")),
            };
            let _ = writeln!(
                text,
                "    {:<7} {:<6} {}{fields}",
                write.side,
                write.operations.join("+"),
                write.object
            );
        }
    }
    for (words, lines) in [
        ("not looked at", &entry.failures),
        ("in trouble", &entry.troubles),
        ("fields of our own", &entry.extensions),
    ] {
        for line in lines {
            let _ = writeln!(text, "  {words}: {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn change(object: &str, operation: &'static str, fields: &[&str]) -> Change {
        Change {
            side: "runtime",
            object: object.into(),
            operations: BTreeSet::from([operation]),
            fields: fields.iter().map(|f| (*f).to_owned()).collect(),
        }
    }

    fn entry(changes: Vec<Change>, failures: &[&str]) -> Entry {
        let failures = failures.iter().map(|f| (*f).to_owned()).collect();
        let page = Page { changes, failures, is_reconciled: true, ..Page::default() };
        Entry::of(page, Vec::new(), false)
    }

    fn report(entries: Vec<(&str, Entry)>, missing: &[&str]) -> Report {
        let runtimes = entries.into_iter().map(|(kyma, entry)| (kyma.to_owned(), entry)).collect();
        Report::new(Entry::default(), runtimes, missing.iter().map(|m| (*m).to_owned()).collect())
    }

    #[test]
    fn a_runtime_already_in_error_counts_as_looked_at() {
        let page =
            Page { troubles: vec!["Kyma/a: no such channel".into()], is_reconciled: true, ..Page::default() };
        let report = Report::new(
            Entry::default(),
            BTreeMap::from([("a".to_owned(), Entry::of(page, Vec::new(), false))]),
            Vec::new(),
        );
        assert_eq!(report.verdict, Verdict::Expected);
        let text = report.render(Output::Text);
        assert!(
            text.contains("  in trouble: Kyma/a: no such channel") && text.contains(" 0 not looked at"),
            "{text}"
        );
    }

    #[test]
    fn the_reports_verdict_is_the_worst_of_its_entries() {
        let exchange =
            || entry(vec![change("ConfigMap kyma-system/tidewatch-agent-config", "create", &[])], &[]);
        let changed = || entry(vec![change("Deployment.apps n/d", "apply", &["spec.replicas"])], &[]);
        assert_eq!(report(vec![("a", exchange())], &[]).verdict, Verdict::Expected);
        assert_eq!(report(vec![("a", exchange()), ("b", changed())], &[]).verdict, Verdict::Changes);
        assert_eq!(
            report(vec![("b", changed()), ("c", entry(vec![], &["no"]))], &[]).verdict,
            Verdict::Incomplete
        );
        assert_eq!(report(vec![("a", exchange())], &["it took too long"]).verdict, Verdict::Incomplete);
        let codes = [Verdict::Expected, Verdict::Changes, Verdict::Incomplete].map(Verdict::exit_code);
        assert_eq!(codes, [0, 3, 4]);
    }

    #[test]
    fn the_text_groups_changes_by_runtime_and_kind() {
        let exchange =
            || entry(vec![change("ConfigMap kyma-system/tidewatch-agent-config", "create", &[])], &[]);
        let changed = entry(vec![change("Deployment.apps n/d", "apply", &["spec.replicas"])], &[]);
        let text =
            report(vec![("a", exchange()), ("b", exchange()), ("c", changed)], &[]).render(Output::Text);
        assert!(text.starts_with("2 runtimes: a, b\n  the watcher's exchange:\n"), "{text}");
        assert!(
            text.contains("c\n  would change:\n    runtime apply  Deployment.apps n/d: spec.replicas\n"),
            "{text}"
        );
        let gone = change("Manifest guard", "delete", &[]);
        let spec = change("Manifest crane", "apply", &["spec.version"]);
        let text = report(vec![("a", entry(vec![gone, spec], &[]))], &[]).render(Output::Text);
        assert!(
            text.starts_with(
                "a\n  would be removed:\n    runtime delete Manifest guard\n  would change:\n    runtime apply  Manifest crane: spec.version\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_text_report_counts_runtimes_with_changes() {
        let changed = || entry(vec![change("Deployment.apps n/d", "apply", &["spec.replicas"])], &[]);
        let exchange = || entry(Vec::new(), &[]);
        let text =
            report(vec![("a", exchange()), ("b", exchange()), ("c", changed())], &[]).render(Output::Text);
        assert!(text.contains("3 runtimes: 1 with changes that are not expected"), "{text}");
    }
}
