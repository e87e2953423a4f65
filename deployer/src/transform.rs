//! What is changed in a module's objects before they are applied (contract, section 5.2).
//!
//! [`strip`] and [`mark`] are for every object of every module. [`transform`] does the rest, in this order: images of the component
//! in place of those in the manifests, the platform's image pull Secret, and data of the control plane for the module `deployer`.
//! Pure and idempotent but for what says otherwise; the same objects come out whatever their order.

mod deployer;
mod filled;
mod images;
mod pull_secret;

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tidewatch_api::{
    Manager,
    names::{annotations, labels},
};

use self::images::Images;

pub use deployer::{DEPLOYER, Injected, asks_for, given, mark_of};
pub use filled::left_to_controllers;
pub use pull_secret::VARIABLE;

/// What transforms know besides the objects. The default changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// The module.
    pub module: &'a str,
    /// Images of its component.
    pub images: &'a [String],
    /// Name of the platform's image pull Secret, if there is one.
    pub pull_secret: Option<&'a str>,
    /// The module's manager, if it names one.
    pub manager: Option<&'a Manager>,
    /// What the control plane has of the Secrets that the module asks for, by their names. Never in a log or a message.
    pub injected: Option<&'a BTreeMap<String, Injected>>,
}

/// Why a module's objects cannot be transformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// A container has the variable already.
    #[error(
        "container {container} of {object} sets {VARIABLE} itself: take it out of the module's manifest, as the platform sets it"
    )]
    Taken {
        /// The workload.
        object: String,
        /// Its container.
        container: String,
    },
    /// The control plane does not give what a Secret asks for.
    #[error("the data of Secret '{name}' cannot be taken from the control plane: {why}")]
    Injection {
        /// Its name, in both places.
        name: String,
        /// Why; no data.
        why: String,
    },
}

/// The fields of a Secret that have its values.
const TEXTS: &str = "stringData";
const DATA: &str = "data";

/// Why a Secret is none. Its values are in no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoText {
    /// One of its values.
    #[error("the value of '{key}' in '{field}' is no text: put it in quotes")]
    Value {
        /// `data` or `stringData`.
        field: &'static str,
        /// The key of the value.
        key: String,
    },
    /// All of them.
    #[error("'{0}' is no map of keys and texts")]
    Field(&'static str),
}

/// Writes the `stringData` of a Secret as the `data` that an API server makes of it and stores: what is applied can then be compared with
/// what is there, is let go with the version that had it, and is named by one path where users may change it. Line breaks in `data` go
/// for the same reason.
///
/// # Errors
/// A value is no text: an API server would refuse it, and say what it is.
pub fn store_texts(secret: &mut Value) -> Result<(), NoText> {
    for field in [TEXTS, DATA] {
        match &secret[field] {
            Value::Null => {}
            Value::Object(values) => {
                let other = values.iter().find(|(_, value)| !value.is_string() && !value.is_null());
                if let Some((key, _)) = other {
                    return Err(NoText::Value { field, key: key.clone() });
                }
            }
            _ => return Err(NoText::Field(field)),
        }
    }
    let data = secret.get_mut(DATA).and_then(Value::as_object_mut);
    for value in data.into_iter().flat_map(Map::values_mut) {
        if let Value::String(text) = value
            && text.contains(['\r', '\n'])
        {
            text.retain(|c| !matches!(c, '\r' | '\n'));
        }
    }
    let Some(texts) = secret[TEXTS].as_object().filter(|texts| texts.values().all(Value::is_string)) else {
        return Ok(());
    };
    let encoded: Vec<(String, Value)> = texts
        .iter()
        .filter_map(|(key, text)| Some((key.clone(), STANDARD.encode(text.as_str()?).into())))
        .collect();
    if let Some(secret) = secret.as_object_mut() {
        secret.remove(TEXTS);
        let data = secret.entry(DATA).or_insert(Value::Null);
        if data.is_null() {
            *data = Value::Object(Map::new());
        }
        if let Some(data) = data.as_object_mut() {
            data.extend(encoded);
        }
    }
    Ok(())
}

/// Transforms a module's objects, which have their namespaces. See the module.
///
/// # Errors
/// Then some are transformed and some are not: none may be applied.
pub fn transform<'a>(
    objects: impl IntoIterator<Item = &'a mut Value>,
    context: &Context<'_>,
) -> Result<(), TransformError> {
    let images = Images::of(context.images);
    let nothing = BTreeMap::new();
    for object in objects {
        if has_pods(object) {
            images.localise(object);
            if let Some(secret) = context.pull_secret {
                pull_secret::add(object, secret, context.manager)?;
            }
        }
        deployer::inject(object, context.module, context.injected.unwrap_or(&nothing))?;
    }
    Ok(())
}

const CONTAINERS: &str = "containers";
const INIT_CONTAINERS: &str = "initContainers";

/// The workloads whose pods are transformed, as by the Go manager: others would be restarted when a fleet is taken over.
fn has_pods(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    ["Deployment", "StatefulSet"].contains(&kind)
        && object["apiVersion"].as_str().is_some_and(|version| version.starts_with("apps/"))
}

fn pod_spec(object: &mut Value) -> Option<&mut Value> {
    if !has_pods(object) {
        return None;
    }
    object.pointer_mut("/spec/template/spec").filter(|spec| spec.is_object())
}

fn containers_of<'a>(object: &'a mut Value, kind: &str) -> impl Iterator<Item = &'a mut Value> {
    let containers = pod_spec(object).and_then(|pods| pods.get_mut(kind)).and_then(Value::as_array_mut);
    containers.into_iter().flatten().filter(|container| container.is_object())
}

/// The text that tells a cluster user whose object this is. The wording is the ecosystem's: tools look
/// for the annotation's key, people read its first line.
pub const DISCLAIMER: &str = "DO NOT EDIT - This resource is managed by Kyma.\n\
                              Any modifications are discarded and the resource is reverted to the original state.";

/// Marks an object as installed by us for one Manifest.
///
/// `manifest` is `(namespace, name)`. Labels: managed-by, component, part-of; annotations: owned-by and
/// the disclaimer. Values the module has set for the same keys are overwritten, since watches and pruning
/// depend on them.
pub fn mark(object: &mut Value, manifest: (&str, &str)) {
    let (namespace, name) = manifest;
    merge(
        object,
        "labels",
        &[
            (labels::MANAGED_BY, labels::MANAGED_BY_RUNTIME),
            (labels::COMPONENT, name),
            (labels::PART_OF, labels::PART_OF_KYMA),
        ],
    );
    merge(
        object,
        "annotations",
        &[
            (annotations::OWNED_BY, &format!("{namespace}/{name}")),
            (annotations::MANAGED_DISCLAIMER, DISCLAIMER),
        ],
    );
}

fn merge(object: &mut Value, field: &str, entries: &[(&str, &str)]) {
    let metadata = &mut object["metadata"];
    if !metadata[field].is_object() {
        metadata[field] = Value::Object(Map::new());
    }
    if let Some(map) = metadata[field].as_object_mut() {
        map.extend(entries.iter().map(|(k, v)| ((*k).to_owned(), json!(v))));
    }
}

/// Removes what a rendered manifest must not carry into a server-side apply: the status, metadata
/// that only a server sets, and fields that controllers or injectors fill.
pub fn strip(object: &mut Value) {
    if let Some(top) = object.as_object_mut() {
        top.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for key in ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"]
        {
            metadata.remove(key);
        }
    }
    filled::leave_out(object);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with everything that is transformed, and much that is not.
    fn module() -> Vec<Value> {
        let pods = json!({
            "containers": [{"name": "manager", "image": "example.test/gauge:1.0.0",
                            "env": [{"name": "WORKER_IMAGE", "value": "example.test/worker:2.0.0"}, {"name": "LEVEL", "value": "info"}]}],
            "initContainers": [{"name": "init", "image": "example.test/worker:2.0.0"}]
        });
        let workload = |kind: &str, name: &str| {
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "gauge"},
                   "spec": {"template": {"spec": pods}}})
        };
        vec![
            workload("Deployment", "gauge"),
            workload("StatefulSet", "store"),
            workload("DaemonSet", "node"),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": "gauge",
                   "annotations": {"operator.kyma-project.io/inject-data-from-kcp": "true"}}, "data": {"a": "cGxhY2Vob2xkZXI="}}),
            json!({"apiVersion": "gauge.test/v1", "kind": "Deployment", "metadata": {"name": "theirs"},
                   "spec": {"template": {"spec": pods}}}),
        ]
    }

    #[test]
    fn what_a_secret_has_as_texts_is_what_an_api_server_stores() {
        let stored = |mut secret: Value| store_texts(&mut secret).map(|()| secret);
        assert_eq!(
            stored(
                json!({"kind": "Secret", "stringData": {"user": "a", "k": "1"}, "data": {"k": "b2xk", "l": "MQ=="}})
            ),
            Ok(json!({"kind": "Secret", "data": {"user": "YQ==", "k": "MQ==", "l": "MQ=="}})),
            "a text wins"
        );
        assert_eq!(stored(json!({"stringData": {"a": ""}, "data": null})), Ok(json!({"data": {"a": ""}})));
        assert_eq!(
            stored(json!({"data": {"cert": "aGVs\r\nbG8=\n", "null": null}})),
            Ok(json!({"data": {"cert": "aGVsbG8=", "null": null}})),
            "no line breaks"
        );
        for unchanged in
            [json!({"data": {"a": "YQ=="}}), json!({"stringData": {"a": null, "b": "c"}}), json!({})]
        {
            assert_eq!(stored(unchanged.clone()), Ok(unchanged));
        }
        for (secret, says) in [
            (
                json!({"stringData": {"pin": 4711}}),
                "the value of 'pin' in 'stringData' is no text: put it in quotes",
            ),
            (json!({"data": {"pin": true}}), "the value of 'pin' in 'data' is no text: put it in quotes"),
            (
                json!({"stringData": {"a": "b"}, "data": {"pin": [4711]}}),
                "the value of 'pin' in 'data' is no text: put it in quotes",
            ),
            (json!({"stringData": ["4711"]}), "'stringData' is no map of keys and texts"),
            (json!({"stringData": {"a": "b"}, "data": 4711}), "'data' is no map of keys and texts"),
        ] {
            assert_eq!(stored(secret).unwrap_err().to_string(), says, "without the value");
        }
    }

    #[test]
    fn a_module_is_transformed() {
        let images = ["copy.test/gauge:1.0.0".to_owned(), "copy.test/worker:2.0.0".into()];
        let manager = Manager {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            namespace: "gauge".into(),
            name: "gauge".into(),
        };
        let injected =
            BTreeMap::from([("pull".to_owned(), Ok(Map::from_iter([("a".to_owned(), json!("Yg=="))])))]);
        let context = Context {
            module: DEPLOYER,
            images: &images,
            pull_secret: Some("platform-pull"),
            manager: Some(&manager),
            injected: Some(&injected),
        };
        let mut objects = module();
        transform(&mut objects, &context).unwrap();
        insta::assert_yaml_snapshot!(objects);
        // The order of the objects does not matter.
        let mut backwards: Vec<Value> = module().into_iter().rev().collect();
        transform(&mut backwards, &context).unwrap();
        backwards.reverse();
        assert_eq!(backwards, objects);
    }

    #[test]
    fn nothing_is_changed_for_nothing() {
        let mut objects = module();
        transform(&mut objects, &Context { module: "gauge", ..Context::default() }).unwrap();
        assert_eq!(objects, module());
    }

    #[test]
    fn marks_and_strips() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "labels": {"mine": "1", "app.kubernetes.io/component": "x"}, "uid": "u",
                         "creationTimestamp": null},
            "status": {"x": 1}
        });
        strip(&mut object);
        mark(&mut object, ("kcp-system", "m"));
        assert!(object.get("status").is_none() && object["metadata"].get("uid").is_none());
        assert_eq!(object["metadata"]["labels"]["mine"], "1");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/component"], "m");
        assert_eq!(
            object["metadata"]["annotations"]["deprecated-operator.kyma-project.io/owned-by"],
            "kcp-system/m"
        );
    }
}
