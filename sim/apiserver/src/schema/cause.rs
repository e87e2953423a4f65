//! Errors of fields, in Kubernetes' words.

use std::fmt;

use serde_json::Value;

/// An error of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Such as `spec.list[0].name`.
    pub(crate) field: String,
    /// Such as `FieldValueInvalid`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Cause {
    pub(crate) fn new(field: &str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason, message: message.into() }
    }

    /// Prefixes the field.
    pub(crate) fn below(self, path: &str) -> Self {
        let field = if self.field.is_empty() { path.to_owned() } else { format!("{path}.{}", self.field) };
        Self { field, ..self }
    }

    pub(crate) fn required(field: &str, why: &str) -> Self {
        let colon = if why.is_empty() { "" } else { ": " };
        Self::new(field, "FieldValueRequired", format!("Required value{colon}{why}"))
    }

    pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {value}: {why}"))
    }

    pub(crate) fn unsupported(field: &str, value: &Value, supported: &[&str]) -> Self {
        let all: Vec<String> = supported.iter().map(|word| Value::from(*word).to_string()).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", all.join(", "));
        Self::new(field, "FieldValueNotSupported", message)
    }

    pub(crate) fn duplicate(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {value}"))
    }

    pub(crate) fn not_found(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {value}"))
    }

    pub(crate) fn too_many(field: &str, have: u64, max: u64) -> Self {
        let message = format!("Too many: {have}: must have at most {max} items");
        Self::new(field, "FieldValueTooMany", message)
    }

    pub(crate) fn too_long(field: &str, max: impl fmt::Display) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {max} bytes"))
    }

    pub(crate) fn forbidden(field: &str, why: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {why}"))
    }
}
