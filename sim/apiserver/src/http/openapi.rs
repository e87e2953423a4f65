//! `OpenAPI` v3 for `kubectl explain`, `apply` and `edit`.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::discovery::Served;
use crate::{
    kinds::{Kind, Origin},
    schema::builtin,
};

/// Simulated version.
pub(super) const GIT_VERSION: &str = "v1.36.3";
const TITLE: &str = "Kubernetes";

/// `/openapi/v3`; `prefix` is the cluster's path.
pub(crate) fn index(served: &Served, prefix: &str) -> Value {
    let mut paths = Map::new();
    for (group, version) in served.versions() {
        let Some(kinds) = served.kinds(group, version) else { continue };
        let path =
            if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        // Clients cache documents by hash.
        let hash = kinds.iter().fold(0, |hash: u128, kind| {
            let schema = kind.custom().map(|custom| custom.schema.to_string()).unwrap_or_default();
            hash.rotate_left(1) ^ xxh3_128(format!("{}{schema}", kind.kind).as_bytes())
        });
        let url = format!("{prefix}/openapi/v3/{path}?hash={hash:032X}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// `/openapi/v2`, without schemas: `kubectl` then leaves list validation to the server.
pub(crate) fn empty_v2() -> Value {
    json!({"swagger": "2.0", "info": {"title": TITLE, "version": GIT_VERSION}, "paths": {}})
}

/// Protobuf, the only form that `kubectl` reads.
pub(crate) fn empty_v2_protobuf() -> Vec<u8> {
    // Fields 1 and 2; texts are below 128 bytes.
    let field = |tag: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).unwrap_or_default();
        [&[tag, length], bytes].concat()
    };
    let info = [field(0x0a, TITLE.as_bytes()), field(0x12, GIT_VERSION.as_bytes())].concat();
    [field(0x0a, b"2.0"), field(0x12, &info)].concat()
}

/// `/openapi/v3/<path>`
pub(crate) fn document(served: &Served, path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.split('/').collect();
    let (group, version) = match parts.as_slice() {
        ["api", version] => ("", *version),
        ["apis", group, version] => (*group, *version),
        _ => return None,
    };
    let kinds = served.kinds(group, version)?;
    let mut schemas = Map::new();
    let mut paths = Map::new();
    let mut wanted = BTreeSet::new();
    wanted.insert("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions".to_owned());
    for kind in kinds {
        let name = definition(kind);
        let mut schema = match &kind.origin {
            Origin::Builtin(name) => described(builtin::definitions().get(*name)),
            Origin::Custom(version) => version.schema.clone(),
        };
        schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
        references(&schema, &mut wanted);
        schemas.insert(name.clone(), schema);
        let list = json!({
            "type": "object", "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"},
                "items": {"type": "array", "items": {"allOf": [{"$ref": format!("{}{name}", builtin::PREFIX)}], "default": {}}},
                "metadata": {"allOf": [{"$ref": format!("{}io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta", builtin::PREFIX)}], "default": {}},
            },
            "x-kubernetes-group-version-kind": [{"group": kind.group, "version": kind.version, "kind": kind.list_kind}],
        });
        references(&list, &mut wanted);
        schemas.insert(format!("{name}List"), list);
        paths_of(kind, &format!("/{path}"), &name, &mut paths);
    }
    while let Some(name) = wanted.pop_first() {
        let Some(schema) = builtin::definitions().get(&name).filter(|_| !schemas.contains_key(&name)) else {
            continue;
        };
        references(schema, &mut wanted);
        schemas.insert(name, described(Some(schema)));
    }
    Some(json!({
        "openapi": "3.0.0", "info": {"title": TITLE, "version": GIT_VERSION},
        "paths": paths, "components": {"schemas": schemas},
    }))
}

/// Kubernetes does not publish that `metadata` is required.
fn described(schema: Option<&Value>) -> Value {
    let mut schema = schema.cloned().unwrap_or_default();
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|field| field != "metadata");
    }
    if schema["required"] == json!([])
        && let Some(map) = schema.as_object_mut()
    {
        map.remove("required");
    }
    schema
}

/// Published schema name.
fn definition(kind: &Arc<Kind>) -> String {
    match &kind.origin {
        Origin::Builtin(name) => (*name).to_owned(),
        Origin::Custom(_) => {
            let mut group: Vec<&str> = kind.group.split('.').collect();
            group.reverse();
            format!("{}.{}.{}", group.join("."), kind.version, kind.kind)
        }
    }
}

fn gvk(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn references(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.extend(target.strip_prefix(builtin::PREFIX).map(str::to_owned));
            }
            map.values().for_each(|child| references(child, found));
        }
        Value::Array(list) => list.iter().for_each(|child| references(child, found)),
        _ => {}
    }
}

fn paths_of(kind: &Kind, base: &str, name: &str, paths: &mut Map<String, Value>) {
    let reference = json!({"$ref": format!("{}{name}", builtin::PREFIX)});
    let body = |media: &[&str]| {
        let content: Map<String, Value> =
            media.iter().map(|media| ((*media).to_owned(), json!({"schema": reference}))).collect();
        json!({"content": content})
    };
    let parameters = |names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}})).collect()
    };
    let operation = |verb: &str, names: &[&str]| {
        json!({
            "operationId": format!("{verb}{}", kind.kind), "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": gvk(kind), "parameters": parameters(names),
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
        })
    };
    let with = |mut operation: Value, media: &[&str]| {
        operation["requestBody"] = body(media);
        operation
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let mut patches =
        vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    if kind.is_builtin() {
        patches.push("application/strategic-merge-patch+json");
    }
    let collection = if kind.namespaced {
        paths.insert(
            format!("{base}/{}", kind.plural),
            json!({"get": operation("list", &["labelSelector", "fieldSelector", "limit", "watch"])}),
        );
        format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{base}/{}", kind.plural)
    };
    paths.insert(
        collection.clone(),
        json!({
            "get": operation("list", &["labelSelector", "fieldSelector", "limit", "watch"]),
            "post": with(operation("post", &write), &["application/json"]),
        }),
    );
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", &[]),
            "put": with(operation("put", &write), &["application/json"]),
            "patch": with(operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"]), &patches),
            "delete": operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
        }),
    );
}
