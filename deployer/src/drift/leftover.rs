//! Live fields that make an API server refuse an update.
//!
//! An apply keeps fields of other owners, such as the default `rollingUpdate` of a Deployment that becomes
//! `Recreate`. The API server names the field, but counts list items in the merged object, which is not visible. So
//! every item is searched.

use serde_json::{Map, Value};

use super::{Name, Step, entries, named, owner, subset, text};
use crate::refusal::{Cause, parts};

/// An unwanted live field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Path in `fieldsV1`.
    pub keys: Vec<String>,
    /// Path for users.
    pub path: String,
    /// Its field manager.
    pub by: Option<String>,
}

/// Maximum causes, and leftovers of one. Causes with more are skipped.
const MAX_LEFTOVERS: usize = 16;

/// Identifying members in Services, Pods and most other kinds.
const NAMES: [&[&str]; 5] =
    [&["port", "protocol"], &["containerPort", "protocol"], &["mountPath"], &["devicePath"], &["name"]];

/// Returns live fields that may explain a refusal. `is_ours`: whether an entry's fields may be removed.
#[must_use]
pub fn leftovers(
    live: &Value,
    wanted: &Value,
    causes: &[Cause],
    may_remove: impl Fn(&Value) -> bool,
) -> Vec<Leftover> {
    let others: Vec<Value> = entries(live).iter().filter(|entry| !may_remove(entry)).cloned().collect();
    let mut all: Vec<Vec<Step>> = Vec::new();
    for cause in causes.iter().take(MAX_LEFTOVERS) {
        // Unwanted items matter only if items must differ or be complete.
        let items = ["FieldValueDuplicate", "FieldValueRequired"].contains(&cause.reason.as_str());
        let mut search = Search { entries: entries(live), items, at: Vec::new(), found: Vec::new() };
        search.walk(live, wanted, &parts(&cause.field));
        if search.found.len() <= MAX_LEFTOVERS {
            all.extend(search.found.into_iter().filter(|at| !all.contains(at)).collect::<Vec<_>>());
        }
    }
    let key = |step: &Step| match step {
        Step::Member(name) => format!("f:{name}"),
        Step::Item(_, key) => key.clone(),
    };
    let leftover = |at: Vec<Step>| Leftover {
        keys: at.iter().map(key).collect(),
        path: text(&at),
        by: owner(&others, "", &at),
    };
    all.into_iter().map(leftover).collect()
}

struct Search<'a> {
    entries: &'a [Value],
    items: bool,
    at: Vec<Step>,
    found: Vec<Vec<Step>>,
}

impl<'a> Search<'a> {
    fn walk(&mut self, live: &'a Value, wanted: &'a Value, parts: &[&str]) {
        let Some((part, rest)) = parts.split_first() else { return };
        match live {
            Value::Object(_) => {
                let present = |object: &'a Value| object.get(part).filter(|value| !value.is_null());
                let (below, requested) = (present(live), present(wanted));
                self.at.push(Step::Member((*part).to_owned()));
                let before = self.found.len();
                let is_alternative = match (below, requested) {
                    (Some(_), None) => {
                        self.found.push(self.at.clone());
                        false
                    }
                    (Some(below), Some(requested_value)) if !rest.is_empty() => {
                        self.walk(below, requested_value, rest);
                        false
                    }
                    // The value stays.
                    (Some(below), Some(requested_value)) if subset(below, requested_value, None) => false,
                    (Some(below), Some(requested_value)) => {
                        self.members(below, requested_value);
                        self.found.len() == before
                    }
                    (None, requested_value) => requested_value.is_some(),
                };
                self.at.pop();
                // Such as a volume's former type next to the new one.
                if is_alternative && self.at.len() > 1 {
                    self.members(live, wanted);
                }
            }
            Value::Array(items) => {
                for item in items {
                    let Some(key) = self.key_of(item) else { return };
                    let counterpart = counterpart(&key, wanted);
                    self.at.push(Step::Item(usize::MAX, key));
                    match counterpart {
                        Some(wanted) => self.walk(item, wanted, rest),
                        None if self.items => self.found.push(self.at.clone()),
                        None => {}
                    }
                    self.at.pop();
                }
            }
            _ => {}
        }
    }

    fn members(&mut self, live: &Value, wanted: &Value) {
        let (Some(live), Some(wanted)) = (live.as_object(), wanted.as_object()) else { return };
        for (name, _) in live.iter().filter(|(name, value)| !value.is_null() && !wanted.contains_key(*name)) {
            self.found.push(self.at.iter().cloned().chain([Step::Member(name.clone())]).collect());
        }
    }

    /// `fieldsV1` key of a list item. Keys of other items show the identifying members, or else [`NAMES`].
    fn key_of(&self, item: &Value) -> Option<String> {
        let lists = self.entries.iter().filter_map(|entry| {
            self.at.iter().try_fold(&entry["fieldsV1"], |fields, step| match step {
                Step::Member(name) => fields.get(format!("f:{name}")),
                Step::Item(_, key) => fields.get(key),
            })
        });
        let mut keys = lists.filter_map(Value::as_object).flat_map(Map::keys);
        let names: Vec<String> = match keys.find_map(|key| named(key)) {
            Some(Name::Keys(names)) => names.into_iter().map(|(name, _)| name).collect(),
            Some(Name::Value(_)) => return None,
            None => {
                let usual = NAMES.iter().find(|names| names.iter().all(|name| item.get(name).is_some()))?;
                usual.iter().map(|name| (*name).to_owned()).collect()
            }
        };
        let of_item = names.into_iter().map(|name| item.get(&name).map(|value| (name, value.clone())));
        Some(format!("k:{}", Value::Object(of_item.collect::<Option<_>>()?)))
    }
}

fn counterpart<'a>(key: &str, wanted: &'a Value) -> Option<&'a Value> {
    let (name, items) = (named(key)?, wanted.as_array()?);
    name.find(items).or_else(|| items.iter().find(|item| name.fits(item)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(live: &Value, wanted: &Value, reason: &str, field: &str) -> Vec<(String, Option<String>)> {
        let causes = [Cause { reason: reason.into(), field: field.into(), ..Cause::default() }];
        let found = leftovers(live, wanted, &causes, |entry| entry["manager"] == "ours");
        found.into_iter().map(|leftover| (leftover.path, leftover.by)).collect()
    }

    fn unowned(path: &str) -> (String, Option<String>) {
        (path.to_owned(), None)
    }

    #[test]
    fn a_default_of_an_unwanted_field_is_a_leftover() {
        let live =
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}});
        let wanted = json!({"spec": {"strategy": {"type": "Recreate"}}});
        for field in [
            "spec.strategy.rollingUpdate",
            "spec.strategy.rollingUpdate.maxSurge",
            "spec.strategy",
            "spec.strategy.type",
        ] {
            let all = found(&live, &wanted, "FieldValueForbidden", field);
            assert_eq!(all, [unowned("spec.strategy.rollingUpdate")], "{field}");
        }
        for field in
            ["", "<nil>", "spec", "spec.paused", "spec.strategy[0]", "spec.strategy.type.x", "[[", "a]b"]
        {
            assert!(found(&live, &wanted, "FieldValueInvalid", field).is_empty(), "{field}");
        }
    }

    fn ports() -> (Value, Value) {
        let live = json!({
            "metadata": {"managedFields": [
                {"manager": "ours", "fieldsV1": {"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}}},
                {"manager": "cloud", "fieldsV1": {"f:spec": {"f:healthCheckNodePort": {}}}}]},
            "spec": {"healthCheckNodePort": 31000, "ports": [
                {"port": 81, "protocol": "TCP", "name": "http", "nodePort": 30081},
                {"port": 80, "protocol": "TCP", "name": "http", "nodePort": 30080}]}});
        (live, json!({"spec": {"ports": [{"port": 80, "name": "http"}]}}))
    }

    #[test]
    fn a_leftover_in_another_list_item_is_found() {
        let (live, wanted) = ports();
        let all = found(&live, &wanted, "FieldValueForbidden", "spec.ports[1].nodePort");
        assert_eq!(all, [unowned("spec.ports[port=80,protocol=TCP].nodePort")]);
    }

    #[test]
    fn an_unwanted_duplicate_list_item_is_a_leftover() {
        let (live, wanted) = ports();
        let all = found(&live, &wanted, "FieldValueDuplicate", "spec.ports[1].name");
        assert_eq!(all.first(), Some(&unowned("spec.ports[port=81,protocol=TCP]")));
        let causes = [Cause {
            reason: "FieldValueDuplicate".into(),
            field: "spec.ports[1].name".into(),
            ..Cause::default()
        }];
        let keys = &leftovers(&live, &wanted, &causes, |_| true)[0].keys;
        assert_eq!(keys, &["f:spec", "f:ports", "k:{\"port\":81,\"protocol\":\"TCP\"}"]);
        let invalid = found(&live, &wanted, "FieldValueInvalid", "spec.ports[1].name");
        assert!(invalid.is_empty(), "what is as it was is not the reason: {invalid:?}");
    }

    #[test]
    fn unowned_list_items_are_named_by_their_usual_keys() {
        let (mut live, wanted) = ports();
        live["metadata"]["managedFields"] = json!([]);
        let all = found(&live, &wanted, "FieldValueDuplicate", "spec.ports[1].name");
        assert_eq!(all.first(), Some(&unowned("spec.ports[port=81,protocol=TCP]")));
        let probe = |kind: &str| json!({"spec": {"containers": [{"name": "a", "livenessProbe": {kind: {"port": 80}}}]}});
        for field in ["spec.containers[0].livenessProbe", "spec.containers[0].livenessProbe.tcpSocket"] {
            let all = found(&probe("httpGet"), &probe("tcpSocket"), "FieldValueForbidden", field);
            assert_eq!(all, [unowned("spec.containers[name=a].livenessProbe.httpGet")], "{field}");
        }
    }

    #[test]
    fn a_leftover_names_its_field_manager() {
        let (live, wanted) = ports();
        let all = found(&live, &wanted, "FieldValueInvalid", "spec.healthCheckNodePort");
        assert_eq!(all, [("spec.healthCheckNodePort".to_owned(), Some("cloud".to_owned()))]);
    }

    #[test]
    fn an_exclusive_sibling_field_is_a_leftover() {
        let key = "k:{\"name\":\"A\"}";
        let live = json!({
            "metadata": {"managedFields": [{"manager": "ours", "fieldsV1": {"f:env": {key: {}}}}]},
            "env": [{"name": "A", "value": "1"}]});
        let wanted = json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]});
        let all = found(&live, &wanted, "FieldValueInvalid", "env[0].valueFrom");
        assert_eq!(all, [unowned("env[name=A].value")]);

        let live = json!({"spec": {"minAvailable": 1, "selector": {}}});
        let wanted = json!({"spec": {"maxUnavailable": 1, "selector": {}}});
        assert_eq!(found(&live, &wanted, "FieldValueInvalid", "spec"), [unowned("spec.minAvailable")]);
    }
}
