//! What happened, line by line, for people who watch and for tests that check.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tidewatch_telemetry::stdio;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What.
    pub what: String,
    /// How long it took.
    pub took: Duration,
    /// The number of the agent's event that caused it, if one did.
    pub seq: Option<u64>,
}

/// Hears of progress.
pub trait Reporter: Send + Sync {
    /// Something that takes a while has begun.
    fn working(&self, what: &str);
    /// Something has happened.
    fn done(&self, line: Line);
}

/// Before what is going on, where there is no terminal.
pub const WORKING: &str = "            ... ";

/// For a terminal: a moving line while something is going on, one line for each thing that happened.
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
        Self { bar, started: tokio::time::Instant::now(), say: stdio::say }
    }
}

impl Terminal {
    /// The same where the result goes to standard output as JSON: all lines go to standard error.
    #[must_use]
    pub fn beside_json() -> Self {
        Self { say: stdio::note, ..Self::default() }
    }

    /// Prints a line as it is.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| (self.say)(text));
    }

    /// Ends the moving line.
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

/// For tests: remembers the lines, and prints them for the log of a failed one.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<Line>>);

impl Recorder {
    /// What happened so far.
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
