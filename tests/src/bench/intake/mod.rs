//! The intake under load: agents, listener and a bare server, each in its own process.

mod child;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use tokio::time::Instant;

use child::Agents;
pub(super) use child::{Child, Server};

use super::{
    Figure, Goal, Spec, folder,
    load::{Done, Kind, Order},
    proc::{cpu_seconds, most_files, rss_mib},
};

/// File descriptors of a process besides one per agent.
const SPARE_FILES: usize = 500;
/// Agents in all measurements except growth and idle.
const AGENTS: usize = 1_000;
/// Concurrent requests.
const CLIENTS: usize = 64;
/// Concurrent handshakes.
const AT_ONCE: usize = 64;
/// Events per batch.
const BATCH: usize = 256;
const RATES: [(u32, Option<f64>); 3] = [(100, None), (1_000, Some(10.0)), (5_000, None)];
/// Slices of each server's latencies, taken in turns. The best slices are the least affected by other
/// processes.
const SLICES: usize = 4;
/// Events per second in the growth table.
const GROWTH_RATE: f64 = 2_000.0;
/// Heartbeat interval of an agent.
const HEARTBEAT: Duration = Duration::from_mins(1);
/// Upper bound of an agent's own delay before it reconnects.
const SPREAD: Duration = Duration::from_secs(20);

const ECHO: &str = "measured here, in turns: a bare hyper + rustls server that verifies client certificates and sends back \
                    what it gets";
const TURNS: &str = "measured here, in turns: a bare hyper + rustls server that verifies client certificates";

#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Duration of one measurement.
    pub(super) time: Duration,
    /// Duration of the idle measurement.
    pub(super) idle: Duration,
    /// Largest number of agents.
    pub(super) most: usize,
}

impl Load {
    /// Limits the number of agents to the possible connections.
    fn agents(&self) -> usize {
        self.most.min(most_files().unwrap_or(1_024).saturating_sub(SPARE_FILES))
    }

    fn growth(&self) -> [usize; 3] {
        [100, 1_000, self.agents()]
    }
}

pub(super) struct Intake {
    load: Load,
    folder: PathBuf,
    agents: Agents,
}

impl Intake {
    pub(super) async fn start(load: &Load) -> Result<Self> {
        let folder = folder().join("intake");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let agents = Agents::start(&folder).await?;
        Ok(Self { load: load.clone(), folder, agents })
    }

    async fn server(&mut self, kind: Kind, agents: usize) -> Result<Server> {
        let server = Server::start(kind, &self.folder).await?;
        self.connect(server.port, agents, Duration::ZERO).await?;
        Ok(server)
    }

    async fn connect(&mut self, port: u16, agents: usize, spread: Duration) -> Result<Done> {
        let at_once = if spread.is_zero() { AT_ONCE } else { agents };
        let spread_ms = millis(spread);
        self.agents.obey(Order::Connect { port, agents, at_once, spread_ms }).await
    }

    /// Returns the result and the CPU seconds of server and agents.
    async fn costs(&mut self, server: &Server, order: Order) -> Result<(Done, f64, f64)> {
        let pids = [server.pid(), self.agents.pid()];
        let before = [cpu_seconds(pids[0])?, cpu_seconds(pids[1])?];
        let done = self.agents.obey(order).await?;
        Ok((done, cpu_seconds(pids[0])? - before[0], cpu_seconds(pids[1])? - before[1]))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(n: u64) -> f64 {
    n as f64
}

pub(super) fn cost_specs() -> Vec<Spec> {
    let spec = |who: &str, batch: usize, goal, yardstick: &str| Spec {
        name: format!("CPU of the {who} per event, {batch} per request, {AGENTS} agents"),
        unit: "us",
        goal,
        yardstick: yardstick.into(),
    };
    [1, BATCH]
        .into_iter()
        .flat_map(|batch| {
            [
                spec("intake", batch, Goal::RatioAtMost(1.5), ECHO),
                spec("intake (beside one that answers as little as it)", batch, Goal::None, TURNS),
                spec("load generator", batch, Goal::None, "the same against the echo"),
            ]
        })
        .collect()
}

/// CPU time of the server per event.
pub(super) async fn cost(intake: &mut Intake) -> Result<Vec<Figure>> {
    let half = millis(intake.load.time / 2);
    let kinds = [Kind::Listener, Kind::Echo, Kind::Bare];
    let mut figures = Vec::new();
    for batch in [1, BATCH] {
        // Per kind: server CPU, agent CPU, events.
        let mut sums = [[0.0; 3]; 3];
        for n in [0, 1, 2, 2, 1, 0] {
            let server = intake.server(kinds[n], AGENTS).await?;
            let order = Order::Closed { millis: half, batch, clients: CLIENTS };
            let (done, cpu, load) = intake.costs(&server, order).await?;
            server.end().await?;
            for (sum, more) in sums[n].iter_mut().zip([cpu * 1e6, load * 1e6, count(done.events)]) {
                *sum += more;
            }
        }
        let [ours, echo, bare] = sums.map(|[server, agents, events]| [server / events, agents / events]);
        figures.push(Figure { value: ours[0], against: Some(echo[0]) });
        figures.push(Figure { value: ours[0], against: Some(bare[0]) });
        figures.push(Figure { value: ours[1], against: Some(echo[1]) });
    }
    Ok(figures)
}

pub(super) fn latency_specs() -> Vec<Spec> {
    let mut specs = Vec::new();
    for (rate, most) in RATES {
        let mut spec = |what: &str, goal| {
            specs.push(Spec {
                name: format!("observed -> queued, {what} at {rate} events/s, {AGENTS} agents"),
                unit: "ms",
                goal,
                yardstick: format!("{TURNS}; of {SLICES} slices each the one with the least p99"),
            });
        };
        spec("p50", Goal::None);
        spec("p99", Goal::RatioAtMost(2.0));
        if let Some(most) = most {
            spec("p99 itself", Goal::AtMost(most));
        }
    }
    specs
}

/// Latency from an event's due time to its acknowledgement.
pub(super) async fn latency(intake: &mut Intake) -> Result<Vec<Figure>> {
    let slice = millis(intake.load.time / 4);
    let order = |rate, millis| Order::Open { millis, rate: f64::from(rate), heartbeats: false };
    let mut best = [[(f64::INFINITY, f64::INFINITY); RATES.len()]; 2];
    for turn in 0..SLICES {
        // Alternates which server goes first.
        for kind in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let server = intake.server([Kind::Listener, Kind::Bare][kind], AGENTS).await?;
            for (n, (rate, _)) in RATES.into_iter().enumerate() {
                // Skips the first requests of new connections.
                intake.agents.obey(order(rate, slice / 4)).await?;
                let done = intake.agents.obey(order(rate, slice)).await?;
                let times = (done.p50_ms.context("no p50")?, done.p99_ms.context("no p99")?);
                if times.1 < best[kind][n].1 {
                    best[kind][n] = times;
                }
            }
            server.end().await?;
        }
    }
    let mut figures = Vec::new();
    for ((ours, bare), (_, most)) in best[0].iter().zip(best[1]).zip(RATES) {
        figures.push(Figure { value: ours.0, against: Some(bare.0) });
        figures.push(Figure { value: ours.1, against: Some(bare.1) });
        if most.is_some() {
            figures.push(Figure { value: ours.1, against: Some(bare.1) });
        }
    }
    Ok(figures)
}

pub(super) fn handshake_specs() -> Vec<Spec> {
    let spec = |what: &str, unit| Spec {
        name: format!("a new connection per event, {CLIENTS} clients: {what}"),
        unit,
        goal: Goal::None,
        yardstick: TURNS.into(),
    };
    vec![spec("full mutual handshakes", "/s"), spec("CPU of the intake for each", "us")]
}

/// Costs of full handshakes: neither side resumes sessions.
pub(super) async fn handshakes(intake: &mut Intake) -> Result<Vec<Figure>> {
    let time = millis(intake.load.time / 2);
    // Per kind: connections, seconds, CPU seconds.
    let mut sums = [[0.0; 3]; 2];
    for kind in [0, 1, 1, 0] {
        let server = intake.server([Kind::Listener, Kind::Bare][kind], AGENTS).await?;
        let order = Order::Fresh { port: server.port, millis: time, clients: CLIENTS };
        let (done, cpu, _) = intake.costs(&server, order).await?;
        server.end().await?;
        for (sum, more) in sums[kind].iter_mut().zip([count(done.requests), done.seconds, cpu]) {
            *sum += more;
        }
    }
    let [ours, bare] =
        sums.map(|[connections, seconds, cpu]| [connections / seconds, cpu * 1e6 / connections]);
    Ok(ours.into_iter().zip(bare).map(|(value, bare)| Figure { value, against: Some(bare) }).collect())
}

pub(super) fn kept_specs() -> Vec<Spec> {
    let yardstick = "measured here right before, against the same intake: a new TLS connection per event, 64 clients; \
                     recorded elsewhere: 627/s so, 10,290/s on kept connections, with the client on the same two cores";
    let spec = |how: String, goal| Spec {
        name: format!("events/s on kept connections, {how}"),
        unit: "/s",
        goal,
        yardstick: yardstick.into(),
    };
    vec![
        spec("one event per request".to_owned(), Goal::None),
        spec(format!("{BATCH} events per request"), Goal::RatioAtLeast(20.0)),
    ]
}

/// Measures the benefit of kept connections and of batches.
pub(super) async fn kept(intake: &mut Intake) -> Result<Vec<Figure>> {
    let server = intake.server(Kind::Listener, AGENTS).await?;
    let time = millis(intake.load.time / 2);
    let rate = |done: &Done| count(done.events) / done.seconds;
    let fresh =
        intake.agents.obey(Order::Fresh { port: server.port, millis: time, clients: CLIENTS }).await?;
    let mut figures = Vec::new();
    for batch in [1, BATCH] {
        let done = intake.agents.obey(Order::Closed { millis: time, batch, clients: CLIENTS }).await?;
        figures.push(Figure { value: rate(&done), against: Some(rate(&fresh)) });
    }
    server.end().await?;
    Ok(figures)
}

pub(super) fn idle_specs(load: &Load) -> Vec<Spec> {
    let agents = load.agents();
    let spec = |what: String, unit, goal, yardstick: &str| Spec {
        name: format!("{agents} connected agents: {what}"),
        unit,
        goal,
        yardstick: yardstick.into(),
    };
    let none = "none: the goal is a figure";
    let heartbeat = HEARTBEAT.as_secs();
    vec![
        spec("RSS of the intake".into(), "MiB", Goal::AtMost(400.0), "measured here: without agents"),
        spec(
            format!("CPU at a heartbeat with a canary each {heartbeat} s, over {} s", load.idle.as_secs()),
            "% of a core",
            Goal::AtMost(5.0),
            none,
        ),
        spec(
            format!("all back after a restart (waits spread over {} s as an agent's)", SPREAD.as_secs()),
            "s",
            Goal::AtMost(60.0),
            none,
        ),
        spec("half of them back".into(), "s", Goal::None, none),
    ]
}

/// Measures the cost of idle agents and of reconnects.
pub(super) async fn idle(intake: &mut Intake) -> Result<Vec<Figure>> {
    let agents = intake.load.agents();
    let server = Server::start(Kind::Listener, &intake.folder).await?;
    let empty = rss_mib(server.pid())?;
    intake.connect(server.port, agents, Duration::ZERO).await?;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let rate = agents as f64 / HEARTBEAT.as_secs_f64();
    let order = Order::Open { millis: millis(intake.load.idle), rate, heartbeats: true };
    let (done, cpu, _) = intake.costs(&server, order).await?;
    let rss = rss_mib(server.pid())?;

    let (port, started) = (server.port, Instant::now());
    server.end().await?;
    let server = Server::start_on(Kind::Listener, &intake.folder, port).await?;
    let down = Instant::now().duration_since(started).as_secs_f64();
    let back = intake.connect(port, agents, SPREAD).await?;
    server.end().await?;
    Ok(vec![
        Figure { value: rss, against: Some(empty) },
        Figure { value: cpu / done.seconds * 100.0, against: None },
        Figure { value: down + back.seconds, against: None },
        Figure { value: down + back.p50_ms.context("no p50")? / 1e3, against: None },
    ])
}

pub(super) fn growth_specs(load: &Load) -> Vec<Spec> {
    let [first, ..] = load.growth();
    load.growth()
        .into_iter()
        .map(|agents| Spec {
            name: format!("CPU of the intake per event at {GROWTH_RATE} events/s, {agents} agents"),
            unit: "us",
            goal: if agents == first { Goal::None } else { Goal::RatioAtMost(1.5) },
            yardstick: format!("measured here right before: the same with {first} agents"),
        })
        .collect()
}

/// Compares the cost per event across agent counts.
pub(super) async fn growth(intake: &mut Intake) -> Result<Vec<Figure>> {
    let mut costs = Vec::new();
    for agents in intake.load.growth() {
        let server = intake.server(Kind::Listener, agents).await?;
        let order = Order::Open { millis: millis(intake.load.time), rate: GROWTH_RATE, heartbeats: false };
        let (done, cpu, _) = intake.costs(&server, order).await?;
        server.end().await?;
        costs.push(cpu * 1e6 / count(done.events));
    }
    let first = costs.first().copied();
    Ok(costs.into_iter().map(|value| Figure { value, against: first }).collect())
}
