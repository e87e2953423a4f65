//! Many agents, each with one identity and one kept connection.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tidewatch_certs::{Ca, ClientRequest, ServerRequest};
use tidewatch_tls::client_config;
use tidewatch_wire::{
    Epoch, Seq, SeqSet,
    v3::{CANARY, Change, Event, Request},
};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use super::{Done, Order, orders, say};
use crate::bench::{
    stats::percentile_ms,
    wire::{Connection, Target},
};

pub(in crate::bench) const CA: &str = "ca.crt";
pub(in crate::bench) const CERT: &str = "server.crt";
pub(in crate::bench) const KEY: &str = "server.key";
const VALIDITY: SignedDuration = SignedDuration::from_hours(24);
/// Timeout of an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit on open-loop requests in flight. Requests beyond it count as failed.
const IN_FLIGHT: usize = 10_000;
/// Poll interval for due requests.
const TICK: Duration = Duration::from_millis(1);
/// Longest backoff between connection attempts.
const MOST_SPREAD: Duration = Duration::from_mins(1);
/// Connection attempts per agent.
const TRIES: u32 = 20;

pub(in crate::bench) fn runtime_id(n: usize) -> String {
    format!("runtime-{n:05}")
}

pub(in crate::bench) fn domain(n: usize) -> String {
    format!("{}.runtimes.example", runtime_id(n))
}

struct Agent {
    tls: Arc<ClientConfig>,
    epoch: Epoch,
    seq: AtomicU64,
    connection: Mutex<Option<Arc<Connection>>>,
}

#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    events: u64,
    failed: u64,
    failure: Option<String>,
}

impl Tally {
    fn add(&mut self, result: Result<(Duration, u64)>) {
        match result {
            Ok((time, events)) => {
                self.times.push(time);
                self.events += events;
            }
            Err(error) => {
                self.failed += 1;
                self.failure.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.times.extend(other.times);
        self.events += other.events;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn done(self, started: Instant) -> Done {
        Done {
            requests: self.times.len() as u64,
            events: self.events,
            failed: self.failed,
            failure: self.failure,
            seconds: Instant::now().duration_since(started).as_secs_f64(),
            p50_ms: percentile_ms(&self.times, 0.5),
            p99_ms: percentile_ms(&self.times, 0.99),
        }
    }
}

pub(super) async fn run(folder: &Path) -> Result<()> {
    let now = Timestamp::now();
    let ca = Ca::create("load", VALIDITY, now)?;
    let request = ServerRequest {
        common_name: "load".to_owned(),
        dns_names: vec!["localhost".to_owned()],
        ip_addrs: Vec::new(),
        validity: VALIDITY,
    };
    let issued = ca.issue_server(&request, now)?;
    let files = [(CA, ca.cert_pem()), (CERT, &issued.cert_pem), (KEY, issued.key_pem.as_str())];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    let mut orders = orders();
    say(&"ready")?;
    let mut agents = Vec::new();
    while let Some(order) = orders.recv().await {
        let done = match order {
            Order::Connect { port, agents: wanted, at_once, spread_ms } => {
                while agents.len() < wanted {
                    agents.push(Arc::new(agent(&ca, agents.len())?));
                }
                agents.truncate(wanted);
                connect(&agents, port, at_once, Duration::from_millis(spread_ms)).await
            }
            Order::Closed { millis, batch, clients } => {
                closed(&agents, Duration::from_millis(millis), batch, clients).await
            }
            Order::Open { millis, rate, heartbeats } => {
                open(&agents, Duration::from_millis(millis), rate, heartbeats).await
            }
            Order::Fresh { port, millis, clients } => {
                fresh(&agents, port, Duration::from_millis(millis), clients).await
            }
        };
        say(&done)?;
    }
    Ok(())
}

fn agent(ca: &Ca, n: usize) -> Result<Agent> {
    let request = ClientRequest {
        runtime_id: runtime_id(n),
        dns_names: vec![domain(n)],
        organizations: Vec::new(),
        validity: VALIDITY,
    };
    let issued = ca.issue_client(&request, Timestamp::now())?;
    let tls = client_config(
        ca.cert_pem().as_bytes(),
        issued.cert_pem.as_bytes(),
        issued.key_pem.as_str().as_bytes(),
    )?;
    Ok(Agent { tls, epoch: Epoch::random(), seq: AtomicU64::new(0), connection: Mutex::new(None) })
}

impl Agent {
    /// `batch` changes, or none for a greeting.
    fn body(&self, batch: usize) -> Result<Bytes> {
        let first = self.seq.fetch_add(batch as u64, Ordering::Relaxed) + 1;
        let now = Timestamp::now();
        let event = |seq: u64| Event {
            seq: Seq(seq),
            watch: "kyma".into(),
            group: "operator.kyma-project.io".into(),
            version: "v1beta2".into(),
            kind: "Kyma".into(),
            namespace: "kyma-system".into(),
            name: format!("object-{}", seq % 10_000).into(),
            uid: "0f0e0d0c-0b0a-0908-0706-050403020100".into(),
            resource_version: seq.to_string().into(),
            change: Change::Changed,
            listed: false,
            observed_at: now,
        };
        let numbers = first..first + batch as u64;
        let awaiting: SeqSet = numbers.clone().map(Seq).collect();
        let events = numbers.map(event).collect();
        let request = Request { events, awaiting, ..Request::new(self.epoch) };
        Ok(serde_json::to_vec(&request)?.into())
    }

    /// Heartbeat of an idle agent: a canary change.
    fn canary(&self) -> Result<Bytes> {
        let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
        let canary = Event {
            seq,
            watch: CANARY.into(),
            group: "".into(),
            version: "v1".into(),
            kind: "Lease".into(),
            namespace: "".into(),
            name: "canary".into(),
            uid: "".into(),
            resource_version: "".into(),
            change: Change::Changed,
            listed: false,
            observed_at: Timestamp::now().round(jiff::Unit::Millisecond)?,
        };
        let awaiting = std::iter::once(seq).collect();
        let request = Request { events: vec![canary], awaiting, ..Request::new(self.epoch) };
        Ok(serde_json::to_vec(&request)?.into())
    }

    /// Sends on `connection`; latency counts from `due`.
    async fn send(&self, connection: &Connection, batch: usize, due: Instant) -> Result<(Duration, u64)> {
        self.post(connection, self.body(batch)?, batch, due).await
    }

    async fn post(
        &self,
        connection: &Connection,
        body: Bytes,
        batch: usize,
        due: Instant,
    ) -> Result<(Duration, u64)> {
        let answer = connection.post(body);
        let answer = tokio::time::timeout(LIMIT, answer).await.context("no answer in time")??;
        let took = Instant::now().duration_since(due);
        // Parsing would cost this process more than the server.
        if answer.windows(12).any(|w| w == b"retryAfterMs") {
            bail!("asked to wait");
        }
        Ok((took, batch as u64))
    }

    async fn send_kept(&self, batch: usize, due: Instant) -> Result<(Duration, u64)> {
        let connection = self.connection.lock().clone().context("not connected")?;
        self.send(&connection, batch, due).await
    }

    async fn beat_kept(&self, due: Instant) -> Result<(Duration, u64)> {
        let connection = self.connection.lock().clone().context("not connected")?;
        self.post(&connection, self.canary()?, 1, due).await
    }

    async fn open(&self, port: u16) -> Result<Connection> {
        let target = Target { port, tls: Arc::clone(&self.tls) };
        tokio::time::timeout(LIMIT, target.connect()).await.context("no connection in time")?
    }
}

/// Each latency runs from the order to the acknowledged heartbeat.
async fn connect(agents: &[Arc<Agent>], port: u16, at_once: usize, spread: Duration) -> Done {
    for agent in agents {
        agent.connection.lock().take();
    }
    let started = Instant::now();
    let room = Arc::new(Semaphore::new(at_once.max(1)));
    let mut tasks = JoinSet::new();
    for (n, agent) in agents.iter().enumerate() {
        let (agent, room) = (Arc::clone(agent), Arc::clone(&room));
        let wait = spread.mul_f64(share(n));
        tasks.spawn(async move {
            let mut last = None;
            for failures in 0..TRIES {
                let window = wait.saturating_mul(1 << failures.min(10)).min(MOST_SPREAD);
                tokio::time::sleep(window).await;
                let _turn = room.acquire().await?;
                let tried = async {
                    let connection = agent.open(port).await?;
                    let sent = agent.send(&connection, 0, started).await?;
                    *agent.connection.lock() = Some(Arc::new(connection));
                    anyhow::Ok(sent)
                };
                match tried.await {
                    Ok(sent) => return Ok(sent),
                    Err(error) => last = Some(error),
                }
            }
            Err(last.context("it was not tried")?)
        });
    }
    let mut tally = Tally::default();
    while let Some(ended) = tasks.join_next().await {
        tally.add(ended.map_err(Into::into).and_then(|result| result));
    }
    tally.done(started)
}

/// Spreads numbers evenly over `[0, 1)`, out of order.
fn share(n: usize) -> f64 {
    let mixed = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    f64::from(u32::try_from(mixed).unwrap_or(0)) / f64::from(1_u32 << 24)
}

async fn closed(agents: &[Arc<Agent>], time: Duration, batch: usize, clients: usize) -> Done {
    one_after_another(
        agents,
        time,
        clients,
        move |agent, now| async move { agent.send_kept(batch, now).await },
    )
    .await
}

async fn fresh(agents: &[Arc<Agent>], port: u16, time: Duration, clients: usize) -> Done {
    one_after_another(agents, time, clients, move |agent, now| async move {
        let connection = agent.open(port).await?;
        agent.send(&connection, 1, now).await
    })
    .await
}

/// Runs this many clients. Each cycles through its agents and waits for each answer.
async fn one_after_another<F, S>(agents: &[Arc<Agent>], time: Duration, clients: usize, send: S) -> Done
where
    F: Future<Output = Result<(Duration, u64)>> + Send,
    S: Fn(Arc<Agent>, Instant) -> F + Clone + Send + 'static,
{
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let own: Vec<_> = agents.iter().skip(client).step_by(clients).cloned().collect();
        let send = send.clone();
        tasks.spawn(async move {
            let mut tally = Tally::default();
            for agent in own.iter().cycle() {
                let now = Instant::now();
                if now.duration_since(started) >= time {
                    break;
                }
                tally.add(send(Arc::clone(agent), now).await);
            }
            tally
        });
    }
    all(tasks, started).await
}

async fn all(mut tasks: JoinSet<Tally>, started: Instant) -> Done {
    let mut tally = Tally::default();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(one) => tally.merge(one),
            Err(error) => tally.add(Err(error.into())),
        }
    }
    tally.done(started)
}

/// Open loop. Lateness of this process counts as latency.
async fn open(agents: &[Arc<Agent>], time: Duration, rate: f64, heartbeats: bool) -> Done {
    let gap = Duration::from_secs_f64(1.0 / rate.max(0.001));
    let started = Instant::now();
    let (mut due, mut tally, mut tasks) = (started, Tally::default(), JoinSet::new());
    let mut turns = agents.iter().cycle();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while due.duration_since(started) < time {
        let now = ticks.tick().await;
        while due <= now && due.duration_since(started) < time {
            let Some(agent) = turns.next().cloned() else { break };
            if tasks.len() < IN_FLIGHT {
                tasks.spawn(async move {
                    if heartbeats { agent.beat_kept(due).await } else { agent.send_kept(1, due).await }
                });
            } else {
                tally.add(Err(anyhow::anyhow!("{IN_FLIGHT} requests have no answer")));
            }
            due += gap;
        }
        while let Some(ended) = tasks.try_join_next() {
            tally.add(ended.map_err(Into::into).and_then(|result| result));
        }
        if agents.is_empty() {
            break;
        }
    }
    while let Some(ended) = tasks.join_next().await {
        tally.add(ended.map_err(Into::into).and_then(|result| result));
    }
    tally.done(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_evenly() {
        let mut shares: Vec<f64> = (0..1_000).map(share).collect();
        shares.sort_by(f64::total_cmp);
        assert!(shares[0] >= 0.0 && shares[999] < 1.0);
        for (n, share) in shares.iter().enumerate() {
            let even = f64::from(u32::try_from(n).unwrap()) / 1_000.0;
            assert!((share - even).abs() < 0.01, "{n}: {share}");
        }
    }
}
