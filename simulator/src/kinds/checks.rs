//! What is checked of built-in kinds and of all names. Not everything that a real API server checks: see
//! `docs/simulator.md`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use super::Kind;
use crate::{object::meta, schema::validate::Cause};

const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

static PATTERNS: LazyLock<[Option<Regex>; 2]> =
    LazyLock::new(|| [SUBDOMAIN, LABEL].map(|pattern| Regex::new(&format!("^{pattern}$")).ok()));

/// Whether the name is one that the kind allows.
pub(crate) fn name(object: &Value, kind: &Kind) -> Vec<Cause> {
    let name = meta::name(object);
    let field = "metadata.name";
    if name.is_empty() {
        return vec![Cause::required(field, "name or generateName is required")];
    }
    let [subdomain, label] = &*PATTERNS;
    let is = |pattern: &Option<Regex>| pattern.as_ref().is_some_and(|pattern| pattern.is_match(name));
    let value = Value::from(name);
    let invalid = |why: &str| vec![Cause::invalid(field, &value, why)];
    if kind.group == "rbac.authorization.k8s.io" {
        let bad = name == "." || name == ".." || name.contains(['/', '%']);
        return if bad { invalid(r"may not contain '/'") } else { Vec::new() };
    }
    match kind.plural.as_str() {
        "namespaces" | "services" if !(is(label) && name.len() <= 63) => invalid(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        _ if !(is(subdomain) && name.len() <= 253) => invalid(&format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{SUBDOMAIN}')"
        )),
        _ => Vec::new(),
    }
}

/// What is wrong with an object of a built-in kind.
pub(crate) fn object(object: &Value, kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("apps", _) => workload(object, &mut causes),
        ("", "Pod") => containers(object, "spec", &mut causes),
        ("", "Service") => {
            let kind = object.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default();
            let headless = object.pointer("/spec/clusterIP").is_some_and(|ip| ip == "None");
            if list(object, "/spec/ports").is_empty() && kind != "ExternalName" && !headless {
                causes.push(Cause::required("spec.ports", ""));
            }
        }
        ("apiextensions.k8s.io", _) => causes.extend(super::custom::check(object)),
        _ => {}
    }
    causes.extend(super::ranges::check(object, kind));
    causes
}

/// What may not change.
pub(crate) fn change(before: &Value, after: &Value, kind: &Kind) -> Vec<Cause> {
    let fixed: &[&str] = match (kind.group.as_str(), kind.kind.as_str()) {
        ("apps", _) => &["/spec/selector"],
        ("", "Secret") => &["/type"],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => &["/roleRef"],
        ("batch", "Job") => &["/spec/selector", "/spec/template"],
        ("apiextensions.k8s.io", _) => {
            &["/spec/group", "/spec/scope", "/spec/names/kind", "/spec/names/plural"]
        }
        _ => &[],
    };
    let mut causes = Vec::new();
    for path in fixed {
        if let Some(value) = after.pointer(path).filter(|value| before.pointer(path) != Some(value)) {
            let field = path.trim_start_matches('/').replace('/', ".");
            let why = if *path == "/roleRef" { "cannot change roleRef" } else { "field is immutable" };
            causes.push(Cause::invalid(&field, value, why));
        }
    }
    let immutable = before.get("immutable") == Some(&json!(true));
    if immutable && matches!(kind.kind.as_str(), "ConfigMap" | "Secret") {
        for field in ["data", "binaryData"] {
            if before.get(field) != after.get(field) {
                causes.push(Cause::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
        if after.get("immutable") != before.get("immutable") {
            causes.push(Cause::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
    }
    causes
}

fn workload(object: &Value, causes: &mut Vec<Cause>) {
    let selector = object.pointer("/spec/selector");
    let labels = object.pointer("/spec/template/metadata/labels");
    if selector.is_none_or(Value::is_null) {
        causes.push(Cause::required("spec.selector", ""));
    }
    let wanted = selector.and_then(|selector| selector.get("matchLabels")).and_then(Value::as_object);
    let has = |name: &String, value: &Value| labels.and_then(|labels| labels.get(name)) == Some(value);
    let expressions = list(object, "/spec/selector/matchExpressions");
    if !wanted.is_some_and(|wanted| wanted.iter().all(|(name, value)| has(name, value)))
        && (wanted.is_some() || expressions.is_empty())
    {
        causes.push(Cause::invalid(
            "spec.template.metadata.labels",
            labels.unwrap_or(&Value::Null),
            "`selector` does not match template `labels`",
        ));
    }
    containers(object, "spec.template.spec", causes);
}

fn containers(object: &Value, path: &str, causes: &mut Vec<Cause>) {
    let containers = list(object, &format!("/{}/containers", path.replace('.', "/")));
    if containers.is_empty() {
        causes.push(Cause::required(&format!("{path}.containers"), ""));
    }
    for (index, container) in containers.iter().enumerate() {
        for field in ["name", "image"] {
            if container.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
                causes.push(Cause::required(&format!("{path}.containers[{index}].{field}"), ""));
            }
        }
    }
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Writes a quantity as the API does: `1000m` as `1`, `0.5` as `500m`, `1024Mi` as `1Gi`.
pub(crate) fn canonical_quantity(quantity: &mut Value) {
    const DECIMAL: [(&str, i32); 11] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
        ("", 0),
    ];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let text = match &*quantity {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let binary = BINARY.iter().position(|unit| *unit == suffix);
    let decimal = DECIMAL.iter().find(|(unit, _)| *unit == suffix);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let Ok(mut digits) = format!("{whole}{fraction}").parse::<i128>() else { return };
    let scale = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let canonical = match (binary, decimal) {
        (Some(mut unit), _) if scale == 0 => {
            while digits != 0 && digits % 1024 == 0 && unit + 1 < BINARY.len() {
                digits /= 1024;
                unit += 1;
            }
            format!("{digits}{}", BINARY.get(unit).unwrap_or(&""))
        }
        (None, Some((_, exponent))) => {
            let mut exponent = exponent - scale;
            while digits != 0 && digits % 10 == 0 && exponent < 18 {
                digits /= 10;
                exponent += 1;
            }
            while exponent.rem_euclid(3) != 0 {
                let Some(more) = digits.checked_mul(10) else { return };
                digits = more;
                exponent -= 1;
            }
            let unit = DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(unit, _)| unit);
            if digits == 0 { "0".to_owned() } else { format!("{digits}{unit}") }
        }
        _ => text,
    };
    *quantity = Value::String(canonical);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_in_their_canonical_form() {
        for (given, expected) in [
            (json!(1), "1"),
            (json!("1000m"), "1"),
            (json!("0.5"), "500m"),
            (json!("1024Mi"), "1Gi"),
            (json!("100Mi"), "100Mi"),
            (json!("2500"), "2500"),
            (json!("1000"), "1k"),
            (json!("0"), "0"),
            (json!("10m"), "10m"),
        ] {
            let mut value = given.clone();
            canonical_quantity(&mut value);
            assert_eq!(value, expected, "{given}");
        }
    }

    #[test]
    fn names() {
        let kind = super::super::builtin::find("", "v1", "configmaps").unwrap();
        let of = |text: &str| name(&json!({"metadata": {"name": text}}), kind);
        assert!(of("a.b-c").is_empty());
        assert_eq!(of("A").len(), 1);
        assert_eq!(of("")[0].reason, "FieldValueRequired");
    }
}
