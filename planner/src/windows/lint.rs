//! Likely mistakes in a policy.

mod pattern;
mod samples;

use std::{collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp, ToSpan};

use self::pattern::{literals, look_alikes, partial_matches, whole_values};
use super::{
    SPREAD,
    document::Path,
    matching::{Field, Pattern},
    next::length,
    policy::{Policy, PolicyError, Rule, When, WindowTimes},
    read::printable,
};

/// Maximum findings.
pub const MAX_FINDINGS: usize = 1000;

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Information.
    Note,
    /// Likely mistake.
    Warning,
}

impl Level {
    /// One word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

/// Category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A pattern matches inside values.
    AnchorMatters,
    /// A rule, alternative or window has no effect.
    NeverMatches,
    /// A pattern matches everything.
    MatchesEverything,
    /// Too short for updates, in some runtimes or all.
    TooShort,
    /// All windows are past.
    Over,
    /// A character resembles another.
    LookAlike,
    /// Ignored field.
    UnknownField,
    /// Differs from the Go lifecycle manager.
    ReadDifferently,
    /// An incomplete begin or end gets a default.
    Missing,
}

impl Kind {
    /// Name for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnchorMatters => "anchor-matters",
            Self::NeverMatches => "never-matches",
            Self::MatchesEverything => "matches-everything",
            Self::TooShort => "too-short",
            Self::Over => "over",
            Self::LookAlike => "look-alike",
            Self::UnknownField => "unknown-field",
            Self::ReadDifferently => "read-differently",
            Self::Missing => "missing",
        }
    }
}

/// A likely mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// From 1.
    pub line: usize,
    /// Such as `rules[0].match.region`.
    pub field: String,
    /// Severity.
    pub level: Level,
    /// Category.
    pub kind: Kind,
    /// Effect and remedy.
    pub message: String,
}

/// Finding without a line.
#[derive(Debug)]
pub(super) struct Remark {
    level: Level,
    kind: Kind,
    path: Path,
    message: String,
}

impl Remark {
    pub(super) fn new(level: Level, kind: Kind, path: Path, message: impl Into<String>) -> Self {
        Self { level, kind, path, message: message.into() }
    }
}

/// Sample values.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Values in addition to built-in public regions and plans.
    pub extra: Vec<(Field, String)>,
}

impl Values {
    fn of(&self, field: Field) -> BTreeSet<&str> {
        let own = self.extra.iter().filter(|(f, _)| *f == field).map(|(_, value)| value.as_str());
        own.chain(samples::of(field).iter().copied()).collect()
    }
}

/// Lints a policy for updates of duration `min`; at most [`MAX_FINDINGS`], by line.
pub fn lint(text: &str, values: &Values, now: Timestamp, min: Duration) -> Result<Vec<Finding>, PolicyError> {
    let (policy, remarks) = Policy::read(text)?;
    let signed = |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    let mut lint = Lint { values, now, min: signed(min), spread: signed(SPREAD), remarks };
    lint.policy(&policy);
    let mut findings: Vec<_> = lint
        .remarks
        .into_iter()
        .take(MAX_FINDINGS)
        .map(|remark| Finding {
            line: remark.path.line(text),
            field: remark.path.to_string(),
            level: remark.level,
            kind: remark.kind,
            message: remark.message,
        })
        .collect();
    findings.sort_by(|a, b| (a.line, &a.field, a.kind).cmp(&(b.line, &b.field, b.kind)));
    Ok(findings)
}

struct Lint<'a> {
    values: &'a Values,
    now: Timestamp,
    min: SignedDuration,
    spread: SignedDuration,
    remarks: Vec<Remark>,
}

impl Lint<'_> {
    fn warn(&mut self, kind: Kind, path: Path, message: impl Into<String>) {
        self.remarks.push(Remark::new(Level::Warning, kind, path, message));
    }

    fn note(&mut self, kind: Kind, path: Path, message: impl Into<String>) {
        self.remarks.push(Remark::new(Level::Note, kind, path, message));
    }

    fn policy(&mut self, policy: &Policy) {
        let root = Path::default();
        for (n, rule) in policy.rules().iter().enumerate() {
            let path = root.key("rules").index(n);
            self.matching(rule, &path.key("match"));
            if let Some(message) = never_first(policy.rules(), n) {
                self.warn(Kind::NeverMatches, path.clone(), message);
            }
            self.windows(&rule.windows, &path.key("windows"), policy.default_window().is_empty());
        }
        match policy.default_window() {
            [] => self.note(
                Kind::NeverMatches,
                root.key("default"),
                "there is no default: a Kyma that no rule matches never gets an update that needs a downtime",
            ),
            [window, ..] => {
                self.window(window, &root.key("default"));
                if self.over(window) && window.can_occur() {
                    self.warn(Kind::Over, root.key("default"), "is over and does not come again");
                }
            }
        }
    }

    fn matching(&mut self, rule: &Rule, path: &Path) {
        for (field, pattern) in rule.matching.patterns() {
            let at = path.key(field.name());
            for (found, like) in look_alikes(pattern.text()) {
                let (text, code) = (printable(pattern.text()), u32::from(found));
                let message = match like {
                    Some(like) => {
                        format!("'{text}' has U+{code:04X}, which only looks like '{like}'; write '{like}'")
                    }
                    None => format!("'{text}' has U+{code:04X}, which cannot be seen; remove it"),
                };
                self.warn(Kind::LookAlike, at.clone(), message);
            }
            if pattern.is_match("") && !pattern::depends_on_context(pattern.text()) {
                let message = format!(
                    "'{}' matches every value, since a part of it matches nothing at all; remove the empty part, or \
                     leave {} out of the rule",
                    printable(pattern.text()),
                    field.name()
                );
                self.warn(Kind::MatchesEverything, at, message);
                continue;
            }
            self.literals(pattern, &at);
            self.anchors(field, pattern, &at);
        }
    }

    fn literals(&mut self, pattern: &Pattern, at: &Path) {
        let Some(parts) = literals(pattern.text()) else { return };
        let never: Vec<_> = parts
            .iter()
            .filter(|word| !can_be_in_a_label(word))
            .map(|w| format!("'{}'", printable(w)))
            .collect();
        if !never.is_empty() {
            let message = format!(
                "{} never matches: the value is a label's, which has at most 63 of the characters a-z, A-Z, 0-9, '-', \
                 '_' and '.'",
                never.join(", ")
            );
            self.warn(Kind::NeverMatches, at.clone(), message);
        }
    }

    fn anchors(&mut self, field: Field, pattern: &Pattern, at: &Path) {
        let Ok(anchored) = pattern.anchored() else { return };
        let (inside, prefixes) = partial_matches(pattern, &anchored, self.values.of(field));
        let text = printable(pattern.text());
        if !inside.is_empty() {
            let message = format!(
                "'{text}' matches inside of {}: a pattern matches anywhere in the value; write ^(?:{text}) if it has to \
                 begin so, ^(?:{text})$ if it has to be all of it",
                quoted(&inside)
            );
            self.warn(Kind::AnchorMatters, at.clone(), message);
        }
        if !prefixes.is_empty() {
            let message = format!(
                "'{text}' matches the beginning of {}, which it would not if it had to match all of the value",
                quoted(&prefixes)
            );
            self.note(Kind::AnchorMatters, at.clone(), message);
        }
    }

    fn windows(&mut self, windows: &[WindowTimes], path: &Path, last: bool) {
        let consequence = if last { "and there is no default" } else { "so the default counts" };
        if windows.is_empty() {
            self.warn(Kind::NeverMatches, path.clone(), format!("the rule has no window, {consequence}"));
            return;
        }
        for (n, window) in windows.iter().enumerate() {
            self.window(window, &path.index(n));
        }
        if windows.iter().all(|w| self.over(w)) && windows.iter().any(WindowTimes::can_occur) {
            self.warn(Kind::Over, path.clone(), format!("all windows of the rule are over, {consequence}"));
        }
        let weekly = windows.iter().position(|w| matches!(w.when(), When::Weekly { .. }) && w.can_occur());
        if let Some(first) = weekly.filter(|first| first + 1 < windows.len()) {
            let message = format!(
                "the Go lifecycle manager takes the first window of the list that is still ahead, so it never looks past \
                 windows[{first}], which comes every week; Tidewatch takes the next one"
            );
            self.note(Kind::ReadDifferently, path.index(first + 1), message);
        }
    }

    fn window(&mut self, window: &WindowTimes, path: &Path) {
        self.zone(window, path);
        // Reported by the reader.
        if window.when() == When::Never {
            return;
        }
        match window.when() {
            When::Once { begin, end } if begin >= end => {
                let message = format!("never comes: its end, {end}, is not after its begin, {begin}");
                self.warn(Kind::NeverMatches, path.clone(), message);
            }
            When::Weekly { .. } if !window.can_occur() => {
                self.warn(Kind::NeverMatches, path.clone(), "none of its days is one, so it never comes");
            }
            _ if length(window) <= self.min => {
                let message = format!(
                    "lasts {:#}, and an update begins only while more than {:#} are left: none ever does",
                    length(window),
                    self.min
                );
                self.warn(Kind::TooShort, path.clone(), message);
            }
            _ if length(window) <= self.min.saturating_add(self.spread) => {
                let message = format!(
                    "lasts {:#}, and an update begins only while more than {:#} are left; since a runtime is looked at up to {:#} \
                     after the begin, always the same one so late, none ever does in some; make it longer than {:#}",
                    length(window),
                    self.min,
                    self.spread,
                    self.min.saturating_add(self.spread)
                );
                self.warn(Kind::TooShort, path.clone(), message);
            }
            _ => {}
        }
    }

    fn zone(&mut self, window: &WindowTimes, path: &Path) {
        let (Some(zone), When::Weekly { begin, end }) = (window.zone(), window.when()) else { return };
        let name = zone.iana_name().unwrap_or_default();
        // Monthly samples of a year.
        let moments = (0..12).filter_map(|n| self.now.checked_add((n * 730_i64).hours()).ok());
        let offsets: BTreeSet<_> = moments.map(|moment| zone.to_offset(moment)).collect();
        if offsets.len() > 1 {
            self.note(
                Kind::ReadDifferently,
                path.key("timeZone"),
                format!(
                    "the Go lifecycle manager knows no time zones: to it the window stays at the offset that is written, \
                     when the clocks of {name} change"
                ),
            );
        }
        for (key, at) in [("begin", begin), ("end", end)] {
            if !offsets.contains(&at.offset) {
                let written = at.offset;
                let message = format!(
                    "is written with the offset {written}, which {name} does not have; its clock counts, so it is {} there",
                    at.time
                );
                self.warn(Kind::ReadDifferently, path.key(key), message);
            }
        }
    }

    fn over(&self, window: &WindowTimes) -> bool {
        match window.when() {
            When::Once { end, .. } => end <= self.now,
            _ => !window.can_occur(),
        }
    }
}

fn quoted(values: &[&str]) -> String {
    values.iter().map(|v| format!("'{}'", printable(v))).collect::<Vec<_>>().join(", ")
}

fn can_be_in_a_label(text: &str) -> bool {
    text.len() <= 63 && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Explains why rule `n` never matches first: earlier rules cover each pattern, by equality or word by word.
fn never_first(rules: &[Rule], n: usize) -> Option<String> {
    let (before, rule) = (rules.get(..n)?, rules.get(n)?);
    if rule.matching.patterns().next().is_none() {
        return Some("has no pattern, so it matches no Kyma; windows for all belong into default".to_owned());
    }
    let mut covering = BTreeSet::new();
    for (field, pattern) in rule.matching.patterns() {
        let wholes = whole_values(pattern.text());
        let is_whole = wholes.is_some();
        let parts = wholes.or_else(|| literals(pattern.text()));
        let possible = parts.iter().flatten().filter(|word| can_be_in_a_label(word)).collect::<Vec<_>>();
        if parts.is_some() && possible.is_empty() {
            continue;
        }
        let covers = |earlier: &Pattern| {
            earlier.text() == pattern.text()
                || (parts.is_some()
                    && (is_whole || !pattern::depends_on_context(earlier.text()))
                    && possible.iter().all(|word| earlier.is_match(word)))
        };
        let cover = before
            .iter()
            .position(|earlier| earlier.matching.patterns().any(|(f, p)| f == field && covers(p)))?;
        covering.insert(cover);
    }
    if covering.is_empty() {
        return Some("none of its patterns can match a label's value, so it matches no Kyma".to_owned());
    }
    let by: Vec<_> = covering.iter().map(|n| format!("rules[{n}]")).collect();
    Some(format!("is never reached: what it matches is matched before by {}", by.join(" and ")))
}

#[cfg(test)]
mod tests;
