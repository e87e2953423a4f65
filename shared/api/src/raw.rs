//! Objects that are carried as they are, whatever fields they have.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object of any shape; the API server keeps every field of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawObject(pub Map<String, Value>);

/// A whole Kubernetes object inside another one: `apiVersion`, `kind` and well-formed `metadata`
/// are checked by the API server, the rest is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EmbeddedObject(pub Map<String, Value>);

impl EmbeddedObject {
    /// `apiVersion`; empty when it is missing.
    pub fn api_version(&self) -> &str {
        text(self.0.get("apiVersion"))
    }

    /// `kind`; empty when it is missing.
    pub fn kind(&self) -> &str {
        text(self.0.get("kind"))
    }

    /// `metadata.name`; empty when it is missing.
    pub fn name(&self) -> &str {
        text(self.0.get("metadata").and_then(|meta| meta.get("name")))
    }

    /// `metadata.namespace`; empty when it is missing.
    pub fn namespace(&self) -> &str {
        text(self.0.get("metadata").and_then(|meta| meta.get("namespace")))
    }

    /// All of these in one walk: finding each of them costs more where it is done for every module of a fleet.
    pub fn place(&self) -> EmbeddedPlace<'_> {
        let mut place = EmbeddedPlace::default();
        for (key, value) in &self.0 {
            match key.as_str() {
                "apiVersion" => place.api_version = text(Some(value)),
                "kind" => place.kind = text(Some(value)),
                "metadata" => {
                    for (key, value) in value.as_object().into_iter().flatten() {
                        match key.as_str() {
                            "name" => place.name = text(Some(value)),
                            "namespace" => place.namespace = text(Some(value)),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        place
    }

    /// The object as a JSON value, for clients that take any object.
    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

/// Where an embedded object is, or is to be. What is missing is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddedPlace<'a> {
    /// `apiVersion`
    pub api_version: &'a str,
    /// `kind`
    pub kind: &'a str,
    /// `metadata.name`
    pub name: &'a str,
    /// `metadata.namespace`
    pub namespace: &'a str,
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
