//! Progress lines for people and tests.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tidewatch_telemetry::stdio;

/// A finished step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Description.
    pub what: String,
    /// Duration.
    pub took: Duration,
    /// Number of the event that caused it.
    pub seq: Option<u64>,
}

/// Receives progress.
pub trait Reporter: Send + Sync {
    /// A step has begun.
    fn working(&self, what: &str);
    /// A step has finished.
    fn done(&self, line: Line);
}

/// Prefix of begun steps.
pub const WORKING: &str = "            ... ";

/// Spinner and lines.
pub struct Terminal {
    bar: ProgressBar,
    started: tokio::time::Instant,
    say: fn(&str),
}

impl Default for Terminal {
    fn default() -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, started: tokio::time::Instant::now(), say: stdio::line }
    }
}

impl Terminal {
    /// Writes to standard error, beside a JSON result.
    #[must_use]
    pub fn beside_json() -> Self {
        Self { say: stdio::note, ..Self::default() }
    }

    /// Prints a line.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| (self.say)(text));
    }

    /// Removes the spinner.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Reporter for Terminal {
    fn working(&self, what: &str) {
        self.bar.reset_elapsed();
        self.bar.set_message(what.to_owned());
        if self.bar.is_hidden() {
            self.say(&format!("{WORKING}{what}"));
        }
    }

    fn done(&self, line: Line) {
        let Line { what, took, seq } = line;
        let at = tokio::time::Instant::now().duration_since(self.started).as_secs_f64();
        let seq = seq.map_or_else(String::new, |n| format!("  event #{n}"));
        self.say(&format!("{at:6.1} s  {what:<74} {:>8}{seq}", human(took)));
    }
}

/// Records and prints lines for tests.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<Line>>);

impl Recorder {
    /// Returns the lines.
    pub fn lines(&self) -> Vec<Line> {
        self.0.lock().clone()
    }
}

impl Reporter for Recorder {
    fn working(&self, _: &str) {}

    #[allow(clippy::print_stdout, reason = "the test harness shows it when the test fails")]
    fn done(&self, line: Line) {
        println!("{line:?}");
        self.0.lock().push(line);
    }
}

fn human(took: Duration) -> String {
    if took < Duration::from_secs(1) {
        format!("{} ms", took.as_millis())
    } else {
        format!("{:.1} s", took.as_secs_f64())
    }
}
