//! Embedded objects of any shape.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object of any shape; the API server keeps all fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawObject(pub Map<String, Value>);

/// An embedded Kubernetes object. The API server checks `apiVersion`, `kind` and `metadata` only, and keeps the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EmbeddedObject(pub Map<String, Value>);

impl EmbeddedObject {
    /// Empty if missing.
    pub fn api_version(&self) -> &str {
        text(self.0.get("apiVersion"))
    }

    /// Empty if missing.
    pub fn kind(&self) -> &str {
        text(self.0.get("kind"))
    }

    /// Empty if missing.
    pub fn name(&self) -> &str {
        text(self.0.get("metadata").and_then(|meta| meta.get("name")))
    }

    /// Empty if missing.
    pub fn namespace(&self) -> &str {
        text(self.0.get("metadata").and_then(|meta| meta.get("namespace")))
    }

    /// The object as a JSON value.
    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

impl JsonSchema for RawObject {
    fn schema_name() -> Cow<'static, str> {
        "RawObject".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

impl JsonSchema for EmbeddedObject {
    fn schema_name() -> Cow<'static, str> {
        "EmbeddedObject".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}
