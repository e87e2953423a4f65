//! One version of a resource.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    object::intern::intern,
    schema::{self, View, builtin, cause::Cause, validate},
};

/// One version of a resource.
#[expect(clippy::struct_field_names, reason = "they are called so in discovery")]
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<Scale>,
    /// Whether spec changes count in `metadata.generation`.
    pub(crate) has_generation: bool,
    /// Common to all versions.
    pub(crate) storage: Arc<str>,
    pub(crate) origin: Origin,
}

/// Field paths of `/scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Without leading dot.
    pub(crate) spec: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

#[derive(Debug)]
pub(crate) enum Origin {
    /// Its Kubernetes definition.
    Builtin(&'static str),
    Custom(CustomVersion),
}

/// Schema and columns of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// Includes apiVersion, kind, metadata.
    pub(crate) schema: Value,
    pub(crate) columns: Vec<Value>,
    /// Such as `spec.color`.
    pub(crate) selectable: Vec<String>,
}

impl CustomVersion {
    /// Validates all but metadata.
    pub(crate) fn check(&self, object: &Value, before: Option<&Value>) -> Vec<Cause> {
        validate::check(object, before, View::new(&self.schema, Some(builtin::definitions())))
    }
}

impl Kind {
    /// Whether an update may create an object.
    pub(crate) fn is_created_by_update(&self) -> bool {
        match self.group.as_str() {
            "" => matches!(self.kind.as_str(), "Service" | "Event"),
            "events.k8s.io" | "coordination.k8s.io" | "rbac.authorization.k8s.io" => true,
            _ => false,
        }
    }

    /// Whether it has `/approval`.
    pub(crate) fn has_approval(&self) -> bool {
        self.is("certificates.k8s.io", "certificatesigningrequests")
    }

    /// Whether it has `/token`.
    pub(crate) fn has_tokens(&self) -> bool {
        self.is("", "serviceaccounts")
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `plural` or `plural.group`.
    pub(crate) fn resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// `Kind` or `Kind.group`.
    pub(crate) fn qualified_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    pub(crate) fn is_builtin(&self) -> bool {
        matches!(self.origin, Origin::Builtin(_))
    }

    pub(crate) fn custom(&self) -> Option<&CustomVersion> {
        match &self.origin {
            Origin::Custom(version) => Some(version),
            Origin::Builtin(_) => None,
        }
    }

    pub(crate) fn schema(&self) -> View<'_> {
        match &self.origin {
            Origin::Builtin(definition) => builtin::view(definition),
            Origin::Custom(version) => View::new(&version.schema, Some(builtin::definitions())),
        }
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// An object without set fields.
    pub(crate) fn zero(&self) -> Value {
        if self.is_builtin() { schema::shape::zero(self.schema()) } else { Value::Object(Map::new()) }
    }
}

pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

pub(crate) fn storage_key(plural: &str, group: &str) -> Arc<str> {
    intern(&qualified(plural, group))
}
