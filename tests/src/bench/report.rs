//! Figures, goals and yardsticks as JSON and as a table.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// No goal.
    None,
    /// At most this, in the figure's unit.
    AtMost(f64),
    /// At least this, in the figure's unit.
    AtLeast(f64),
    /// At most this many times the yardstick of the same run.
    RatioAtMost(f64),
    /// At least this many times the yardstick of the same run.
    RatioAtLeast(f64),
}

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) goal: Goal,
    /// The yardstick, and whether it was measured in this run or recorded.
    pub(super) yardstick: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) value: f64,
    /// The yardstick's value in the figure's unit.
    pub(super) against: Option<f64>,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Name of the measurement.
    pub name: String,
    /// The figure, if the measurement succeeded.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// The goal, such as `<= 10 ms` or `<= 2 x yardstick`.
    pub goal: Option<String>,
    /// Whether the goal is met. Without a goal: whether a figure exists.
    pub met: bool,
    /// The yardstick.
    pub yardstick: String,
    /// Figure divided by yardstick.
    pub ratio: Option<f64>,
    /// The command that repeats the measurement.
    pub command: String,
}

/// All entries.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Report {
    entries: Vec<Entry>,
    #[serde(skip)]
    command: String,
}

impl Goal {
    fn text(self, unit: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(format!("<= {} {unit}", short(limit))),
            Self::AtLeast(limit) => Some(format!(">= {} {unit}", short(limit))),
            Self::RatioAtMost(limit) => Some(format!("<= {} x yardstick", short(limit))),
            Self::RatioAtLeast(limit) => Some(format!(">= {} x yardstick", short(limit))),
        }
    }

    fn met(self, value: Option<f64>, ratio: Option<f64>) -> bool {
        match self {
            Self::None => value.is_some(),
            Self::AtMost(limit) => value.is_some_and(|v| v <= limit),
            Self::AtLeast(limit) => value.is_some_and(|v| v >= limit),
            Self::RatioAtMost(limit) => ratio.is_some_and(|r| r <= limit),
            Self::RatioAtLeast(limit) => ratio.is_some_and(|r| r >= limit),
        }
    }
}

impl Report {
    pub(super) fn new(command: &str) -> Self {
        Self { entries: Vec::new(), command: command.to_owned() }
    }

    /// Adds an entry per spec. A spec without a figure has not met its goal.
    pub(super) fn add(&mut self, specs: Vec<Spec>, figures: Vec<Figure>) {
        let mut figures = figures.into_iter();
        for spec in specs {
            self.push(spec, figures.next());
        }
    }

    pub(super) fn extend(&mut self, measured: Vec<(Spec, Option<Figure>)>) {
        for (spec, figure) in measured {
            self.push(spec, figure);
        }
    }

    fn push(&mut self, spec: Spec, figure: Option<Figure>) {
        let Spec { name, unit, goal, yardstick } = spec;
        let value = figure.map(|f| f.value).filter(|v| v.is_finite());
        let against = figure.and_then(|f| f.against).filter(|a| *a > 0.0);
        let ratio = value.zip(against).map(|(value, against)| round(value / against));
        self.entries.push(Entry {
            name,
            value: value.map(round),
            unit: unit.to_owned(),
            goal: goal.text(unit),
            met: goal.met(value, ratio),
            yardstick,
            ratio,
            command: self.command.clone(),
        });
    }

    /// Returns an aligned text table.
    pub fn table(&self) -> String {
        let header = ["what", "value", "goal", "met", "ratio", "yardstick"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(header)
            .chain(self.entries.iter().map(|e| {
                let value = e.value.map_or_else(|| "-".to_owned(), |v| format!("{} {}", short(v), e.unit));
                let goal = e.goal.clone().unwrap_or_else(|| "-".to_owned());
                let met = if e.met { "yes" } else { "NO" }.to_owned();
                let ratio = e.ratio.map_or_else(|| "-".to_owned(), short);
                [e.name.clone(), value, goal, met, ratio, e.yardstick.clone()]
            }))
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        let mut text = String::new();
        for [what, value, goal, met, ratio, yardstick] in &rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{what:<0$}  {value:>1$}  {goal:>2$}  {met:<3$}  {ratio:>4$}  {yardstick}",
                widths[0], widths[1], widths[2], widths[3], widths[4]
            );
        }
        text
    }

    /// Writes the JSON list.
    pub fn write(&self, file: &Path) -> Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let text = serde_json::to_string_pretty(self)?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Rounds to four significant digits; the rest is noise.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10_f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

fn short(value: f64) -> String {
    format!("{}", round(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, goal: Goal) -> Spec {
        Spec { name: name.into(), unit: "ms", goal, yardstick: "bare".into() }
    }

    #[test]
    fn a_missing_figure_is_a_missed_goal() {
        let mut report = Report::new("make bench");
        let specs =
            vec![spec("a", Goal::AtMost(5.0)), spec("b", Goal::RatioAtMost(2.0)), spec("c", Goal::None)];
        report.add(specs, vec![Figure { value: 4.0, against: Some(2.0) }]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json[0],
            serde_json::json!({"name": "a", "value": 4.0, "unit": "ms", "goal": "<= 5 ms", "met": true,
                               "yardstick": "bare", "ratio": 2.0, "command": "make bench"})
        );
        for missing in [&json[1], &json[2]] {
            assert_eq!((&missing["value"], &missing["met"]), (&serde_json::Value::Null, &false.into()));
        }
    }

    #[test]
    fn goals_are_compared_in_their_direction() {
        assert!(Goal::AtLeast(5.0).met(Some(6.0), None) && !Goal::AtLeast(5.0).met(Some(4.0), None));
        assert!(!Goal::AtMost(5.0).met(Some(6.0), None));
        assert!(
            Goal::RatioAtMost(2.0).met(Some(100.0), Some(2.0))
                && !Goal::RatioAtMost(2.0).met(Some(1.0), None)
        );
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "they are rounded to these")]
    fn figures_have_four_digits() {
        assert_eq!([round(12_345.6), round(0.001_234_56), round(0.0)], [12_350.0, 0.001_235, 0.0]);
    }

    #[test]
    fn the_table_is_aligned() {
        let mut report = Report::new("x");
        report.add(
            vec![spec("longer name", Goal::None), spec("b", Goal::None)],
            vec![Figure { value: 1.5, against: None }],
        );
        let table = report.table();
        let columns: Vec<usize> =
            table.lines().map(|l| l.rfind("bare").or(l.rfind("yardstick")).unwrap()).collect();
        assert!(columns.windows(2).all(|w| w[0] == w[1]), "{table}");
    }
}
