//! Server-side apply.

use serde_json::Value;

use super::{
    last_applied,
    managed::{Entry, Managed, Writer, difference, stripped},
    merge::{merge, prune},
    set::Set,
};
use crate::schema::View;

/// Another manager owns the field with a different value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Manager in messages.
    pub(crate) with: String,
    /// Sort key of the manager.
    order: String,
    /// Such as `.spec.replicas`.
    pub(crate) field: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied {
    pub(crate) object: Value,
    pub(crate) managed: Managed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Apply<'a> {
    pub(crate) writer: &'a Writer,
    /// The configuration as sent: the writer also owns nulls.
    pub(crate) sent: &'a Value,
    pub(crate) force: bool,
    /// Unix seconds.
    pub(crate) now: i64,
}

impl Apply<'_> {
    /// Both objects must lack `managedFields`.
    pub(crate) fn run(
        self,
        live: &Value,
        config: &Value,
        managed: &Managed,
        schema: View<'_>,
    ) -> Result<Applied, Vec<Conflict>> {
        let mut object = merge(live, config, schema);
        let set = stripped(Set::of(self.sent, schema), self.writer.scope);
        let mut after = managed.clone();
        let index = after.position(self.writer, true).unwrap_or_else(|| {
            after.0.push(Entry::fresh(self.writer, true));
            after.0.len() - 1
        });
        let mut last = Set::default();
        if let Some(entry) = after.0.get_mut(index) {
            last = std::mem::replace(&mut entry.set, set);
            entry.api_version.clone_from(&self.writer.api_version);
        }
        // Unowned fields keep their parents, such as `metadata`.
        let keep = after.union().union(&Set::of(self.sent, schema));
        prune(&mut object, &last, &keep, schema);

        let difference = difference(live, &object, schema, self.writer.scope);
        let written = difference.written();
        let takes_over =
            last_applied::takes_over(&self.writer.manager, live, &self.writer.api_version, schema);
        let mut conflicts = Vec::new();
        for (position, entry) in after.0.iter_mut().enumerate() {
            if position == index {
                continue;
            }
            let contested = entry.set.intersection(&written);
            if !contested.is_empty() && !self.force {
                let (with, order) = (entry.shown(), entry.identifier());
                conflicts.extend(contested.without(&takes_over).paths().into_iter().map(|field| Conflict {
                    with: with.clone(),
                    order: order.clone(),
                    field,
                }));
            }
            entry.set = entry.set.without(&contested).without(&difference.removed);
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        // Reordering a list is a change.
        if (object != *live || merge(live, self.sent, schema) != *live)
            && let Some(entry) = after.0.get_mut(index)
        {
            entry.time = self.now;
        }
        after.0.retain(|entry| !entry.set.is_empty());
        last_applied::follow(&self.writer.manager, &mut object, self.sent);
        Ok(Applied { object, managed: after })
    }
}

pub(crate) fn message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.with, only.field);
    }
    let mut lines: Vec<String> = Vec::new();
    let mut managers: Vec<(&str, &str)> =
        conflicts.iter().map(|conflict| (conflict.order.as_str(), conflict.with.as_str())).collect();
    managers.sort_unstable();
    managers.dedup();
    for (_, manager) in managers {
        lines.push(format!("conflicts with {manager}:"));
        let of_manager = conflicts.iter().filter(|conflict| conflict.with == manager);
        lines.extend(of_manager.map(|conflict| format!("- {}", conflict.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::managed::FieldScope, *};
    use crate::schema::builtin;

    fn writer(manager: &str) -> Writer {
        Writer {
            manager: manager.into(),
            api_version: "v1".into(),
            subresource: String::new(),
            scope: FieldScope::Whole,
        }
    }

    fn run(
        live: &Value,
        config: &Value,
        managed: &Managed,
        author: &str,
        force: bool,
    ) -> Result<Applied, Vec<Conflict>> {
        let schema = builtin::view("io.k8s.api.core.v1.ConfigMap");
        Apply { writer: &writer(author), sent: config, force, now: 1 }.run(live, config, managed, schema)
    }

    #[test]
    fn unowned_metadata_survives_when_applied_metadata_is_pruned() {
        let live = json!({"metadata": {"name": "c", "labels": {"q": "1"}}});
        let annotated = json!({"metadata": {"name": "c", "annotations": {"a": "1"}}});
        let first = run(&live, &annotated, &Managed::default(), "one", false).unwrap();
        let plain = json!({"metadata": {"name": "c"}, "data": {"a": "1"}});
        let second = run(&first.object, &plain, &first.managed, "one", false).unwrap();
        assert_eq!(second.object["metadata"], live["metadata"]);
    }

    #[test]
    fn the_applier_owns_its_fields_and_others_conflict() {
        let nothing = json!({"metadata": {"name": "c"}});
        let first =
            run(&nothing, &json!({"data": {"a": "1", "b": "1"}}), &Managed::default(), "one", false).unwrap();
        let conflicts =
            run(&first.object, &json!({"data": {"a": "2"}}), &first.managed, "two", false).unwrap_err();
        assert_eq!(message(&conflicts), r#"Apply failed with 1 conflict: conflict with "one": .data.a"#);
        let forced = run(&first.object, &json!({"data": {"a": "2"}}), &first.managed, "two", true).unwrap();
        assert_eq!(forced.object["data"], json!({"a": "2", "b": "1"}));
        let third = run(&forced.object, &json!({"data": {"c": "1"}}), &forced.managed, "one", false).unwrap();
        assert_eq!(third.object["data"], json!({"a": "2", "c": "1"}));
        let same = run(&third.object, &json!({"data": {"c": "1"}}), &third.managed, "one", false).unwrap();
        assert_eq!((same.object, same.managed), (third.object, third.managed));
    }
}
