//! Comparison of status conditions.

use serde_json::Value;

use crate::object::meta;

/// Compares conditions without their times.
pub(super) fn same_conditions(before: Option<&Value>, after: &Value) -> bool {
    let bare = |value: &Value| -> Vec<Value> {
        let list = value.as_array().cloned().unwrap_or_default();
        list.into_iter()
            .map(|mut one| {
                meta::as_object(&mut one).remove("lastTransitionTime");
                one
            })
            .collect()
    };
    before.is_some_and(|before| bare(before) == bare(after))
}
