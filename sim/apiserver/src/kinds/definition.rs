//! Validates CustomResourceDefinitions, except their schemas.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{
    structural,
    validation::{
        metadata::check_format,
        names::{self, Format},
    },
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

const APPROVED: &str = "api-approved.kubernetes.io";
const WHY_APPROVED: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

pub(crate) fn check(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &object["spec"];
    let (group, names) = (text(spec, "group"), &spec["names"]);
    let name = text(&object["metadata"], "name");
    let made = object["metadata"].get("uid").is_some();
    if !made && name != format!("{}.{group}", text(names, "plural")) {
        let why = r#"must be spec.names.plural+"."+spec.group"#;
        causes.push(Cause::invalid("metadata.name", &name.into(), why));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else {
        check_format(group, names::subdomain, "spec.group", &mut causes);
        if !group.contains('.') {
            causes.push(Cause::invalid(
                "spec.group",
                &group.into(),
                "should be a domain with at least one dot",
            ));
        }
    }
    approval(object, group, &mut causes);
    match text(spec, "scope") {
        "" => causes.push(Cause::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => causes.push(Cause::unsupported("spec.scope", &other.into(), &["Cluster", "Namespaced"])),
    }
    if spec["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    kind_names(names, &mut causes);
    conversion(&spec["conversion"], &mut causes);
    versions(&spec["versions"], &mut causes);
    causes
}

/// Kubernetes' own groups need an approval annotation.
fn approval(object: &Value, group: &str, causes: &mut Vec<Cause>) {
    if !["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}"))) {
        return;
    }
    let at = format!("metadata.annotations[{APPROVED}]");
    let given = &object["metadata"]["annotations"][APPROVED];
    match given.as_str().unwrap_or_default() {
        "" => {
            let why = format!("protected groups must have approval annotation {APPROVED:?}, {WHY_APPROVED}");
            causes.push(Cause::required(&at, &why));
        }
        word if word.starts_with("unapproved") => {}
        word if word
            .split_once("://")
            .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty()) => {}
        _ => {
            let why = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \"unapproved\", {WHY_APPROVED}"
            );
            causes.push(Cause::invalid(&at, given, &why));
        }
    }
}

fn kind_names(given: &Value, causes: &mut Vec<Cause>) {
    let forms: [(&str, Format); 4] = [
        ("plural", names::dns_1035),
        ("singular", names::dns_1035),
        ("kind", names::kind),
        ("listKind", names::kind),
    ];
    // Defaults from a missing kind count as missing.
    let nothing = text(given, "kind").is_empty();
    for (field, form) in forms {
        let at = format!("spec.names.{field}");
        match text(given, field) {
            "" => causes.push(Cause::required(&at, "")),
            "List" if nothing && field == "listKind" => causes.push(Cause::required(&at, "")),
            word => check_format(word, form, &at, causes),
        }
    }
    for field in ["shortNames", "categories"] {
        for (index, word) in list(&given[field]).iter().enumerate() {
            let at = format!("spec.names.{field}[{index}]");
            check_format(word.as_str().unwrap_or_default(), names::dns_1035, &at, causes);
        }
    }
    if !nothing && text(given, "kind") == text(given, "listKind") {
        let why = "kind and listKind may not be the same";
        causes.push(Cause::invalid("spec.names.listKind", &given["listKind"], why));
    }
}

fn conversion(conversion: &Value, causes: &mut Vec<Cause>) {
    match text(conversion, "strategy") {
        "Webhook" => {}
        "None" => {
            for (field, reported) in [
                ("clientConfig", "webhookClientConfig"),
                ("conversionReviewVersions", "conversionReviewVersions"),
            ] {
                if conversion["webhook"].get(field).is_some() {
                    let why = "should not be set when strategy is not set to Webhook";
                    causes.push(Cause::forbidden(&format!("spec.conversion.{reported}"), why));
                }
            }
        }
        other => {
            causes.push(Cause::unsupported("spec.conversion.strategy", &other.into(), &["None", "Webhook"]));
        }
    }
}

fn versions(given: &Value, causes: &mut Vec<Cause>) {
    let versions = list(given);
    let mut fail = |why| causes.push(Cause::invalid("spec.versions", given, why));
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        fail("must have exactly one version marked as storage version");
    }
    let mut names = HashSet::new();
    if !versions.iter().all(|version| names.insert(&version["name"])) {
        fail("must contain unique version names");
    }
    if let Some(name) = versions.first().map(|version| text(version, "name")).filter(|name| !name.is_empty())
    {
        check_format(name, names::dns_1035, "spec.version", causes);
    }
    // Common values are stored once, under `spec`.
    let same =
        |field: &str| versions.windows(2).all(|pair| matches!(pair, [a, b] if a.get(field) == b.get(field)));
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let parent = |field: &str| if same(field) { "spec".to_owned() } else { at.clone() };
        check_format(text(version, "name"), names::dns_1035, &format!("{at}.name"), causes);
        deprecation(version, &at, causes);
        let first = index == 0;
        match version["schema"].get("openAPIV3Schema") {
            None => causes.push(Cause::required(&format!("{at}.schema.openAPIV3Schema"), "")),
            Some(schema) if same("schema") => {
                if first {
                    structural::check(schema, "spec.validation.openAPIV3Schema", causes);
                }
            }
            Some(schema) => structural::check(schema, &format!("{at}.schema.openAPIV3Schema"), causes),
        }
        if first || !same("subresources") {
            scale(&version["subresources"], &format!("{}.subresources", parent("subresources")), causes);
        }
        if first || !same("additionalPrinterColumns") {
            let field = "additionalPrinterColumns";
            columns(&version[field], &format!("{}.{field}", parent(field)), causes);
        }
        if first || !same("selectableFields") {
            let at = format!("{}.selectableFields", parent("selectableFields"));
            selectable(&version["selectableFields"], &version["schema"]["openAPIV3Schema"], &at, causes);
        }
    }
}

/// Finds removed versions that may still store objects.
pub(crate) fn lost_versions(before: &Value, after: &Value) -> Vec<Cause> {
    let kept = |name: &Value| list(&after["spec"]["versions"]).iter().any(|version| version["name"] == *name);
    let stored = list(&before["status"]["storedVersions"]).iter().enumerate().filter(|(_, name)| !kept(name));
    let lost = stored.map(|(index, value)| {
        let name = value.as_str().unwrap_or_default();
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        Cause::invalid(&format!("status.storedVersions[{index}]"), value, &why)
    });
    lost.collect()
}

fn deprecation(version: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = format!("{path}.deprecationWarning");
    let Some(warning) = version.get("deprecationWarning") else { return };
    let given = warning.as_str().unwrap_or_default();
    if version["deprecated"] != true {
        causes.push(Cause::invalid(&at, warning, "can only be set for deprecated versions"));
    }
    let why = match given {
        "" => "must not be an empty string",
        given if given.len() > 256 => "must be <= 256 characters long",
        given if given.chars().any(char::is_control) => "must only contain printable UTF-8 characters",
        _ => return,
    };
    causes.push(Cause::invalid(&at, warning, why));
}

fn scale(subresources: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(scale) = subresources.get("scale") else { return };
    for (field, under, needed) in [
        ("specReplicasPath", ".spec", true),
        ("statusReplicasPath", ".status", true),
        ("labelSelectorPath", "either .spec or .status", false),
    ] {
        let (at, given) = (format!("{path}.scale.{field}"), text(scale, field));
        let below = |root: &str| given.starts_with(&format!("{root}."));
        let fits = if needed { below(under) } else { below(".spec") || below(".status") };
        let why = match given {
            "" if needed => {
                causes.push(Cause::required(&at, ""));
                continue;
            }
            "" => continue,
            given if !given.starts_with('.') => "must be a simple json path starting with .".to_owned(),
            _ if !fits => format!("should be a json path under {under}"),
            _ => continue,
        };
        causes.push(Cause::invalid(&at, &given.into(), &why));
    }
}

fn columns(columns: &Value, path: &str, causes: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 9] =
        ["byte", "date", "date-time", "double", "float", "int32", "int64", "name", "password"];
    for (index, column) in list(columns).iter().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        if text(column, "name").is_empty() {
            causes.push(Cause::required(&at("name"), ""));
        }
        match text(column, "type") {
            "" => {
                let why = format!("must be one of {}", TYPES.join(","));
                causes.push(Cause::required(&at("type"), &why));
            }
            word if !TYPES.contains(&word) => {
                let why = format!("must be one of {}", TYPES.join(","));
                causes.push(Cause::invalid(&at("type"), &word.into(), &why));
            }
            _ => {}
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            let why = format!("must be one of {}", FORMATS.join(","));
            causes.push(Cause::invalid(&at("format"), &format.into(), &why));
        }
        let given = text(column, "jsonPath");
        if given.is_empty() {
            causes.push(Cause::required(&at("JSONPath"), ""));
        } else if !given.starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(&at("JSONPath"), &given.into(), why));
        } else if given.matches('[').count() != given.matches(']').count() {
            let why = format!("is an invalid JSON path: unterminated array in '{{{given}}}'");
            causes.push(Cause::invalid(&at("JSONPath"), &given.into(), &why));
        }
    }
}

fn selectable(fields: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let fields = list(fields);
    for (index, field) in fields.iter().enumerate() {
        let (at, given) = (format!("{path}[{index}].jsonPath"), &field["jsonPath"]);
        let steps = given.as_str().unwrap_or_default();
        if steps.is_empty() {
            causes.push(Cause::required(&at, ""));
            continue;
        }
        if fields.iter().take(index).any(|before| before["jsonPath"] == *given) {
            causes.push(Cause::duplicate(&at, given));
        }
        let mut fail = |why: &str| causes.push(Cause::invalid(&at, given, why));
        if !steps.starts_with(['.', '[']) {
            let first = steps.split(['.', '[']).next().unwrap_or_default();
            fail(&format!("is an invalid path: expected [ or . but got: {first}"));
            continue;
        }
        let target =
            steps.split('.').skip(1).try_fold(schema, |schema, step| schema.get("properties")?.get(step));
        match target.map(|target| text(target, "type")) {
            None => fail("is an invalid path: does not refer to a valid field"),
            Some("string" | "boolean" | "integer") => {}
            Some(_) => fail(
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ),
        }
    }
}
