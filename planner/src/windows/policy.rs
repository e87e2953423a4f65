//! Policy as JSON.

use jiff::{
    Timestamp,
    civil::{Time, Weekday},
    tz::{Offset, TimeZone},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::{lint::Remark, matching::Match, read::Reader};

/// Bytes.
pub const MAX_POLICY: usize = 256 * 1024;
/// Maintenance windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    pub(super) rules: Vec<Rule>,
    pub(super) default: Option<WindowTimes>,
}

/// Windows for some Kymas.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Selection.
    pub matching: Match,
    /// Windows.
    pub windows: Vec<WindowTimes>,
}

/// Window as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowTimes {
    pub(super) days: Vec<Weekday>,
    pub(super) when: When,
    pub(super) zone: Option<TimeZone>,
}

/// Recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// On the days of its begin.
    Weekly {
        /// Daily begin.
        begin: DayTime,
        /// End, on the next day unless after the begin.
        end: DayTime,
    },
    /// Once.
    Once {
        /// Begin.
        begin: Timestamp,
        /// End.
        end: Timestamp,
    },
    /// Neither days nor end date: past for the Go lifecycle manager.
    Never,
}

/// Time with offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayTime {
    /// Local time.
    pub time: Time,
    /// Offset.
    pub offset: Offset,
}

/// Unusable policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Too large.
    #[error("the maintenance policy has {size} bytes, the limit is {MAX_POLICY}; make it smaller")]
    TooLarge {
        /// Bytes.
        size: usize,
    },
    /// Invalid JSON.
    #[error("the maintenance policy is not JSON: line {line}, column {column}: {problem}; mend it there")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// Cause.
        problem: String,
    },
    /// Invalid value.
    #[error("the maintenance policy cannot be used: line {line}, {field}: {problem}")]
    Field {
        /// From 1.
        line: usize,
        /// Such as `rules[0].windows[1].begin`.
        field: String,
        /// Cause and remedy.
        problem: String,
    },
}

impl PolicyError {
    /// Line from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        match self {
            Self::TooLarge { .. } => 1,
            Self::Syntax { line, .. } | Self::Field { line, .. } => *line,
        }
    }

    /// Affected field.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            _ => None,
        }
    }
}

impl Policy {
    /// Parses a policy. Like the Go lifecycle manager, it ignores unknown fields and invalid days.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        Self::read(text).map(|(policy, _)| policy)
    }

    /// Rules; the first match applies.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Default window, if any.
    pub(super) fn default_window(&self) -> &[WindowTimes] {
        self.default.as_slice()
    }

    /// Policy and remarks.
    pub(super) fn read(text: &str) -> Result<(Self, Vec<Remark>), PolicyError> {
        if text.len() > MAX_POLICY {
            return Err(PolicyError::TooLarge { size: text.len() });
        }
        let value: Value = serde_json::from_str(text).map_err(|error| PolicyError::Syntax {
            line: error.line(),
            column: error.column(),
            problem: {
                let message = error.to_string();
                message.split(" at line ").next().unwrap_or_default().to_owned()
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

/// For embedded policies; errors lack lines.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut reader = Reader::default();
        reader.policy(&value).map_err(|bad| D::Error::custom(format!("{}: {}", bad.path, bad.problem)))
    }
}

impl WindowTimes {
    /// Recurrence.
    #[must_use]
    pub fn when(&self) -> When {
        self.when
    }

    /// Time zone of a weekly window, which overrides written offsets.
    #[must_use]
    pub const fn zone(&self) -> Option<&TimeZone> {
        self.zone.as_ref()
    }

    /// Returns whether it begins on this day.
    #[must_use]
    pub fn begins_on(&self, day: Weekday) -> bool {
        self.days.contains(&day)
    }

    /// Returns whether it can occur.
    pub(super) fn can_occur(&self) -> bool {
        match self.when {
            When::Weekly { .. } => !self.days.is_empty(),
            When::Once { begin, end } => begin < end,
            When::Never => false,
        }
    }
}
