//! Kinds defined by CRDs.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    kind::{CustomVersion, Kind, Origin, Scale, storage_key},
    structural,
};
use crate::{json::DEEPEST, schema::builtin};

/// Equal CRDs share kinds.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// By spec hash.
type Known = HashMap<u64, Weak<Vec<Arc<Kind>>>>;

/// A CRD's served versions.
pub(crate) fn kinds(spec: &Value) -> Arc<Vec<Arc<Kind>>> {
    let text = spec.to_string();
    let hash = xxh3_64(text.as_bytes());
    let mut known = KNOWN.lock();
    if let Some(kinds) = known.get(&hash).and_then(Weak::upgrade) {
        return kinds;
    }
    let versions = spec.get("versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let served = versions.iter().filter(|version| version.get("served") == Some(&json!(true)));
    let kinds = Arc::new(served.map(|version| Arc::new(kind(spec, version))).collect::<Vec<_>>());
    known.retain(|_, weak| weak.strong_count() > 0);
    known.insert(hash, Arc::downgrade(&kinds));
    kinds
}

/// The storage version; empty without one.
pub(crate) fn stored_version(spec: &Value) -> &str {
    let versions = spec.get("versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let stored = versions.iter().find(|version| version.get("storage") == Some(&json!(true)));
    stored.and_then(|version| version.get("name")?.as_str()).unwrap_or_default()
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn texts(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn kind(spec: &Value, version: &Value) -> Kind {
    let group = text(spec, "/group");
    let plural = text(spec, "/names/plural");
    let path = |field: &str| {
        let path = text(version, &format!("/subresources/scale/{field}"));
        path.trim_start_matches('.').to_owned()
    };
    let list =
        |pointer: &str| version.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    Kind {
        version: text(version, "/name"),
        kind: text(spec, "/names/kind"),
        list_kind: text(spec, "/names/listKind"),
        singular: text(spec, "/names/singular"),
        short: texts(spec, "/names/shortNames"),
        categories: texts(spec, "/names/categories"),
        namespaced: text(spec, "/scope") == "Namespaced",
        has_status: version.pointer("/subresources/status").is_some(),
        scale: version.pointer("/subresources/scale").map(|_| Scale {
            spec: path("specReplicasPath"),
            status: path("statusReplicasPath"),
            selector: Some(path("labelSelectorPath")).filter(|path| !path.is_empty()),
        }),
        has_generation: true,
        storage: storage_key(&plural, &group),
        origin: Origin::Custom(CustomVersion {
            schema: published(version.pointer("/schema/openAPIV3Schema")),
            columns: list("/additionalPrinterColumns"),
            selectable: list("/selectableFields")
                .iter()
                .map(|field| text(field, "/jsonPath").trim_start_matches('.').to_owned())
                .collect(),
        }),
        group,
        plural,
    }
}

fn published(schema: Option<&Value>) -> Value {
    let mut schema = schema.cloned().unwrap_or_else(|| json!({"type": "object"}));
    if let Some(map) = schema.as_object_mut() {
        let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Some(properties) = properties.as_object_mut() {
            let words = builtin::view("io.k8s.api.core.v1.ConfigMap");
            for name in ["apiVersion", "kind"] {
                let word = words.properties().and_then(|all| all.get(name)).cloned();
                properties.insert(name.into(), word.unwrap_or_else(|| json!({"type": "string"})));
            }
            let meta = format!("{}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", builtin::PREFIX);
            properties.insert("metadata".into(), json!({"allOf": [{"$ref": meta}]}));
        }
    }
    schema
}

/// Names a CRD feature that is not simulated.
pub(crate) fn unsupported(object: &Value) -> Option<String> {
    if text(object, "/spec/conversion/strategy") == "Webhook" {
        return Some("conversion of custom resources by a webhook".to_owned());
    }
    let versions = object.pointer("/spec/versions").and_then(Value::as_array)?;
    // A write creates the path's maps.
    let replicas = |version: &Value| text(version, "/subresources/scale/specReplicasPath");
    if versions.iter().any(|version| replicas(version).matches('.').count() > DEEPEST) {
        return Some(format!("paths of more than {DEEPEST} levels"));
    }
    versions.iter().find_map(|version| {
        let schema = version.pointer("/schema/openAPIV3Schema")?;
        mentions(schema, "x-kubernetes-validations")
            .then(|| "validation of custom resources by CEL rules (x-kubernetes-validations)".to_owned())
    })
}

fn mentions(schema: &Value, keyword: &str) -> bool {
    let Some(map) = schema.as_object() else { return false };
    map.get(keyword).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty())
        || structural::children(map).any(|(_, child)| mentions(child, keyword))
}
