//! Change → applied: a Kyma with a module is created and becomes Ready, and its runtime's event path is proven.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join3;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
    runtime::wait::{await_condition, conditions},
};
use serde_json::Value;
use tidewatch_api::{Kyma, Module, State, names::KCP_NAMESPACE};
use tokio::time::Instant;

use super::{Bench, Figure, Goal, Size, Spec, stats::percentile_ms};
use crate::{
    fleet::{self, Agent, Member, Receiver},
    http,
    story::RUNTIMES,
    wait,
};

/// The Go manager's figure in milliseconds.
const GO_READY: f64 = 23_900.0;

pub(super) fn specs(size: &Size) -> Vec<Spec> {
    let spec = |p: &str| Spec {
        name: format!("change -> applied: Kyma created with a module -> Ready, {p} of {}", size.created),
        unit: "ms",
        goal: Goal::AtMost(2_000.0),
        yardstick: "recorded: Go manager, Kyma CR with one module created -> Ready, 23.9 s on two cores"
            .into(),
    };
    let proven = Spec {
        name: format!("registration: Kyma created -> event path proven, the slowest of {}", size.created),
        unit: "ms",
        goal: Goal::AtMost(5_000.0),
        yardstick: "none".into(),
    };
    vec![spec("p50"), spec("p99 (the slowest)"), proven]
}

/// Recreates the Kyma of the runtime without modules.
///
/// The agent is removed with its Kyma, so each new Kyma gets a newly installed one. The start of its process is part of the time, as that of
/// its pod would be.
pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let (name, id) = RUNTIMES[1];
    let member = Member { cluster: &bench.env.runtime2, kyma: name, id };
    let kymas: Api<Kyma> = Api::namespaced(bench.env.kcp.client()?, KCP_NAMESPACE);
    let before = kymas.get(name).await?;
    let first = &bench.world.agents.get(1).context("there is no second agent")?.process;
    let mut running: Option<Agent> = None;
    let (mut times, mut paths) = (Vec::new(), Vec::new());
    for _ in 0..bench.size.created {
        let uid = kymas.get(name).await?.uid().context("the Kyma has no uid")?;
        kymas.delete(name, &DeleteParams::default()).await?;
        await_condition(kymas.clone(), name, conditions::is_deleted(&uid)).await?;
        // Not earlier: without polls, the deletion needs the agent's events.
        running.as_ref().map_or(first, |agent| &agent.process).kill().await?;
        is_forgotten(&bench.world.receiver).await?;
        fleet::settled(&bench.world.receiver).await?;
        let started = Instant::now();
        kymas.create(&PostParams::default(), &with_module(&before)).await?;
        let ready = async {
            fleet::kyma_where(kymas.clone(), name, "the Kyma with its module to be Ready", is_ready).await?;
            Ok(started.elapsed())
        };
        let proven = async {
            wait::until("the event path to be proven", fleet::SOON, || async {
                let path = bench.world.receiver.runtime(id).await?["eventPath"].clone();
                ensure!(path == "proven", "{path}");
                Ok(Some(()))
            })
            .await?;
            Ok(started.elapsed())
        };
        let agent = Agent::start(&bench.env.harness, &bench.world.receiver, &member);
        let (agent, took, proven) = try_join3(agent, ready, proven).await?;
        times.push(took);
        paths.push(proven);
        running = Some(agent);
    }
    let percentile = |times: &[Duration], q| percentile_ms(times, q).context("nothing was measured");
    let ready = |q| anyhow::Ok(Figure { value: percentile(&times, q)?, against: Some(GO_READY) });
    Ok(vec![ready(0.5)?, ready(0.99)?, Figure { value: percentile(&paths, 1.0)?, against: None }])
}

/// Waits until the receiver knows the first runtime alone: the proof of a Kyma that is created again earlier takes a minute.
async fn is_forgotten(receiver: &Receiver) -> Result<()> {
    wait::until("the receiver to forget the runtime", fleet::SOON, || async {
        let page = http::json(&format!("{}/runtimes/", receiver.admin)).await?;
        let counts = page["runtimes"].as_object().context("no counts")?.values();
        Ok((counts.filter_map(Value::as_u64).sum::<u64>() == 1).then_some(()))
    })
    .await
}

fn with_module(before: &Kyma) -> Kyma {
    let mut kyma = Kyma::new(&before.name_any(), before.spec.clone());
    let (labels, annotations) = (before.metadata.labels.clone(), before.metadata.annotations.clone());
    kyma.metadata = ObjectMeta { labels, annotations, ..kyma.metadata };
    kyma.spec.modules = vec![Module { name: "lighthouse".into(), ..Module::default() }];
    kyma
}

fn is_ready(kyma: &Kyma) -> bool {
    let ready = kyma.status.as_ref().is_some_and(|status| status.state == State::Ready);
    ready && kyma.module_status("lighthouse").is_some_and(|module| module.state == State::Ready)
}
