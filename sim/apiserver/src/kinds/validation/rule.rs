//! Rules of fields, and their evaluation.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    metadata,
    names::{self, Format},
    selectors,
    values::{is_empty, share},
};
use crate::{
    json::{join, list},
    schema::cause::Cause,
};

/// Most rules ignore missing values.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Required, with a reason.
    Need(&'static str),
    /// Required, with this format.
    Named(Format),
    /// Optional, with this format.
    Form(Format),
    /// Minimum and message.
    AtLeast(i64, &'static str),
    /// Inclusive bounds and message.
    Between(i64, i64, &'static str),
    Port,
    /// A port; 0 counts as missing.
    NeededPort,
    PortOrName,
    /// Whether to allow more than 100%.
    CountOrShare(bool),
    /// Words in message order.
    OneOf(&'static [&'static str]),
    /// As `OneOf`, but required.
    Only(&'static [&'static str]),
    Labels,
    Selector,
    /// Must be missing; the reason.
    Forbidden(&'static str),
    /// The field that must be unique in the list.
    Once(&'static str),
    Fields(&'static [Field]),
    Check(fn(&Value, &str, &mut Vec<Cause>)),
}

/// Path and rule. `[]`: each item; `!`: missing counts as empty; `.`: the value itself.
pub(super) type Field = (&'static str, Rule);

pub(super) const NOT_NEGATIVE: Rule = Rule::AtLeast(0, "must be greater than or equal to 0");
pub(super) const ANY_ID: Rule =
    Rule::Between(0, 2_147_483_647, "must be between 0 and 2147483647, inclusive");
pub(super) const BETWEEN_PORTS: &str = "must be between 1 and 65535, inclusive";
pub(super) const PROTOCOL: Rule = Rule::OneOf(&["SCTP", "TCP", "UDP"]);

/// Validates a value by a table of rules.
pub(super) fn fields(value: &Value, table: &[Field], path: &str, causes: &mut Vec<Cause>) {
    for (field, rule) in table {
        walk(value, field, path, &mut |value, path| apply(*rule, value, path, causes));
    }
}

/// Calls `with` per item, or for the value, if any.
fn walk(value: &Value, field: &str, path: &str, with: &mut dyn FnMut(Option<&Value>, &str)) {
    if field == "." {
        return with(Some(value), path);
    }
    let (name, rest) = field.split_once('.').map_or((field, None), |(name, rest)| (name, Some(rest)));
    let empty = Value::Object(Map::new());
    let mut next = |value: Option<&Value>, path: &str| match (rest, value) {
        (Some(rest), Some(value)) => walk(value, rest, path, with),
        (Some(_), None) => {}
        (None, value) => with(value, path),
    };
    if let Some(name) = name.strip_suffix("[]") {
        let path = join(path, name);
        for (index, item) in list(&value[name]).iter().enumerate() {
            next(Some(item), &format!("{path}[{index}]"));
        }
        return;
    }
    let (name, default) = name.strip_suffix('!').map_or((name, None), |name| (name, Some(&empty)));
    next(value.get(name).filter(|value| !value.is_null()).or(default), &join(path, name));
}

/// Applies a rule to the value of a field.
pub(super) fn apply(rule: Rule, value: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let Some(value) = value.filter(|value| !is_empty(value)) else {
        return apply_to_unset(rule, value, path, causes);
    };
    let number = value.as_i64();
    match rule {
        Rule::Named(form) | Rule::Form(form) => {
            metadata::check_format(value.as_str().unwrap_or_default(), form, path, causes);
        }
        Rule::AtLeast(min, why) => apply(Rule::Between(min, i64::MAX, why), Some(value), path, causes),
        Rule::Between(min, max, why) if number.is_some_and(|number| !(min..=max).contains(&number)) => {
            causes.push(Cause::invalid(path, value, why));
        }
        Rule::Need(_) | Rule::Between(..) => {}
        Rule::NeededPort if *value == 0 => causes.push(Cause::required(path, "")),
        Rule::PortOrName if value.is_string() => {
            apply(Rule::Form(names::port_name), Some(value), path, causes);
        }
        Rule::Port | Rule::NeededPort | Rule::PortOrName => {
            apply(Rule::Between(1, 65_535, BETWEEN_PORTS), Some(value), path, causes);
        }
        Rule::CountOrShare(_) if value.is_number() => apply(NOT_NEGATIVE, Some(value), path, causes),
        Rule::CountOrShare(more) => {
            apply(Rule::Form(names::percent), Some(value), path, causes);
            if !more && share(value).is_some_and(|share| share > 100) {
                causes.push(Cause::invalid(path, value, "must not be greater than 100%"));
            }
        }
        Rule::OneOf(words) | Rule::Only(words) => {
            if value.as_str().is_none_or(|word| !words.contains(&word)) {
                causes.push(Cause::unsupported(path, value, words));
            }
        }
        Rule::Labels => metadata::labels(value, path, causes),
        Rule::Selector => selectors::check(value, path, causes),
        Rule::Forbidden(why) => causes.push(Cause::forbidden(path, why)),
        Rule::Once(field) => once(value, field, path, causes),
        Rule::Fields(table) => fields(value, table, path, causes),
        Rule::Check(check) => check(value, path, causes),
    }
}

/// `value`: missing or empty.
fn apply_to_unset(rule: Rule, value: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    match rule {
        Rule::Need(why) => causes.push(Cause::required(path, why)),
        Rule::Named(_) => causes.push(Cause::required(path, "")),
        Rule::Only(words) => {
            causes.push(Cause::unsupported(
                path,
                value.filter(|v| v.is_string()).unwrap_or(&"".into()),
                words,
            ));
        }
        // An empty object lacks its fields.
        Rule::Fields(table) => {
            if let Some(value) = value.filter(|value| value.is_object()) {
                fields(value, table, path, causes);
            }
        }
        Rule::Check(check) => {
            if let Some(value) = value {
                check(value, path, causes);
            }
        }
        _ => {}
    }
}

fn once(items: &Value, field: &str, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, item) in list(items).iter().enumerate() {
        let value = &item[field];
        if !is_empty(value) && !seen.insert(value) {
            causes.push(Cause::duplicate(&format!("{path}[{index}].{field}"), value));
        }
    }
}
