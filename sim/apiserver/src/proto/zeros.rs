//! Removes the zeros of non-pointer fields, which Go omits.
//!
//! Go writes unset non-pointer times as `null`. This module adds and owns those in list items.
//! `kinds::defaults` adds those of Events, without owners.

use serde_json::{Map, Value};

use super::{
    messages::{self, Field, Kind, Location, Many, Message, short},
    value::is_zero,
};

/// The only unset time that Go omits.
const CREATED: &str = "creationTimestamp";

pub(crate) fn drop_zeros(object: &mut Value, definition: &str) {
    if let Some(message) = messages::message(short(definition)) {
        of_message(object, message, false);
    }
}

/// `listed`: inside a list.
fn of_message(value: &mut Value, message: &Message, listed: bool) {
    for field in message.fields.values() {
        match (field.location, &field.kind, value.as_object_mut()) {
            (Location::Field(name), _, Some(map)) => of_field(map, name, field, listed),
            (Location::Inlined | Location::Whole, Kind::Message(inner), _) => {
                of_messages(value, inner, field.many, listed);
            }
            _ => {}
        }
    }
}

fn of_field(map: &mut Map<String, Value>, name: &str, field: &Field, listed: bool) {
    let may_go = field.many == Many::One && !field.keeps_zero;
    if listed && may_go && field.kind == Kind::Time && name != CREATED {
        map.entry(name).or_insert(Value::Null);
    }
    let Some(value) = map.get_mut(name) else { return };
    match &field.kind {
        Kind::Message(inner) => of_messages(value, inner, field.many, listed),
        Kind::Text | Kind::Bytes | Kind::Bool | Kind::Int32 | Kind::Int64 if may_go && is_zero(value) => {
            map.remove(name);
        }
        _ => {}
    }
}

fn of_messages(value: &mut Value, message: &str, many: Many, listed: bool) {
    let Some(message) = messages::message(message) else { return };
    match (many, value) {
        (Many::One, value) => of_message(value, message, listed),
        (Many::List, Value::Array(items)) => {
            for item in items {
                of_message(item, message, true);
            }
        }
        (Many::Map, Value::Object(map)) => {
            for item in map.values_mut() {
                of_message(item, message, listed);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zero_values_are_omitted_as_in_go() {
        let container = json!({"name": "", "tty": false, "resources": {}, "ports": [{"containerPort": 0, "hostPort": 0}]});
        let spec = json!({"paused": false, "replicas": 0, "minReadySeconds": 0, "template": {"spec": {
            "hostNetwork": false, "hostUsers": false, "nodeName": "", "containers": [container]}}});
        let mut object = json!({"metadata": {"generateName": "", "labels": {"a": ""}}, "spec": spec});
        drop_zeros(&mut object, "io.k8s.api.apps.v1.Deployment");
        let container = json!({"name": "", "resources": {}, "ports": [{"containerPort": 0}]});
        let spec =
            json!({"replicas": 0, "template": {"spec": {"hostUsers": false, "containers": [container]}}});
        assert_eq!(object, json!({"metadata": {"labels": {"a": ""}}, "spec": spec}));
    }

    #[test]
    fn missing_condition_times_are_null() {
        let condition = json!({"type": "Ready", "status": "True"});
        let mut pod = json!({"metadata": {"name": "p"}, "status": {"conditions": [condition]}});
        drop_zeros(&mut pod, "io.k8s.api.core.v1.Pod");
        let condition =
            json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null});
        assert_eq!(pod, json!({"metadata": {"name": "p"}, "status": {"conditions": [condition]}}));
    }

    #[test]
    fn nested_messages_in_union_fields_are_reached() {
        let schema = |more: Value| json!({"nullable": false, "additionalProperties": more});
        let mut object =
            json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema(schema(json!(false)))}}]}});
        drop_zeros(
            &mut object,
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        );
        let inner = json!({"additionalProperties": {"additionalProperties": false}});
        assert_eq!(object["spec"]["versions"][0]["schema"]["openAPIV3Schema"], inner);
    }
}
