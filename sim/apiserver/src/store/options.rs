//! Validation of `ListOptions`, `CreateOptions` and others.

use serde_json::Value;
use validate::Cause;

use super::{
    decode::go_type_error,
    refusal::Refusal,
    target::{PatchKind, Query, Verb},
};
use crate::{
    json::text,
    schema::{builtin, validate},
};

const DELETE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// Bytes.
const MAX_MANAGER_BYTES: usize = 128;
const MATCH: &str = "resourceVersionMatch";
const NOT_OLDER: &str = "NotOlderThan";

pub(super) fn refuse(options: &str, causes: &[Cause]) -> Result<(), Refusal> {
    if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid(options, "meta.k8s.io", "", causes)) }
}

/// Returns whether it is a dry run.
pub(super) fn of_write(verb: &Verb, query: &Query) -> Result<bool, Refusal> {
    let (options, force) = match verb {
        Verb::Create(_) => ("CreateOptions", None),
        Verb::Patch(PatchKind::Apply, _) => {
            let missing = query.field_manager.is_empty();
            let cause = Cause::required("fieldManager", "is required for apply patch");
            ("PatchOptions", missing.then_some(cause))
        }
        Verb::Patch(..) => {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            ("PatchOptions", query.force.map(|_| cause))
        }
        _ => ("UpdateOptions", None),
    };
    let mut causes: Vec<Cause> = force.into_iter().collect();
    causes.extend(manager(&query.field_manager, "fieldManager"));
    let (dry, mode) = dry_run(query);
    causes.extend(mode);
    if !matches!(query.field_validation.as_str(), "" | "Ignore" | "Strict" | "Warn") {
        let given = Value::from(query.field_validation.as_str());
        causes.push(Cause::unsupported("fieldValidation", &given, &["", "Ignore", "Strict", "Warn"]));
    }
    refuse(options, &causes).map(|()| dry)
}

pub(super) fn manager(name: &str, field: &str) -> Vec<Cause> {
    // Each invalid character would repeat the name.
    if name.len() > MAX_MANAGER_BYTES {
        return vec![Cause::too_long(field, MAX_MANAGER_BYTES)];
    }
    let strange = name.char_indices().filter(|(_, letter)| !is_printable(*letter));
    let shown: String = name.chars().map(quoted).collect();
    strange
        .map(|(position, letter)| {
            let code = u32::from(letter);
            let why = format!("invalid character U+{code:04X} (at position {position})");
            Cause::new(field, "FieldValueInvalid", format!("Invalid value: \"{shown}\": {why}"))
        })
        .collect()
}

/// As in Go: letters, marks, numbers, punctuation, symbols, ASCII space.
fn is_printable(letter: char) -> bool {
    // `escape_debug` escapes leading marks.
    matches!(letter, '"' | '\'' | '\\')
        || String::from_iter(['a', letter]).escape_debug().nth(1) == Some(letter)
}

/// Go's quoting.
fn quoted(letter: char) -> String {
    let code = u32::from(letter);
    match letter {
        '"' | '\\' => format!("\\{letter}"),
        '\u{7}' => "\\a".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{b}' => "\\v".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        _ if is_printable(letter) => letter.to_string(),
        _ if letter.is_ascii() => format!("\\x{code:02x}"),
        _ if code < 0x1_0000 => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Returns the mode and its error.
pub(super) fn dry_run(query: &Query) -> (bool, Option<Cause>) {
    if query.dry_run.iter().all(String::is_empty) {
        return (false, None);
    }
    let known = query.dry_run.iter().all(|mode| mode == "All");
    (true, (!known).then(|| Cause::unsupported("dryRun", &query.dry_run.clone().into(), &["All"])))
}

pub(super) fn of_list(query: &Query) -> Result<(), Refusal> {
    readable(query.unreadable.as_ref())?;
    let matching = query.list.resource_version_match.as_str();
    let mut causes = Vec::new();
    let mut forbid = |is: bool, field: &str, why: &str| {
        causes.extend(is.then(|| Cause::forbidden(field, why)));
    };
    if !matching.is_empty() {
        let is_unversioned = query.list.resource_version.is_empty();
        forbid(is_unversioned, MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        let continues = !query.list.continue_token.is_empty();
        forbid(continues, MATCH, "resourceVersionMatch is forbidden when continue is provided");
        let is_any_exactly = matching == "Exact" && query.list.resource_version == "0";
        forbid(
            is_any_exactly,
            MATCH,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        );
    }
    forbid(
        query.list.initial_events.is_some(),
        "sendInitialEvents",
        "sendInitialEvents is forbidden for list",
    );
    if !matches!(matching, "" | "Exact" | NOT_OLDER) {
        causes.push(Cause::unsupported(MATCH, &matching.into(), &["Exact", NOT_OLDER, ""]));
    }
    refuse("ListOptions", &causes)
}

pub(super) fn of_watch(query: &Query) -> Result<(), Refusal> {
    readable(query.unreadable.as_ref())?;
    let from_now = matches!(query.list.resource_version.as_str(), "" | "0");
    // Plain watches also start with current state.
    let is_old =
        query.list.initial_events.is_none() && query.list.resource_version_match.is_empty() && from_now;
    let (initial, matching) = if is_old {
        (true, NOT_OLDER)
    } else {
        (query.list.initial_events.is_some(), query.list.resource_version_match.as_str())
    };
    let mut causes = Vec::new();
    let mut forbid = |is: bool, why: &str| causes.extend(is.then(|| Cause::forbidden(MATCH, why)));
    forbid(
        initial && matching != NOT_OLDER,
        "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    );
    if !matching.is_empty() {
        forbid(!initial, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        let continues = !query.list.continue_token.is_empty();
        forbid(continues, "resourceVersionMatch is forbidden when continue is provided");
        if matching != NOT_OLDER {
            causes.push(Cause::unsupported(MATCH, &matching.into(), &[NOT_OLDER]));
        }
    }
    refuse("ListOptions", &causes)
}

/// A body replaces query options.
pub(super) fn of_delete(query: &Query, body: &Value) -> Result<Query, Refusal> {
    let mut query = query.clone();
    if body.is_null() {
        readable(query.unreadable_grace.as_ref())?;
        return Ok(query);
    }
    let unread =
        |why: String| Refusal::bad_request(format!("couldn't get version/kind; json parse error: {why}"));
    if !body.is_object() {
        return Err(unread("json: cannot unmarshal a value that is no object".to_owned()));
    }
    if let Some((path, have, want)) = validate::first_type_error(body, builtin::view(DELETE)) {
        let why = go_type_error("DeleteOptions", &path, have, &want);
        let of_type = matches!(path.as_str(), "kind" | "apiVersion");
        return Err(if of_type { unread(why) } else { Refusal::bad_request(why) });
    }
    let kind = text(body, "kind");
    if !matches!(kind, "" | "DeleteOptions") {
        let version = Some(text(body, "apiVersion")).filter(|version| !version.is_empty());
        return Err(Refusal::bad_request(format!(
            "no kind {} is registered for version {} in scheme \"pkg/runtime/scheme.go:111\"",
            Value::from(kind),
            Value::from(version.unwrap_or("meta.k8s.io/v1"))
        )));
    }
    let modes = body.get("dryRun").and_then(Value::as_array);
    query.dry_run = modes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    query.propagation = body.get("propagationPolicy").and_then(Value::as_str).map(str::to_owned);
    query.orphan = body.get("orphanDependents").and_then(Value::as_bool);
    Ok(query)
}

/// Parses a `resourceVersion`; empty: 0.
pub(super) fn revision(text: &str) -> Result<u64, Refusal> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        let message = format!(
            "invalid resource version: resourceVersion: Invalid value: {0}: strconv.ParseUint: parsing {0}: invalid syntax",
            Value::from(text)
        );
        Refusal::bad_request(message)
    })
}

fn readable(why: Option<&String>) -> Result<(), Refusal> {
    why.map_or(Ok(()), |why| Err(Refusal::bad_request(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_printable_as_in_go() {
        for letter in ['a', ' ', '"', '\'', '\\', 'é', '\u{301}', '€', '😀', '\u{fffd}'] {
            assert!(is_printable(letter), "{letter:?}");
        }
        for letter in ['\u{1}', '\n', '\u{7f}', '\u{a0}', '\u{200b}', '\u{2028}', '\u{378}', '\u{e000}'] {
            assert!(!is_printable(letter), "{letter:?}");
        }
        let text: String = "a\"\\\u{1}\u{7f}\n\u{a0}\u{10ffff}é".chars().map(quoted).collect();
        assert_eq!(text, r#"a\"\\\x01\x7f\n\u00a0\U0010ffffé"#);
    }

    #[test]
    fn field_managers_of_any_length_get_a_short_refusal() {
        assert!(manager(&"a".repeat(MAX_MANAGER_BYTES), "fieldManager").is_empty());
        assert_eq!(manager(&"\u{1}".repeat(60_000), "fieldManager").len(), 1);
        assert_eq!(manager("\u{1}b\u{2}", "fieldManager").len(), 2);
    }
}
