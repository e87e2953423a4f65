//! A hibernated runtime: API server and agent are suspended and later resume.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::Api;
use serde_json::Value;
use tidewatch_api::{Kyma, names::conditions};
use tidewatch_tests::{env, fleet, observed::metric, wait};

use super::{
    rig::{NOTICED, Rig, SOON},
    runtime,
};

const NAME: &str = "doldrums";
const ID: &str = "runtime-doldrums";
/// A missing canary is noticed after 75 s; then the engine's calls must time out.
const ASLEEP: Duration = Duration::from_mins(3);

async fn runtimes(rig: &Rig, state: &str) -> Result<u64> {
    metric(&rig.receiver.admin, &format!("tidewatch_receiver_runtimes{{state=\"{state}\"}}")).await
}

async fn until_state(rig: &Rig, state: &str, within: Duration) -> Result<()> {
    wait::until(&format!("the runtime to be {state}"), within, || async {
        Ok((runtimes(rig, state).await? == 1).then_some(()))
    })
    .await
}

/// Status of the event condition.
async fn says(kymas: &Api<Kyma>) -> Result<String> {
    let status = kymas.get(NAME).await?.status.unwrap_or_default();
    let condition = status.conditions.into_iter().find(|c| c.type_ == conditions::RUNTIME_EVENTS);
    Ok(condition.map(|c| c.status).unwrap_or_default())
}

/// Returns the delays of retries.
fn retried_after(page: &Value) -> Vec<String> {
    let records = page["reconciles"].as_array().map(Vec::as_slice).unwrap_or_default();
    let causes = records.iter().flat_map(|r| r["causes"].as_array().map(Vec::as_slice).unwrap_or_default());
    let retries = causes.filter(|cause| cause["type"] == "retry" && cause["attempt"].as_u64() > Some(0));
    retries.filter_map(|cause| Some(cause["reason"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hibernating_runtime_causes_no_alert_and_recovers() -> Result<()> {
    let env = env::shared().await?;
    let cluster = runtime(NAME).await?;
    // Polled at once when unproven, then every ten seconds until unreachable.
    let arguments = ["--fallback-poll=10", "--unknown-grace=5"];
    let mut rig = Rig::start_with(&env.kcp, &cluster, NAME, &arguments).await?;
    let kymas: Api<Kyma> = Api::namespaced(env.kcp.client()?, &rig.receiver.namespace);
    until_state(&rig, "proven", SOON).await?;

    cluster.freeze_api().await?;
    rig.agent.process.freeze().await?;
    until_state(&rig, "unreachable", ASLEEP).await.with_context(|| rig.logs())?;
    // All retries fail alike, beyond the backoff and poll intervals. No alert fires.
    let polls = "tidewatch_receiver_looks_total{reason=\"poll\"}";
    let polled = metric(&rig.receiver.admin, polls).await?;
    let since = tokio::time::Instant::now();
    wait::until("a while to pass", SOON, || async {
        for state in ["unproven", "unknown", "proven"] {
            ensure!(runtimes(&rig, state).await? == 0, "it is {state}");
        }
        ensure!(metric(&rig.receiver.admin, "tidewatch_receiver_event_path_ill").await? == 0);
        Ok((since.elapsed() > Duration::from_secs(25)).then_some(()))
    })
    .await?;
    // One last poll can be due.
    ensure!(metric(&rig.receiver.admin, polls).await? <= polled + 1, "it is asked once an hour");
    ensure!(says(&kymas).await? != "True");
    // Each retry hits the call's deadline. `explain` shows its reason.
    wait::until("a retry after silence", SOON, || async {
        let reasons = retried_after(&rig.receiver.runtime(ID).await?);
        Ok(reasons.iter().any(|reason| reason == "timeout" || reason == "unreachable").then_some(()))
    })
    .await?;

    // A change before the agent resumes.
    cluster.thaw_api().await?;
    let (_, before) = rig.last_change().await?;
    let woken = Timestamp::now();
    rig.agent.process.thaw().await?;
    rig.proven(before, NOTICED).await.with_context(|| rig.logs())?;
    until_state(&rig, "proven", NOTICED).await.with_context(|| rig.logs())?;
    wait::until("the Kyma to say so", SOON, || async { Ok((says(&kymas).await? == "True").then_some(())) })
        .await?;
    let took = Timestamp::now().duration_since(woken);
    ensure!(took.as_secs() < 90, "it took {took}");
    fleet::settled(&rig.receiver).await?;
    rig.healthy()
}
