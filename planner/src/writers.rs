//! Field managers of Kyma and Manifest statuses in KCP, by `metadata.managedFields`.
//!
//! The engine only applies. If another manager changes or removes a field, the engine's entry shrinks but keeps its time. That reveals any
//! writer except one that applies under the engine's name. An engine write in the same second looks equal.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use tidewatch_api::{
    Manifest,
    managed_fields::union,
    marks::mark,
    names::{annotations, conditions, field_managers, finalizers},
};

/// Field managers of the engine's statuses.
const MANAGERS: [&str; 4] = [
    field_managers::KCP,
    field_managers::APPLIER,
    field_managers::CATALOG_STATUS,
    field_managers::EVENT_PATH,
];
/// Engine-owned conditions; others may coexist.
const CONDITIONS: [&str; 12] = [
    conditions::CRDS_SYNC,
    conditions::MODULES,
    conditions::MODULE_CATALOG,
    conditions::IMAGE_PULL_SECRET_SYNC,
    conditions::RUNTIME_EVENTS,
    conditions::PAUSED,
    conditions::RESOURCES,
    conditions::INSTALLATION,
    conditions::MODULE_CR,
    conditions::MODULE_CR_STATE,
    conditions::WAS_READY,
    conditions::JOBS_COMPLETED,
];
const APPLY: &str = "Apply";
/// Field count of an entry before reduction.
const COUNT: &str = "count";
/// Becomes engine-owned only by a write of its content.
const INVENTORY: &str = "f:synced";
/// Fields that a Kyma's status reads.
const REPORTED: [&str; 2] = ["f:state", "f:lastOperation"];

/// Reduces managed fields, which are large, to size and time of engine entries and the last other writer. The next apply reclaims its
/// fields.
pub fn keep_writers(meta: &mut ObjectMeta) {
    let Some(entries) = meta.managed_fields.take() else { return };
    let is_own = |entry: &ManagedFieldsEntry| is_of_status(entry) && is_own_apply(entry);
    let mut kept: Vec<_> = entries.iter().filter(|entry| is_own(entry)).map(kept).collect();
    let others = entries.into_iter().filter(is_of_another).max_by(|a, b| a.time.cmp(&b.time));
    kept.extend(others.map(|ManagedFieldsEntry { manager, time, fields_v1, .. }| {
        let status = fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0["f:status"]);
        let reported = REPORTED.into_iter().filter(|field| !status[*field].is_null());
        let reported: Map<String, Value> = reported.map(|field| (field.to_owned(), json!({}))).collect();
        let fields_v1 = (!reported.is_empty()).then(|| FieldsV1(json!({"f:status": reported})));
        ManagedFieldsEntry { manager, time, fields_v1, ..ManagedFieldsEntry::default() }
    }));
    meta.managed_fields = Some(kept);
}

fn kept(entry: &ManagedFieldsEntry) -> ManagedFieldsEntry {
    let fields = entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0["f:status"]);
    let mut kept = json!({COUNT: leaves(fields)});
    if !fields[INVENTORY].is_null() {
        kept["f:status"] = json!({INVENTORY: {}});
    }
    ManagedFieldsEntry {
        manager: entry.manager.clone(),
        time: entry.time.clone(),
        operation: entry.operation.clone(),
        subresource: entry.subresource.clone(),
        fields_v1: Some(FieldsV1(kept)),
        ..ManagedFieldsEntry::default()
    }
}

fn leaves(fields: &Value) -> u64 {
    match fields.as_object() {
        Some(within) if within.is_empty() => 1,
        Some(within) => within.values().map(leaves).sum(),
        None => 0,
    }
}

fn is_of_status(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref() == Some("status")
}

fn is_own_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.operation.as_deref() == Some(APPLY)
        && MANAGERS.contains(&entry.manager.as_deref().unwrap_or_default())
}

fn own(meta: &ObjectMeta) -> impl Iterator<Item = &ManagedFieldsEntry> {
    meta.managed_fields.iter().flatten().filter(|entry| is_own_apply(entry))
}

/// Engine managers that lost fields; both states come from [`keep_writers`].
#[must_use]
pub fn taken(old: &ObjectMeta, new: &ObjectMeta) -> Vec<&'static str> {
    if old.uid != new.uid {
        return Vec::new();
    }
    let count = |entry: &ManagedFieldsEntry| entry.fields_v1.as_ref().and_then(|f| f.0[COUNT].as_u64());
    let is_less = |before: &&ManagedFieldsEntry| {
        let now = own(new).find(|entry| entry.manager == before.manager);
        now.is_none_or(|now| now.time == before.time && count(now) < count(before))
    };
    let all = own(old).filter(is_less);
    all.filter_map(|entry| MANAGERS.into_iter().find(|name| entry.manager.as_deref() == Some(name))).collect()
}

/// Last other writer of engine-owned fields, after [`keep_writers`].
#[must_use]
pub fn other_writer(meta: &ObjectMeta) -> Option<&ManagedFieldsEntry> {
    meta.managed_fields.as_ref()?.iter().find(|entry| !is_own_apply(entry))
}

/// Returns whether another manager wrote the state, after [`keep_writers`].
#[must_use]
pub fn another_tells(meta: &ObjectMeta) -> bool {
    other_writer(meta).is_some_and(|entry| entry.fields_v1.is_some())
}

/// Returns whether an engine manager has a status entry. Without entries, the API server tracks no writer until the next apply.
#[must_use]
pub fn has_entry(meta: &ObjectMeta, manager: &str) -> bool {
    own(meta).any(|entry| is_of_status(entry) && entry.manager.as_deref() == Some(manager))
}

/// Moves engine-owned status fields from other managers' entries to the engine's; `None` if there are none.
///
/// The next apply then removes or corrects them. With shared ownership, the API server would reject partly removed items. `main` owns most
/// conditions.
#[must_use]
pub fn reclaim(meta: &ObjectMeta, main: &'static str) -> Option<Value> {
    let mut kept = Vec::new();
    let mut moved = Vec::new();
    for entry in meta.managed_fields.as_ref()? {
        let mut left = serde_json::to_value(entry).ok()?;
        if is_of_another(entry)
            && let Some(fields) = left["fieldsV1"]["f:status"].as_object_mut()
        {
            let owned = take_owned(fields, main).into_iter();
            moved.extend(owned.map(|(manager, fields)| (manager, json!(entry.api_version), fields)));
            if fields.keys().all(|field| field == ".") {
                continue;
            }
        }
        kept.push(left);
    }
    if moved.is_empty() {
        return None;
    }
    for (manager, version, fields) in moved {
        add_fields(&mut kept, manager, &version, fields)?;
    }
    Some(Value::Array(kept))
}

/// Takes engine-owned fields out of another manager's status fields, by the engine's field manager.
fn take_owned(
    fields: &mut Map<String, Value>,
    main: &'static str,
) -> Vec<(&'static str, Map<String, Value>)> {
    let mut owned = Vec::new();
    let conditions = fields.remove("f:conditions");
    let (own, others) = conditions_of(conditions.as_ref());
    for Item { key, type_, within } in own {
        let manager = match type_.as_str() {
            conditions::MODULE_CATALOG => field_managers::CATALOG_STATUS,
            conditions::RUNTIME_EVENTS => field_managers::EVENT_PATH,
            _ => main,
        };
        let item = Value::Object(Map::from_iter([(key, within)]));
        owned.push((manager, Map::from_iter([("f:conditions".to_owned(), item)])));
    }
    let stays = |field: &str| [".", INVENTORY].contains(&field);
    let (left, rest): (Map<_, _>, Map<_, _>) =
        std::mem::take(fields).into_iter().partition(|(field, _)| stays(field));
    *fields = left;
    if !rest.is_empty() {
        owned.push((main, rest));
    }
    if others.keys().any(|key| key != ".") {
        fields.insert("f:conditions".to_owned(), Value::Object(others));
    }
    owned
}

/// Adds status fields to a field manager's entry, which it creates if missing; `None` for an unreadable entry.
fn add_fields(
    entries: &mut Vec<Value>,
    manager: &str,
    version: &Value,
    fields: Map<String, Value>,
) -> Option<()> {
    let is_its = |entry: &&mut Value| {
        entry["manager"] == manager
            && entry["operation"] == APPLY
            && entry["subresource"] == "status"
            && entry["apiVersion"] == *version
    };
    match entries.iter_mut().find(is_its) {
        Some(entry) => union(entry["fieldsV1"]["f:status"].as_object_mut()?, &fields),
        None => entries.push(json!({
            "manager": manager, "operation": APPLY, "subresource": "status", "apiVersion": version,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:status": fields}
        })),
    }
    Some(())
}

struct Item {
    key: String,
    type_: String,
    within: Value,
}

fn conditions_of(all: Option<&Value>) -> (Vec<Item>, Map<String, Value>) {
    let (mut own, mut others) = (Vec::new(), Map::new());
    for (key, within) in all.and_then(Value::as_object).into_iter().flatten() {
        match type_of(key).filter(|type_| CONDITIONS.contains(&type_.as_str())) {
            Some(type_) => own.push(Item { key: key.clone(), type_, within: within.clone() }),
            None => drop(others.insert(key.clone(), within.clone())),
        }
    }
    (own, others)
}

fn type_of(key: &str) -> Option<String> {
    let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
    key["type"].as_str().map(str::to_owned)
}

/// Returns whether the inventory is complete: last written by the engine or the Go manager, or nothing is installed.
#[must_use]
pub fn has_own_inventory(manifest: &Manifest) -> bool {
    // Set before installation; one may have been removed.
    let holds = |one: &String| [finalizers::MANIFEST, finalizers::DEFAULT_CR].contains(&one.as_str());
    has_written_inventory(manifest)
        || !manifest.finalizers().iter().any(holds)
        || is_unrendered_by_go(manifest)
}

/// Returns whether the engine last wrote the inventory.
#[must_use]
pub fn has_written_inventory(manifest: &Manifest) -> bool {
    let is_own = |entry: &ManagedFieldsEntry| {
        is_own_apply(entry)
            && is_of_status(entry)
            && entry.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:status"][INVENTORY].is_null())
    };
    manifest.metadata.managed_fields.iter().flatten().any(is_own)
}

/// The Go manager writes no inventory without rendered objects.
fn is_unrendered_by_go(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    let of = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_);
    let has_mark = |key| mark(manifest.annotations(), key).is_some();
    status.synced.is_empty()
        && of(conditions::RESOURCES).is_some_and(|said| said.status == "False")
        && of(conditions::INSTALLATION).is_none_or(|said| said.status != "True")
        && ![annotations::TEMPLATE_UID, annotations::RUNNING_VERSION].into_iter().any(has_mark)
}

/// Returns whether only other managers own a status field (path in `f:status`). Always `false` after [`keep_writers`], or without an engine
/// entry.
#[must_use]
pub fn is_word_of_another(meta: &ObjectMeta, path: &[&str]) -> bool {
    let has = |entry: &&ManagedFieldsEntry| {
        let status = entry.fields_v1.as_ref().map(|fields| &fields.0["f:status"]);
        path.iter().try_fold(status?, |within, field| within.get(field)).map(drop)
    };
    let all = || meta.managed_fields.iter().flatten().filter(|entry| is_of_status(entry));
    let (mut own, mut others) =
        (all().filter(|e| is_own_apply(e)).peekable(), all().filter(|e| !is_own_apply(e)));
    own.peek().is_some()
        && !own.any(|entry| has(&entry).is_some())
        && others.any(|entry| has(&entry).is_some())
}

/// Path of a condition.
#[must_use]
pub fn item_of_condition(type_: &str) -> String {
    format!("k:{}", json!({ "type": type_ }))
}

fn is_of_another(entry: &ManagedFieldsEntry) -> bool {
    if !is_of_status(entry) || is_own_apply(entry) {
        return false;
    }
    let Some(status) = entry.fields_v1.as_ref().and_then(|fields| fields.0["f:status"].as_object()) else {
        return false;
    };
    status.iter().any(|(field, within)| match (field.as_str(), within.as_object()) {
        ("f:conditions", Some(all)) => {
            all.keys().filter_map(|key| type_of(key)).any(|type_| CONDITIONS.contains(&type_.as_str()))
        }
        // The map's own mark.
        (".", _) => false,
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "subresource": "status", "apiVersion": "g/v1",
               "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn condition(type_: &str) -> Value {
        json!({"f:status": {".": {}, "f:conditions": {".": {}, format!("k:{{\"type\":\"{type_}\"}}"): {"f:status": {}}}}})
    }

    fn meta(entries: &[Value]) -> ObjectMeta {
        let mut meta = serde_json::from_value(json!({"uid": "u", "managedFields": entries})).unwrap();
        keep_writers(&mut meta);
        meta
    }

    #[test]
    fn detects_another_writer_of_engine_owned_status_fields() {
        let kept = |entries: &[Value]| {
            other_writer(&meta(entries)).map(|entry| entry.manager.clone().unwrap_or_default())
        };
        let state = json!({"f:status": {"f:state": {}}});
        let ours = entry(field_managers::APPLIER, "Apply", &state);
        assert_eq!(
            kept(&[ours.clone(), entry("manager", "Update", &state)]).as_deref(),
            Some("manager"),
            "whoever that is"
        );
        assert_eq!(
            kept(&[ours.clone(), entry(field_managers::APPLIER, "Update", &state)]).as_deref(),
            Some(field_managers::APPLIER),
            "we only apply"
        );
        assert_eq!(kept(&[ours.clone(), entry("dashboard", "Update", &condition("Backup"))]), None);
        let mut spec = entry("kubectl-edit", "Update", &state);
        spec["subresource"] = json!("");
        assert_eq!(kept(&[spec]), None, "it is not the status");
        for fields in [state, condition("Installation"), json!({"f:status": {"f:synced": {}}})] {
            assert_eq!(
                kept(&[ours.clone(), entry("kubectl-edit", "Update", &fields)]).as_deref(),
                Some("kubectl-edit")
            );
        }
        for nonsense in [json!({}), json!({"f:status": 7}), json!({"f:status": {"f:conditions": {"k:": {}}}})]
        {
            assert_eq!(kept(&[entry("kubectl-edit", "Update", &nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn detects_fields_removed_from_an_engine_owned_entry() {
        let full = json!({"f:status": {"f:state": {}, "f:synced": {}}});
        let less = json!({"f:status": {"f:state": {}}});
        let of = |fields: &Value, time: &str| {
            let mut entry = entry(field_managers::APPLIER, "Apply", fields);
            entry["time"] = json!(time);
            meta(&[entry, self::entry("kubectl", "Update", &json!({"f:spec": {}}))])
        };
        let (at_noon, later) = ("2026-01-01T12:00:00Z", "2026-01-01T12:00:07Z");
        let before = of(&full, at_noon);
        assert_eq!(taken(&before, &of(&less, at_noon)), [field_managers::APPLIER]);
        assert_eq!(taken(&before, &meta(&[])), [field_managers::APPLIER], "all of it");
        for unchanged in [of(&full, at_noon), of(&full, later), of(&less, later)] {
            assert!(taken(&before, &unchanged).is_empty());
        }
        assert!(taken(&of(&less, at_noon), &before).is_empty(), "more than before is our own");
        let another = ObjectMeta { uid: Some("v".to_owned()), ..of(&less, at_noon) };
        assert!(taken(&before, &another).is_empty(), "another object");
        assert!(taken(&ObjectMeta::default(), &before).is_empty());
    }

    /// Foreign fields stay; unowned ones go to their engine manager.
    #[test]
    fn engine_fields_written_by_others_are_reclaimed() {
        let item = |type_: &str| {
            let key = format!("k:{{\"type\":\"{type_}\"}}");
            Map::from_iter([(key, json!({".": {}, "f:status": {}}))])
        };
        let items = |types: &[&str]| {
            let mut all = Map::from_iter([(".".to_owned(), json!({}))]);
            for type_ in types {
                all.extend(item(type_));
            }
            Value::Object(all)
        };
        let read = |entries: &[Value]| -> ObjectMeta {
            serde_json::from_value(json!({"managedFields": entries})).unwrap()
        };
        let ours = entry(field_managers::KCP, "Apply", &json!({"f:status": {"f:activeChannel": {}}}));
        let forged = json!({"f:status": {".": {}, "f:state": {}, "f:conditions": items(&["Backup", "Modules", "ModuleCatalog"])}});
        let taken =
            reclaim(&read(&[ours.clone(), entry("kubectl-edit", "Update", &forged)]), field_managers::KCP);
        let all =
            json!({"f:status": {"f:activeChannel": {}, "f:state": {}, "f:conditions": item("Modules")}});
        let mut catalog = entry(
            field_managers::CATALOG_STATUS,
            "Apply",
            &json!({"f:status": {"f:conditions": item("ModuleCatalog")}}),
        );
        catalog.as_object_mut().unwrap().remove("time");
        let left = entry(
            "kubectl-edit",
            "Update",
            &json!({"f:status": {".": {}, "f:conditions": items(&["Backup"])}}),
        );
        let taken = taken.unwrap();
        assert_eq!(taken, json!([entry(field_managers::KCP, "Apply", &all), left, catalog]));
        let entries: Vec<Value> = taken.as_array().unwrap().clone();
        assert_eq!(reclaim(&read(&entries), field_managers::KCP), None, "once");
        // Empty entries are dropped.
        let state = json!({"f:status": {".": {}, "f:state": {}}});
        let taken =
            reclaim(&read(&[ours.clone(), entry("kubectl-edit", "Update", &state)]), field_managers::KCP)
                .unwrap();
        let both = json!({"f:status": {"f:activeChannel": {}, "f:state": {}}});
        assert_eq!(taken, json!([entry(field_managers::KCP, "Apply", &both)]));
        let synced = entry("kubectl-edit", "Update", &json!({"f:status": {"f:synced": {}}}));
        for none in
            [vec![], vec![ours], vec![synced], vec![entry("dashboard", "Update", &condition("Backup"))]]
        {
            assert_eq!(reclaim(&read(&none), field_managers::KCP), None, "{none:?}");
        }
        assert!(
            !has_entry(&read(&[]), field_managers::KCP) && has_entry(&read(&entries), field_managers::KCP)
        );
    }

    #[test]
    fn a_condition_owned_by_another_manager_is_detected() {
        let read = |entries: &[Value]| -> ObjectMeta {
            serde_json::from_value(json!({"managedFields": entries})).unwrap()
        };
        let (state, rest) =
            (json!({"f:status": {"f:state": {}}}), json!({"f:status": {"f:lastOperation": {}}}));
        let ours = |fields: &Value| entry(field_managers::APPLIER, "Apply", fields);
        let theirs = |fields: &Value| entry("kubectl-edit", "Update", fields);
        let is_anothers = |entries: &[Value]| is_word_of_another(&read(entries), &["f:state"]);
        assert!(is_anothers(&[ours(&rest), theirs(&state)]));
        assert!(!is_anothers(&[ours(&state), theirs(&state)]), "they say the same");
        assert!(!is_anothers(&[ours(&rest), theirs(&rest)]), "nobody has said it");
        assert!(!is_anothers(&[theirs(&state)]), "as another engine leaves it that never applies");
        assert!(
            !is_word_of_another(&meta(&[ours(&rest), theirs(&state)]), &["f:state"]),
            "too little is kept"
        );
        let item = item_of_condition("WasReady");
        let of_item =
            |entries: &[Value]| is_word_of_another(&read(entries), &["f:conditions", &item, "f:status"]);
        assert!(of_item(&[ours(&rest), theirs(&condition("WasReady"))]));
        assert!(!of_item(&[ours(&condition("WasReady")), theirs(&state)]));
        assert!(!of_item(&[ours(&rest), theirs(&condition("Installation"))]));
    }

    #[test]
    fn an_inventory_last_written_by_the_engine_is_trusted() {
        let installed = json!({"Resources": "True", "Installation": "True"});
        let manifest = |entries: &[Value], said: &Value, ours: bool| -> Manifest {
            let conditions: Vec<Value> = said
                .as_object()
                .into_iter()
                .flatten()
                .map(|(type_, status)| {
                    json!({"type": type_, "status": status,
                "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
                })
                .collect();
            let marks = if ours {
                Map::from_iter([(annotations::TEMPLATE_UID.to_owned(), json!("t"))])
            } else {
                Map::new()
            };
            serde_json::from_value(json!({
                "metadata": {"name": "m", "finalizers": [finalizers::MANIFEST], "annotations": marks, "managedFields": entries},
                "spec": {"install": {"name": "raw-manifest", "source": {}}}, "status": {"state": "Error", "conditions": conditions}
            }))
            .unwrap()
        };
        let synced = json!({"f:status": {"f:state": {}, "f:synced": {}}});
        let state = json!({"f:status": {"f:state": {}}});
        let own = |fields| entry(field_managers::APPLIER, "Apply", fields);
        for (entries, whole) in [
            (vec![own(&synced)], true),
            (vec![own(&state)], false),
            (vec![own(&state), entry("kubectl-edit", "Update", &synced)], false),
            (vec![own(&state), entry(field_managers::APPLIER, "Update", &synced)], false),
            (vec![], false),
        ] {
            let mut manifest = manifest(&entries, &installed, true);
            assert_eq!(has_own_inventory(&manifest), whole, "{entries:?}");
            keep_writers(&mut manifest.metadata);
            assert_eq!(has_own_inventory(&manifest), whole, "as the watch keeps it: {entries:?}");
            manifest.metadata.finalizers = Some(vec![finalizers::DEFAULT_CR.to_owned()]);
            assert_eq!(has_own_inventory(&manifest), whole, "the other was taken away too: {entries:?}");
            manifest.metadata.finalizers = None;
            assert!(has_own_inventory(&manifest), "nothing of it was installed");
            assert_eq!(has_written_inventory(&manifest), whole);
        }
        let unrendered = json!({"Resources": "False", "Installation": "False"});
        assert!(
            has_own_inventory(&manifest(&[own(&state)], &unrendered, false)),
            "as the Go manager leaves it"
        );
        assert!(!has_own_inventory(&manifest(&[own(&state)], &unrendered, true)));
    }
}
