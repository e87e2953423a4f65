//! Shortens and masks messages of other programs, so that statuses stay stable.

/// Characters of a quoted message.
const MAX_QUOTE: usize = 200;
/// Characters of a name, image or reason.
const MAX_NAME: usize = 253;
/// Replaces changing parts.
const MASK: &str = "…";
/// Numbers after these words are kept.
const KEEP_AFTER: [&str; 3] = ["code", "port", "status"];
/// Letters of random name suffixes.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
const RANDOM_LENGTH: usize = 5;

/// Bounded, without control characters.
pub(super) fn name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

/// Masks counts, times, durations and random name suffixes.
pub(super) fn masked(message: &str) -> String {
    let mut text = String::new();
    let mut before = String::new();
    // Limits the work. Masking only shortens.
    let mut rest = message.trim();
    let limit = MAX_QUOTE * 8;
    if let Some((end, _)) = rest.char_indices().nth(limit) {
        rest = &rest[..end];
    }
    while let Some(first) = rest.chars().next() {
        let inside = is_word(first);
        let end = rest.find(|c| is_word(c) != inside).unwrap_or(rest.len());
        let (part, next) = rest.split_at(end);
        rest = next;
        if inside {
            let word = part.trim_end_matches(['.', ':', '-', '/']);
            text.push_str(&masked_word(word, &before));
            text.push_str(&part[word.len()..]);
            before = word.to_lowercase();
        } else {
            for c in part.chars() {
                match c {
                    c if c.is_whitespace() || c.is_control() => {
                        if !text.ends_with(' ') {
                            text.push(' ');
                        }
                    }
                    c => text.push(c),
                }
            }
        }
    }
    let text = text.trim_end();
    if text.chars().count() <= MAX_QUOTE {
        return text.to_owned();
    }
    text.chars().take(MAX_QUOTE - 1).chain(MASK.chars()).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '%' | '+')
}

fn masked_word(word: &str, before: &str) -> String {
    if word.chars().all(|c| c.is_ascii_digit()) && KEEP_AFTER.contains(&before) {
        return word.to_owned();
    }
    if is_count(word) || is_duration(word) || is_date(word) || is_uuid(word) {
        return MASK.to_owned();
    }
    // Pods: `<set>-<random>` and `<set>-<random>_<namespace>`.
    let (head, tail) = word.find('_').map_or((word, ""), |at| word.split_at(at));
    match head.rsplit_once('-') {
        Some((set, end)) if end.len() == RANDOM_LENGTH && end.chars().all(|c| RANDOM.contains(c)) => {
            format!("{set}-{MASK}{tail}")
        }
        _ => word.to_owned(),
    }
}

/// `3`, `0/3`, `80%`, `12:30:05`.
fn is_count(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || matches!(c, '/' | '%' | ':'))
}

/// `2m40s`, `1.5s`, `250ms`.
fn is_duration(word: &str) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        if number.len() == rest.len() {
            return false;
        }
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h", "d"].iter().find(|unit| {
            number.strip_prefix(**unit).is_some_and(|after| !after.starts_with(char::is_alphabetic))
        }) else {
            return false;
        };
        rest = &number[unit.len()..];
    }
    !word.is_empty()
}

/// `2026-01-02`, `2026-01-02T03:04:05Z`.
fn is_date(word: &str) -> bool {
    let mut chars = word.chars();
    "dddd-dd-dd".chars().all(|wanted| match (wanted, chars.next()) {
        ('d', Some(c)) => c.is_ascii_digit(),
        (wanted, c) => c == Some(wanted),
    })
}

fn is_uuid(word: &str) -> bool {
    word.len() == 36
        && word.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varying_parts_are_masked_and_telling_ones_kept() {
        for (message, tamed) in [
            ("0/3 nodes are available: 3 Insufficient cpu.", "… nodes are available: … Insufficient cpu."),
            (
                "back-off 2m40s restarting failed container=web pod=web-7c9d6f5b8-x2k4z_prod(1b4e28ba-2fa1-11d2-883f-0016d3cca427)",
                "back-off … restarting failed container=web pod=web-7c9d6f5b8-…_prod(…)",
            ),
            ("exit code 137, port 8443", "exit code 137, port 8443"),
            ("attempt 3 at 2026-01-02T03:04:05Z took 1.5s (80%)", "attempt … at … took … (…)"),
            ("used: cpu=10,pods=4", "used: cpu=…,pods=…"),
            ("dial tcp 10.96.0.1:443: refused", "dial tcp 10.96.0.1:443: refused"),
            ("image v1.2.3 of my-first", "image v1.2.3 of my-first"),
            ("two\nlines\t and\u{7} a bell", "two lines and a bell"),
            ("µs 5µs é 3é 1m2 s", "µs … é 3é 1m2 s"),
            ("", ""),
        ] {
            assert_eq!(masked(message), tamed, "{message}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ü".repeat(5_000);
        assert_eq!(masked(&long).chars().count(), MAX_QUOTE);
        assert_eq!(name(&long).chars().count(), MAX_NAME);
        assert_eq!(name("a\nb"), "ab");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_bounded_and_without_control_characters(text in "\\PC{0,300}", wild in proptest::prelude::any::<String>()) {
            for text in [text, wild] {
                let tamed = masked(&text);
                assert!(tamed.chars().count() <= MAX_QUOTE && !tamed.contains(char::is_control), "{tamed:?}");
            }
        }
    }
}
