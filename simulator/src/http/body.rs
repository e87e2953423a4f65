//! Bodies of requests: their size, their media types and what is in them.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use super::answer::{JSON, YAML};
use crate::{
    kinds::Kind,
    proto::{self, Undecodable},
    store::{PatchKind, Refusal},
};

/// Longest body.
const LARGEST: usize = 3 * 1024 * 1024;

/// What is sent with a request.
pub(crate) struct Sent<'a> {
    body: Incoming,
    media: String,
    /// What it is sent to, if that is known.
    kind: Option<&'a Kind>,
}

impl<'a> Sent<'a> {
    pub(crate) fn new(body: Incoming, headers: &HeaderMap, kind: Option<&'a Kind>) -> Self {
        let media =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim().to_owned();
        Self { body, media, kind }
    }

    /// Of a create or an update.
    pub(crate) async fn object(self) -> Result<Value, Refusal> {
        let Self { body, media, kind } = self;
        let bytes = bytes(body).await?;
        if media != proto::MEDIA {
            return parse(&bytes, &media);
        }
        // There are no messages of what a CRD defines.
        if kind.is_some_and(|kind| !kind.is_builtin()) {
            return Err(Refusal::unsupported_media_type(&[JSON, YAML]));
        }
        let (version, name) = kind.map(|kind| (kind.api_version(), kind.kind.as_str())).unwrap_or_default();
        proto::object(&bytes, &version, name).map_err(|why| undecodable(&why, name, &bytes))
    }

    pub(crate) async fn patch(self) -> Result<(PatchKind, Value), Refusal> {
        let (how, media) = match self.media.as_str() {
            "application/json-patch+json" => (PatchKind::Json, JSON),
            "application/merge-patch+json" => (PatchKind::Merge, JSON),
            "application/strategic-merge-patch+json" => (PatchKind::Strategic, JSON),
            "application/apply-patch+yaml" => (PatchKind::Apply, YAML),
            _ => return Err(Refusal::unknown_media_type()),
        };
        Ok((how, parse(&bytes(self.body).await?, media)?))
    }

    /// Null if there are none.
    pub(crate) async fn delete_options(self) -> Result<Value, Refusal> {
        let bytes = bytes(self.body).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        if self.media == proto::MEDIA {
            return proto::delete_options(&bytes).map_err(|why| Refusal::bad_request(why.to_string()));
        }
        parse(&bytes, &self.media)
    }
}

#[expect(clippy::disallowed_methods, reason = "the body is wrapped in Limited")]
async fn bytes(body: Incoming) -> Result<Bytes, Refusal> {
    let too_large =
        |_| Refusal::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728");
    Ok(Limited::new(body, LARGEST).collect().await.map_err(too_large)?.to_bytes())
}

fn parse(bytes: &[u8], media: &str) -> Result<Value, Refusal> {
    match media {
        YAML => {
            let text = std::str::from_utf8(bytes).map_err(|_| Refusal::bad_request("the body is not UTF-8"))?;
            // Most clients send JSON as YAML (RFC 9512, 3.4), and a JSON reader is much faster.
            if let Some(value) = text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten() {
                return Ok(value);
            }
            serde_saphyr::from_str(text)
                .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))
        }
        "" | JSON => serde_json::from_slice(bytes).map_err(|error| {
            Refusal::bad_request(format!(
                "the object provided is unrecognized (must be of type Object): couldn't get version/kind; json parse error: {error}"
            ))
        }),
        _ => Err(Refusal::unsupported_media_type(&[JSON, YAML, proto::MEDIA])),
    }
}

/// As the real one says it.
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
