//! Aggregated `ClusterRoles`, like `clusterrole-aggregation-controller`.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    fields::{
        apply::Apply,
        managed::{FieldScope, Managed, Writer},
    },
    json::list,
    kinds::{Kind, builtin, validation::selectors},
    object::{
        Stored,
        meta::{self, metadata_mut},
    },
    store::{render::render, state::State},
};

const GROUP: &str = "rbac.authorization.k8s.io";
const PLURAL: &str = "clusterroles";
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Only after role changes.
pub(super) fn aggregate(state: &mut State, now: Timestamp) {
    if !std::mem::take(&mut state.roles_changed) {
        return;
    }
    let Some(kind) = builtin::find(GROUP, "v1", PLURAL) else { return };
    let roles: Vec<(Arc<Stored>, Value)> =
        state.objects.range(kind, "").map(|(_, stored)| (Arc::clone(stored), render(kind, stored))).collect();
    for (stored, role) in &roles {
        if role["aggregationRule"].is_null() {
            continue;
        }
        let union = aggregated(role, roles.iter().map(|(_, other)| other));
        if list(&role["rules"]) != union.as_slice() {
            apply_rules(state, kind, stored, union, now);
        }
    }
}

/// Kubernetes uses a forced apply.
fn apply_rules(state: &mut State, kind: &Arc<Kind>, stored: &Stored, rules: Vec<Value>, now: Timestamp) {
    let mut live = render(kind, stored);
    let managed = Managed::of(&live);
    metadata_mut(&mut live).remove("managedFields");
    let mut config =
        json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": meta::name(&live)}});
    if !rules.is_empty() {
        config["rules"] = rules.into();
    }
    let writer = Writer {
        manager: MANAGER.to_owned(),
        api_version: kind.api_version(),
        subresource: String::new(),
        scope: FieldScope::Whole,
    };
    let apply = Apply { writer: &writer, sent: &config, force: true, now: now.as_second() };
    if let Ok(applied) = apply.run(&live, &config, &managed, kind.schema()) {
        let mut object = applied.object;
        applied.managed.put(&mut object);
        state.store(kind, object, now);
    }
}

/// Unique rules in order of selectors and names.
fn aggregated<'a>(role: &Value, all: impl Iterator<Item = &'a Value> + Clone) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for selector in list(&role["aggregationRule"]["clusterRoleSelectors"]) {
        let chosen = all.clone().filter(|other| {
            meta::name(other) != meta::name(role)
                && selectors::matches(selector, &other["metadata"]["labels"])
        });
        for rule in chosen.flat_map(|other| list(&other["rules"])) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregated_role_has_its_selected_roles_rules() {
        let role = |name: &str, labels: Value, verb: &str| json!({"metadata": {"name": name, "labels": labels}, "rules": [{"verbs": [verb]}]});
        let all = [
            role("a", json!({"part": "1"}), "get"),
            role("b", json!({"part": "2"}), "list"),
            role("c", json!({"part": "1"}), "get"),
            role("whole", json!({"part": "1"}), "watch"),
        ];
        let of = |selectors: Value| {
            let whole = json!({"metadata": {"name": "whole"}, "aggregationRule": {"clusterRoleSelectors": selectors}});
            aggregated(&whole, all.iter())
        };
        let verb = |verb: &str| json!({"verbs": [verb]});
        assert_eq!(
            of(json!([{"matchLabels": {"part": "1"}}])),
            [verb("get")],
            "each once, and never its own"
        );
        let both = json!([{"matchLabels": {"part": "2"}}, {"matchExpressions": [{"key": "part", "operator": "Exists"}]}]);
        assert_eq!(of(both), [verb("list"), verb("get")]);
        assert!(of(json!([{"matchLabels": {"part": "3"}}])).is_empty());
    }
}
