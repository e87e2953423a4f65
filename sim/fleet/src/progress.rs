//! Progress display: bars on a terminal, lines elsewhere.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tidewatch_telemetry::stdio;
use tokio::time::Instant;

/// Line interval.
const LINE: Duration = Duration::from_secs(10);

/// Counters to show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Runtimes as desired.
    pub fine: usize,
    /// Registered runtimes.
    pub registered: usize,
    /// Agents at rest.
    pub agents_ready: usize,
    /// Unfinished changes.
    pub pending: usize,
    /// Reconciles per second.
    pub reconciles: f64,
    /// Keys ready in the queue.
    pub queue: f64,
    /// Keys waiting for a retry.
    pub retrying: f64,
    /// CPU time, as a share of a core.
    pub cpu: f64,
    /// Memory, in MiB.
    pub rss: f64,
}

/// Progress on standard error; standard output is for the report.
pub struct Progress {
    bars: Option<(MultiProgress, ProgressBar, ProgressBar, ProgressBar)>,
    started: Instant,
    last_line: AtomicU64,
}

impl Progress {
    /// Creates the display.
    pub fn new(runtimes: usize) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let bar = |words: &str| {
                let bar = all.add(ProgressBar::new(runtimes as u64));
                let style = format!("  {words:<22} [{{bar:40}}] {{pos}}/{{len}}");
                if let Ok(style) = ProgressStyle::with_template(&style) {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar
            };
            let (fine, agents) = (bar("runtimes as desired"), bar("agents at rest"));
            let line = all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} ({elapsed})") {
                line.set_style(style);
            }
            line.enable_steady_tick(Duration::from_millis(200));
            (all, fine, agents, line)
        });
        Self { bars, started: Instant::now(), last_line: AtomicU64::new(0) }
    }

    /// Prints a permanent line.
    pub fn message(&self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        self.print(&format!("{at:7.1} s  {text}"));
    }

    fn print(&self, line: &str) {
        match &self.bars {
            Some((bars, ..)) => bars.suspend(|| stdio::note(line)),
            None => stdio::note(line),
        }
    }

    /// Shows step and counters.
    pub fn show(&self, step: &str, counters: &Counters) {
        let Counters { fine, registered, agents_ready, pending, reconciles, queue, retrying, cpu, rss } =
            counters;
        let words = format!(
            "{step}: {reconciles:.0} reconciles/s, {queue:.0} waiting, {retrying:.0} to try again, {pending} pending; \
             receiver {:.0}% of a core, {rss:.0} MiB",
            cpu * 100.0
        );
        if let Some((_, desired, agents, line)) = &self.bars {
            // A bar of length 0 looks full.
            if *registered > 0 {
                desired.set_length(*registered as u64);
                agents.set_length(*registered as u64);
            }
            desired.set_position(*fine as u64);
            agents.set_position(*agents_ready as u64);
            line.set_message(words);
            return;
        }
        let due = self.started.elapsed().as_secs() / LINE.as_secs();
        if self.last_line.swap(due, Ordering::Relaxed) != due {
            self.message(&format!(
                "{fine} of {registered} runtimes as desired, {agents_ready} agents at rest; {words}"
            ));
        }
    }

    /// Removes the bars.
    pub fn finish(&self) {
        if let Some((bars, ..)) = &self.bars {
            let _gone = bars.clear();
        }
    }
}
