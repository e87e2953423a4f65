//! Table output.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{accept::metadata_of, answer::Look};
use crate::kinds::{Kind, columns::Columns};

/// Content of a row's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn of(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            "" | "Metadata" => Some(Self::Metadata),
            _ => None,
        }
    }
}

/// `metadata`: that of the list.
pub(crate) fn table(
    kind: &Kind,
    items: &[Value],
    metadata: Value,
    look: Look,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let columns = Columns::of(kind);
    let row = |object: &Value| {
        let mut row = json!({"cells": columns.cells(object, now), "object": null});
        match look.include {
            Include::None => row["object"] = Value::Null,
            Include::Metadata => row["object"] = metadata_of(object.clone(), look.version),
            Include::Object => row["object"] = object.clone(),
        }
        row
    };
    let definitions = if with_columns { columns.definitions() } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": look.version, "metadata": metadata,
        "columnDefinitions": definitions, "rows": items.iter().map(row).collect::<Vec<_>>(),
    })
}
