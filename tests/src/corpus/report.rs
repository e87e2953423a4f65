//! The findings as a table and as JSON.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

/// Most reasons displayed per check.
const MAX_SHOWN: usize = 10;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "camelCase")]
pub enum Check {
    /// An earlier failure prevented it.
    #[default]
    NotMade,
    /// It passed.
    Passed {
        /// A remark.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It failed.
    Failed {
        /// One line per reason.
        why: Vec<String>,
    },
}

impl Check {
    /// Passes if `why` is empty.
    #[must_use]
    pub fn of(why: Vec<String>) -> Self {
        if why.is_empty() { Self::Passed { note: None } } else { Self::Failed { why } }
    }

    /// Failed for one reason.
    #[must_use]
    pub fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: vec![why.into()] }
    }

    /// Returns whether the check passed.
    #[must_use]
    pub const fn holds(&self) -> bool {
        matches!(self, Self::Passed { .. })
    }

    const fn word(&self) -> &'static str {
        match self {
            Self::NotMade => "not made",
            Self::Passed { .. } => "yes",
            Self::Failed { .. } => "NO",
        }
    }
}

/// The findings about one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The file's name.
    pub file: String,
    /// Number of objects.
    pub objects: usize,
    /// The module is Ready or correctly not Ready.
    pub ready: Check,
    /// Seconds from the entry in the runtime's Kyma to that state.
    pub ready_seconds: Option<f64>,
    /// Seconds of `kubectl apply --server-side`, if all objects are accepted.
    pub kubectl_seconds: Option<f64>,
    /// Each object equals kubectl's.
    pub equal: Check,
    /// A restarted receiver wrote nothing and logged no drift.
    pub quiet: Check,
    /// Nothing changed during the observation.
    pub no_fight: Check,
    /// The removal restored the initial state.
    pub removed: Check,
}

impl Row {
    /// Returns whether all checks passed.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.checks().iter().all(|(_, check)| check.holds())
    }

    const fn checks(&self) -> [(&'static str, &Check); 5] {
        [
            ("ready", &self.ready),
            ("equal", &self.equal),
            ("quiet", &self.quiet),
            ("no fight", &self.no_fight),
            ("removed", &self.removed),
        ]
    }
}

/// Converts a duration to seconds, to the millisecond.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a run has less milliseconds than that")]
pub fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// Formats the rows, with remarks below.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = "| file | objects | ready or rightly not | after | kubectl | equal | quiet after restart | no fight | removed |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
    for row in rows {
        let [ready, equal, quiet, no_fight, removed] = row.checks().map(|(_, check)| check.word());
        let (ours, theirs) = (time(row.ready_seconds), time(row.kubectl_seconds));
        let Row { file, objects, .. } = row;
        let _ = writeln!(
            text,
            "| {file} | {objects} | {ready} | {ours} | {theirs} | {equal} | {quiet} | {no_fight} | {removed} |"
        );
    }
    for row in rows {
        for (name, check) in row.checks() {
            let lines = match check {
                Check::Passed { note: Some(note) } => std::slice::from_ref(note),
                Check::Failed { why } => why,
                _ => &[],
            };
            for line in lines.iter().take(MAX_SHOWN) {
                let _ = write!(text, "\n{}, {name}: {line}", row.file);
            }
            if lines.len() > MAX_SHOWN {
                let _ = write!(text, "\n{}, {name}: and {} more", row.file, lines.len() - MAX_SHOWN);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_passes_only_if_every_check_does() {
        let passed = Check::of(Vec::new());
        let mut row = Row {
            file: "a.yaml".to_owned(),
            objects: 3,
            ready: Check::Passed { note: Some("Service n/x: there is no load balancer here".to_owned()) },
            ready_seconds: Some(seconds(Duration::from_millis(1_234))),
            equal: passed.clone(),
            quiet: passed.clone(),
            no_fight: passed.clone(),
            removed: passed,
            ..Row::default()
        };
        assert!(row.passes());
        assert!(table(&[row.clone()]).contains("| a.yaml | 3 | yes | 1.2 s | - | yes | yes | yes | yes |"));
        row.removed = Check::of((0..12).map(|n| format!("left: {n}")).collect());
        assert!(!row.passes());
        let told = table(&[row.clone()]);
        assert!(told.contains("yes | NO |") && told.contains("a.yaml, ready: Service n/x"), "{told}");
        assert!(told.contains("removed: left: 9") && told.ends_with("removed: and 2 more"), "{told}");
        row.removed = Check::default();
        assert!(!row.passes(), "not made is not passed");
    }
}
