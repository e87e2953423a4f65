//! Decodes protobuf bodies. Answers are JSON, which all clients accept.

mod messages;
mod value;
mod wire;
mod zeros;

use serde_json::Value;

pub(crate) use self::wire::Malformed;
use self::wire::{Fields, Wire};
pub(crate) use self::zeros::drop_zeros;
use crate::kinds::{Origin, builtin};

pub(crate) const MEDIA: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
const DELETE_OPTIONS: &str = "apimachinery.pkg.apis.meta.v1.DeleteOptions";
const OTHERS: [(&str, &str, &str); 4] = [
    ("authentication.k8s.io/v1", "SelfSubjectReview", "authentication.v1.SelfSubjectReview"),
    ("authentication.k8s.io/v1", "TokenRequest", "authentication.v1.TokenRequest"),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview", "authorization.v1.SelfSubjectAccessReview"),
    ("autoscaling/v1", "Scale", "autoscaling.v1.Scale"),
];

#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Undecodable {
    #[error("provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}")]
    NoMagic,
    #[error("empty body")]
    Empty,
    #[error(transparent)]
    Envelope(#[from] Malformed),
    #[error("{why}")]
    Object { kind: String, version: String, why: Malformed },
}

#[derive(Default)]
struct Unknown<'a> {
    version: String,
    kind: String,
    raw: &'a [u8],
}

impl<'a> Unknown<'a> {
    fn open(body: &'a [u8]) -> Result<Self, Undecodable> {
        let envelope = body.strip_prefix(MAGIC).ok_or(Undecodable::NoMagic)?;
        if envelope.is_empty() {
            return Err(Undecodable::Empty);
        }
        let mut unknown = Self::default();
        for field in Fields(envelope) {
            match field? {
                (1, Wire::Bytes(about)) => unknown.name(about)?,
                (2, Wire::Bytes(raw)) => unknown.raw = raw,
                (1 | 2, other) => return Err(Malformed::Mismatch(other.number(), "Unknown".into()).into()),
                _ => {}
            }
        }
        Ok(unknown)
    }

    fn name(&mut self, about: &[u8]) -> Result<(), Malformed> {
        for field in Fields(about) {
            match field? {
                (1, Wire::Bytes(text)) => self.version = String::from_utf8_lossy(text).into_owned(),
                (2, Wire::Bytes(text)) => self.kind = String::from_utf8_lossy(text).into_owned(),
                (1 | 2, other) => return Err(Malformed::Mismatch(other.number(), "TypeMeta".into())),
                _ => {}
            }
        }
        Ok(())
    }

    fn value(self, message: &str) -> Result<Value, Undecodable> {
        let decoded = value::message(message, self.raw);
        let Self { kind, version, .. } = self;
        match decoded {
            Ok(mut value) => {
                value["kind"] = kind.into();
                value["apiVersion"] = version.into();
                Ok(value)
            }
            Err(why) => Err(Undecodable::Object { kind, version, why }),
        }
    }
}

/// `version` and `kind` are defaults; unknown kinds yield nothing else.
pub(crate) fn object(body: &[u8], version: &str, kind: &str) -> Result<Value, Undecodable> {
    let mut unknown = Unknown::open(body)?;
    if unknown.kind.is_empty() {
        kind.clone_into(&mut unknown.kind);
    }
    if unknown.version.is_empty() {
        version.clone_into(&mut unknown.version);
    }
    let message = message_of(&unknown.version, &unknown.kind).unwrap_or_default();
    unknown.value(message)
}

pub(crate) fn delete_options(body: &[u8]) -> Result<Value, Undecodable> {
    Unknown::open(body)?.value(DELETE_OPTIONS)
}

fn message_of(version: &str, kind: &str) -> Option<&'static str> {
    let builtin = builtin::kinds().iter().find(|one| one.kind == kind && one.api_version() == version);
    if let Some(Origin::Builtin(definition)) = builtin.map(|one| &one.origin) {
        return Some(messages::short(definition));
    }
    OTHERS.iter().find(|(of, one, _)| *of == version && *one == kind).map(|(_, _, message)| *message)
}

#[cfg(test)]
mod tests;
