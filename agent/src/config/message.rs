//! Short, one-line values for messages.

/// In characters.
const MAX_REASON: usize = 300;
/// In characters.
const MAX_QUOTED: usize = 80;

/// First line only: parsers quote their input, at any length.
pub(super) fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
}

pub(super) fn quoted(value: &str) -> String {
    match value.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{:?}...", &value[..end]),
        None => format!("{value:?}"),
    }
}
