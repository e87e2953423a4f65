//! Annotation with a hash of the applied object, where an API server or webhook rewrites values.
//!
//! `managedFields` has no values. Without the note, a port chosen for `nodePort: 0`, or a time in another zone, would
//! be applied again after each start of a receiver. A matching note and full ownership prove that nothing changed.

use serde_json::{Value, json};
use tidewatch_api::{names::annotations, object::content_hash};

use super::{Ignored, compare, difference};

/// Returns the wanted object with a note, if needed. `made`: the API server's result.
///
/// Missing values get none: the next apply may keep them, as after a schema change.
#[must_use]
pub fn with_note(applied: &Value, wanted: &Value, manager: &str, ignored: &Ignored<'_>) -> Option<Value> {
    let needs_note = difference(applied, wanted, manager, ignored).is_some()
        && compare(applied, wanted, manager, ignored, true).is_none();
    needs_note.then(|| {
        let mut object = wanted.clone();
        let note = of(wanted, ignored);
        match object["metadata"]["annotations"].as_object_mut() {
            Some(all) => drop(all.insert(annotations::APPLIED.to_owned(), note.into())),
            None => object["metadata"]["annotations"] = json!({annotations::APPLIED: note}),
        }
        object
    })
}

pub(super) fn is_of(live: &Value, wanted: &Value, ignored: &Ignored<'_>) -> bool {
    live["metadata"]["annotations"][annotations::APPLIED]
        .as_str()
        .is_some_and(|note| note == of(wanted, ignored))
}

/// Leaves out ignored fields: `wanted` has their live values.
fn of(wanted: &Value, ignored: &Ignored<'_>) -> String {
    let text = if ignored.is_empty() { content_hash(wanted) } else { content_hash(&ignored.without(wanted)) };
    format!("{text:016x}")
}
