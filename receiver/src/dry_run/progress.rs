//! Progress on standard error.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use tidewatch_telemetry::stdio;
use tokio::time::Instant;

const LINE: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    printed_at: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) =
                ProgressStyle::with_template("  runtimes looked at [{bar:40}] {pos}/{len} ({elapsed})")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar, printed_at: Instant::now() }
    }

    pub(super) fn show(&mut self, done: usize, all: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        } else if self.printed_at.elapsed() >= LINE {
            self.printed_at = Instant::now();
            stdio::note(&format!("{done} of {all} runtimes looked at"));
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
