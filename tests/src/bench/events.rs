//! Latency from an observed change to the receiver's queue.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use jiff::Timestamp;
use tidewatch_api::names;
use tidewatch_tls::client_config;
use tidewatch_wire::{
    Epoch, Seq,
    v3::{Change, Event, Request, Response},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    Bench, DEPLOYMENT, Figure, Goal, SYSTEM, Size, Spec,
    server::BareServer,
    stats::{percentile_ms, percentile_of_buckets},
    wire::Target,
};
use crate::http;

/// Requests in flight and concurrent clients in the throughput measurement.
const CLIENTS: usize = 16;
/// The Go listener's figure, on two cores shared with the client.
const GO_NEW_CONNECTIONS: f64 = 627.0;
const GO_KEPT_CONNECTIONS: f64 = 10_290.0;

const OBSERVED_TO_SENT: &str = "tidewatch_agent_observed_to_sent_seconds_bucket{le=\"";

pub(super) fn agent_specs() -> Vec<Spec> {
    let spec = |p: &str, goal| Spec {
        name: format!("observed -> queued, {p}, by the agent's own histogram over the changes above"),
        unit: "ms",
        goal: Goal::AtMost(goal),
        yardstick: "recorded: Go listener, a new connection per event, 16 clients: p50 23 ms, p99 64 ms"
            .into(),
    };
    vec![spec("p50", 10.0), spec("p99", 100.0)]
}

/// Cumulative buckets: upper bound in seconds, count.
pub(super) type Buckets = Vec<(f64, f64)>;

/// Histogram of runtime 1's agent: observation to the receiver's acknowledgement.
pub(super) async fn so_far(bench: &Bench<'_>) -> Result<Buckets> {
    let agent = bench.world.agents.first().context("there is no agent")?;
    Ok(buckets(&http::text(&format!("{}/metrics", agent.admin)).await?))
}

/// Histogram of the events since `before`.
pub(super) async fn of_agent(bench: &Bench<'_>, before: Result<Buckets>) -> Result<Vec<Figure>> {
    let before = before?;
    let mut buckets = so_far(bench).await?;
    ensure!(before.len() == buckets.len(), "the agent's histogram has changed its buckets");
    buckets.iter_mut().zip(before).for_each(|(now, before)| now.1 -= before.1);
    let of = |q| percentile_of_buckets(&buckets, q).context("the agent's histogram is empty");
    Ok(vec![
        Figure { value: of(0.5)? * 1e3, against: Some(23.0) },
        Figure { value: of(0.99)? * 1e3, against: Some(64.0) },
    ])
}

fn buckets(page: &str) -> Buckets {
    page.lines()
        .filter_map(|line| {
            let (bound, count) = line.strip_prefix(OBSERVED_TO_SENT)?.split_once("\"} ")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count.parse().ok()?))
        })
        .collect()
}

pub(super) fn specs(size: &Size) -> Vec<Spec> {
    let spec = |p: &str, goal| Spec {
        name: format!("event sent -> queued, {p} of {}, one kept mTLS connection", size.events),
        unit: "ms",
        goal: Goal::AtMost(goal),
        yardstick: "measured here, in turns: the same POST to a bare hyper server with mTLS".into(),
    };
    vec![spec("p50", 10.0), spec("p99", 100.0)]
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    bench.calm().await?;
    let server = BareServer::start(&bench.world.receiver.ca).await?;
    let ours = target(bench)?;
    let bare = Target { port: server.port, ..ours.clone() };
    let epoch = Epoch::random();
    let (our_connection, bare_connection) = (ours.connect().await?, bare.connect().await?);
    let (mut our_times, mut bare_times) = (Vec::new(), Vec::new());
    for seq in 1..=bench.size.events as u64 {
        let body = body(epoch, seq)?;
        let started = Instant::now();
        let answer = our_connection.post(body.clone()).await?;
        our_times.push(Instant::now().duration_since(started));
        accepted(&answer, seq)?;
        let started = Instant::now();
        bare_connection.post(body).await?;
        bare_times.push(Instant::now().duration_since(started));
    }
    bench.calm().await?;
    [0.5, 0.99].into_iter().map(|q| figure(&our_times, &bare_times, q)).collect()
}

pub(super) fn load_specs() -> Vec<Spec> {
    let spec = |how: &str, go: f64, yardstick: &str| Spec {
        name: format!("events/s taken in, {CLIENTS} clients, {how}"),
        unit: "/s",
        goal: Goal::AtLeast(go),
        yardstick: format!(
            "measured here right after: a bare hyper server with mTLS; goal recorded: Go listener {go}/s on two \
             cores, {yardstick}"
        ),
    };
    vec![
        spec("a new mTLS connection for each", GO_NEW_CONNECTIONS, "a new connection per event"),
        spec("kept connections", GO_KEPT_CONNECTIONS, "kept connections"),
    ]
}

/// Measures events per second with clients that send at full speed.
pub(super) async fn load(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let server = BareServer::start(&bench.world.receiver.ca).await?;
    let ours = target(bench)?;
    let bare = Target { port: server.port, ..ours.clone() };
    let mut figures = Vec::new();
    for kept in [false, true] {
        bench.calm().await?;
        let events = if kept { bench.size.connections * 10 } else { bench.size.connections };
        let value = rate(&ours, events, kept).await?;
        bench.calm().await?;
        figures.push(Figure { value, against: Some(rate(&bare, events, kept).await?) });
    }
    Ok(figures)
}

async fn rate(target: &Target, events: usize, kept: bool) -> Result<f64> {
    // A receiver keeps few epochs per runtime, so all clients share one.
    let epoch = Epoch::random();
    let each = (events / CLIENTS).max(1) as u64;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS as u64 {
        let target = target.clone();
        clients.spawn(async move {
            let mut connection = None;
            for seq in client * each + 1..=(client + 1) * each {
                if !kept {
                    connection = None;
                }
                let open = match connection.take() {
                    Some(open) => open,
                    None => target.connect().await?,
                };
                open.post(body(epoch, seq)?).await?;
                connection = Some(open);
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let sent = (each * CLIENTS as u64) as f64;
    Ok(sent / Instant::now().duration_since(started).as_secs_f64())
}

fn target(bench: &Bench<'_>) -> Result<Target> {
    let receiver = &bench.world.receiver;
    let issued = &bench.world.agents.first().context("there is no agent")?.identity.issued;
    let tls = client_config(
        receiver.ca.cert_pem().as_bytes(),
        issued.cert_pem.as_bytes(),
        issued.key_pem.as_str().as_bytes(),
    )?;
    let port = receiver.url.rsplit(':').next().context("the receiver's URL has no port")?.parse()?;
    Ok(Target { port, tls })
}

/// One event, alternately about the module's Deployment and the runtime's Kyma.
fn body(epoch: Epoch, seq: u64) -> Result<Bytes> {
    let (watch, group, version, kind, namespace, name) = if seq.is_multiple_of(2) {
        ("kyma", names::GROUP, "v1beta2", "Kyma", names::RUNTIME_NAMESPACE, names::RUNTIME_KYMA_NAME)
    } else {
        ("deployments", "apps", "v1", "Deployment", SYSTEM, DEPLOYMENT)
    };
    let event = Event {
        seq: Seq(seq),
        watch: watch.into(),
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: "0f0e0d0c-0b0a-0908-0706-050403020100".into(),
        resource_version: "1000000".into(),
        change: Change::Changed,
        listed: false,
        observed_at: Timestamp::now(),
    };
    let awaiting = [Seq(seq)].into_iter().collect();
    let request = Request { events: vec![event], awaiting, ..Request::new(epoch) };
    Ok(serde_json::to_vec(&request)?.into())
}

/// A rejected event would make the time meaningless.
fn accepted(answer: &[u8], seq: u64) -> Result<()> {
    let answer: Response = serde_json::from_slice(answer)?;
    ensure!(answer.retry_after_ms.is_none(), "event {seq} met an overload");
    ensure!(answer.unknown.is_empty(), "event {seq} was forgotten at once");
    Ok(())
}

fn figure(ours: &[Duration], bare: &[Duration], q: f64) -> Result<Figure> {
    let value = percentile_ms(ours, q).context("nothing was measured")?;
    Ok(Figure { value, against: percentile_ms(bare, q) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_agents_histogram() {
        let page = "# TYPE x histogram\n\
                    tidewatch_agent_observed_to_sent_seconds_bucket{le=\"0.001\"} 2\n\
                    tidewatch_agent_observed_to_sent_seconds_bucket{le=\"+Inf\"} 3\n\
                    tidewatch_agent_observed_to_sent_seconds_sum 1\n";
        assert_eq!(buckets(page), [(0.001, 2.0), (f64::INFINITY, 3.0)]);
    }
}
