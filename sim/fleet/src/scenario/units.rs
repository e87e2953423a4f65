//! Shares, rates and times in scenarios.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};
use tidewatch_fake_apiserver::script::chance;

/// `30%`, or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// From 0 to 1.
    Part(f64),
    /// A number.
    Count(usize),
}

/// `5/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

/// `250ms`, `30s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub Duration);

/// Hash of a group's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u64);

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = text(deserializer)?;
        Ok(Self(chance(0, &name).to_bits()))
    }
}

impl Share {
    /// 100 %.
    pub const fn all() -> Self {
        Self::Part(1.0)
    }

    /// Number out of `all`, rounded up.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of runtimes is far below 2^52, and the part is between 0 and 1"
    )]
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Part(part) => ((all as f64 * part).ceil() as usize).min(all),
            Self::Count(count) => count.min(all),
        }
    }

    /// A probability.
    pub const fn part(self) -> f64 {
        match self {
            Self::Part(part) => part,
            Self::Count(_) => 1.0,
        }
    }
}

impl Time {
    /// One second.
    pub const fn second() -> Self {
        Self(Duration::from_secs(1))
    }
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a word or a number is missing here")]
    enum Scalar {
        Number(u64),
        Text(String),
    }
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Number(number) => number.to_string(),
        Scalar::Text(text) => text,
    })
}

fn shown(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        let parsed = match text.strip_suffix('%') {
            Some(number) => number
                .trim()
                .parse()
                .ok()
                .filter(|n| (0.0..=100.0).contains(n))
                .map(|n: f64| Self::Part(n / 100.0)),
            None => text.parse().ok().map(Self::Count),
        };
        parsed.ok_or_else(|| {
            D::Error::custom(format!("'{}' is no share: a number, or 0% to 100%, is allowed", shown(&text)))
        })
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        let parsed = text.strip_suffix("/s").and_then(|number| number.trim().parse().ok());
        let good = parsed.filter(|rate: &f64| *rate > 0.0 && *rate <= 100_000.0);
        good.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "'{}' is no rate: a number in a second, as 5/s or 0.5/s, is allowed",
                shown(&text)
            ))
        })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let parsed = units.iter().find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            let time = number * seconds;
            (0.0..=86_400.0).contains(&time).then(|| Duration::from_secs_f64(time))
        });
        parsed.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "'{}' is no time: 250ms, 30s, 5m or 1h, up to 24h, are allowed",
                shown(&text)
            ))
        })
    }
}

/// Parses a share above 0.
pub(super) fn nonzero_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
    let share = Share::deserialize(deserializer)?;
    if matches!(share, Share::Count(0)) || share.part() <= 0.0 {
        return Err(D::Error::custom("that is nobody: 1 or more, or more than 0%, is allowed"));
    }
    Ok(share)
}

/// Parses a factor from 1 to 1000.
pub(super) fn times<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let times = f32::deserialize(deserializer)?;
    let good = (1.0..=1_000.0).contains(&times);
    good.then_some(times)
        .ok_or_else(|| D::Error::custom(format!("{times} is too little or too much: 1 to 1000 is allowed")))
}

/// Parses a number of at least 1.
pub(super) fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let count = usize::deserialize(deserializer)?;
    (count > 0).then_some(count).ok_or_else(|| D::Error::custom("at least 1 is allowed"))
}

/// Parses a status from 400 to 599.
pub(super) fn refusal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let status = u16::deserialize(deserializer)?;
    let good = (400..600).contains(&status);
    good.then_some(Some(status)).ok_or_else(|| {
        D::Error::custom(format!("{status} is no refusal: a status from 400 to 599 is allowed"))
    })
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(part) => write!(f, "{}%", part * 100.0),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in a second", self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
