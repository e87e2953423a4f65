//! Go regular expressions. Cached, since every write uses them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};

/// More than a catalog needs; a full cache is cleared.
const MAX_PATTERNS: usize = 256;
/// In bytes.
const MAX_PATTERN_BYTES: usize = 16 * 1024;
/// Bytes per compiled pattern and per match cache.
const MAX_COMPILED_BYTES: usize = 1 << 20;

static COMPILED: LazyLock<Mutex<HashMap<String, Arc<Regex>>>> = LazyLock::new(Mutex::default);

/// Returns `None` for invalid or too large patterns.
///
/// The `Arc` avoids scratch memory for each `Regex` clone.
pub(crate) fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    if let Some(known) = COMPILED.lock().get(pattern) {
        return Some(Arc::clone(known));
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return None;
    }
    // Unlocked, so others need not wait.
    let mut regex = RegexBuilder::new(&as_rust(pattern));
    let regex =
        Arc::new(regex.size_limit(MAX_COMPILED_BYTES).dfa_size_limit(MAX_COMPILED_BYTES).build().ok()?);
    let mut compiled = COMPILED.lock();
    if compiled.len() >= MAX_PATTERNS {
        compiled.clear();
    }
    compiled.insert(pattern.to_owned(), Arc::clone(&regex));
    Some(regex)
}

/// Translates Go syntax. Go's non-repeating braces and brackets in classes are literal. Its classes lack
/// operators. Its `\d`, `\s`, `\w`, `\b` are ASCII.
fn as_rust(pattern: &str) -> String {
    let (mut rust, mut left) = (String::with_capacity(pattern.len() * 2), pattern);
    while let Some(sign) = next(&mut left) {
        match sign {
            '\\' => escape(&mut left, &mut rust),
            '[' => class(&mut left, &mut rust),
            '{' if !counts(left) => rust.push_str(r"\{"),
            sign => rust.push(sign),
        }
    }
    rust
}

fn next(left: &mut &str) -> Option<char> {
    let sign = left.chars().next()?;
    *left = left.get(sign.len_utf8()..).unwrap_or_default();
    Some(sign)
}

/// Whether the brace starts a repetition.
fn counts(left: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((inside, _)) = left.split_once('}') else { return false };
    let (min, max) = inside.split_once(',').unwrap_or((inside, ""));
    !min.is_empty() && digits(min) && digits(max)
}

fn escape(left: &mut &str, rust: &mut String) {
    let Some(sign) = next(left) else { return rust.push('\\') };
    rust.push_str(match sign {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r ]",
        'S' => r"[^\t\n\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        'b' => r"(?-u:\b)",
        'B' => r"(?-u:\B)",
        '<' => "<",
        '>' => ">",
        sign => {
            rust.extend(['\\', sign]);
            // These enclose a name or number.
            if matches!(sign, 'p' | 'P' | 'x') && left.starts_with('{') {
                rust.extend(next(left));
            }
            return;
        }
    });
}

fn class(left: &mut &str, rust: &mut String) {
    rust.push('[');
    if left.starts_with('^') {
        rust.extend(next(left));
    }
    // `first`: brackets are literal; `begins`: a range may start; `ends`: one ends.
    let (mut first, mut begins, mut ends) = (true, false, false);
    while let Some(sign) = next(left) {
        let mut single = true;
        match sign {
            ']' if !first => return rust.push(']'),
            '-' if begins && !left.starts_with(']') => {
                rust.push('-');
                (begins, ends) = (false, true);
                continue;
            }
            '[' if left.starts_with(':') && left.contains(":]") => {
                let (name, after) = left.split_once(":]").unwrap_or((left, ""));
                rust.extend(["[", name, ":]"]);
                *left = after;
                single = false;
            }
            '\\' => {
                single = !left.starts_with(['d', 'D', 's', 'S', 'w', 'W', 'p', 'P']);
                escape(left, rust);
            }
            '[' | ']' | '-' | '&' | '~' => rust.extend(['\\', sign]),
            sign => rust.push(sign),
        }
        (first, begins, ends) = (false, single && !ends, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, good, bad) in [
            ("^{.*}$", "{x}", "x"),
            ("^{{[a-z]{2}}}$", "{{ab}}", "{{a}}"),
            ("^a{2,3}{,5}$", "aaa{,5}", "aaa"),
            (r"^[^[\]]+$", "x", "[x]"),
            ("^[]a]+$", "]a", "b"),
            ("^[^]a]+$", "b", "]"),
            ("^[[:alpha:]_[]+$", "a_[", "1"),
            (r"^[\w-.]+$", "a-.", "a+"),
            ("^[+--]$", ",", "/"),
            ("^[--/]$", ".", ","),
            ("^[a&&b~~c-]+$", "&~-", "d"),
            (r"^\d\D\w\W\s\S$", "1a_- x", "\u{661}a_- x"),
            (r"^[\d\s]+$", "1 2", "a"),
            (r"\bb\b", "a b", "ab"),
            (r"^\<\>$", "<>", ""),
            (r"^\x{41}\p{Greek}\pL$", "A\u{3b1}a", "Aaa"),
            ("(?i)^k$", "K", "x"),
            (r"^\{\[$", "{[", "{"),
        ] {
            let regex = compiled(pattern).unwrap_or_else(|| panic!("{pattern}: {}", as_rust(pattern)));
            assert!(regex.is_match(good), "{pattern} {good}");
            assert!(!regex.is_match(bad), "{pattern} {bad}");
        }
        for none in ["(", "[a", r"\", "[z-a]", "[", "{2}", r"[\b]", r"\p{"] {
            assert!(compiled(none).is_none(), "{none}");
        }
    }

    #[test]
    fn pattern_size_and_cache_are_bounded() {
        assert!(compiled("(((a{100}){100}){100}){100}").is_none());
        assert!(compiled(&"a".repeat(MAX_PATTERN_BYTES + 1)).is_none());
        for number in 0..=MAX_PATTERNS {
            assert!(compiled(&format!("^{number}$")).is_some());
        }
        assert!(COMPILED.lock().len() <= MAX_PATTERNS);
    }
}
