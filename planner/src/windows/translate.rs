//! Translates Go's regular expressions.

use super::read::printable;

/// Character groups, which start no range.
const CHARACTER_GROUPS: [&str; 8] = [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\p", r"\P"];
/// Names as in `[:alpha:]`.
const CLASS_NAMES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// Rewrites Go's `\Q...\E`, literal braces and classes.
pub(super) fn translated(text: &str) -> Result<String, String> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while !rest.is_empty() {
        if let Some(literal) = rest.strip_prefix(r"\Q") {
            let (literal, after) = literal.split_once(r"\E").unwrap_or((literal, ""));
            out.push_str(&regex::escape(literal));
            rest = after;
            continue;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            rest = class(inner, &mut out)?;
            continue;
        }
        if rest.starts_with('{') && !is_repetition(rest) {
            out.push('\\');
        }
        let (token, after) = rest.split_at(token_length(rest));
        out.push_str(token);
        rest = after;
    }
    Ok(out)
}

/// Translates a class; returns the rest. In Go, an inner bracket is a character except before a known name, and `&&`, `--`, `~~` are no
/// operators.
fn class<'t>(inner: &'t str, out: &mut String) -> Result<&'t str, String> {
    out.push('[');
    let mut rest = inner;
    if let Some(negated) = rest.strip_prefix('^') {
        out.push('^');
        rest = negated;
    }
    // A leading `]` is a member.
    let mut is_first = true;
    while !rest.is_empty() && (is_first || !rest.starts_with(']')) {
        is_first = false;
        if let Some((name, after)) = rest.strip_prefix("[:").and_then(|named| named.split_once(":]")) {
            if !CLASS_NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return Err(format!("not a regular expression: '[:{}:]' is no class", printable(name)));
            }
            for part in ["[:", name, ":]"] {
                out.push_str(part);
            }
            rest = after;
            continue;
        }
        let is_many = CHARACTER_GROUPS.iter().any(|many| rest.starts_with(many));
        rest = member(rest, out);
        if let Some(last) = rest.strip_prefix('-')
            && !is_many
            && !last.is_empty()
            && !last.starts_with(']')
        {
            out.push('-');
            rest = member(last, out);
        }
    }
    match rest.strip_prefix(']') {
        Some(after) => {
            out.push(']');
            Ok(after)
        }
        // The library reports unclosed classes.
        None => Ok(rest),
    }
}

fn member<'t>(text: &'t str, out: &mut String) -> &'t str {
    let (token, after) = text.split_at(token_length(text));
    if matches!(token, "[" | "]" | "^" | "-" | "&" | "~") {
        out.push('\\');
    }
    out.push_str(token);
    after
}

/// Length of the first character or escape; some escapes contain braces.
fn token_length(text: &str) -> usize {
    let length = |c: Option<char>| c.map_or(0, char::len_utf8);
    let mut chars = text.chars();
    let first = chars.next();
    if first != Some('\\') {
        return length(first);
    }
    let kind = chars.next();
    let named = chars.as_str();
    let more = match kind {
        Some('p' | 'P' | 'x') if named.starts_with('{') => named.find('}').map_or(1, |end| end + 1),
        Some('p' | 'P') => length(named.chars().next()),
        Some('x') => named.chars().take(2).map(char::len_utf8).sum::<usize>(),
        _ => 0,
    };
    1 + length(kind) + more
}

/// Matches `{2}`, `{2,}` or `{2,5}`.
fn is_repetition(text: &str) -> bool {
    let Some((inner, _)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) else { return false };
    let (minimum, maximum) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !minimum.is_empty() && digits(minimum) && digits(maximum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::matching::Pattern, *};

    /// Results of Go 1.26.
    #[test]
    fn character_classes_match_as_in_go() {
        for (pattern, value, expected) in [
            ("^[a-z[]+$", "a[b", true),
            ("^[a-z[]+$", "a]", false),
            ("^[a&&b]+$", "a&b", true),
            ("^[a&&b]+$", "c", false),
            ("^[&&]$", "&", true),
            ("^[a~~b]+$", "a~b", true),
            ("^[[:alpha:]_]+$", "a_B", true),
            ("^[[:alpha:]_]+$", "a:", false),
            ("^[[:alpha:]_]+$", "[", false),
            ("^[[:^alpha:]]$", "1", true),
            ("^[[:^alpha:]]$", "a", false),
            ("^[[:]+$", "[:", true),
            ("[[:alpha]", "l", true),
            ("^[[=a=]]+$", "=]", true),
            ("^[[=a=]]+$", "a", false),
            ("^[^]a]$", "]", false),
            ("^[^]a]$", "a", false),
            ("^[^]a]$", "b", true),
            ("^[]a]+$", "]a", true),
            ("^[]a]+$", "b", false),
            ("^[^^]$", "^", false),
            ("^[^^]$", "a", true),
            (r"^[a\]b[c]+$", "a]b[c", true),
            (r"^[a\]b[c]+$", r"\", false),
            ("^[a[b]]$", "a]", true),
            ("^[a[b]]$", "a", false),
            ("^[a-z&&[^b]]$", "b]", true),
            ("^[a-z&&[^b]]$", "b", false),
            ("^[+--b]+$", "+,-b", true),
            ("^[+--b]+$", ".", false),
            ("^[--a]+$", "-Z", true),
            ("^[--a]+$", "+", false),
            ("^[!--]+$", "-,", true),
            ("^[!--]+$", ".", false),
            ("^[a-z--b]+$", "a-b.", true),
            ("^[a-z--b]+$", "+", false),
            ("^[---]$", "-", true),
            ("^[-]$", "-", true),
            ("^[a-]$", "-", true),
            ("^[a^-]+$", "a^-", true),
            ("^[a-c-e]+$", "b-e", true),
            ("^[a-c-e]+$", "d", false),
            (r"^[\d-z]+$", "1-z", true),
            (r"^[\d-z]+$", "y", false),
            ("^[+-[:digit:]]$", "d]", true),
            ("^[+-[:digit:]]$", "1", false),
            (r"^[\x41-\x{43}]+$", "ABC", true),
            (r"^[\x41-\x{43}]+$", "1", false),
            ("^[|*+?.(){}$#]+$", "|*+?.(){}$#", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().is_match(value), expected, "{pattern} {value}");
        }
    }

    #[test]
    fn character_classes_invalid_in_go_are_errors() {
        for pattern in [
            "[a--b]",
            "[a---c]",
            "[b-a]",
            r"[a-\d]",
            "[a-[:digit:]]",
            "[[:foo:]]",
            "[]",
            "[^]",
            r"[\Qa\E]",
            r"[\b]",
        ] {
            assert!(Pattern::new(pattern).is_err(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn translation_never_panics_and_keeps_plain_characters(text: String, odd in r"[-\[\]\\^&~:a-cxp{}QE]{0,12}",
                plain in "[&~a-c:]{1,8}") {
            let _ = translated(&text);
            let _ = translated(&odd);
            let pattern = Pattern::new(&format!("^[{plain}[]+$")).unwrap();
            prop_assert!(pattern.is_match(&plain) && pattern.is_match("["));
        }
    }
}
