//! Counters of each second, and phases.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidewatch_fake_apiserver::script::Counted;
use tokio::{sync::watch, time::Instant};

use crate::{
    agents::Agents,
    fleet::Fleet,
    metrics::{Histogram, Page},
    oracle::Oracle,
    progress::Counters,
    receiver::Receiver,
    report::{AgentsReport, Calls, Phase},
    usage::Usage,
};

/// Shortest interval of a rate: a phase begins with an extra sample.
const LEAST: Duration = Duration::from_millis(900);
const PREFIX: &str = "tidewatch_receiver";

pub(super) struct Live {
    fleet: Arc<Fleet>,
    oracle: Arc<Oracle>,
    processes: Option<(Arc<Receiver>, Arc<Agents>)>,
    now: Mutex<Now>,
    broken: watch::Sender<Option<String>>,
    begun: Instant,
}

#[derive(Default)]
struct Now {
    step: String,
    page: Option<Page>,
    /// Start of a rate: time, reconciles, CPU time.
    since: Option<(Instant, f64, f64)>,
    cpu: f64,
    totals: Totals,
    counters: Counters,
    agents: AgentsReport,
    phase: Option<Begun>,
    phases: Vec<Phase>,
}

#[derive(Clone, Default)]
struct Totals {
    reconciles: f64,
    failed: f64,
    queued: Histogram,
    peak_rate: f64,
    peak_queue: f64,
}

struct Begun {
    name: String,
    at: Instant,
    totals: Totals,
    cpu: f64,
    calls: Vec<Counted>,
}

impl Live {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        oracle: Arc<Oracle>,
        processes: Option<(Arc<Receiver>, Arc<Agents>)>,
    ) -> Self {
        let (now, broken) = (Mutex::default(), watch::Sender::new(None));
        Self { fleet, oracle, processes, now, broken, begun: Instant::now() }
    }

    pub(super) fn enter(&self, step: &str) {
        step.clone_into(&mut self.now.lock().step);
    }

    pub(super) fn step(&self) -> String {
        self.now.lock().step.clone()
    }

    pub(super) fn counters(&self) -> Counters {
        self.now.lock().counters
    }

    pub(super) fn agents(&self) -> Option<AgentsReport> {
        self.processes.as_ref().map(|_| self.now.lock().agents.clone())
    }

    /// Resolves when receiver or agents end.
    pub(super) fn broken(&self) -> impl Future<Output = String> + use<> {
        let mut broken = self.broken.subscribe();
        async move {
            let error = broken.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
            match error {
                Some(error) => error,
                None => std::future::pending().await,
            }
        }
    }

    pub(super) async fn sample(&self) {
        let registered =
            self.oracle.world(|world| world.runtimes.iter().filter(|wish| wish.registered).count());
        let waiting =
            (0..self.fleet.runtimes.len()).filter(|runtime| self.oracle.is_pending(*runtime)).count();
        let pending = self.oracle.pending();
        let mut page = None;
        if let Some((receiver, agents)) = &self.processes {
            page = receiver.metrics().await;
            let ended = agents.process().ended();
            let agents_ended = ended.map(|status| {
                format!("the agents' process has ended with {status}: {}", agents.process().log_tail(5))
            });
            if let Some(why) = receiver.has_failed().await.or(agents_ended) {
                self.broken.send_replace(Some(why));
            }
        }
        let mut now = self.now.lock();
        now.counters.registered = registered;
        now.counters.fine = registered.saturating_sub(waiting);
        now.counters.pending = pending;
        let Some((receiver, agents)) = &self.processes else { return };
        let state = agents.state();
        let usage = Usage::of(agents.pid()).unwrap_or_default();
        now.counters.agents_ready = state.ready;
        now.agents = AgentsReport {
            connected: now.agents.connected.max(state.connected),
            failures: state.failures,
            cpu_seconds: usage.cpu.max(now.agents.cpu_seconds),
            peak_mib: usage.peak.max(now.agents.peak_mib),
        };
        now.take(page, receiver.usage());
    }

    pub(super) async fn begin(&self, name: &str) {
        self.sample().await;
        self.close();
        let calls = self.fleet.tally.counts();
        let mut now = self.now.lock();
        (now.totals.peak_rate, now.totals.peak_queue) = (0.0, 0.0);
        let (totals, cpu) = (now.totals.clone(), now.cpu);
        now.phase = Some(Begun { name: name.to_owned(), at: Instant::now(), totals, cpu, calls });
    }

    pub(super) async fn end(&self) -> Vec<Phase> {
        self.sample().await;
        self.close();
        self.now.lock().phases.clone()
    }

    fn close(&self) {
        let calls = self.fleet.tally.counts();
        let usage = self.processes.as_ref().map(|(receiver, _)| receiver.usage()).unwrap_or_default();
        let mut now = self.now.lock();
        let Some(begun) = now.phase.take() else { return };
        let queued = now.totals.queued.since(&begun.totals.queued);
        // Quantiles are estimates, bounded by the run.
        let oldest = self.begun.elapsed().as_secs_f64();
        let phase = Phase {
            name: begun.name,
            seconds: begun.at.elapsed().as_secs_f64(),
            reconciles: now.totals.reconciles - begun.totals.reconciles,
            reconciles_failed: now.totals.failed - begun.totals.failed,
            reconciles_peak: now.totals.peak_rate,
            queue_age: [0.5, 0.95, 0.99].map(|share| queued.quantile(share).map(|age| age.min(oldest))),
            queue_peak: now.totals.peak_queue,
            receiver_cpu_seconds: now.cpu - begun.cpu,
            receiver_peak_mib: usage.peak,
            receiver_end_mib: usage.rss,
            calls: calls_since(&begun.calls, &calls, now.counters.registered),
        };
        now.phases.push(phase);
    }
}

impl Now {
    fn take(&mut self, page: Option<Page>, usage: Usage) {
        self.counters.rss = usage.rss;
        self.cpu = usage.cpu;
        // A later page has this interval.
        if let Some(page) = page {
            self.count(page);
        }
        self.rates(Instant::now());
    }

    fn count(&mut self, page: Page) {
        let before = self.page.take().unwrap_or_default();
        let name = |name: &str| format!("{PREFIX}_{name}");
        let more = |labels: &[(&str, &str)]| {
            let metric = name("reconciles_total");
            let (was, is) = (before.sum(&metric, labels), page.sum(&metric, labels));
            // A new process counts from 0.
            if is < was { is } else { is - was }
        };
        self.totals.reconciles += more(&[]);
        self.totals.failed += more(&[("outcome", "failed")]) + more(&[("outcome", "lost")]);
        let metric = name("queued_seconds");
        let queued = page.histogram(&metric).since(&before.histogram(&metric));
        self.totals.queued = self.totals.queued.plus(&queued);
        self.counters.queue = page.sum(&name("queue_ready"), &[]);
        self.counters.retrying = page.sum(&name("queue_retrying"), &[]);
        self.totals.peak_queue = self.totals.peak_queue.max(self.counters.queue);
        self.page = Some(page);
    }

    fn rates(&mut self, now: Instant) {
        let (reconciles, cpu) = (self.totals.reconciles, self.cpu);
        let Some((since, reconciles_then, cpu_then)) = self.since else {
            self.since = Some((now, reconciles, cpu));
            return;
        };
        let passed = now.duration_since(since);
        if passed < LEAST {
            return;
        }
        self.counters.reconciles = (reconciles - reconciles_then) / passed.as_secs_f64();
        self.counters.cpu = (cpu - cpu_then) / passed.as_secs_f64();
        self.totals.peak_rate = self.totals.peak_rate.max(self.counters.reconciles);
        self.since = Some((now, reconciles, cpu));
    }
}

fn calls_since(before: &[Counted], now: &[Counted], runtimes: usize) -> Vec<Calls> {
    let key = |one: &Counted| (one.cluster.clone(), one.client.clone(), one.verb);
    let before: BTreeMap<_, u64> = before.iter().map(|one| (key(one), one.calls)).collect();
    let more = now.iter().map(|one| (one, one.calls - before.get(&key(one)).copied().unwrap_or_default()));
    more.filter(|(_, calls)| *calls > 0)
        .map(|(one, calls)| {
            #[expect(clippy::cast_precision_loss, reason = "a count of calls is far below 2^52")]
            let per_runtime = calls as f64 / runtimes.max(1) as f64;
            let at = if one.cluster.is_empty() { "runtimes" } else { &one.cluster };
            Calls {
                at: at.to_owned(),
                client: one.client.clone(),
                verb: one.verb.to_owned(),
                calls,
                per_runtime,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_per_phase() {
        let one =
            |cluster: &str, verb, calls| Counted { cluster: cluster.into(), client: "a".into(), verb, calls };
        let before = [one("", "get", 10), one("kcp", "list", 1)];
        let now = [one("", "get", 30), one("kcp", "list", 1), one("kcp", "watch", 2)];
        let calls = calls_since(&before, &now, 10);
        let shown: Vec<_> = calls.iter().map(|c| (c.at.as_str(), c.verb.as_str(), c.calls)).collect();
        assert_eq!(shown, [("runtimes", "get", 20), ("kcp", "watch", 2)]);
        assert!((calls[0].per_runtime - 2.0).abs() < 1e-9);
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers")]
    fn counters_continue_after_a_process_restart() {
        let page = |n: u32| {
            Some(Page::parse(&format!("tidewatch_receiver_reconciles_total{{outcome=\"done\"}} {n}\n")))
        };
        let mut now = Now::default();
        for n in [5, 9, 2] {
            now.take(page(n), Usage::default());
        }
        now.take(None, Usage::default());
        assert_eq!(now.totals.reconciles, 11.0);
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers")]
    fn rates_are_per_second_however_often_counters_are_read() {
        let (begun, mut now) = (Instant::now(), Now::default());
        for (millis, reconciles, peak) in
            [(0, 0.0, 0.0), (1, 50.0, 0.0), (1000, 80.0, 80.0), (2000, 90.0, 80.0)]
        {
            now.totals.reconciles = reconciles;
            now.rates(begun + Duration::from_millis(millis));
            assert_eq!(now.totals.peak_rate, peak, "after {millis} ms");
        }
        assert_eq!(now.counters.reconciles, 10.0);
    }
}
