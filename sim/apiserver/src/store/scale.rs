//! The scale subresource.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    decode::{decode, decode_patched, locate},
    refusal::Refusal,
    render::render,
    request::{Answer, Outcome},
    rules::patched,
    state::State,
    target::{PatchKind, Target},
    write::Write,
};
use crate::{
    kinds::{Kind, builtin},
    object::meta::{self, metadata_mut, put},
    schema::validate::Cause,
};

pub(super) fn get(state: &State, kind: &Arc<Kind>, target: &Target) -> Result<Outcome, Refusal> {
    let stored = state.objects.lookup(kind, &target.namespace, &target.name)?;
    let object = render(kind, &stored);
    if let Some(path) = kind.scale.as_ref().map(|scale| &scale.spec).filter(|_| !kind.is_builtin())
        && object.pointer(&pointer(path)).is_none()
    {
        return Err(Refusal::internal(format!("the spec replicas field \".{path}\" does not exist")));
    }
    Ok(Outcome::Object(Answer { code: 200, object: scale(kind, &object), warnings: Vec::new(), kind: None }))
}

impl Write<'_> {
    pub(super) fn put_scale(mut self, body: Value) -> Result<Outcome, Refusal> {
        let wanted = decode(body, builtin::scale(), &self.request.query, &mut self.warnings)?;
        self.rescale(wanted)
    }

    pub(super) fn patch_scale(mut self, how: PatchKind, patch: &Value) -> Result<Outcome, Refusal> {
        let (kind, request) = (self.kind, self.request);
        let stored = self.state.objects.lookup(kind, &request.target.namespace, &request.target.name)?;
        let before = scale(kind, &render(kind, &stored));
        let patched = patched(&before, how, patch, builtin::scale())?;
        let mut after = decode_patched(patched, builtin::scale(), &request.query, &mut self.warnings)?;
        let uid = stored.uid.to_string();
        let other = meta::text(&after, "uid").filter(|given| *given != uid && kind.is_builtin());
        if let Some(other) = other {
            return Err(Refusal::other_uid_of_scale(kind, stored.name(), other, &uid));
        }
        // The uid is checked above. The version counts only if patched.
        metadata_mut(&mut after).remove("uid");
        if meta::text(&after, "resourceVersion") == meta::text(&before, "resourceVersion") {
            metadata_mut(&mut after).remove("resourceVersion");
        }
        self.rescale(after)
    }

    /// Applies a Scale's replicas.
    fn rescale(mut self, mut wanted: Value) -> Result<Outcome, Refusal> {
        let (kind, request) = (self.kind, self.request);
        let Target { namespace, name, .. } = &request.target;
        if meta::name(&wanted).is_empty() {
            return Err(Refusal::nameless(name));
        }
        locate(&mut wanted, kind, &request.target)?;
        let uid = self.state.objects.lookup(kind, namespace, name)?.uid.to_string();
        if let Some(given) = meta::text(&wanted, "uid").filter(|given| *given != uid) {
            return Err(Refusal::other_uid(kind, namespace, name, given, &uid));
        }
        let replicas = wanted.pointer("/spec/replicas").cloned().unwrap_or(json!(0));
        let field = kind.scale.as_ref().map(|scale| scale.spec.as_str()).unwrap_or_default();
        if replicas.as_i64().is_some_and(|replicas| replicas < 0) {
            return Err(negative(kind, name, field, &replicas));
        }
        let mut patch = replicas;
        for step in field.split('.').rev() {
            patch = json!({step: patch});
        }
        if let Some(revision) = meta::text(&wanted, "resourceVersion") {
            metadata_mut(&mut patch).insert("resourceVersion".into(), revision.into());
        }
        let mut warnings = std::mem::take(&mut self.warnings);
        match self.patch_object(PatchKind::Merge, &patch)? {
            Outcome::Object(answer) => {
                let object = scale(kind, &answer.object);
                // The Scale already reports duplicates.
                let more: Vec<String> =
                    answer.warnings.into_iter().filter(|one| !warnings.contains(one)).collect();
                warnings.extend(more);
                Ok(Outcome::Object(Answer { code: 200, object, warnings, kind: None }))
            }
            other => Ok(other),
        }
    }
}

/// Built-in kinds report the Scale's field.
fn negative(kind: &Kind, name: &str, path: &str, replicas: &Value) -> Refusal {
    if kind.is_builtin() {
        let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Refusal::invalid("Scale", "autoscaling", name, &[cause]);
    }
    let cause = Cause::invalid(&format!(".{path}"), replicas, "should be a non-negative integer");
    Refusal::invalid(&kind.kind, &kind.group, name, &[cause])
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
