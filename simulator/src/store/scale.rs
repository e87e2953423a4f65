//! The subresource scale.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    cluster::Cluster,
    refusal::Refusal,
    request::{Answer, Outcome, PatchKind, Request, Target},
    rules::{dry_run, unpatched},
};
use crate::{
    kinds::Kind,
    object::meta::{self, metadata_mut, put},
    patch,
};

impl Cluster {
    pub(super) fn get_scale(&self, kind: &Arc<Kind>, target: &Target) -> Result<Outcome, Refusal> {
        let stored = self.lookup(kind, &target.namespace, &target.name)?;
        let object = Self::render(kind, &stored);
        if let Some(path) = kind.scale.as_ref().map(|scale| &scale.spec).filter(|_| !kind.is_builtin())
            && object.pointer(&pointer(path)).is_none()
        {
            return Err(Refusal::internal(format!("the spec replicas field \".{path}\" does not exist")));
        }
        Ok(Outcome::Object(Answer {
            code: 200,
            object: scale(kind, &object),
            warnings: Vec::new(),
            kind: None,
        }))
    }

    pub(super) fn put_scale(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        body: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let replicas = body.pointer("/spec/replicas").cloned().unwrap_or(json!(0));
        let place = kind.scale.as_ref().map(|scale| scale.spec.clone()).unwrap_or_default();
        let mut patch = replicas;
        for step in place.split('.').rev() {
            patch = json!({step: patch});
        }
        if let Some(revision) = meta::text(body, "resourceVersion") {
            metadata_mut(&mut patch).insert("resourceVersion".into(), revision.into());
        }
        let dry = dry_run(&request.query, "UpdateOptions")?;
        match self.patch_object(kind, request, PatchKind::Merge, &patch, dry, now)? {
            Outcome::Object(answer) => {
                let object = scale(kind, &answer.object);
                Ok(Outcome::Object(Answer { code: 200, object, warnings: answer.warnings, kind: None }))
            }
            other => Ok(other),
        }
    }

    pub(super) fn patch_scale(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        how: PatchKind,
        patch: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let stored = self.lookup(kind, &request.target.namespace, &request.target.name)?;
        let before = scale(kind, &Self::render(kind, &stored));
        let mut after = match how {
            PatchKind::Json => patch::json(&before, patch).map_err(|error| unpatched(&error))?,
            _ => patch::merge(&before, patch),
        };
        if patch.pointer("/metadata/resourceVersion").is_none() {
            metadata_mut(&mut after).remove("resourceVersion");
        }
        self.put_scale(kind, request, &after, now)
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

fn scale(kind: &Kind, object: &Value) -> Value {
    let paths = kind.scale.as_ref();
    let at = |path: Option<&String>| object.pointer(&pointer(path?)).cloned();
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        put(&mut metadata, field, object.get("metadata").and_then(|all| all.get(field)).cloned());
    }
    let mut spec = Map::new();
    put(&mut spec, "replicas", at(paths.map(|paths| &paths.spec)).filter(|replicas| *replicas != 0));
    let mut status = json!({"replicas": at(paths.map(|paths| &paths.status)).unwrap_or(json!(0))});
    let selector = match paths.and_then(|paths| paths.selector.as_ref()) {
        Some(path) => at(Some(path)),
        None if kind.is_builtin() => {
            object.pointer("/spec/selector/matchLabels").and_then(Value::as_object).map(|labels| {
                let pairs: Vec<String> = labels
                    .iter()
                    .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
                    .collect();
                Value::from(pairs.join(","))
            })
        }
        None => None,
    };
    put(meta::as_object(&mut status), "selector", selector);
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec, "status": status})
}
