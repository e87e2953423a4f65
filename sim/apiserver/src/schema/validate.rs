//! Schema validation; simple messages match Kubernetes'.

use std::{collections::HashMap, fmt};

use serde_json::Value;

use super::{Relation, View, embedded, formats, patterns};
use crate::json::{DEEPEST, join};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Such as `spec.list[0].name`.
    pub(crate) field: String,
    /// Such as `FieldValueInvalid`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Cause {
    pub(crate) fn new(field: &str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason, message: message.into() }
    }

    /// Prefixes the field.
    pub(crate) fn below(self, path: &str) -> Self {
        let field = if self.field.is_empty() { path.to_owned() } else { format!("{path}.{}", self.field) };
        Self { field, ..self }
    }

    pub(crate) fn required(field: &str, why: &str) -> Self {
        let colon = if why.is_empty() { "" } else { ": " };
        Self::new(field, "FieldValueRequired", format!("Required value{colon}{why}"))
    }

    pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {value}: {why}"))
    }

    pub(crate) fn unsupported(field: &str, value: &Value, supported: &[&str]) -> Self {
        let all: Vec<String> = supported.iter().map(|word| Value::from(*word).to_string()).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", all.join(", "));
        Self::new(field, "FieldValueNotSupported", message)
    }

    pub(crate) fn duplicate(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {value}"))
    }

    pub(crate) fn not_found(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {value}"))
    }

    pub(crate) fn too_many(field: &str, have: u64, most: u64) -> Self {
        let message = format!("Too many: {have}: must have at most {most} items");
        Self::new(field, "FieldValueTooMany", message)
    }

    pub(crate) fn too_long(field: &str, most: impl fmt::Display) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {most} bytes"))
    }

    pub(crate) fn forbidden(field: &str, why: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {why}"))
    }
}

/// Validates a custom resource. Values unchanged since `before` pass, even after a schema change.
pub(crate) fn check(object: &Value, before: Option<&Value>, schema: View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    at(object, before, schema, "", true, &mut causes, 0);
    causes
}

/// Paths are relative to the field.
pub(crate) fn check_field(value: &Value, schema: View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    at(value, None, schema, "", false, &mut causes, 0);
    causes
}

fn at(
    value: &Value,
    before: Option<&Value>,
    schema: View<'_>,
    path: &str,
    top: bool,
    causes: &mut Vec<Cause>,
    depth: usize,
) {
    if before == Some(value) {
        return;
    }
    if depth > DEEPEST || schema.is_unknown() || (value.is_null() && schema.flag("nullable")) {
        return;
    }
    if let Some(wrong) = wrong_type(value, schema) {
        // Kubernetes omits the root's path.
        let shown = if path.is_empty() && top { String::new() } else { format!("{path} in body ") };
        let why = format!("{shown}must be of type {}: {}", wrong, Value::from(type_name(value)));
        causes.push(Cause::new(
            path,
            "FieldValueTypeInvalid",
            format!("Invalid value: {}: {why}", Value::from(type_name(value))),
        ));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.iter().any(|one| same(one, value))
    {
        let word = |one: &Value| {
            Value::from(one.as_str().map_or_else(|| one.to_string(), str::to_owned)).to_string()
        };
        let all: Vec<String> = allowed.iter().map(word).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", all.join(", "));
        causes.push(Cause::new(path, "FieldValueNotSupported", message));
    }
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
                at(item, before, schema.items(), &format!("{path}[{index}]"), false, causes, depth + 1);
            }
        }
        Value::Object(map) => {
            for name in schema.required() {
                if !map.contains_key(name) {
                    causes.push(Cause::required(&join(path, name), ""));
                }
            }
            let count = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
            let have = map.len() as u64;
            if let Some(most) = count("maxProperties").filter(|&most| have > most) {
                causes.push(Cause::too_many(path, have, most));
            }
            if let Some(least) = count("minProperties").filter(|&least| have < least) {
                let why = format!("{path} in body should have at least {least} properties");
                causes.push(Cause::invalid(path, &have.into(), &why));
            }
            for (name, child) in map {
                let meta = (top || schema.is_embedded()) && name == "metadata";
                // Validated elsewhere.
                if !meta {
                    let before = before.and_then(|before| before.get(name));
                    at(
                        child,
                        before,
                        schema.field_or_unknown(name),
                        &join(path, name),
                        false,
                        causes,
                        depth + 1,
                    );
                }
            }
            if schema.is_embedded() {
                embedded::check(value, path, causes);
            }
        }
        _ => {}
    }
    combined(value, schema, path, causes, depth);
}

/// Ignores how numbers are written.
fn same(one: &Value, other: &Value) -> bool {
    one == other || one.is_number() && one.as_f64() == other.as_f64()
}

fn combined(value: &Value, schema: View<'_>, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    let branches =
        |keyword: &str| schema.get(keyword).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let wrong = |branch: &Value| {
        let mut found = Vec::new();
        at(value, None, View::new(branch, schema.definitions), path, false, &mut found, depth + 1);
        found
    };
    let all = |keyword: &str| branches(keyword).iter().map(wrong).collect::<Vec<_>>();
    let holding = |found: &[Vec<Cause>]| found.iter().filter(|found| found.is_empty()).count();
    // Reports the alternative with fewest errors.
    let nearest = |found: Vec<Vec<Cause>>| found.into_iter().min_by_key(Vec::len).unwrap_or_default();
    let mut fail = |why: &str, beside: Vec<Cause>| {
        causes.push(Cause::new("<nil>", "FieldValueInvalid", format!("Invalid value: \"\": {path:?} {why}")));
        causes.extend(beside);
    };
    // Checked above.
    if !schema.int_or_string() && !schema.is_quantity() {
        let found = all("anyOf");
        if !found.is_empty() && holding(&found) == 0 {
            fail("must validate at least one schema (anyOf)", nearest(found));
        }
        let found = all("oneOf");
        match holding(&found) {
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
    let held = holding(&found);
    if held < found.len() {
        let none = if held == 0 { ". None validated" } else { "" };
        let why = format!("must validate all the schemas (allOf){none}");
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
    if let Some(least) = limit("minLength").filter(|&least| length < least) {
        causes.push(Cause::invalid(
            path,
            &value,
            &format!("{path} in body should be at least {least} chars long"),
        ));
    }
    if let Some(most) = limit("maxLength").filter(|&most| length > most) {
        causes.push(Cause::too_long(path, most));
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
    if let Some(least) = limit("minimum") {
        match schema.flag("exclusiveMinimum") {
            true if number <= least => fail(format!("greater than {least}")),
            false if number < least => fail(format!("greater than or equal to {least}")),
            _ => {}
        }
    }
    if let Some(most) = limit("maximum") {
        match schema.flag("exclusiveMaximum") {
            true if number >= most => fail(format!("less than {most}")),
            false if number > most => fail(format!("less than or equal to {most}")),
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
    if let Some(most) = limit("maxItems").filter(|&most| have > most) {
        causes.push(Cause::too_many(path, have, most));
    }
    if let Some(least) = limit("minItems").filter(|&least| have < least) {
        let why = format!("{path} in body should have at least {least} items");
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

/// First wrong field, its type, allowed types.
pub(crate) fn first_type_error(value: &Value, schema: View<'_>) -> Option<(String, &'static str, String)> {
    types_at(value, schema, "", 0)
}

fn types_at(
    value: &Value,
    schema: View<'_>,
    path: &str,
    depth: usize,
) -> Option<(String, &'static str, String)> {
    if depth > DEEPEST || value.is_null() || schema.is_unknown() {
        return None;
    }
    if let Some(expected) = wrong_type(value, schema) {
        return Some((path.to_owned(), type_name(value), expected.to_owned()));
    }
    match value {
        Value::Object(map) => map.iter().find_map(|(name, child)| {
            types_at(child, schema.field_or_unknown(name), &join(path, name), depth + 1)
        }),
        // Go omits list indices.
        Value::Array(items) => items.iter().find_map(|item| types_at(item, schema.items(), path, depth + 1)),
        _ => None,
    }
}

fn wrong_type<'a>(value: &Value, schema: View<'a>) -> Option<&'a str> {
    if schema.int_or_string() {
        let fits = value.is_string() || value.is_i64() || value.is_u64();
        return (!fits).then_some("integer,string");
    }
    if schema.is_quantity() {
        return (!(value.is_string() || value.is_number())).then_some("quantity");
    }
    let kind = schema.kind()?;
    let fits = match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        _ => true,
    };
    (!fits).then_some(kind)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_those_of_an_api_server() {
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
