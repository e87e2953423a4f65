//! Forms of answered objects.

use jiff::Timestamp;
use serde_json::Value;

use super::accept::Form;
use crate::{
    object::meta::object,
    store::{Answer, Listed, Outcome, Refusal},
};

/// The form of an answer that the client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Representation {
    pub(crate) form: Form,
    /// `apiVersion` of a generic form.
    pub(crate) version: &'static str,
    pub(crate) include: Include,
    pub(crate) now: Timestamp,
}

impl Representation {
    /// Checks the form after the request, like Kubernetes.
    pub(crate) fn fits(&self, outcome: &Outcome) -> Result<(), Refusal> {
        match (self.form, outcome) {
            (Form::MetadataList, Outcome::Object(Answer { kind: Some(kind), .. })) if !kind.is_builtin() => {
                Err(Refusal::new(500, "", "content is not a list"))
            }
            (Form::MetadataList, Outcome::Object(Answer { kind: Some(kind), .. })) => {
                Err(Refusal::no_such_form("PartialObjectMetadataList", "not a list", kind, ""))
            }
            (Form::Metadata, Outcome::List(Listed { kind, .. })) => {
                Err(Refusal::no_such_form("PartialObjectMetadata", "a list", kind, "List"))
            }
            _ => Ok(()),
        }
    }
}

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

pub(crate) fn metadata_of(mut whole: Value, version: &str) -> Value {
    let metadata = whole.get_mut("metadata").map(Value::take).unwrap_or_default();
    let kind = "PartialObjectMetadata".into();
    object([("kind", kind), ("apiVersion", version.into()), ("metadata", metadata)])
}
