//! YAML as Go's Kubernetes tools read it.
//!
//! The last of repeated keys counts. A number beyond a float's range is a string (`12e86720` may be a commit hash).

use std::borrow::Cow;

use serde_saphyr::{
    DuplicateKeyPolicy, Error, MessageFormatter as _, Options, UserMessageFormatter,
    granit_parser::{Event, Parser, ScalarStyle},
};

/// Limits for untrusted YAML. Anchors and aliases are rare in manifests.
pub fn options(max_nodes: usize, max_depth: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: max_nodes,
            max_events: max_nodes.saturating_mul(4),
            max_depth: max_depth,
            max_documents: 10_000,
            max_aliases: 1000,
            max_anchors: 1000,
            max_merge_keys: 1000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
        emit_comments: false,
        // Go's Kubernetes YAML reader takes 0644 as octal; file modes are written like this.
        legacy_octal_numbers: true,
    }
}

/// The first repeated key of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedKey {
    /// The key, if scalar.
    pub key: Option<String>,
    /// Line of the second occurrence, from 1.
    pub line: u64,
}

/// Reads `text` with at most three calls of `parse`.
pub fn read<T>(
    text: &str,
    mut options: Options,
    parse: impl Fn(&str, Options) -> Result<T, Error>,
) -> Result<(T, Option<RepeatedKey>), Error> {
    let mut text = Cow::Borrowed(text);
    let mut repeated = None;
    loop {
        let error = match parse(&text, options.clone()) {
            Ok(value) => return Ok((value, repeated)),
            Err(error) => error,
        };
        match error.without_snippet() {
            Error::DuplicateMappingKey { key, location } if repeated.is_none() => {
                repeated = Some(RepeatedKey { key: key.clone(), line: location.line() });
                options.duplicate_keys = DuplicateKeyPolicy::LastWins;
            }
            Error::NonFiniteFloat { .. } if matches!(text, Cow::Borrowed(_)) => {
                text = Cow::Owned(with_quotes(&text));
            }
            _ => return Err(error),
        }
    }
}

/// Quotes numbers beyond a float's range.
fn with_quotes(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 64);
    let mut copied = 0;
    // The next parse reports invalid YAML.
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        let Event::Scalar(number, ScalarStyle::Plain, ..) = event else { continue };
        let Some(at) = span.start.byte_offset().filter(|at| *at >= copied && is_too_large(&number)) else {
            continue;
        };
        if let Some(rest) = text.get(at..).filter(|rest| rest.starts_with(&*number)) {
            quoted.push_str(text.get(copied..at).unwrap_or_default());
            quoted.push('"');
            quoted.push_str(&number);
            quoted.push('"');
            copied = text.len() - rest.len() + number.len();
        }
    }
    quoted.push_str(text.get(copied..).unwrap_or_default());
    quoted
}

/// Whether `text` is a number beyond a float's range. Words like `.inf` are not.
fn is_too_large(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
        && text.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Error text for the author. It has no excerpt, since the text may hold a Secret.
pub fn plain(error: &Error) -> String {
    match error.without_snippet() {
        Error::NonFiniteFloat { value, .. } => {
            format!("{value} is no number that a Kubernetes object can have; put it in quotes")
        }
        error => UserMessageFormatter.format_message(error).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn value(text: &str) -> Result<(Value, Option<RepeatedKey>), Error> {
        read(text, options(1000, 32), |text, options| {
            serde_saphyr::from_str_with_options::<Value>(text, options)
        })
    }

    #[test]
    fn a_number_beyond_float_range_keeps_its_text() {
        for (text, read) in [
            ("a: 12e86720", json!({"a": "12e86720"})),
            ("a: 12E86720 # built from\nb: 1e3", json!({"a": "12E86720", "b": 1000.0})),
            ("a: -7e+999", json!({"a": "-7e+999"})),
            (
                "a: [1e999,2, 1.5e999]\nb: {c: 3e4444}",
                json!({"a": ["1e999", 2, "1.5e999"], "b": {"c": "3e4444"}}),
            ),
            (
                "- 1e999\n- '1e999'\n- \"1e999\"\n- |\n  1e999 stays\n",
                json!(["1e999", "1e999", "1e999", "1e999 stays\n"]),
            ),
            ("é: 1e999\nü: &it 2e999\nä: *it", json!({"é": "1e999", "ü": "2e999", "ä": "2e999"})),
            ("1e999: 1e999", json!({"1e999": "1e999"})),
            ("a: 1e999\nb: 1\nb: 2", json!({"a": "1e999", "b": 2})),
        ] {
            assert_eq!(value(text).unwrap().0, read, "{text}");
        }
    }

    #[test]
    fn the_last_of_repeated_keys_wins_and_is_reported() {
        let repeated = |key: &str, line| Some(RepeatedKey { key: Some(key.into()), line });
        for (text, read, reported) in [
            ("a: 1\nb: 2", json!({"a": 1, "b": 2}), None),
            ("a: 1\na: 2", json!({"a": 2}), repeated("a", 2)),
            ("x: {a: 1}\nx: {b: 2}", json!({"x": {"b": 2}}), repeated("x", 2)),
            ("x:\n  a: 1\n  b: 1\n  a: 2\n  b: 2", json!({"x": {"a": 2, "b": 2}}), repeated("a", 4)),
            ("{\"a\": 1, \"a\": [2]}", json!({"a": [2]}), repeated("a", 1)),
        ] {
            assert_eq!(value(text).unwrap(), (read, reported), "{text}");
        }
    }

    #[test]
    fn yaml_errors_are_plain_and_hide_content() {
        for (text, parts) in [
            ("a: .inf", ".inf is no number that a Kubernetes object can have; put it in quotes"),
            ("a: .NaN\nb: 1e999", ".NaN is no number that a Kubernetes object can have; put it in quotes"),
        ] {
            assert_eq!(plain(&value(text).unwrap_err()), parts, "{text}");
        }
        let syntax = plain(&value("a: [1\nb: 'secret-text\n").unwrap_err());
        assert!(!syntax.contains("secret-text") && !syntax.contains("Options"), "{syntax}");
    }
}
