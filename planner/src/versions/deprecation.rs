//! Versions that end.

use std::str::FromStr;

use jiff::{SignedDuration, Timestamp, civil::Date, tz::Offset};

/// What is said of a version's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The version.
    pub version: &'a str,
    /// Until when it may be used: a date, or a time with an offset.
    pub deprecation_date: Option<&'a str>,
    /// For its users: why, and what to do.
    pub deprecation_message: Option<&'a str>,
}

/// How long before its end a version's users are warned.
pub const NEAR: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How far a version's end is. Each phase has its own way to tell the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Known, and shown in the module's message.
    Announced,
    /// Within [`NEAR`]: a Warning Event too.
    Near,
    /// Over: the module's state is Warning.
    Ended,
}

/// The end of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// When; none where no date is given, or one that cannot be read.
    pub date: Option<Timestamp>,
    /// How far.
    pub phase: Phase,
    /// When the phase changes, which is when to look again.
    pub next: Option<Timestamp>,
    /// For the user. It stays the same within a phase.
    pub message: String,
}

/// What `versions`, as the release meta lists them, say about the end of `version`; none for one that goes on.
///
/// A date means its first moment in UTC. A date that cannot be read does not hide the message.
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

/// What somebody else wrote, on one line and not too long.
fn shorten(text: &str) -> String {
    const MAX: usize = 256;
    text.chars().take(MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
