//! Changes a module's objects before apply.
//!
//! [`strip`] and [`mark`] change every object. [`transform`] replaces images, adds the image pull Secret, and injects
//! KCP data. The order of objects is irrelevant.

mod controller_fields;
mod images;
mod injection;
mod pull_secret;

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tidewatch_api::{
    Manager,
    names::{annotations, labels},
};

use self::images::Images;

pub use controller_fields::controller_fields;
pub use injection::{DEPLOYER, Injected, injected_hash, requested_secret, secret_data};
pub use pull_secret::VARIABLE;

/// Input of [`transform`]. The default changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Module name.
    pub module: &'a str,
    /// The component's images.
    pub images: &'a [String],
    /// The platform's image pull Secret.
    pub pull_secret: Option<&'a str>,
    /// The module's declared manager.
    pub manager: Option<&'a Manager>,
    /// KCP data of Secrets, by name. Never log or report it.
    pub injected: Option<&'a BTreeMap<String, Injected>>,
}

/// Failed transform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// A container sets the variable itself.
    #[error(
        "container {container} of {object} sets {VARIABLE} itself: take it out of the module's manifest, as the platform sets it"
    )]
    VariableSet {
        /// Workload.
        object: String,
        /// Container.
        container: String,
    },
    /// KCP withholds a Secret's data.
    #[error("the data of Secret '{name}' cannot be taken from the control plane: {why}")]
    Injection {
        /// Secret name.
        name: String,
        /// Reason, without data.
        why: String,
    },
}

const TEXTS: &str = "stringData";
const DATA: &str = "data";

/// Invalid Secret, without its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// A value is no text.
    #[error("the value of '{key}' in '{field}' is no text: put it in quotes")]
    Value {
        /// `data` or `stringData`.
        field: &'static str,
        /// Key.
        key: String,
    },
    /// A field is no map of texts.
    #[error("'{0}' is no map of keys and texts")]
    Field(&'static str),
}

/// Moves `stringData` to `data`, without line breaks, as an API server does. Otherwise comparison, removal of keys
/// and ignored fields would fail.
///
/// # Errors
/// A value is no text. An API server would quote it.
pub fn store_texts(secret: &mut Value) -> Result<(), NotText> {
    for field in [TEXTS, DATA] {
        match &secret[field] {
            Value::Null => {}
            Value::Object(values) => {
                let other = values.iter().find(|(_, value)| !value.is_string() && !value.is_null());
                if let Some((key, _)) = other {
                    return Err(NotText::Value { field, key: key.clone() });
                }
            }
            _ => return Err(NotText::Field(field)),
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

/// Transforms objects, which must have their namespaces.
///
/// # Errors
/// Some objects are already transformed; apply none.
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
        injection::inject(object, context.module, context.injected.unwrap_or(&nothing))?;
    }
    Ok(())
}

const CONTAINERS: &str = "containers";
const INIT_CONTAINERS: &str = "initContainers";

/// Only the Go manager's kinds: others would restart on migration.
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

/// Warns users. Tools expect the ecosystem's wording.
pub const DISCLAIMER: &str = "DO NOT EDIT - This resource is managed by Kyma.\n\
                              Any modifications are discarded and the resource is reverted to the original state.";

/// Marks an object for the Manifest `(namespace, name)`.
///
/// Overwrites the module's values, because watches and pruning depend on the marks.
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

/// Removes fields that an apply must not own: the status, server-set metadata, and fields of controllers or
/// injectors.
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
    controller_fields::remove_controller_fields(object);
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn string_data_becomes_data_as_in_an_api_server() {
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
        for (secret, reported) in [
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
            assert_eq!(stored(secret).unwrap_err().to_string(), reported, "without the value");
        }
    }

    #[test]
    fn transforms_images_pull_secrets_and_injected_data() {
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
        let mut backwards: Vec<Value> = module().into_iter().rev().collect();
        transform(&mut backwards, &context).unwrap();
        backwards.reverse();
        assert_eq!(backwards, objects);
    }

    #[test]
    fn transform_without_settings_changes_nothing() {
        let mut objects = module();
        transform(&mut objects, &Context { module: "gauge", ..Context::default() }).unwrap();
        assert_eq!(objects, module());
    }

    #[test]
    fn strips_server_fields_and_sets_marks() {
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
