//! What Go does not write: zeros of fields that are no pointers. Which they are is in the table of messages.

use serde_json::{Map, Value};

use super::{
    messages::{self, Field, Kind, Many, Message, Place, short},
    value::is_zero,
};

/// Removes from an object of a definition what is as good as missing: truths that are false, numbers that are 0, empty words.
pub(crate) fn drop_zeros(object: &mut Value, definition: &str) {
    if let Some(message) = messages::message(short(definition)) {
        of_message(object, message);
    }
}

fn of_message(value: &mut Value, message: &Message) {
    for field in message.fields.values() {
        match (field.place, &field.kind, value.as_object_mut()) {
            (Place::Field(name), _, Some(map)) => of_field(map, name, field),
            (Place::Inlined | Place::Whole, Kind::Message(inner), _) => of_messages(value, inner, field.many),
            _ => {}
        }
    }
}

fn of_field(map: &mut Map<String, Value>, name: &str, field: &Field) {
    let Some(value) = map.get_mut(name) else { return };
    match &field.kind {
        Kind::Message(inner) => of_messages(value, inner, field.many),
        Kind::Text | Kind::Bytes | Kind::Bool | Kind::Int32 | Kind::Int64
            if field.many == Many::One && !field.keeps_zero && is_zero(value) =>
        {
            map.remove(name);
        }
        _ => {}
    }
}

fn of_messages(value: &mut Value, message: &str, many: Many) {
    let Some(message) = messages::message(message) else { return };
    match (many, value) {
        (Many::One, value) => of_message(value, message),
        (Many::List, Value::Array(items)) => items.iter_mut().for_each(|item| of_message(item, message)),
        (Many::Map, Value::Object(map)) => map.values_mut().for_each(|item| of_message(item, message)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zeros_are_left_out_where_go_leaves_them_out() {
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
    fn messages_in_one_value_of_several_kinds_are_reached() {
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
