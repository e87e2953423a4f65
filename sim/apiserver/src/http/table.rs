//! Table output.

use serde_json::{Value, json};

use super::representation::{Include, Representation, metadata_of};
use crate::kinds::{Kind, columns::Columns};

/// `metadata`: metadata of the list.
pub(crate) fn table(
    kind: &Kind,
    items: &[Value],
    metadata: Value,
    representation: Representation,
    with_columns: bool,
) -> Value {
    let columns = Columns::of(kind);
    let row = |object: &Value| {
        let mut row = json!({"cells": columns.cells(object, representation.now), "object": null});
        match representation.include {
            Include::None => row["object"] = Value::Null,
            Include::Metadata => row["object"] = metadata_of(object.clone(), representation.version),
            Include::Object => row["object"] = object.clone(),
        }
        row
    };
    let definitions = if with_columns { columns.definitions() } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": representation.version, "metadata": metadata,
        "columnDefinitions": definitions, "rows": items.iter().map(row).collect::<Vec<_>>(),
    })
}
