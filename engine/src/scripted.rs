//! An API server whose answers a test scripts.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, header::CONTENT_TYPE};
use kube::{Client, client::Body};
use serde_json::{Map, Value, json};
use tidewatch_api::names::field_managers;

use crate::{
    clusters::{Gated, RuntimeClient},
    gate::Gate,
};

/// An HTTP status and a body.
pub(super) type Answer = (u16, Value);

/// A request.
pub(super) struct ScriptedRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
    /// `null`, if it is not JSON.
    pub(super) body: Value,
}

impl ScriptedRequest {
    pub(super) fn is_read(&self) -> bool {
        self.method == "GET"
    }
}

/// A client of an API server that gives this answer to a request, or never answers, if it is `None`.
pub(super) fn client<A: Into<Option<Answer>> + Send>(
    answer: impl Fn(&ScriptedRequest) -> A + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let (parts, body) = request.into_parts();
            let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let scripted = ScriptedRequest {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                content_type: content_type.unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default(),
            };
            let Some((code, body)) = answer(&scripted).into() else { return std::future::pending().await };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

/// The runtime of `harbour`, with such an API server; a call's deadline is 5 s.
pub(super) fn runtime<A: Into<Option<Answer>> + Send>(
    answer: impl Fn(&ScriptedRequest) -> A + Send + Sync + 'static,
) -> Gated {
    Gated::new(RuntimeClient::new(client(answer), Duration::from_secs(5)), Gate::default(), "harbour")
}

/// The discovery of a group version in which one kind is served.
pub(super) fn kinds(group_version: &str, name: &str, kind: &str, namespaced: bool) -> Answer {
    let resources = json!([{"name": name, "singularName": "", "namespaced": namespaced, "kind": kind,
                            "verbs": ["get", "list"]}]);
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
                      "resources": resources});
    (200, list)
}

/// The discovery of the CRDs' group version.
pub(super) fn definitions() -> Answer {
    kinds("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", false)
}

/// A refusal.
pub(super) fn refused(code: u16, reason: &str, message: &str) -> Answer {
    refused_for(code, reason, message, &json!({}))
}

/// A refusal with details.
pub(super) fn refused_for(code: u16, reason: &str, message: &str, details: &Value) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                        "message": message, "details": details, "code": code});
    (code, status)
}

pub(super) fn not_found() -> Answer {
    refused(404, "NotFound", "not found")
}

/// An applied object as an API server stores it: with the managed fields of its applier.
pub(super) fn stored(mut object: Value) -> Value {
    fn fields(value: &Value) -> Value {
        let members = value.as_object().into_iter().flatten();
        members.map(|(key, value)| (format!("f:{key}"), fields(value))).collect::<Map<_, _>>().into()
    }
    let mut owned = object.clone();
    let members = owned.as_object_mut().unwrap();
    members.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
    let metadata = members["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| !["name", "namespace"].contains(&key.as_str()));
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["resourceVersion"] = "1".into();
    object["metadata"]["managedFields"] = json!([{"manager": field_managers::APPLIER, "operation": "Apply",
        "apiVersion": object["apiVersion"], "fieldsType": "FieldsV1", "fieldsV1": fields(&owned)}]);
    object
}
