//! Policy reader that locates faults.

use std::str::FromStr;

use jiff::{
    civil::{Date, Time, Weekday, date},
    tz::{Offset, TimeZone, TimeZoneDatabase},
};
use serde_json::Value;

use super::{
    document::{Path, is_field},
    lint::{Kind, Level, Remark},
    matching::{Field, Match, Pattern},
    policy::{DayTime, Policy, Rule, When, WindowTimes},
};

const MAX_RULES: usize = 256;
const MAX_WINDOWS: usize = 64;
/// A list may repeat days.
const MAX_DAYS: usize = 16;
/// Characters.
const MAX_SHOWN: usize = 60;

/// Go's default time.
const MIDNIGHT: DayTime = DayTime { time: Time::midnight(), offset: Offset::UTC };
/// Go's default date.
const LONG_AGO: Date = date(1, 1, 1);

/// Invalid value.
pub(super) struct InvalidValue {
    /// Location.
    pub(super) path: Path,
    /// Cause and remedy.
    pub(super) problem: String,
}

#[derive(Clone, Copy)]
struct Moment {
    date: Option<Date>,
    at: DayTime,
}

#[derive(Default)]
pub(super) struct Reader {
    /// Oddities found.
    pub(super) remarks: Vec<Remark>,
}

impl Reader {
    pub(super) fn policy(&mut self, value: &Value) -> Result<Policy, InvalidValue> {
        let path = Path::default();
        let [rules, default] = self.fields(value, &path, ["rules", "default"])?;
        let at = path.key("rules");
        let rules = list(rules, &at, MAX_RULES)?;
        let rules = rules.iter().enumerate().map(|(n, rule)| self.rule(rule, &at.index(n)));
        let rules = rules.collect::<Result<_, _>>()?;
        let default = default.map(|d| self.times(d, &path.key("default"))).transpose()?.flatten();
        Ok(Policy { rules, default })
    }

    fn rule(&mut self, value: &Value, path: &Path) -> Result<Rule, InvalidValue> {
        let [matching, windows] = self.fields(value, path, ["match", "windows"])?;
        let matching = match matching {
            Some(value) => self.matching(value, &path.key("match"))?,
            None => Match::default(),
        };
        let at = path.key("windows");
        let windows = list(windows, &at, MAX_WINDOWS)?;
        let windows = windows.iter().enumerate().filter_map(|(n, w)| self.times(w, &at.index(n)).transpose());
        Ok(Rule { matching, windows: windows.collect::<Result<_, _>>()? })
    }

    fn matching(&mut self, value: &Value, path: &Path) -> Result<Match, InvalidValue> {
        let values = self.fields(value, path, Field::ALL.map(Field::name))?;
        let mut patterns = Vec::new();
        for (field, value) in Field::ALL.into_iter().zip(values) {
            let at = path.key(field.name());
            let text = string(value, &at)?;
            if text.is_empty() {
                continue;
            }
            let pattern = Pattern::new(text).map_err(|problem| InvalidValue { path: at.clone(), problem })?;
            if text.contains('\\') {
                self.remarks.push(Remark::new(
                    Level::Warning,
                    Kind::ReadDifferently,
                    at,
                    "the Go lifecycle manager does not undo JSON's escapes in a pattern, so it reads two backslashes \
                     where Tidewatch reads one; write the pattern without backslashes, for example [.] and [0-9]",
                ));
            }
            patterns.push((field, pattern));
        }
        Ok(Match { patterns })
    }

    /// `None` for an empty window.
    fn times(&mut self, value: &Value, path: &Path) -> Result<Option<WindowTimes>, InvalidValue> {
        let [days, begin, end, zone] = self.fields(value, path, ["days", "begin", "end", "timeZone"])?;
        if zone == Some(&Value::String(String::new())) {
            let message = "names no time zone, so the offsets that are written count; leave it out, or write one such as Europe/Berlin";
            self.remarks.push(Remark::new(Level::Warning, Kind::UnknownField, path.key("timeZone"), message));
        }
        let zone = time_zone(zone, path.key("timeZone"))?;
        let at = path.key("days");
        let names = list(days, &at, MAX_DAYS)?;
        let mut days = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let at = at.index(n);
            let name = string(Some(name), &at)?;
            match weekday(name) {
                Some(day) => days.push(day),
                None => self.remarks.push(Remark::new(
                    Level::Warning,
                    Kind::NeverMatches,
                    at,
                    format!(
                        "'{}' is no day and never comes; write Mon, Tue, Wed, Thu, Fri, Sat or Sun",
                        printable(name)
                    ),
                )),
            }
        }
        let begin = moment(begin, path.key("begin"))?;
        let end = moment(end, path.key("end"))?;
        let when = match (names.is_empty(), begin, end) {
            (true, None, None) => return Ok(None),
            (true, ..) => self.once(begin, end, path)?,
            (false, ..) => self.weekly(begin, end, path),
        };
        if zone.is_some() && matches!(when, When::Once { .. }) {
            self.remarks.push(Remark::new(
                Level::Warning,
                Kind::UnknownField,
                path.key("timeZone"),
                "is not read where begin and end have dates: their offsets count",
            ));
        }
        Ok(Some(WindowTimes { days, when, zone }))
    }

    /// Missing means midnight UTC, as in Go's zero time.
    fn weekly(&mut self, begin: Option<Moment>, end: Option<Moment>, path: &Path) -> When {
        for (key, moment) in [("begin", begin), ("end", end)] {
            if moment.is_none() {
                let message = format!("is missing, and read as 00:00:00Z; {FORMS}");
                self.remarks.push(Remark::new(Level::Warning, Kind::Missing, path.key(key), message));
            }
        }
        if [begin, end].iter().flatten().any(|moment| moment.date.is_some()) {
            self.remarks.push(Remark::new(
                Level::Warning,
                Kind::ReadDifferently,
                path.clone(),
                "has days, so the dates of its begin and end do not count, only their times",
            ));
        }
        let [begin, end] = [begin, end].map(|moment| moment.map_or(MIDNIGHT, |moment| moment.at));
        When::Weekly { begin, end }
    }

    /// In Go, a time without a date is in year 0, a missing value in year 1.
    fn once(
        &mut self,
        begin: Option<Moment>,
        end: Option<Moment>,
        path: &Path,
    ) -> Result<When, InvalidValue> {
        let fault = |moment: Option<Moment>| if moment.is_some() { "has no date" } else { "is missing" };
        let Some((last, until)) = end.and_then(|end| Some((end.date?, end.at))) else {
            let message = format!("{}, and the window has no days, so it never comes; {FORMS}", fault(end));
            self.remarks.push(Remark::new(Level::Warning, Kind::NeverMatches, path.key("end"), message));
            return Ok(When::Never);
        };
        let first = begin.and_then(|begin| begin.date);
        if first.is_none() {
            let message = format!(
                "{}, and the window has no days, so it has been open since long ago, until its end; {FORMS}",
                fault(begin)
            );
            self.remarks.push(Remark::new(Level::Warning, Kind::Missing, path.key("begin"), message));
        }
        let from = begin.map_or(MIDNIGHT, |begin| begin.at);
        let time = |date: Date, at: DayTime| at.offset.to_timestamp(date.to_datetime(at.time));
        match (time(first.unwrap_or(LONG_AGO), from), time(last, until)) {
            (Ok(begin), Ok(end)) => Ok(When::Once { begin, end }),
            _ => Err(InvalidValue { path: path.clone(), problem: "is too far from today".into() }),
        }
    }

    fn fields<'v, const N: usize>(
        &mut self,
        value: &'v Value,
        path: &Path,
        names: [&'static str; N],
    ) -> Result<[Option<&'v Value>; N], InvalidValue> {
        let object = match value {
            Value::Object(object) => object,
            Value::Null => return Ok([None; N]),
            other => return Err(type_error(other, "an object", path)),
        };
        let keys = names.map(|name| match object.get_key_value(name) {
            Some((key, _)) => Some(key),
            None => object.keys().find(|key| is_field(key, name)),
        });
        for key in object.keys().filter(|key| !keys.contains(&Some(*key))) {
            let message = format!("is not read; known here are {}", names.join(", "));
            self.remarks.push(Remark::new(
                Level::Warning,
                Kind::UnknownField,
                path.key(&printable(key)),
                message,
            ));
        }
        Ok(keys.map(|key| key.and_then(|key| object.get(key))))
    }
}

fn list<'v>(value: Option<&'v Value>, path: &Path, limit: usize) -> Result<&'v [Value], InvalidValue> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) if items.len() <= limit => Ok(items),
        Some(Value::Array(items)) => {
            let problem = format!("has {} items, the limit is {limit}", items.len());
            Err(InvalidValue { path: path.clone(), problem })
        }
        Some(other) => Err(type_error(other, "a list", path)),
    }
}

fn string<'v>(value: Option<&'v Value>, path: &Path) -> Result<&'v str, InvalidValue> {
    match value {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(type_error(other, "a string", path)),
    }
}

fn type_error(value: &Value, wanted: &str, path: &Path) -> InvalidValue {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    InvalidValue { path: path.clone(), problem: format!("is {is}, not {wanted}") }
}

const FORMS: &str = "with days write a time with its offset, such as 01:00:00+00:00, without days a date too, such as \
                     2026-03-07T01:00:00Z";

/// The bundled IANA database gives equal results everywhere.
fn time_zone(value: Option<&Value>, path: Path) -> Result<Option<TimeZone>, InvalidValue> {
    let name = string(value, &path)?;
    if name.is_empty() {
        return Ok(None);
    }
    // Two names denote no place.
    let is_location = |zone: &TimeZone| !zone.is_unknown() && !name.eq_ignore_ascii_case("Factory");
    TimeZoneDatabase::bundled().get(name).ok().filter(is_location).map(Some).ok_or_else(|| InvalidValue {
        path,
        problem: format!("'{}' is no time zone; write one of IANA's, such as Europe/Berlin", printable(name)),
    })
}

/// Go's reader also rejects `null` and the empty string.
fn moment(value: Option<&Value>, path: Path) -> Result<Option<Moment>, InvalidValue> {
    let Some(value) = value else { return Ok(None) };
    let Value::String(text) = value else { return Err(type_error(value, "a string", &path)) };
    let (date, time) = match text.as_str().split_once('T') {
        Some((date, time)) => (Some(date), time),
        None => (None, text.as_str()),
    };
    let date = date.map(|d| Date::from_str(d).ok().filter(|_| d.len() == "2026-03-07".len()));
    match (date, day_time(time)) {
        (Some(None), _) | (_, None) => {
            Err(InvalidValue { path, problem: format!("'{}' is not a time; {FORMS}", printable(text)) })
        }
        (date, Some(at)) => Ok(Some(Moment { date: date.flatten(), at })),
    }
}

/// `15:04:05` with `Z` or `+01:00`; fractions are dropped.
fn day_time(text: &str) -> Option<DayTime> {
    let (clock, rest) = text.split_at_checked("15:04:05".len())?;
    let zone = match rest.strip_prefix('.') {
        None => rest,
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            (zone.len() < fraction.len()).then_some(zone)?
        }
    };
    let [hour, minute, second] = numbers(clock)?;
    let offset = match zone.split_at_checked(1)? {
        ("Z", "") => 0,
        (sign @ ("+" | "-"), offset) => {
            let [hours, minutes] = numbers(offset)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            (i32::from(hours) * 3600 + i32::from(minutes) * 60) * if sign == "-" { -1 } else { 1 }
        }
        _ => return None,
    };
    let time = Time::new(hour, minute, second, 0).ok()?;
    Some(DayTime { time, offset: Offset::from_seconds(offset).ok()? })
}

fn numbers<const N: usize>(text: &str) -> Option<[i8; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(':');
    for number in &mut numbers {
        let part = parts.next()?;
        if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn weekday(name: &str) -> Option<Weekday> {
    Some(match name {
        "Mon" => Weekday::Monday,
        "Tue" => Weekday::Tuesday,
        "Wed" => Weekday::Wednesday,
        "Thu" => Weekday::Thursday,
        "Fri" => Weekday::Friday,
        "Sat" => Weekday::Saturday,
        "Sun" => Weekday::Sunday,
        _ => return None,
    })
}

/// Shortened value without control or invisible characters.
pub(super) fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() || is_invisible(c) { '?' } else { c };
    let mut shown: String = text.chars().take(MAX_SHOWN).map(plain).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

pub(super) const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}'
    )
}
