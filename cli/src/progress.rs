//! A progress bar.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Only shown on a terminal.
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Default for Bar {
    fn default() -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) = ProgressStyle::with_template("  {msg} {bar:40} {percent}% ({elapsed}, {eta} left)")
        {
            bar.set_style(style);
        }
        Self { bar }
    }
}

impl Bar {
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Sets the position; hidden unless `large`.
    pub(crate) fn show(&self, action: &'static str, done: u64, of: u64, large: bool) {
        if !large || !std::io::stderr().is_terminal() {
            return;
        }
        if self.bar.is_hidden() || self.bar.length() != Some(of) {
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            self.bar.set_length(of);
            self.bar.set_message(action);
        }
        self.bar.set_position(done);
    }
}
