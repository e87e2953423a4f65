//! `metadata.managedFields` sent by clients.

use serde_json::Value;

use super::{
    managed::{Entry, Managed},
    set::Set,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenOwners {
    /// Absent or unreadable: unchanged.
    Nothing,
    /// Removes all owners.
    Reset,
    Owners(Managed),
}

impl GivenOwners {
    /// `empty_resets`: whether an empty list resets.
    pub(crate) fn read(given: Option<&[Value]>, empty_resets: bool) -> Self {
        match given {
            None => Self::Nothing,
            Some([]) if empty_resets => Self::Reset,
            Some([only]) if is_blank(only) => Self::Reset,
            Some(entries) => match entries.iter().map(entry).collect::<Option<Vec<Entry>>>() {
                Some(entries) if !entries.is_empty() => Self::Owners(Managed::from_entries(entries)),
                _ => Self::Nothing,
            },
        }
    }
}

fn is_blank(entry: &Value) -> bool {
    let empty = |value: &Value| value.is_null() || value == "";
    entry.is_null() || entry.as_object().is_some_and(|entry| entry.values().all(empty))
}

/// `None`: unreadable for Kubernetes.
fn entry(entry: &Value) -> Option<Entry> {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
    let readable = matches!(text("operation"), "Apply" | "Update")
        && !text("apiVersion").is_empty()
        && text("fieldsType") == "FieldsV1";
    let set = match entry.get("fieldsV1") {
        None | Some(Value::Null) => Set::default(),
        Some(fields) => Set::read(fields)?,
    };
    readable.then(|| Entry { set, ..Entry::parse(entry) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(fields: Value) -> Value {
        json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn read(entries: Value) -> GivenOwners {
        GivenOwners::read(entries.as_array().map(Vec::as_slice), true)
    }

    #[test]
    fn readable_parts_of_managed_fields_count() {
        let given = one(json!({"f:data": {"f:a": null, "x:what": {}, "k:{\"b\": 1, \"a\": 2}": {".": 1}}}));
        let GivenOwners::Owners(Managed(owners)) = read(json!([given])) else { panic!("no owners") };
        let read = owners.first().map(|owner| owner.set.to_json());
        assert_eq!(read, Some(json!({"f:data": {"f:a": {}, "k:{\"a\":2,\"b\":1}": {}}})));
    }

    #[test]
    fn the_last_of_an_appliers_entries_wins() {
        let mut entries = [one(json!({"f:a": {}})), one(json!({"f:b": {}}))];
        entries[1]["apiVersion"] = "v2".into();
        let count = |entries: &[Value]| match GivenOwners::read(Some(entries), true) {
            GivenOwners::Owners(Managed(owners)) => owners.len(),
            _ => 0,
        };
        assert_eq!(count(&entries), 2, "who updates is another one by another version");
        for entry in &mut entries {
            entry["operation"] = "Apply".into();
        }
        assert_eq!(count(&entries), 1);
    }

    #[test]
    fn unreadable_managed_fields_change_nothing() {
        let without = |field: &str| {
            let mut entry = one(json!({"f:data": {}}));
            entry[field] = Value::Null;
            entry
        };
        for wrong in [
            without("operation"),
            without("apiVersion"),
            without("fieldsType"),
            one(json!("f:data")),
            one(json!({"f:data": 1})),
            one(json!({"data": {}})),
            one(json!({"k:{": {}})),
            one(json!({"i:x": {}})),
        ] {
            assert_eq!(read(json!([one(json!({"f:data": {}})), wrong])), GivenOwners::Nothing, "{wrong}");
        }
        assert_eq!(read(json!([{}, {}])), GivenOwners::Nothing);
    }

    #[test]
    fn an_empty_list_or_entry_resets_ownership() {
        assert_eq!(read(json!([])), GivenOwners::Reset);
        assert_eq!(GivenOwners::read(Some(&[]), false), GivenOwners::Nothing);
        assert_eq!(read(json!([{}])), GivenOwners::Reset);
        assert_eq!(read(json!([{"manager": ""}])), GivenOwners::Reset);
    }
}
