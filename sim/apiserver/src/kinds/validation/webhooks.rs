//! Webhook configurations.

use serde_json::Value;

use super::{
    metadata, names,
    rule::{Field, Rule},
    values::{is_empty, present, texts},
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) const CONFIGURATION: [Field; 2] =
    [("webhooks[]", Rule::Fields(&WEBHOOK)), ("webhooks", Rule::Once("name"))];
const WEBHOOK: [Field; 13] = [
    ("name", Rule::Named(three_segments)),
    ("sideEffects", Rule::Need("must specify one of None, NoneOnDryRun")),
    ("sideEffects", Rule::OneOf(&["None", "NoneOnDryRun"])),
    ("admissionReviewVersions", Rule::Need("must specify one of v1, v1beta1")),
    ("admissionReviewVersions", Rule::Check(review_versions)),
    ("clientConfig!", Rule::Check(client)),
    ("rules[]", Rule::Fields(&RULE)),
    ("failurePolicy", Rule::OneOf(&["Fail", "Ignore"])),
    ("matchPolicy", Rule::OneOf(&["Equivalent", "Exact"])),
    ("reinvocationPolicy", Rule::OneOf(&["IfNeeded", "Never"])),
    ("timeoutSeconds", Rule::Between(1, 30, "the timeout value must be between 1 and 30 seconds")),
    ("namespaceSelector", Rule::Selector),
    ("objectSelector", Rule::Selector),
];
const RULE: [Field; 8] = [
    ("apiGroups", Rule::Need("")),
    ("apiVersions", Rule::Need("")),
    ("apiVersions[]", Rule::Need("")),
    ("operations", Rule::Need("")),
    ("operations[]", Rule::OneOf(&["*", "CONNECT", "CREATE", "DELETE", "UPDATE"])),
    ("resources", Rule::Need("")),
    ("scope", Rule::OneOf(&["*", "Cluster", "Namespaced"])),
    (".", Rule::Check(all_or_some)),
];

fn three_segments(name: &str) -> Vec<String> {
    let wrong = names::subdomain(name);
    if wrong.is_empty() && name.split('.').count() < 3 {
        return vec!["should be a domain with at least three segments separated by dots".to_owned()];
    }
    wrong
}

fn review_versions(versions: &Value, path: &str, causes: &mut Vec<Cause>) {
    let all: Vec<&str> = texts(versions).collect();
    for (index, version) in all.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if all.iter().take(index).any(|before| before == version) {
            causes.push(Cause::invalid(&path, &(*version).into(), "duplicate version"));
        }
        metadata::check_format(version, names::dns_1035, &path, causes);
    }
    if !all.is_empty() && !all.iter().any(|version| ["v1", "v1beta1"].contains(version)) {
        causes.push(Cause::invalid(path, versions, "must include at least one of v1, v1beta1"));
    }
}

fn client(client: &Value, path: &str, causes: &mut Vec<Cause>) {
    match present(client, &["url", "service"]).as_slice() {
        ["url"] => url(text(client, "url"), &format!("{path}.url"), causes),
        ["service"] => service(&client["service"], &format!("{path}.service"), causes),
        _ => causes.push(Cause::required(path, "exactly one of url or service is required")),
    }
}

fn url(url: &str, path: &str, causes: &mut Vec<Cause>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut fail = |value: &str, why: &str| causes.push(Cause::invalid(path, &value.into(), why));
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        fail(scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        fail(host, &format!("host must be specified{FORM}"));
    }
    for (part, label) in
        [(user, "user information is"), (fragment, "fragments are"), (query, "query parameters are")]
    {
        if !part.is_empty() {
            fail(part, &format!("{label} not permitted in the URL"));
        }
    }
}

fn service(service: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = |field: &str| format!("{path}.{field}");
    // Kubernetes swaps these two paths.
    for (field, reported) in [("name", "namespace"), ("namespace", "name")] {
        if is_empty(&service[field]) {
            causes.push(Cause::required(&at(reported), ""));
        }
    }
    if let Some(port) =
        service.get("port").filter(|port| port.as_i64().is_none_or(|port| !(1..=65_535).contains(&port)))
    {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        causes.push(Cause::invalid(&at("port"), port, why));
    }
    let (value, given) = (&service["path"], text(service, "path"));
    let mut fail = |why: String| causes.push(Cause::invalid(&at("path"), value, &why));
    if matches!(given, "" | "/") {
        return;
    }
    if !given.starts_with('/') {
        fail("must start with a '/'".to_owned());
    }
    // Ignores the text around the outer slashes.
    let segments = given.strip_suffix('/').unwrap_or(given).get(1..).unwrap_or_default();
    for (index, segment) in segments.split('/').enumerate() {
        if segment.is_empty() {
            fail(format!("segment[{index}] may not be empty"));
        } else {
            for why in names::subdomain(segment) {
                fail(format!("segment[{index}]: {why}"));
            }
        }
    }
}

/// `*` must be the only value.
fn all_or_some(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (field, others) in
        [("apiGroups", "API groups"), ("apiVersions", "API versions"), ("operations", "operations")]
    {
        let values = &rule[field];
        if list(values).len() > 1 && texts(values).any(|value| value == "*") {
            let why = format!("if '*' is present, must not specify other {others}");
            causes.push(Cause::invalid(&format!("{path}.{field}"), values, &why));
        }
    }
    resources(&rule["resources"], &format!("{path}.resources"), causes);
}

fn resources(resources: &Value, path: &str, causes: &mut Vec<Cause>) {
    let all: Vec<&str> = texts(resources).collect();
    let has = |name: &str| all.contains(&name);
    for (index, resource) in all.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (name, below) = resource.split_once('/').unwrap_or((resource, ""));
        if resource.is_empty() {
            causes.push(Cause::required(&path, ""));
        }
        for wide in [format!("{name}/*"), format!("*/{below}")] {
            if !below.is_empty() && wide != *resource && wide != "*/*" && has(&wide) {
                let why = format!("if '{wide}' is present, must not specify {resource}");
                causes.push(Cause::invalid(&path, &(*resource).into(), &why));
            }
        }
    }
    let mut fail = |why| causes.push(Cause::invalid(path, resources, why));
    if all.len() > 1 && has("*/*") {
        fail("if '*/*' is present, must not specify other resources");
    }
    if has("*") && all.iter().any(|one| *one != "*" && !one.contains('/')) {
        fail("if '*' is present, must not specify other resources without subresources");
    }
}
