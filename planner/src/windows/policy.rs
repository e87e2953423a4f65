//! The policy's JSON.

use jiff::{
    Timestamp,
    civil::{Time, Weekday},
    tz::{Offset, TimeZone},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::{lint::Remark, matching::Match, read::Reader};

/// Largest file, in bytes.
pub const MAX_POLICY: usize = 256 * 1024;
/// When updates that need a downtime may be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    pub(super) rules: Vec<Rule>,
    pub(super) default: Option<Times>,
}

/// Windows for some of the Kymas.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which.
    pub matching: Match,
    /// Their windows.
    pub windows: Vec<Times>,
}

/// A window as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    pub(super) days: Vec<Weekday>,
    pub(super) when: When,
    pub(super) zone: Option<TimeZone>,
}

/// How a window comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// On its days, which are those of its begin.
    Weekly {
        /// Its begin on each day.
        begin: DayTime,
        /// Its end: on the same day, or the next one where it is not after the begin.
        end: DayTime,
    },
    /// Once.
    Once {
        /// Its begin.
        begin: Timestamp,
        /// Its end.
        end: Timestamp,
    },
    /// It has no days, and its end no date: to the Go lifecycle manager that is long past.
    Never,
}

/// A time of day, with a fixed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayTime {
    /// The time there.
    pub time: Time,
    /// Where.
    pub offset: Offset,
}

/// Why a policy cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Too much.
    #[error("the maintenance policy has {size} bytes, the limit is {MAX_POLICY}; make it smaller")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// No JSON.
    #[error("the maintenance policy is not JSON: line {line}, column {column}: {problem}; mend it there")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// A value that means nothing.
    #[error("the maintenance policy cannot be used: line {line}, {field}: {problem}")]
    Field {
        /// From 1.
        line: usize,
        /// For example `rules[0].windows[1].begin`.
        field: String,
        /// What is wrong, and what is right.
        problem: String,
    },
}

impl PolicyError {
    /// The line that it is about, from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        match self {
            Self::TooLarge { .. } => 1,
            Self::Syntax { line, .. } | Self::Field { line, .. } => *line,
        }
    }

    /// The field that it is about, if it is about one.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            _ => None,
        }
    }
}

impl Policy {
    /// Reads a policy. Fields that are not known are passed over, as the Go lifecycle manager does, and [`lint()`]
    /// tells of them; so do days that are none, which make a window that never comes.
    ///
    /// [`lint()`]: super::lint()
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        Self::read(text).map(|(policy, _)| policy)
    }

    /// The rules; the first one that matches counts.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The window for all whose rule has none left; none or one.
    pub(super) fn default_window(&self) -> &[Times] {
        self.default.as_slice()
    }

    /// A policy, and what is odd about how it is written.
    pub(super) fn read(text: &str) -> Result<(Self, Vec<Remark>), PolicyError> {
        if text.len() > MAX_POLICY {
            return Err(PolicyError::TooLarge { size: text.len() });
        }
        let value: Value = serde_json::from_str(text).map_err(|error| PolicyError::Syntax {
            line: error.line(),
            column: error.column(),
            problem: {
                let words = error.to_string();
                words.split(" at line ").next().unwrap_or_default().to_owned()
            },
        })?;
        let mut reader = Reader::default();
        let policy = reader.policy(&value).map_err(|bad| PolicyError::Field {
            line: bad.path.line(text),
            field: bad.path.to_string(),
            problem: bad.problem,
        })?;
        Ok((policy, reader.remarks))
    }
}

/// For those who have the policy in a larger document; without lines in its errors.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut reader = Reader::default();
        reader.policy(&value).map_err(|bad| D::Error::custom(format!("{}: {}", bad.path, bad.problem)))
    }
}

impl Times {
    /// How it comes.
    #[must_use]
    pub fn when(&self) -> When {
        self.when
    }

    /// Whose clock a weekly window follows, if not the offsets that its times are written with: a field of ours.
    #[must_use]
    pub const fn zone(&self) -> Option<&TimeZone> {
        self.zone.as_ref()
    }

    /// Whether it begins on such a day.
    #[must_use]
    pub fn on(&self, day: Weekday) -> bool {
        self.days.contains(&day)
    }

    /// Whether it can come at all.
    pub(super) fn comes(&self) -> bool {
        match self.when {
            When::Weekly { .. } => !self.days.is_empty(),
            When::Once { begin, end } => begin < end,
            When::Never => false,
        }
    }
}
