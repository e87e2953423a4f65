//! Request bodies.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::{
    accept::{JSON, YAML},
    repeated,
};
use crate::{
    json::whole_numbers,
    kinds::Kind,
    proto::{self, Undecodable},
    store::{PatchKind, Refusal, Repeated},
};

/// Bytes.
const MAX_BYTES: usize = 3 * 1024 * 1024;

/// An object and its duplicate fields.
type Read = (Value, Vec<Repeated>);

pub(crate) struct Sent<'a> {
    body: Result<Bytes, Refusal>,
    media: String,
    /// The target's kind, if known.
    kind: Option<&'a Kind>,
}

impl<'a> Sent<'a> {
    pub(crate) fn new(body: Result<Bytes, Refusal>, headers: &HeaderMap, kind: Option<&'a Kind>) -> Self {
        let media =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim().to_owned();
        Self { body, media, kind }
    }

    pub(crate) fn object(self) -> Result<Read, Refusal> {
        let Self { body, media, kind } = self;
        let bytes = body?;
        if media != proto::MEDIA {
            let mut read = parse(&bytes, &media, kind.is_some_and(Kind::is_builtin))?;
            if kind.is_some_and(|kind| !kind.is_builtin()) {
                whole_numbers(&mut read.0);
            }
            return Ok(read);
        }
        // CRDs define no messages.
        if kind.is_some_and(|kind| !kind.is_builtin()) {
            return Err(Refusal::unsupported_media_type(&[JSON, YAML]));
        }
        let (version, name) = kind.map(|kind| (kind.api_version(), kind.kind.as_str())).unwrap_or_default();
        let object = proto::object(&bytes, &version, name).map_err(|why| undecodable(&why, name, &bytes))?;
        Ok((object, Vec::new()))
    }

    pub(crate) fn patch(self) -> Result<(PatchKind, Read), Refusal> {
        let (how, media) = match self.media.as_str() {
            "application/json-patch+json" => (PatchKind::Json, JSON),
            "application/merge-patch+json" => (PatchKind::Merge, JSON),
            "application/strategic-merge-patch+json" => (PatchKind::Strategic, JSON),
            "application/apply-patch+yaml" => (PatchKind::Apply, YAML),
            _ => return Err(Refusal::unknown_media_type()),
        };
        let read = parse(&self.body?, media, false);
        let (mut patch, mut repeated) = match read {
            // Refused as malformed after the target is found.
            Err(_) if how != PatchKind::Apply => (Value::from("no JSON"), Vec::new()),
            read => read?,
        };
        // Only typed readers distinguish `2.0` from `2`.
        if how == PatchKind::Strategic || self.kind.is_some_and(|kind| !kind.is_builtin()) {
            whole_numbers(&mut patch);
        }
        // Duplicates concern the object, not the patch.
        if how == PatchKind::Json {
            repeated.clear();
        }
        Ok((how, (patch, repeated)))
    }

    /// Null without a body.
    pub(crate) fn delete_options(self) -> Result<Value, Refusal> {
        let bytes = self.body?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        if self.media == proto::MEDIA {
            return proto::delete_options(&bytes).map_err(|why| Refusal::bad_request(why.to_string()));
        }
        let (options, _) = parse(&bytes, &self.media, true)?;
        Ok(if options.is_null() { json!({}) } else { options })
    }
}

/// Reads refused bodies too: some HTTP/2 clients fail if answered midway.
#[expect(clippy::disallowed_methods, reason = "the body is wrapped in Limited")]
pub(crate) async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    let too_large =
        |_| Refusal::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728");
    Ok(Limited::new(body, MAX_BYTES).collect().await.map_err(too_large)?.to_bytes())
}

/// `typed`: merges duplicates like Go structs.
fn parse(bytes: &[u8], media: &str, typed: bool) -> Result<Read, Refusal> {
    match media {
        YAML => {
            let text =
                std::str::from_utf8(bytes).map_err(|_| Refusal::bad_request("the body is not UTF-8"))?;
            let text = first_document(text);
            // Most YAML is JSON (RFC 9512, 3.4), which reads faster.
            let json = text.starts_with('{').then(|| repeated::read(text.as_bytes(), false).ok()).flatten();
            let (mut value, repeated_fields) = match json
                .filter(|(_, repeated_fields)| repeated_fields.is_empty())
            {
                Some((value, _)) => (value, Vec::new()),
                None => {
                    let undecodable = |error| Refusal::bad_request(format!("error decoding YAML: {error}"));
                    yaml(text).map_err(undecodable)?
                }
            };
            whole_numbers(&mut value);
            Ok((value, repeated_fields))
        }
        "" | JSON => match repeated::read(bytes, typed) {
            Ok((value, repeated_fields)) => {
                Ok((value, repeated_fields.into_iter().map(Repeated::Field).collect()))
            }
            Err(error) => Err(Refusal::bad_request(format!(
                "the object provided is unrecognized (must be of type Object): couldn't get version/kind; json parse error: {error}"
            ))),
        },
        _ => Err(Refusal::unsupported_media_type(&[JSON, YAML, proto::MEDIA])),
    }
}

/// Text before a second document. Separator lines never belong to values.
fn first_document(text: &str) -> &str {
    let is_mark = |line: &str, mark: &str| {
        line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    };
    let (mut begun, mut length) = (false, 0);
    for line in text.split_inclusive('\n') {
        let begins = is_mark(line, "---");
        if begun && (begins || is_mark(line, "...")) {
            return text.get(..length).unwrap_or(text);
        }
        begun |= begins || !(line.trim().is_empty() || line.starts_with(['#', '%']));
        length += line.len();
    }
    text
}

/// Reports the first duplicate.
fn yaml(text: &str) -> Result<Read, serde_saphyr::Error> {
    let error = match serde_saphyr::with_deserializer_from_str(text, |reader| repeated::read_yaml(reader)) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } = error.without_snippet()
    else {
        return Err(error);
    };
    let message = format!("line {}: key {} already set in map", location.line(), Value::from(key.as_str()));
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        repeated::read_yaml(reader)
    })?;
    Ok((value, vec![Repeated::Line(message)]))
}

/// Kubernetes' wording.
fn undecodable(why: &Undecodable, expected: &str, body: &[u8]) -> Refusal {
    Refusal::bad_request(match why {
        Undecodable::Object { kind, version, why } => {
            let version = Value::from(version.rsplit('/').next().unwrap_or_default());
            format!("{kind} in version {version} cannot be handled as a {expected}: {why}")
        }
        envelope => {
            let begin = hex::encode(body.get(..50).unwrap_or(body));
            format!("the object provided is unrecognized (must be of type {expected}): {envelope} ({begin})")
        }
    })
}
