//! Label and field selectors.

use std::cmp::Ordering;

use serde_json::Value;

use super::{refusal::Refusal, render::render};
use crate::{
    kinds::{Kind, validation::names},
    object::{Stored, meta},
};

/// Maximum bytes of a selector.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    /// JSON pointers; the first present value counts.
    pointers: Vec<String>,
    default: &'static str,
    equal: bool,
    value: String,
}

/// A field whose label is not its path.
struct Alias {
    plural: &'static str,
    label: &'static str,
    pointers: &'static [&'static str],
    default: &'static str,
}

const ALIASES: [Alias; 3] = [
    Alias {
        plural: "events",
        label: "source",
        pointers: &["/source/component", "/reportingComponent"],
        default: "",
    },
    Alias { plural: "jobs", label: "status.successful", pointers: &["/status/succeeded"], default: "0" },
    Alias { plural: "pods", label: "spec.hostNetwork", pointers: &["/spec/hostNetwork"], default: "false" },
];

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
    /// Numeric.
    Above,
    /// Numeric.
    Below,
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str, kind: &Kind) -> Result<Self, Refusal> {
        if labels.len().max(fields.len()) > MAX_BYTES {
            return Err(Refusal::bad_request("the selector is too long"));
        }
        let labels = requirements(labels)?;
        let fields = terms(fields)
            .into_iter()
            .filter(|part| !part.is_empty())
            .map(|part| field(part, kind))
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Reads no more than needed.
    pub(crate) fn matches_stored(&self, kind: &Kind, stored: &Stored) -> bool {
        let of_head = |field: &FieldRequirement| {
            let is_head = |pointer: &str| matches!(pointer, "/metadata/name" | "/metadata/namespace");
            field.pointers.iter().all(|pointer| is_head(pointer))
        };
        if self.is_empty() {
            true
        } else if self.fields.iter().all(of_head) {
            self.matches(&stored.head())
        } else {
            self.matches(&render(kind, stored))
        }
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|requirement| requirement.matches(object))
    }
}

impl FieldRequirement {
    fn new(kind: &Kind, path: &str, equal: bool, value: &str) -> Self {
        let mut aliases = ALIASES.iter().filter(|_| kind.is_builtin());
        let (pointers, default) = match aliases
            .find(|alias| alias.plural == kind.plural && alias.label == path)
        {
            Some(alias) => {
                (alias.pointers.iter().map(|&pointer| pointer.to_owned()).collect(), alias.default)
            }
            None => (vec![format!("/{}", path.replace('~', "~0").replace('/', "~1").replace('.', "/"))], ""),
        };
        Self { pointers, default, equal, value: value.to_owned() }
    }

    fn matches(&self, object: &Value) -> bool {
        let text = |pointer: &String| match object.pointer(pointer)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        };
        let have = self.pointers.iter().find_map(text);
        (have.as_deref().unwrap_or(self.default) == self.value) == self.equal
    }
}

impl Requirement {
    /// `None` unless both are numbers.
    fn compared(&self, have: Option<&str>) -> Option<Ordering> {
        let (have, wanted): (i64, i64) = (have?.parse().ok()?, self.values.first()?.parse().ok()?);
        Some(have.cmp(&wanted))
    }

    fn matches(&self, object: &Value) -> bool {
        let have = meta::label(object, &self.key);
        let among = || have.is_some_and(|have| self.values.iter().any(|value| value == have));
        match self.operator {
            Operator::In => among(),
            Operator::NotIn => !among(),
            Operator::Exists => have.is_some(),
            Operator::Missing => have.is_none(),
            Operator::Above => self.compared(have) == Some(Ordering::Greater),
            Operator::Below => self.compared(have) == Some(Ordering::Less),
        }
    }
}

fn requirements(text: &str) -> Result<Vec<Requirement>, Refusal> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = split(text).enumerate().peekable();
    let mut found = Vec::new();
    while let Some((index, part)) = parts.next() {
        let begin = part.chars().next().filter(|begin| is_special(*begin) && *begin != '!');
        if begin.is_some() || part.is_empty() {
            let end = parts.peek().map_or("", |_| ",");
            let token = begin.map_or(end.to_owned(), String::from);
            let expected =
                if index == 0 { "!, identifier, or 'end of string'" } else { "identifier after ','" };
            return Err(Refusal::bad_request(format!("found '{token}', expected: {expected}")));
        }
        found.push(requirement(part)?);
    }
    Ok(found)
}

/// Splits at commas outside parentheses.
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
}

fn is_special(c: char) -> bool {
    c.is_whitespace() || matches!(c, '=' | '!' | '<' | '>' | '(' | ')' | ',')
}

fn requirement(text: &str) -> Result<Requirement, Refusal> {
    let unparsed = |why: String| Refusal::bad_request(format!("unable to parse requirement: {why}"));
    let found = |token: &str| unparsed(format!("found '{token}', expected: identifier"));
    let (missing, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text.trim_start()));
    let (key, rest) = text.split_at(text.find(is_special).unwrap_or(text.len()));
    let rest = rest.trim_start();
    if key.is_empty() {
        return Err(found(rest));
    }
    if let [why, ..] = names::qualified(key).as_slice() {
        return Err(unparsed(format!("<nil>: Invalid value: {}: {why}", Value::from(key))));
    }
    let set = |operator: Operator, rest: &str| {
        let inside = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inside = inside.ok_or_else(|| found(rest))?;
        Ok((operator, inside.split(',').map(|value| value.trim().to_owned()).collect()))
    };
    let one = |operator: Operator, value: &str| {
        let value = value.trim();
        match value.find(is_special) {
            Some(0) => Err(found(value.get(..1).unwrap_or_default())),
            Some(at) => Err(found(value.get(at..).unwrap_or_default())),
            None => Ok((operator, vec![value.to_owned()])),
        }
    };
    let (operator, values) = match rest {
        "" if missing => (Operator::Missing, Vec::new()),
        "" => (Operator::Exists, Vec::new()),
        _ if missing => return Err(found(rest)),
        _ => {
            if let Some(rest) = rest.strip_prefix("notin") {
                set(Operator::NotIn, rest)?
            } else if let Some(rest) = rest.strip_prefix("in") {
                set(Operator::In, rest)?
            } else if let Some(value) = rest.strip_prefix("!=") {
                one(Operator::NotIn, value)?
            } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
                one(Operator::In, value)?
            } else if let Some(value) = rest.strip_prefix('>') {
                one(Operator::Above, value)?
            } else if let Some(value) = rest.strip_prefix('<') {
                one(Operator::Below, value)?
            } else {
                return Err(found(rest));
            }
        }
    };
    for (index, value) in values.iter().enumerate() {
        let quoted = Value::from(value.as_str());
        if matches!(operator, Operator::Above | Operator::Below) && value.parse::<i64>().is_err() {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            return Err(unparsed(format!("values[{index}]: Invalid value: {quoted}: {why}")));
        }
        if let [why, ..] = names::label_value(value).as_slice() {
            return Err(unparsed(format!("values[{index}][{key}]: Invalid value: {quoted}: {why}")));
        }
    }
    Ok(Requirement { key: key.to_owned(), operator, values })
}

/// Splits at unescaped commas.
fn terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    let is_end = |c: char| {
        let ends = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    text.split(is_end).collect()
}

/// Unescapes `\,`, `\=` and `\\`.
fn unescaped(text: &str) -> Result<String, Refusal> {
    let wrong = |why: String| Refusal::bad_request(format!("invalid field selector: {why}"));
    let mut value = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(next @ ('\\' | ',' | '=')) => value.push(next),
                other => {
                    let shown = other.map(String::from).unwrap_or_default();
                    return Err(wrong(format!("invalid escape sequence: \\{shown}")));
                }
            },
            ',' | '=' => {
                return Err(wrong(format!("unescaped character in value: {}", u32::from(letter))));
            }
            _ => value.push(letter),
        }
    }
    Ok(value)
}

fn field(text: &str, kind: &Kind) -> Result<FieldRequirement, Refusal> {
    let operators = [("!=", false), ("==", true), ("=", true)];
    let parts = text.char_indices().find_map(|(at, _)| {
        let (path, rest) = text.split_at(at);
        operators.iter().find_map(|(sign, equal)| Some((path, *equal, rest.strip_prefix(sign)?)))
    });
    let Some((path, equal, value)) = parts else {
        let message = format!("invalid selector: '{text}'; can't understand '{text}'");
        return Err(Refusal::bad_request(message));
    };
    let value = &unescaped(value)?;
    let custom = kind.custom().map_or(&[][..], |custom| custom.selectable.as_slice());
    if known_fields(kind).contains(&path) || custom.iter().any(|known| known == path) {
        return Ok(FieldRequirement::new(kind, path, equal, value));
    }
    let own_words = !kind.is_builtin()
        || matches!(kind.plural.as_str(), "pods" | "secrets" | "namespaces" | "services" | "events")
        || kind.has_approval();
    let message = if kind.is("batch", "jobs") {
        format!("field label {} not supported for Job", Value::from(path))
    } else if own_words {
        format!("field label not supported: {path}")
    } else {
        let path = Value::from(path);
        format!("{path} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    };
    Err(Refusal::bad_request(message))
}

/// Selectable fields besides those of CRDs.
fn known_fields(kind: &Kind) -> Vec<&'static str> {
    let mut known: Vec<&'static str> = vec!["metadata.name"];
    if kind.namespaced || kind.is_builtin() {
        known.push("metadata.namespace");
    }
    match kind.plural.as_str() {
        "pods" => known.extend([
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        ]),
        "secrets" => known.push("type"),
        "namespaces" => known.push("status.phase"),
        "services" => known.extend(["spec.clusterIP", "spec.type"]),
        "jobs" => known.push("status.successful"),
        "certificatesigningrequests" => known = vec!["metadata.name", "spec.signerName"],
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
    known
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(labels: &str) -> bool {
        let kind = crate::kinds::builtin::find("", "v1", "configmaps").unwrap();
        let object = json!({"metadata": {"name": "n", "labels": {"a": "b", "n": "5", "x/y": "z"}}});
        Selector::parse(labels, "", kind).unwrap().matches(&object)
    }

    #[test]
    fn label_selectors_match() {
        for yes in [
            "",
            "a=b",
            "a==b",
            "a in (b,c),x/y",
            "a notin (c)",
            "!q",
            "q!=1",
            "x/y=z,a",
            "a in(b)",
            "n>4",
            "n<6",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in ["a=c", "a!=b", "a in (c)", "q", "!a", "a notin (b, c)", "n>5", "a>1", "q<1"] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn field_selectors_match() {
        let kind = crate::kinds::builtin::find("", "v1", "configmaps").unwrap();
        let object = json!({"metadata": {"name": "n"}});
        assert!(Selector::parse("", "metadata.name=n,metadata.namespace!=x", kind).unwrap().matches(&object));
        assert_eq!(Selector::parse("", "data.a=b", kind).unwrap_err().code, 400);
        for wrong in ["a===b", "-a", "a>b", "a=-", "a in b", "!a=b", "=", "a b"] {
            assert_eq!(Selector::parse(wrong, "", kind).unwrap_err().code, 400, "{wrong}");
        }
    }
}
