//! What a run shows while it works: bars and counters on a terminal, a line now and then elsewhere.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tidewatch_telemetry::stdio;
use tokio::time::Instant;

/// Between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(10);

/// Counters to show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Runtimes in which all is as desired, and those that are registered.
    pub fine: usize,
    /// Those that are registered.
    pub registered: usize,
    /// Agents that have nothing left to do.
    pub agents_ready: usize,
    /// Changes whose end is waited for.
    pub pending: usize,
    /// The receiver's reconciles in the last second.
    pub reconciles: f64,
    /// Keys that wait in its queue.
    pub queue: f64,
    /// Keys that wait for their next try.
    pub retrying: f64,
    /// Its CPU time in the last second, as a share of a core.
    pub cpu: f64,
    /// Its memory in MiB.
    pub rss: f64,
}

/// Shows how it goes, on standard error: standard output is the report's.
pub struct Progress {
    bars: Option<(MultiProgress, ProgressBar, ProgressBar, ProgressBar)>,
    started: Instant,
    said: AtomicU64,
}

impl Progress {
    /// For so many runtimes.
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
        Self { bars, started: Instant::now(), said: AtomicU64::new(0) }
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        self.print(&format!("{at:7.1} s  {text}"));
    }

    fn print(&self, line: &str) {
        match &self.bars {
            Some((bars, ..)) => bars.suspend(|| stdio::note(line)),
            None => stdio::note(line),
        }
    }

    /// Shows what is going on, and how.
    pub fn show(&self, step: &str, counters: &Counters) {
        let Counters { fine, registered, agents_ready, pending, reconciles, queue, retrying, cpu, rss } =
            counters;
        let words = format!(
            "{step}: {reconciles:.0} reconciles/s, {queue:.0} waiting, {retrying:.0} to try again, {pending} pending; \
             receiver {:.0}% of a core, {rss:.0} MiB",
            cpu * 100.0
        );
        if let Some((_, desired, agents, line)) = &self.bars {
            // Until the first is registered they are of all: of none, a bar would be full.
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
        if self.said.swap(due, Ordering::Relaxed) != due {
            self.say(&format!(
                "{fine} of {registered} runtimes as desired, {agents_ready} agents at rest; {words}"
            ));
        }
    }

    /// Ends the bars.
    pub fn finish(&self) {
        if let Some((bars, ..)) = &self.bars {
            // An error: the terminal is gone.
            let _gone = bars.clear();
        }
    }
}
