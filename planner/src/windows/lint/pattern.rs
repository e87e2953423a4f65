//! Textual analysis of patterns.

use super::super::{matching::Pattern, read::is_invisible};

const MAX_EXAMPLES: usize = 3;
/// Includes the dot, although most authors mean a dot.
const SPECIAL: &str = r"\.+*?()[]{}^$";

/// Words of a plain alternation, which matches values that contain one.
pub(super) fn literals(text: &str) -> Option<Vec<&str>> {
    (!text.contains(|c| SPECIAL.contains(c))).then(|| text.split('|').collect())
}

/// Values of a fully anchored list, such as `^a$|^b$` or `^(?:a|b)$`.
pub(super) fn whole_values(text: &str) -> Option<Vec<&str>> {
    fn whole(part: &str) -> Option<&str> {
        part.strip_prefix('^')?.strip_suffix('$')
    }
    let list =
        whole(text).and_then(|list| list.strip_prefix("(?:").or(list.strip_prefix('('))?.strip_suffix(')'));
    match list {
        Some(list) => literals(list),
        None => {
            let all: Option<Vec<&str>> = text.split('|').map(whole).collect();
            all.filter(|all| all.iter().all(|word| literals(word).is_some()))
        }
    }
}

/// Returns whether context may matter; otherwise, containing a match suffices.
pub(super) fn depends_on_context(text: &str) -> bool {
    text.contains(['^', '$', '\\'])
}

/// Partial matches: inside or at the end, and at the beginning.
pub(super) fn partial_matches<'v>(
    pattern: &Pattern,
    anchored: &Pattern,
    values: impl IntoIterator<Item = &'v str>,
) -> (Vec<&'v str>, Vec<&'v str>) {
    let (mut inside, mut prefixes) = (Vec::new(), Vec::new());
    for value in values {
        let Some(found) = pattern.find(value) else { continue };
        if anchored.is_match(value) {
            continue;
        }
        let list = if found.start == 0 { &mut prefixes } else { &mut inside };
        if list.len() < MAX_EXAMPLES {
            list.push(value);
        }
    }
    (inside, prefixes)
}

/// Unique characters that resemble ASCII, or are invisible (`None`).
pub(super) fn look_alikes(text: &str) -> Vec<(char, Option<char>)> {
    let mut found: Vec<(char, Option<char>)> = Vec::new();
    for c in text.chars().filter(|c| !c.is_ascii()) {
        let like = match look_alike(c) {
            Some(like) => Some(like),
            None if is_invisible(c) => None,
            None => continue,
        };
        if !found.iter().any(|(seen, _)| *seen == c) {
            found.push((c, like));
        }
    }
    found
}

fn look_alike(c: char) -> Option<char> {
    Some(match c {
        '\u{A6}' | '\u{1C0}' | '\u{5C0}' | '\u{2223}' | '\u{23D0}' | '\u{2502}' | '\u{2503}' | '\u{2506}'
        | '\u{2507}' | '\u{250A}' | '\u{250B}' | '\u{254E}' | '\u{254F}' | '\u{2551}' | '\u{2575}'
        | '\u{2577}' | '\u{258F}' | '\u{2595}' | '\u{2758}' | '\u{FFE8}' => '|',
        '\u{2010}'..='\u{2015}'
        | '\u{2043}'
        | '\u{2212}'
        | '\u{2500}'
        | '\u{2501}'
        | '\u{FE58}'
        | '\u{FE63}' => '-',
        '\u{B7}' | '\u{2024}' | '\u{2219}' | '\u{22C5}' | '\u{3002}' => '.',
        '\u{204E}' | '\u{2217}' => '*',
        '\u{2C6}' | '\u{2038}' => '^',
        '\u{A0}' | '\u{2000}'..='\u{200A}' | '\u{202F}' | '\u{205F}' | '\u{3000}' => ' ',
        // Full-width forms, in ASCII order.
        '\u{FF01}'..='\u{FF5E}' => char::from_u32(u32::from(c) - 0xFEE0)?,
        // Cyrillic, Greek and others.
        '\u{430}' => 'a',
        '\u{441}' | '\u{3F2}' => 'c',
        '\u{501}' => 'd',
        '\u{435}' => 'e',
        '\u{261}' => 'g',
        '\u{4BB}' => 'h',
        '\u{456}' | '\u{131}' => 'i',
        '\u{458}' => 'j',
        '\u{4CF}' => 'l',
        '\u{43E}' | '\u{3BF}' => 'o',
        '\u{440}' | '\u{3C1}' => 'p',
        '\u{455}' => 's',
        '\u{3C5}' => 'u',
        '\u{3BD}' | '\u{475}' => 'v',
        '\u{51D}' => 'w',
        '\u{445}' | '\u{3C7}' => 'x',
        '\u{443}' => 'y',
        _ => return None,
    })
}
