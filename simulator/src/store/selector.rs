//! Label and field selectors.

use serde_json::Value;

use super::{cluster::Cluster, refusal::Refusal};
use crate::{
    kinds::Kind,
    object::{Stored, meta},
};

/// Longest selector, and most requirements of one.
const LONGEST: usize = 64 * 1024;

/// Both selectors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    Missing,
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str, kind: &Kind) -> Result<Self, Refusal> {
        if labels.len().max(fields.len()) > LONGEST {
            return Err(Refusal::bad_request("the selector is too long"));
        }
        let labels = split(labels).map(requirement).collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| field(part, kind))
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The same for what is stored, of which no more is read than is asked about.
    pub(crate) fn matches_stored(&self, kind: &Kind, stored: &Stored) -> bool {
        let of_head = |(path, ..): &(String, bool, String)| {
            matches!(path.as_str(), "metadata.name" | "metadata.namespace")
        };
        if self.is_empty() {
            true
        } else if self.fields.iter().all(of_head) {
            self.matches(&stored.head())
        } else {
            self.matches(&Cluster::render(kind, stored))
        }
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|(path, equal, value)| {
                let mut here = Some(object);
                for step in path.split('.') {
                    here = here.and_then(|here| here.get(step));
                }
                let have = match here {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Null) | None => String::new(),
                    Some(other) => other.to_string(),
                };
                (have == *value) == *equal
            })
    }
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let have = meta::label(object, &self.key);
        let among = || have.is_some_and(|have| self.values.iter().any(|value| value == have));
        match self.operator {
            Operator::In => among(),
            Operator::NotIn => !among(),
            Operator::Exists => have.is_some(),
            Operator::Missing => have.is_none(),
        }
    }
}

/// At commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn requirement(text: &str) -> Result<Requirement, Refusal> {
    let wrong = |found: &str| {
        Refusal::bad_request(format!("unable to parse requirement: found '{found}', expected: identifier"))
    };
    let make = |key: &str, operator, values: Vec<String>| {
        let key = key.trim();
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if key.is_empty() || !key.chars().all(valid) {
            return Err(wrong(key));
        }
        match values.iter().find(|value| !value.chars().all(|c| valid(c) && c != '/')) {
            Some(_) => Err(wrong("=")),
            None => Ok(Requirement { key: key.to_owned(), operator, values }),
        }
    };
    let set = |text: &str| -> Option<Vec<String>> {
        let inside = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(inside.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some((key, values)) = text.split_once(" notin ").or_else(|| text.split_once(" notin(")) {
        let values =
            if values.trim_start().starts_with('(') { values.to_owned() } else { format!("({values}") };
        return make(key, Operator::NotIn, set(&values).ok_or_else(|| wrong(&values))?);
    }
    if let Some((key, values)) = text.split_once(" in ").or_else(|| text.split_once(" in(")) {
        let values =
            if values.trim_start().starts_with('(') { values.to_owned() } else { format!("({values}") };
        return make(key, Operator::In, set(&values).ok_or_else(|| wrong(&values))?);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return make(key, Operator::NotIn, vec![value.trim().to_owned()]);
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return make(key, Operator::In, vec![value.trim().to_owned()]);
    }
    match text.strip_prefix('!') {
        Some(key) => make(key, Operator::Missing, Vec::new()),
        None => make(text, Operator::Exists, Vec::new()),
    }
}

fn field(text: &str, kind: &Kind) -> Result<(String, bool, String), Refusal> {
    let parts = text.split_once("!=").map(|(path, value)| (path, false, value));
    let parts = parts.or_else(|| text.split_once("==").map(|(path, value)| (path, true, value)));
    let parts = parts.or_else(|| text.split_once('=').map(|(path, value)| (path, true, value)));
    let Some((path, equal, value)) = parts else {
        let message = format!("invalid selector: '{text}'; can't understand '{text}'");
        return Err(Refusal::bad_request(message));
    };
    let mut known: Vec<&str> = vec!["metadata.name"];
    if kind.namespaced || kind.is_builtin() {
        known.push("metadata.namespace");
    }
    match kind.plural.as_str() {
        "pods" => known.extend([
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ]),
        "secrets" => known.push("type"),
        "namespaces" => known.push("status.phase"),
        "services" => known.extend(["spec.clusterIP", "spec.type"]),
        "jobs" => known.push("status.successful"),
        "replicasets" => known.push("status.replicas"),
        "events" if kind.group.is_empty() => known.extend([
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]),
        _ => {}
    }
    let custom = kind.custom().map_or(&[][..], |custom| custom.selectable.as_slice());
    if known.contains(&path) || custom.iter().any(|known| known == path) {
        return Ok((path.to_owned(), equal, value.to_owned()));
    }
    let own_words = !kind.is_builtin()
        || matches!(kind.plural.as_str(), "pods" | "secrets" | "namespaces" | "services" | "events");
    let message = if own_words {
        format!("field label not supported: {path}")
    } else {
        let path = Value::from(path);
        format!("{path} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    };
    Err(Refusal::bad_request(message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(labels: &str) -> bool {
        let kind = crate::kinds::builtin::find("", "v1", "configmaps").unwrap();
        let object = json!({"metadata": {"name": "n", "labels": {"a": "b", "x/y": "z"}}});
        Selector::parse(labels, "", kind).unwrap().matches(&object)
    }

    #[test]
    fn labels() {
        for yes in ["", "a=b", "a==b", "a in (b,c),x/y", "a notin (c)", "!q", "q!=1", "x/y=z,a", "a in(b)"] {
            assert!(matches(yes), "{yes}");
        }
        for no in ["a=c", "a!=b", "a in (c)", "q", "!a", "a notin (b, c)"] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn fields() {
        let kind = crate::kinds::builtin::find("", "v1", "configmaps").unwrap();
        let object = json!({"metadata": {"name": "n"}});
        assert!(Selector::parse("", "metadata.name=n,metadata.namespace!=x", kind).unwrap().matches(&object));
        assert_eq!(Selector::parse("", "data.a=b", kind).unwrap_err().code, 400);
        assert_eq!(Selector::parse("a===b", "", kind).unwrap_err().code, 400);
    }
}
