//! Answer bodies and headers.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Collected, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};

use super::{
    accept::{Form, JSON, YAML},
    representation::{Representation, metadata_of},
    table::table,
};
use crate::{
    object::meta,
    store::{Answer, Listed, Refusal},
};

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn empty() -> Body {
    Full::default().boxed_unsync()
}

pub(crate) fn text(code: u16, media: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

pub(crate) fn json(code: u16, body: &Value) -> Response<Body> {
    text(code, JSON, body.to_string())
}

/// Converts JSON answers to YAML.
#[expect(clippy::disallowed_methods, reason = "the body is one of those above, which are here already")]
pub(crate) async fn in_yaml(answer: Response<Body>) -> Response<Body> {
    if answer.headers().get(header::CONTENT_TYPE).is_none_or(|media| media != JSON) {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let Ok(bytes) = body.collect().await.map(Collected::to_bytes);
    let value = serde_json::from_slice::<Value>(&bytes).ok();
    let written = value.and_then(|value| serde_saphyr::to_string(&value).ok());
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(YAML));
    // JSON is valid YAML.
    let body = written.map_or(bytes, Bytes::from);
    Response::from_parts(head, Full::new(body).boxed_unsync())
}

pub(crate) fn refusal(refusal: &Refusal) -> Response<Body> {
    let mut response = json(refusal.code, &refusal.body());
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) fn object(answer: Answer, representation: Representation) -> Response<Body> {
    let Answer { code, object: whole, warnings, kind } = answer;
    let body = match (representation.form, kind) {
        (Form::Table, Some(kind)) => {
            let metadata = json!({"resourceVersion": whole.pointer("/metadata/resourceVersion")});
            table(&kind, std::slice::from_ref(&whole), metadata, representation, true)
        }
        (Form::Metadata, Some(_)) => metadata_of(whole, representation.version),
        _ => whole,
    };
    let mut response = json(code, &body);
    for warning in &warnings {
        let quoted = format!("299 - {}", Value::from(warning.as_str()));
        if let Ok(value) = HeaderValue::from_str(&quoted) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

pub(crate) fn list(listed: Listed, representation: Representation) -> Response<Body> {
    let Listed { items, revision, next, remaining, kind } = listed;
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if (!kind.is_builtin() && representation.form == Form::Plain) || !next.is_empty() {
        metadata["continue"] = next.into();
    }
    if let Some(remaining) = remaining.filter(|remaining| *remaining > 0) {
        metadata["remainingItemCount"] = remaining.into();
    }
    let (list_kind, version, items): (_, _, Vec<Value>) = match representation.form {
        Form::Table => {
            return json(200, &table(&kind, &items, metadata, representation, true));
        }
        Form::MetadataList | Form::Metadata => (
            "PartialObjectMetadataList".to_owned(),
            representation.version.to_owned(),
            items.into_iter().map(|item| metadata_of(item, representation.version)).collect(),
        ),
        _ => {
            // Built-in list items omit kind and version.
            let bare = |mut item: Value| {
                if let (true, Some(map)) = (kind.is_builtin(), item.as_object_mut()) {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
                item
            };
            (kind.list_kind.clone(), kind.api_version(), items.into_iter().map(bare).collect())
        }
    };
    let fields = [("kind", list_kind.into()), ("apiVersion", version.into()), ("metadata", metadata)];
    let mut body = meta::object(fields);
    body["items"] = Value::Array(items);
    json(200, &body)
}
