//! Checks that CRD schemas are structural. Depth is limited like any object's.

use serde_json::{Map, Value, json};

use crate::schema::{View, cause::Cause, patterns, shape, validate};

const UNSUPPORTED: [&str; 7] =
    ["$ref", "id", "definitions", "dependencies", "patternProperties", "additionalItems", "deprecated"];
/// Keywords forbidden outside the skeleton.
const OF_SKELETON: [(&str, &str); 7] = [
    ("type", "must be empty to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("default", "must be undefined to be structural"),
    ("nullable", "must be false to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be undefined to be structural"),
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

fn text<'a>(map: &'a Map<String, Value>, keyword: &str) -> &'a str {
    map.get(keyword).and_then(Value::as_str).unwrap_or_default()
}

fn flag(map: &Map<String, Value>, keyword: &str) -> bool {
    map.get(keyword) == Some(&json!(true))
}

pub(super) fn check(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    root(schema, path, causes);
    let before = causes.len();
    check_schema(schema, path, Position::Root, causes);
    // Defaults need a valid schema.
    if causes.len() == before {
        defaults(schema, path, causes);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Root,
    Field,
    Items,
}

fn root(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    let at = |field: &str| format!("{path}.{field}");
    match text(map, "type") {
        "" | "object" => {}
        other => causes.push(Cause::invalid(&at("type"), &other.into(), "must be object at the root")),
    }
    if flag(map, "nullable") {
        causes.push(Cause::forbidden(&at("nullable"), "nullable cannot be true at the root"));
    }
    if map.contains_key("additionalProperties") {
        causes.push(Cause::forbidden(&at("additionalProperties"), "must not be used at the root"));
    }
    for (field, kind) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        let Some(Value::Object(given)) = schema["properties"].get(field) else { continue };
        let at = at(&format!("properties[{field}]"));
        if given.get("type").is_some_and(|given| given != kind) {
            let given = text(given, "type");
            causes.push(Cause::invalid(&format!("{at}.type"), &given.into(), &format!("must be {kind}")));
        }
        if given.contains_key("default") {
            let why = format!("must not be set in top-level {field}");
            causes.push(Cause::forbidden(&format!("{at}.default"), &why));
        }
        let named = given.get("properties").and_then(Value::as_object);
        let other = |name: &String| name != "name" && name != "generateName";
        if field == "metadata" && named.is_some_and(|named| named.keys().any(other)) {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            causes.push(Cause::forbidden(&at, why));
        }
    }
}

fn check_schema(schema: &Value, path: &str, position: Position, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    let at = |field: &str| format!("{path}.{field}");
    if unsupported(map, path, causes) {
        return;
    }
    kind(map, path, position, causes);
    if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
        && patterns::compiled(pattern).is_none()
    {
        let why = "must be a valid regular expression";
        causes.push(Cause::invalid(&at("pattern"), &pattern.into(), why));
    }
    if flag(map, "uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(&at("uniqueItems"), why));
    }
    if map.contains_key("properties") && map.contains_key("additionalProperties") {
        let why = "additionalProperties and properties are mutual exclusive";
        causes.push(Cause::forbidden(&at("additionalProperties"), why));
    }
    extensions(map, path, causes);
    match map.get("items") {
        Some(Value::Array(_)) => {
            causes.push(Cause::forbidden(&at("items"), "items must be a schema object and not an array"));
        }
        None if text(map, "type") == "array" => {
            causes.push(Cause::required(&at("items"), "must be specified"));
        }
        _ => {}
    }
    // Branches need a structural schema.
    let skeleton = !text(map, "type").is_empty() || flag(map, "x-kubernetes-int-or-string");
    for (keyword, branches) in branches(map).filter(|_| skeleton) {
        // These branches may set the type.
        let bare = flag(map, "x-kubernetes-int-or-string");
        for (index, branch) in branches.iter().enumerate() {
            let at = if keyword == "not" { at("not") } else { at(&format!("{keyword}[{index}]")) };
            value_check(branch, &at, bare, causes);
        }
    }
    for (name, child) in children(map) {
        let below = if name == "items" { Position::Items } else { Position::Field };
        check_schema(child, &at(&name), below, causes);
    }
}

fn unsupported(map: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) -> bool {
    let before = causes.len();
    if map.contains_key("$schema") {
        let root = path.split(".properties[").next().unwrap_or(path);
        causes.push(Cause::invalid(root, &"".into(), "OpenAPIV3Schema 'schema' is not supported"));
    }
    for keyword in
        UNSUPPORTED.into_iter().filter(|keyword| map.get(*keyword).is_some_and(|value| *value != ""))
    {
        causes.push(Cause::forbidden(&format!("{path}.{keyword}"), &format!("{keyword} is not supported")));
    }
    causes.len() > before
}

fn kind(map: &Map<String, Value>, path: &str, position: Position, causes: &mut Vec<Cause>) {
    let (given, at) = (text(map, "type"), format!("{path}.type"));
    let either = flag(map, "x-kubernetes-int-or-string");
    match given {
        "" if either || flag(map, "x-kubernetes-preserve-unknown-fields") && position != Position::Root => {}
        "" => {
            let why = match position {
                Position::Root => "must not be empty at the root",
                Position::Field => "must not be empty for specified object fields",
                Position::Items => "must not be empty for specified array items",
            };
            causes.push(Cause::required(&at, why));
        }
        "null" => {
            let why = "type cannot be set to null, use nullable as an alternative";
            causes.push(Cause::forbidden(&at, why));
            causes.push(Cause::unsupported(&at, &given.into(), &TYPES));
        }
        given if !TYPES.contains(&given) => causes.push(Cause::unsupported(&at, &given.into(), &TYPES)),
        _ => {}
    }
}

fn extensions(map: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    let at = |field: &str| format!("{path}.{field}");
    let kind = text(map, "type");
    let mut wrong_type = |wanted: &str, why: &str| {
        if !kind.is_empty() && kind != wanted {
            causes.push(Cause::invalid(&at("type"), &kind.into(), &format!("must be {wanted} if {why}")));
        }
    };
    let (list_type, map_type) = (text(map, "x-kubernetes-list-type"), text(map, "x-kubernetes-map-type"));
    if !list_type.is_empty() {
        wrong_type("array", "x-kubernetes-list-type is specified");
    }
    if !map_type.is_empty() {
        wrong_type("object", "x-kubernetes-map-type is specified");
    }
    if flag(map, "x-kubernetes-embedded-resource") {
        wrong_type("object", "x-kubernetes-embedded-resource is true");
    }
    let preserves = "x-kubernetes-preserve-unknown-fields";
    if map.get(preserves) == Some(&json!(false)) {
        causes.push(Cause::invalid(&at(preserves), &json!(false), "must be true or undefined"));
    }
    for (keyword, given, known) in [
        ("x-kubernetes-list-type", list_type, &["atomic", "set", "map"][..]),
        ("x-kubernetes-map-type", map_type, &["atomic", "granular"][..]),
    ] {
        if !given.is_empty() && !known.contains(&given) {
            causes.push(Cause::unsupported(&at(keyword), &given.into(), known));
        }
    }
    let bare = map.get("properties").and_then(Value::as_object).is_none_or(Map::is_empty);
    if flag(map, "x-kubernetes-embedded-resource") && !flag(map, preserves) && bare {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(&at("properties"), why));
    }
    lists(map, list_type, path, causes);
}

/// Set and keyed lists.
fn lists(map: &Map<String, Value>, list_type: &str, path: &str, causes: &mut Vec<Cause>) {
    let at = |field: &str| format!("{path}.{field}");
    let keyword = "x-kubernetes-list-map-keys";
    let nothing = Value::Null;
    let (items, given) = (map.get("items").unwrap_or(&nothing), map.get(keyword).unwrap_or(&nothing));
    let keys: Vec<&str> = given.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if list_type != "map" && !keys.is_empty() {
        let (field, why) =
            ("x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty");
        causes.push(if list_type.is_empty() {
            Cause::required(&at(field), why)
        } else {
            Cause::invalid(&at(field), &list_type.into(), why)
        });
    }
    if matches!(list_type, "set" | "map") && items["nullable"] == true {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        causes.push(Cause::forbidden(&at("items.nullable"), &why));
    }
    if list_type == "set" {
        let (field, wanted) = match items["type"].as_str() {
            Some("object") => ("x-kubernetes-map-type", "atomic"),
            Some("array") => ("x-kubernetes-list-type", "atomic"),
            _ => return,
        };
        let fits = items[field] == wanted || field == "x-kubernetes-list-type" && items[field].is_null();
        if !fits {
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            causes.push(Cause::invalid(&at(&format!("items.{field}")), &items[field], why));
        }
    }
    if list_type != "map" {
        return;
    }
    if keys.is_empty() {
        return causes
            .push(Cause::required(&at(keyword), "must not be empty if x-kubernetes-list-type is map"));
    }
    if items["type"].as_str().is_some_and(|kind| kind != "object") {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        return causes.push(Cause::invalid(&at("items.type"), &items["type"], why));
    }
    for (index, key) in keys.iter().enumerate() {
        let Some(field) = items["properties"].get(key) else {
            causes.push(Cause::invalid(&at(keyword), given, "entries must all be names of item properties"));
            continue;
        };
        if keys.iter().take(index).any(|before| before == key) {
            causes.push(Cause::invalid(&at(keyword), given, "must not contain duplicate entries"));
        }
        let at = at(&format!("items.properties[{key}]"));
        if matches!(field["type"].as_str(), Some("object" | "array")) {
            let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            causes.push(Cause::invalid(&format!("{at}.type"), &field["type"], why));
        }
        let required = items["required"].as_array().is_some_and(|all| all.iter().any(|one| one == key));
        if field.get("default").is_none() && !required {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            causes.push(Cause::required(&format!("{at}.default"), why));
        }
        if field["nullable"] == true {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            causes.push(Cause::forbidden(&format!("{at}.nullable"), why));
        }
    }
}

fn branches(map: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &[Value])> {
    let many = ["anyOf", "oneOf", "allOf"].into_iter();
    let many = many.filter_map(|keyword| Some((keyword, map.get(keyword)?.as_array()?.as_slice())));
    many.chain(map.get("not").map(|one| ("not", std::slice::from_ref(one))))
}

/// Value validations cannot describe fields.
fn value_check(schema: &Value, path: &str, either: bool, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    if unsupported(map, path, causes) {
        return;
    }
    for (keyword, why) in OF_SKELETON {
        let alternative = either && keyword == "type" && map.len() == 1;
        if !alternative && map.get(keyword).is_some_and(|value| *value != "" && *value != false) {
            causes.push(Cause::forbidden(&format!("{path}.{keyword}"), why));
        }
    }
    for (name, child) in children(map).filter(|(name, _)| name != "additionalProperties") {
        value_check(child, &format!("{path}.{name}"), false, causes);
    }
    for (keyword, branches) in branches(map) {
        for (index, branch) in branches.iter().enumerate() {
            let at =
                if keyword == "not" { format!("{path}.not") } else { format!("{path}.{keyword}[{index}]") };
            value_check(branch, &at, either, causes);
        }
    }
}

fn defaults(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    if let Some(given) = map.get("default").filter(|given| !given.is_null()) {
        let (view, path) = (View::new(schema, None), format!("{path}.default"));
        let mut pruned = given.clone();
        if !shape::prune_field(&mut pruned, view).is_empty() {
            causes.push(Cause::invalid(&path, given, "must not have unknown fields"));
        }
        causes.extend(validate::check_field(given, view).into_iter().map(|cause| cause.below(&path)));
    }
    for (name, child) in children(map) {
        defaults(child, &format!("{path}.{name}"), causes);
    }
}

/// Child schemas and their paths.
pub(super) fn children(map: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let named = map.get("properties").and_then(Value::as_object).into_iter().flatten();
    let named = named.map(|(name, child)| (format!("properties[{name}]"), child));
    let single = ["items", "additionalProperties"].into_iter();
    named.chain(single.filter_map(|name| Some((name.to_owned(), map.get(name)?))))
}
