//! Deprecated versions.

use std::str::FromStr;

use jiff::{SignedDuration, Timestamp, civil::Date, tz::Offset};

/// A listed version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Version.
    pub version: &'a str,
    /// End: a date, or a time with offset.
    pub deprecation_date: Option<&'a str>,
    /// Cause and advice for users.
    pub deprecation_message: Option<&'a str>,
}

/// Warning time before the end.
pub const NEAR: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Phase of a deprecation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Shown in the module's message.
    Announced,
    /// Within [`NEAR`]: also a Warning Event.
    Near,
    /// Over: state Warning.
    Ended,
}

/// Deprecation of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// End, if valid.
    pub date: Option<Timestamp>,
    /// Phase.
    pub phase: Phase,
    /// Next phase change.
    pub next: Option<Timestamp>,
    /// Message, constant within a phase.
    pub message: String,
}

/// Deprecation of `version`, if any. A date means its start in UTC; invalid dates do not hide the message.
#[must_use]
pub fn deprecation(versions: &[Listed<'_>], version: &str, now: Timestamp) -> Option<Deprecation> {
    let listed = versions.iter().find(|listed| listed.version == version)?;
    let written = listed.deprecation_date.filter(|date| !date.is_empty());
    let reason = listed.deprecation_message.map(str::trim).filter(|message| !message.is_empty());
    if written.is_none() && reason.is_none() {
        return None;
    }
    let date = written.and_then(moment);
    let near = date.and_then(|end| end.checked_sub(NEAR).ok());
    let (phase, next) = match date {
        Some(end) if end <= now => (Phase::Ended, None),
        Some(end) if near.is_none_or(|near| near <= now) => (Phase::Near, Some(end)),
        Some(_) => (Phase::Announced, near),
        None => (Phase::Announced, None),
    };
    let until = match (written, phase) {
        (Some(written), _) if date.is_none() => {
            format!(" (its date, '{}', cannot be read)", shorten(written))
        }
        (Some(written), Phase::Ended) => format!(" and has ended on {written}"),
        (Some(written), _) => format!(" and ends on {written}"),
        (None, _) => String::new(),
    };
    let reason = reason.map(|reason| format!(": {}", shorten(reason))).unwrap_or_default();
    Some(Deprecation {
        date,
        phase,
        next,
        message: format!("version {version} is deprecated{until}{reason}"),
    })
}

fn moment(text: &str) -> Option<Timestamp> {
    let day = || {
        let date = Date::from_str(text).ok().filter(|_| text.len() == "2026-12-31".len())?;
        Offset::UTC.to_timestamp(date.to_datetime(jiff::civil::Time::midnight())).ok()
    };
    day().or_else(|| Timestamp::from_str(text).ok())
}

/// Foreign text: one line, limited.
fn shorten(text: &str) -> String {
    const MAX: usize = 256;
    text.chars().take(MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
