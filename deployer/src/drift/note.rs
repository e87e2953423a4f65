//! What was applied, noted in the object itself, where an API server or a webhook stores it in other words.
//!
//! An entry of `managedFields` says which fields our last apply has set, and loses each one that another writer changes. It does not
//! say with which value. So an object that stores `nodePort: 0` as a port of the API server's choice, or a time in another zone, would
//! be applied again after each start of a receiver. The note is a hash of what was applied: as long as it is the hash of what is wanted
//! and all of our fields are still ours, nobody has changed them. Only objects that need it have one.

use serde_json::{Value, json};
use tidewatch_api::{names::annotations, object::content_hash};

use super::{Ignored, compare, difference};

/// The wanted object with a note of itself, if `made` is what an API server has just made of it and does not show that otherwise.
/// A value that is not there at all needs no note: it may be kept the next time, such as after its schema has changed.
#[must_use]
pub fn noted(made: &Value, wanted: &Value, manager: &str, ignored: &Ignored<'_>) -> Option<Value> {
    let needs_it = difference(made, wanted, manager, ignored).is_some()
        && compare(made, wanted, manager, ignored, true).is_none();
    needs_it.then(|| {
        let mut object = wanted.clone();
        let note = of(wanted, ignored);
        match object["metadata"]["annotations"].as_object_mut() {
            Some(all) => drop(all.insert(annotations::APPLIED.to_owned(), note.into())),
            None => object["metadata"]["annotations"] = json!({annotations::APPLIED: note}),
        }
        object
    })
}

/// Whether the live object carries the note of the wanted one.
pub(super) fn is_of(live: &Value, wanted: &Value, ignored: &Ignored<'_>) -> bool {
    live["metadata"]["annotations"][annotations::APPLIED]
        .as_str()
        .is_some_and(|note| note == of(wanted, ignored))
}

/// Without what its users may change: the wanted object has these fields as the live one has them.
fn of(wanted: &Value, ignored: &Ignored<'_>) -> String {
    let text = if ignored.is_empty() { content_hash(wanted) } else { content_hash(&ignored.without(wanted)) };
    format!("{text:016x}")
}
