//! A dry run's writes and reconciles.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_api::names::{self, annotations, conditions, labels};
use tidewatch_engine::{
    WorkKey,
    compat::legacy_watcher,
    gate::{DryRunWrite, Recorder, Side},
    history::{Observer, Record},
    key::OutcomeKind,
};

use super::fields::{MAX_FIELDS, differing};

/// More make the report incomplete.
const OBJECTS: usize = 200_000;
/// Failures per runtime.
const FAILURES: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Replacement of the Go manager's watcher.
    Exchange,
    /// An own mark, ignored by the Go manager.
    Mark,
    /// Anything else; an untouched fleet has none.
    Change,
}

/// An object that would be written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    /// `kcp` or `runtime`.
    pub(super) side: &'static str,
    pub(super) object: String,
    /// Such as `apply, status`.
    pub(super) operations: BTreeSet<&'static str>,
    /// Differing fields; empty if only field managers differ.
    pub(super) fields: BTreeSet<String>,
}

impl Change {
    fn kind(&self) -> &str {
        let kind = self.object.split(' ').next().unwrap_or_default();
        kind.split('.').next().unwrap_or_default()
    }

    fn only(&self, paths: &[&str]) -> bool {
        self.fields.iter().all(|field| paths.contains(&field.as_str()))
    }

    pub(super) fn group(&self) -> Group {
        let condition = |type_: &str| format!("status.conditions[{type_}]");
        let expected_conditions =
            [conditions::SKR_WEBHOOK, conditions::MODULE_CATALOG, conditions::RUNTIME_EVENTS].map(condition);
        let terms = format!("metadata.annotations[{}]", annotations::MODULE_TERMS);
        let is_of_the_watcher =
            || legacy_watcher::objects().iter().any(|object| object.to_string() == self.object);
        let is_of_the_agent = || {
            let name = self.object.rsplit([' ', '/']).next().unwrap_or_default();
            match self.kind() {
                "ConfigMap" => name == names::AGENT_CONFIG_MAP,
                "ClusterRole" | "ClusterRoleBinding" => name == names::AGENT_WATCHES_ROLE,
                _ => false,
            }
        };
        // A runtime's conditions have its own generation, not KCP's.
        let is_expected = |field: &String| {
            let of_itself =
                field.starts_with("status.conditions[") && field.ends_with("].observedGeneration");
            expected_conditions.iter().any(|condition| field.starts_with(condition))
                || self.side == "runtime" && of_itself
        };
        let status_only = self.operations.iter().all(|operation| matches!(*operation, "status" | "merge"));
        let is_exchange = match (self.side, self.kind()) {
            ("kcp", "Watcher") => status_only,
            (_, "Kyma") => status_only && self.fields.iter().all(is_expected),
            ("runtime", _) if self.operations.iter().eq([&"delete"]) => is_of_the_watcher(),
            ("runtime", _) => is_of_the_agent(),
            _ => false,
        };
        let is_mark = || {
            // The template's uid alone is never written.
            let template = format!("metadata.annotations[{}]", annotations::TEMPLATE_UID);
            let alone = self.fields.contains(&template) && !self.fields.contains(&terms);
            let expected = [&terms, &template, &condition(conditions::MODULE_CR_STATE)];
            self.kind() == "Manifest" && self.only(&expected.map(String::as_str)) && !alone
        };
        match is_exchange {
            true => Group::Exchange,
            false if !self.fields.is_empty() && is_mark() => Group::Mark,
            false => Group::Change,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// By Kyma (or empty), side and object.
    changes: BTreeMap<(String, &'static str, String), Change>,
    failures: BTreeMap<String, BTreeSet<String>>,
    troubles: BTreeMap<String, BTreeSet<String>>,
    reconciled: BTreeSet<String>,
    dropped: usize,
}

#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Inner>);

/// Records of one Kyma, or of none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) changes: Vec<Change>,
    pub(super) failures: Vec<String>,
    /// Found in Error or Warning, with the reason.
    pub(super) troubles: Vec<String>,
    pub(super) is_reconciled: bool,
}

impl Book {
    pub(super) fn reconciled_kymas(&self) -> usize {
        self.0.lock().reconciled.len()
    }

    /// Dropped writes.
    pub(super) fn dropped(&self) -> usize {
        self.0.lock().dropped
    }

    /// `kyma` is empty for other objects.
    pub(super) fn page(&self, kyma: &str) -> Page {
        let inner = self.0.lock();
        let changes = inner.changes.iter().filter(|((of, ..), _)| of == kyma);
        let of = |lines: &BTreeMap<String, BTreeSet<String>>| -> Vec<String> {
            lines.get(kyma).into_iter().flatten().cloned().collect()
        };
        Page {
            changes: changes.map(|(_, change)| change.clone()).collect(),
            failures: of(&inner.failures),
            troubles: of(&inner.troubles),
            is_reconciled: inner.reconciled.contains(kyma),
        }
    }
}

impl Recorder for Book {
    fn record(&self, write: DryRunWrite) {
        let DryRunWrite { side, operation, object, before, after: answer } = write;
        let (side, kyma) = match side {
            Side::Runtime { kyma } => ("runtime", kyma),
            Side::Kcp => ("kcp", kyma_of(&object, &before, &answer)),
        };
        let operation = if before.is_null() && operation != "delete" { "create" } else { operation };
        let fields = match operation {
            "create" | "delete" => BTreeSet::new(),
            _ => differing(&before, &answer, object.starts_with("Secret ")),
        };
        let mut inner = self.0.lock();
        let key = (kyma, side, object.clone());
        if inner.changes.len() >= OBJECTS && !inner.changes.contains_key(&key) {
            inner.dropped += 1;
            return;
        }
        let change = inner.changes.entry(key).or_insert_with(|| Change {
            side,
            object,
            operations: BTreeSet::new(),
            fields: BTreeSet::new(),
        });
        change.operations.insert(operation);
        change.fields.extend(fields);
        while change.fields.len() > MAX_FIELDS + 1 {
            change.fields.pop_last();
        }
    }
}

impl Observer for Book {
    fn reconciled(&self, key: &WorkKey, record: &Record) {
        let mut inner = self.0.lock();
        if let WorkKey::Kyma { kyma } = key {
            inner.reconciled.insert(kyma.clone());
        }
        if matches!(record.outcome, OutcomeKind::Failed | OutcomeKind::Unreported) {
            let lines = if record.is_found { &mut inner.troubles } else { &mut inner.failures };
            let lines = lines.entry(key.kyma().to_owned()).or_default();
            if lines.len() < FAILURES {
                lines.insert(format!("{}: {}", record.key, record.message));
            }
        }
    }

    fn reachable(&self, _: &str, _: bool) {}
}

/// Returns the Kyma of an object in KCP, or an empty name.
fn kyma_of(object: &str, before: &Value, answer: &Value) -> String {
    let (kind, name) = object.split_once(' ').unwrap_or_default();
    let label = |value: &Value| value["metadata"]["labels"][labels::KYMA_NAME].as_str().map(str::to_owned);
    match kind {
        "Kyma" => name.to_owned(),
        "Manifest" => label(before).or_else(|| label(answer)).unwrap_or_default(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(side: Side, operation: &'static str, object: &str, before: Value, after: Value) -> DryRunWrite {
        DryRunWrite { side, operation, object: object.into(), before, after }
    }

    fn in_runtime() -> Side {
        Side::Runtime { kyma: "harbour".into() }
    }

    fn groups(writes: Vec<DryRunWrite>) -> Vec<(String, Group)> {
        let book = Book::default();
        for write in writes {
            book.record(write);
        }
        ["", "harbour"]
            .iter()
            .flat_map(|kyma| book.page(kyma).changes)
            .map(|change| (change.object.clone(), change.group()))
            .collect()
    }

    fn conditions(types: &[&str]) -> Value {
        let all: Vec<Value> = types.iter().map(|t| json!({"type": t})).collect();
        json!({"status": {"state": "Ready", "conditions": all}})
    }

    #[test]
    fn exchange_writes_are_distinguished_from_unexpected_changes() {
        let kyma = "Kyma.operator.kyma-project.io kyma-system/default";
        let there = json!({"metadata": {"name": "x"}});
        let webhook = legacy_watcher::first().to_string();
        let all = groups(vec![
            write(
                in_runtime(),
                "apply",
                "ConfigMap kyma-system/tidewatch-agent-config",
                Value::Null,
                there.clone(),
            ),
            write(in_runtime(), "delete", &webhook, there.clone(), Value::Null),
            write(in_runtime(), "delete", "Deployment.apps kyma-system/keel", there.clone(), Value::Null),
            write(
                in_runtime(),
                "merge",
                kyma,
                conditions(&["SKRWebhook", "Modules"]),
                conditions(&["SKRWebhook", "Modules"]),
            ),
            write(
                in_runtime(),
                "status",
                kyma,
                conditions(&["SKRWebhook", "Modules"]),
                conditions(&["Modules"]),
            ),
            write(Side::Kcp, "status", "Kyma harbour", conditions(&["Modules"]), conditions(&[])),
            write(Side::Kcp, "status", "Watcher w", json!({"status": 1}), json!({"status": 2})),
        ]);
        let of = |object: &str| all.iter().find(|(o, _)| o == object).unwrap().1;
        assert_eq!(of("ConfigMap kyma-system/tidewatch-agent-config"), Group::Exchange);
        assert_eq!(
            (of(&webhook), of(kyma), of("Watcher w")),
            (Group::Exchange, Group::Exchange, Group::Exchange)
        );
        assert_eq!(of("Deployment.apps kyma-system/keel"), Group::Change);
        assert_eq!(of("Kyma harbour"), Group::Change, "another condition");
        let seen = |generation| json!({"status": {"conditions": [{"type": "Modules", "observedGeneration": generation}]}});
        let all = groups(vec![
            write(in_runtime(), "status", kyma, seen(1), seen(4)),
            write(Side::Kcp, "status", "Kyma harbour", seen(1), seen(4)),
        ]);
        let of = |object: &str| all.iter().find(|(o, _)| o == object).unwrap().1;
        assert_eq!((of(kyma), of("Kyma harbour")), (Group::Exchange, Group::Change));
    }

    #[test]
    fn applying_the_watchers_own_object_is_a_change() {
        let there = json!({"metadata": {"name": "x"}, "spec": 1});
        let webhook = legacy_watcher::first().to_string();
        assert_eq!(
            groups(vec![write(in_runtime(), "apply", &webhook, there.clone(), there)])[0].1,
            Group::Change
        );
    }

    #[test]
    fn only_annotation_changes_of_manifests_are_marks() {
        let manifest = |state: &str, note: &str| {
            json!({"metadata": {"labels": {labels::KYMA_NAME: "harbour"}, "annotations": {annotations::MODULE_TERMS: note}},
                   "status": {"state": state}})
        };
        let of = |before, after| groups(vec![write(Side::Kcp, "apply", "Manifest m", before, after)])[0].1;
        assert_eq!(of(manifest("Ready", "a"), manifest("Ready", "b")), Group::Mark);
        assert_eq!(of(manifest("Ready", "a"), manifest("Error", "b")), Group::Change);
        assert_eq!(
            of(manifest("Ready", "a"), manifest("Ready", "a")),
            Group::Change,
            "its owners would change"
        );
        assert_eq!(of(Value::Null, manifest("Ready", "a")), Group::Change, "it would be made");
        let made_of = |mut manifest: Value| {
            manifest["metadata"]["annotations"][annotations::TEMPLATE_UID] = "u".into();
            manifest
        };
        assert_eq!(of(manifest("Ready", "a"), made_of(manifest("Ready", "b"))), Group::Mark);
        assert_eq!(of(manifest("Ready", "a"), made_of(manifest("Ready", "a"))), Group::Change);
    }
}
