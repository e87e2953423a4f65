//! Schema validation; simple messages match Kubernetes'.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    Relation, View, embedded, formats, patterns,
    types::{type_name, wrong_type},
};
pub(crate) use super::{cause::Cause, types::first_type_error};
use crate::json::{DEEPEST, join};

/// Validates a custom resource. Values unchanged since `before` pass, even after a schema change.
pub(crate) fn check(object: &Value, before: Option<&Value>, schema: View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let node = Node { value: object, before, schema, path: "", is_top: true, depth: 0 };
    validate(node, &mut causes);
    causes
}

/// Paths are relative to the field.
pub(crate) fn check_field(value: &Value, schema: View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let node = Node { value, before: None, schema, path: "", is_top: false, depth: 0 };
    validate(node, &mut causes);
    causes
}

/// A value and its schema.
#[derive(Clone, Copy)]
struct Node<'a> {
    value: &'a Value,
    /// The value of the stored object.
    before: Option<&'a Value>,
    schema: View<'a>,
    path: &'a str,
    /// Whether it is the whole custom resource.
    is_top: bool,
    depth: usize,
}

impl<'a> Node<'a> {
    fn child(self, value: &'a Value, before: Option<&'a Value>, schema: View<'a>, path: &'a str) -> Self {
        Self { value, before, schema, path, is_top: false, depth: self.depth + 1 }
    }
}

fn validate(node: Node<'_>, causes: &mut Vec<Cause>) {
    let Node { value, before, schema, path, is_top, depth } = node;
    if before == Some(value) {
        return;
    }
    if depth > DEEPEST || schema.is_unknown() || (value.is_null() && schema.flag("nullable")) {
        return;
    }
    if let Some(expected) = wrong_type(value, schema) {
        // Kubernetes omits the root's path.
        let shown = if path.is_empty() && is_top { String::new() } else { format!("{path} in body ") };
        let found = Value::from(type_name(value));
        let message = format!("Invalid value: {found}: {shown}must be of type {expected}: {found}");
        causes.push(Cause::new(path, "FieldValueTypeInvalid", message));
        return;
    }
    enumeration(value, schema, path, causes);
    match value {
        Value::String(text) => string(text, schema, path, causes),
        Value::Number(number) => {
            self::number(number.as_f64().unwrap_or_default(), value, schema, path, causes);
        }
        Value::Array(items) => {
            list(items, schema, path, causes);
            let relation = schema.list();
            let old = before.and_then(Value::as_array).filter(|_| matches!(relation, Relation::Keyed(_)));
            for (index, item) in items.iter().enumerate() {
                // Only keyed items have an identity.
                let same = |one: &&Value| keys_of(one, &relation) == keys_of(item, &relation);
                let before = old.and_then(|old| old.iter().find(same));
                validate(node.child(item, before, schema.items(), &format!("{path}[{index}]")), causes);
            }
        }
        Value::Object(map) => object(node, map, causes),
        _ => {}
    }
    combined(node, causes);
}

fn enumeration(value: &Value, schema: View<'_>, path: &str, causes: &mut Vec<Cause>) {
    let allowed = schema.get("enum").and_then(Value::as_array);
    let Some(allowed) = allowed.filter(|allowed| !allowed.iter().any(|one| same(one, value))) else { return };
    let word =
        |one: &Value| Value::from(one.as_str().map_or_else(|| one.to_string(), str::to_owned)).to_string();
    let all: Vec<String> = allowed.iter().map(word).collect();
    let message = format!("Unsupported value: {value}: supported values: {}", all.join(", "));
    causes.push(Cause::new(path, "FieldValueNotSupported", message));
}

fn object(node: Node<'_>, map: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let Node { value, before, schema, path, is_top, .. } = node;
    for name in schema.required() {
        if !map.contains_key(name) {
            causes.push(Cause::required(&join(path, name), ""));
        }
    }
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let size = map.len() as u64;
    if let Some(max) = limit("maxProperties").filter(|&max| size > max) {
        causes.push(Cause::too_many(path, size, max));
    }
    if let Some(min) = limit("minProperties").filter(|&min| size < min) {
        let why = format!("{path} in body should have at least {min} properties");
        causes.push(Cause::invalid(path, &size.into(), &why));
    }
    for (name, child) in map {
        // Metadata is validated elsewhere.
        if (is_top || schema.is_embedded()) && name == "metadata" {
            continue;
        }
        let before = before.and_then(|before| before.get(name));
        validate(node.child(child, before, schema.field_or_unknown(name), &join(path, name)), causes);
    }
    if schema.is_embedded() {
        embedded::check(value, path, causes);
    }
}

/// Ignores how numbers are written.
fn same(one: &Value, other: &Value) -> bool {
    one == other || one.is_number() && one.as_f64() == other.as_f64()
}

fn combined(node: Node<'_>, causes: &mut Vec<Cause>) {
    let Node { value, schema, path, .. } = node;
    let branches =
        |keyword: &str| schema.get(keyword).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let wrong = |branch: &Value| {
        let mut found = Vec::new();
        validate(node.child(value, None, View::new(branch, schema.definitions), path), &mut found);
        found
    };
    let all = |keyword: &str| branches(keyword).iter().map(wrong).collect::<Vec<_>>();
    let count_valid = |found: &[Vec<Cause>]| found.iter().filter(|found| found.is_empty()).count();
    // Reports the alternative with fewest errors.
    let nearest = |found: Vec<Vec<Cause>>| found.into_iter().min_by_key(Vec::len).unwrap_or_default();
    let mut fail = |why: &str, more: Vec<Cause>| {
        causes.push(Cause::new("<nil>", "FieldValueInvalid", format!("Invalid value: \"\": {path:?} {why}")));
        causes.extend(more);
    };
    // Checked above.
    if !schema.int_or_string() && !schema.is_quantity() {
        let found = all("anyOf");
        if !found.is_empty() && count_valid(&found) == 0 {
            fail("must validate at least one schema (anyOf)", nearest(found));
        }
        let found = all("oneOf");
        match count_valid(&found) {
            0 if found.is_empty() => {}
            0 => fail("must validate one and only one schema (oneOf). Found none valid", nearest(found)),
            1 => {}
            many => {
                let why =
                    format!("must validate one and only one schema (oneOf). Found {many} valid alternatives");
                fail(&why, Vec::new());
            }
        }
    }
    let found = all("allOf");
    let valid = count_valid(&found);
    if valid < found.len() {
        let suffix = if valid == 0 { ". None validated" } else { "" };
        let why = format!("must validate all the schemas (allOf){suffix}");
        fail(&why, found.into_iter().flatten().collect());
    }
    if schema.get("not").is_some_and(|branch| wrong(branch).is_empty()) {
        fail("must not validate the schema (not)", Vec::new());
    }
}

fn string(text: &str, schema: View<'_>, path: &str, causes: &mut Vec<Cause>) {
    let value = Value::from(text);
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let length = text.chars().count() as u64;
    if let Some(min) = limit("minLength").filter(|&min| length < min) {
        causes.push(Cause::invalid(
            path,
            &value,
            &format!("{path} in body should be at least {min} chars long"),
        ));
    }
    if let Some(max) = limit("maxLength").filter(|&max| length > max) {
        causes.push(Cause::too_long(path, max));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        // CRDs with invalid patterns are refused.
        && patterns::compiled(pattern).is_some_and(|regex| !regex.is_match(text))
    {
        causes.push(Cause::invalid(path, &value, &format!("{path} in body should match '{pattern}'")));
    }
    if let Some(format) =
        schema.get("format").and_then(Value::as_str).filter(|format| !formats::holds(format, text))
    {
        let message = format!("Invalid value: {value}: {path} in body must be of type {format}: {value}");
        causes.push(Cause::new(path, "FieldValueTypeInvalid", message));
    }
}

fn number(number: f64, value: &Value, schema: View<'_>, path: &str, causes: &mut Vec<Cause>) {
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    if formats::number_holds(format, value) == Some(false) {
        let kind = schema.kind().unwrap_or_default();
        let message = format!(
            "Invalid value: \"\": Checked value must be of type {kind} with format {format} in {path}"
        );
        causes.push(Cause::new("<nil>", "FieldValueInvalid", message));
    }
    let mut fail =
        |why: String| causes.push(Cause::invalid(path, value, &format!("{path} in body should be {why}")));
    if let Some(min) = limit("minimum") {
        match schema.flag("exclusiveMinimum") {
            true if number <= min => fail(format!("greater than {min}")),
            false if number < min => fail(format!("greater than or equal to {min}")),
            _ => {}
        }
    }
    if let Some(max) = limit("maximum") {
        match schema.flag("exclusiveMaximum") {
            true if number >= max => fail(format!("less than {max}")),
            false if number > max => fail(format!("less than or equal to {max}")),
            _ => {}
        }
    }
    if let Some(step) = limit("multipleOf").filter(|&step| step > 0.0 && (number / step).fract() != 0.0) {
        fail(format!("a multiple of {step}"));
    }
}

fn keys_of<'a>(item: &'a Value, relation: &Relation<'_>) -> Vec<Option<&'a Value>> {
    match relation {
        Relation::Keyed(keys) => keys.iter().map(|key| item.get(key)).collect(),
        _ => Vec::new(),
    }
}

fn list(items: &[Value], schema: View<'_>, path: &str, causes: &mut Vec<Cause>) {
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let have = items.len() as u64;
    if let Some(max) = limit("maxItems").filter(|&max| have > max) {
        causes.push(Cause::too_many(path, have, max));
    }
    if let Some(min) = limit("minItems").filter(|&min| have < min) {
        let why = format!("{path} in body should have at least {min} items");
        causes.push(Cause::invalid(path, &Value::from(have), &why));
    }
    let identity: Box<dyn Fn(&Value) -> Value> = match schema.list() {
        Relation::Atomic => return,
        Relation::Set => Box::new(Value::clone),
        Relation::Keyed(keys) => Box::new(move |item| {
            keys.iter().filter_map(|&key| Some((key.to_owned(), item.get(key)?.clone()))).collect()
        }),
    };
    let known: Vec<Value> = items.iter().map(identity).collect();
    let mut seen = HashMap::new();
    for (index, one) in known.iter().enumerate() {
        let times = seen.entry(one).or_insert(0_usize);
        *times += 1;
        // Once per duplicate.
        if *times == 2 {
            causes.push(Cause::duplicate(&format!("{path}[{index}]"), one));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn validation_messages_equal_an_api_servers() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "minLength": 1},
            "n": {"type": "integer", "minimum": 1},
            "e": {"type": "string", "enum": ["x", "y"]},
            "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
        }}}});
        let object = json!({"spec": {"n": 0, "e": "z", "l": [{"name": "q"}, {"name": "q"}, {}]}});
        let found = check(&object, None, View::new(&schema, None));
        let lines: Vec<String> =
            found.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(
            lines,
            [
                "spec.a: Required value",
                r#"spec.e: Unsupported value: "z": supported values: "x", "y""#,
                r#"spec.l[1]: Duplicate value: {"name":"q"}"#,
                "spec.l[2].name: Required value",
                "spec.n: Invalid value: 0: spec.n in body should be greater than or equal to 1",
            ]
        );
        let wrong = check(&json!({"spec": {"a": 1}}), None, View::new(&schema, None));
        assert_eq!(
            wrong[0].message,
            r#"Invalid value: "integer": spec.a in body must be of type string: "integer""#
        );
    }
}
