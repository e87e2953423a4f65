//! Values from outside in messages: short, and on one line.

/// Longest reason of a parser, in characters.
const MAX_REASON: usize = 300;
/// Most characters of a value that are repeated.
const MAX_QUOTED: usize = 80;

/// Parse errors come with a picture of the place; of that, only the first line. Parsers quote what they were given, at any length and with whatever is in it.
pub(super) fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
}

/// The beginning of a value.
pub(super) fn quoted(value: &str) -> String {
    match value.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{:?}...", &value[..end]),
        None => format!("{value:?}"),
    }
}
