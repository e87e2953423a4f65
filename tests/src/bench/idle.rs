//! Idle cost: memory, CPU and API requests.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use hyper::http;
use kube::Client;
use tokio::time::Instant;

use super::{
    Bench, Figure, Goal, Size, Spec, build,
    proc::{cpu_seconds, rss_mib},
};
use crate::{Process, report::Reporter};

/// The Go manager's figure with one Kyma and one module.
const GO_RSS_MIB: f64 = 104.0 * 1e6 / (1024.0 * 1024.0);
const GO_RUNTIME_REQUESTS: f64 = 37.0 / 5.0;
const GO_KCP_REQUESTS: f64 = 31.0 / 5.0;
/// The memory request of the Go agent's Deployment.
const GO_AGENT_MIB: f64 = 20.0;

/// Groups that only the engine and module users write.
///
/// Core kinds are excluded: the API server reads them itself. The engine never applies them alone, so its
/// writes are still visible.
const GROUPS: [&str; 4] = [
    "operator.kyma-project.io",
    "lighthouse.tidewatch.dev",
    "rbac.authorization.k8s.io",
    "apiextensions.k8s.io",
];
const DEPLOYMENTS: (&str, &str) = ("apps", "deployments");

pub(super) fn specs(size: &Size) -> Vec<Spec> {
    let wait = size.idle.as_secs();
    let spec = |what: &str, unit, goal, yardstick: &str| Spec {
        name: format!("idle {what} after {wait} s, {}", build()),
        unit,
        goal,
        yardstick: yardstick.into(),
    };
    let manager = "recorded: Go manager with one Kyma and one module, 104 MB (99.2 MiB)";
    let agent = "recorded: what the Go agent's Deployment asks for, 20 MiB (not a measurement)";
    let none = "none: no figure of a peer is known";
    vec![
        spec("RSS of the receiver with two runtimes,", "MiB", Goal::AtMost(GO_RSS_MIB), manager),
        spec("RSS of an agent with five watches,", "MiB", Goal::AtMost(GO_AGENT_MIB), agent),
        spec("CPU of the receiver,", "% of a core", Goal::None, none),
        spec("CPU of an agent,", "% of a core", Goal::None, none),
    ]
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    bench.calm().await?;
    let agent = bench.world.agents.first().context("there is no agent")?;
    let pids = [program(&bench.world.receiver.process)?, program(&agent.process)?];
    let before = [cpu_seconds(pids[0])?, cpu_seconds(pids[1])?];
    let waited = wait(bench, bench.size.idle).await;
    let cpu = |n: usize| -> Result<f64> { Ok((cpu_seconds(pids[n])? - before[n]) / waited * 100.0) };
    Ok(vec![
        Figure { value: rss_mib(pids[0])?, against: Some(GO_RSS_MIB) },
        Figure { value: rss_mib(pids[1])?, against: Some(GO_AGENT_MIB) },
        Figure { value: cpu(0)?, against: None },
        Figure { value: cpu(1)?, against: None },
    ])
}

pub(super) fn request_specs(size: &Size) -> Vec<Spec> {
    let wait = size.requests.as_secs();
    let spec = |what: &str, goal, which: &str, go: &str| Spec {
        name: format!("{what} in {wait} s without a change, one ready module"),
        unit: "/min",
        goal,
        yardstick: format!(
            "recorded: Go manager with one Kyma and one module, {go}; counted here: {which} for Kyma's kinds \
             and the module's, by whomever"
        ),
    };
    let runtime = "37 in 300 s (30 PATCH, 1 PUT, 6 GET)";
    vec![
        spec(
            "requests to the runtime but lists",
            Goal::AtMost(0.0),
            "every request but WATCH and LIST",
            runtime,
        ),
        // LISTs by the agent show missed watch events.
        spec("lists in the runtime", Goal::None, "every LIST", runtime),
        spec(
            "requests to KCP",
            Goal::AtMost(0.0),
            "every request but WATCH",
            "31 in 300 s (7 PATCH, 6 PUT, 18 GET)",
        ),
    ]
}

pub(super) async fn requests(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    bench.calm().await?;
    let clients = [bench.env.runtime1.client()?, bench.env.kcp.client()?];
    let before = [counted(&clients[0]).await?, counted(&clients[1]).await?];
    // Enabling the module made requests, so 0 means that the metric is unknown.
    ensure!(before.iter().all(|n| n.rest > 0.0), "the API servers count no request of our kinds: {before:?}");
    let waited = wait(bench, bench.size.requests).await;
    let after = [counted(&clients[0]).await?, counted(&clients[1]).await?];
    let figure =
        |after: f64, before: f64, go| Figure { value: (after - before) / waited * 60.0, against: Some(go) };
    Ok(vec![
        figure(after[0].rest, before[0].rest, GO_RUNTIME_REQUESTS),
        figure(after[0].lists, before[0].lists, GO_RUNTIME_REQUESTS),
        figure(after[1].all(), before[1].all(), GO_KCP_REQUESTS),
    ])
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Requests {
    lists: f64,
    rest: f64,
}

impl Requests {
    fn all(self) -> f64 {
        self.lists + self.rest
    }
}

/// Sleeps; returns the elapsed seconds.
async fn wait(bench: &Bench<'_>, time: Duration) -> f64 {
    bench.terminal.working(&format!("leaving everything alone for {} s", time.as_secs()));
    let started = Instant::now();
    tokio::time::sleep(time).await;
    Instant::now().duration_since(started).as_secs_f64()
}

async fn counted(client: &Client) -> Result<Requests> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    Ok(count(&client.request_text(request).await?))
}

fn count(page: &str) -> Requests {
    let mut requests = Requests::default();
    for line in page.lines() {
        let Some((labels, value)) =
            line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.split_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let (Some(group), Some(resource), Some(verb)) = (label("group"), label("resource"), label("verb"))
        else {
            continue;
        };
        let ours = GROUPS.contains(&group) || (group, resource) == DEPLOYMENTS;
        let value = value.trim().parse().unwrap_or(0.0);
        match verb {
            "LIST" if ours => requests.lists += value,
            "WATCH" => {}
            _ if ours => requests.rest += value,
            _ => {}
        }
    }
    requests
}

/// Returns the program's own pid. Its parent is the watchdog.
pub(super) fn program(process: &Process) -> Result<u32> {
    let parent = process.pid();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
        .with_context(|| format!("cannot read the children of {}", process.name()))?;
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .find(|pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("tidewatch")
        })
        .with_context(|| format!("{} has no process of its own", process.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "whole numbers")]
    fn counts_api_requests_for_product_kinds() {
        let page = "\
            # TYPE apiserver_request_total counter\n\
            apiserver_request_total{code=\"200\",group=\"operator.kyma-project.io\",resource=\"kymas\",verb=\"APPLY\"} 4\n\
            apiserver_request_total{code=\"200\",group=\"operator.kyma-project.io\",resource=\"kymas\",verb=\"WATCH\"} 9\n\
            apiserver_request_total{code=\"200\",group=\"apps\",resource=\"deployments\",verb=\"GET\"} 2\n\
            apiserver_request_total{code=\"200\",group=\"apps\",resource=\"replicasets\",verb=\"GET\"} 7\n\
            apiserver_request_total{code=\"200\",group=\"\",resource=\"pods\",verb=\"LIST\"} 8\n\
            apiserver_request_total{code=\"200\",group=\"apps\",resource=\"deployments\",verb=\"LIST\"} 5\n";
        assert_eq!(count(page), Requests { lists: 5.0, rest: 6.0 });
    }
}
