//! The event path is proven continuously; an unproven runtime is polled.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use tidewatch_api::{Kyma, names::conditions};
use tidewatch_tests::{
    env, fixtures,
    fleet::{self, Agent, Member, Receiver},
    observed::{self, metric},
    spare, story, wait,
};

const NAMESPACE: &str = "kcp-canary";
const SYSTEM: &str = "lighthouse-system";
const MANAGER: &str = "lighthouse-keeper";
const SOON: Duration = Duration::from_mins(1);
/// Time to notice and repair a lost event. The last canary is at most 60 s old and expires after 75 s.
const NOTICED: Duration = Duration::from_secs(90);

/// Status and reason of the event condition.
async fn says(kymas: &Api<Kyma>, kyma: &str) -> Result<(String, String)> {
    let status = kymas.get(kyma).await?.status.unwrap_or_default();
    let condition = status.conditions.into_iter().find(|c| c.type_ == conditions::RUNTIME_EVENTS);
    Ok(condition.map(|c| (c.status, c.reason)).unwrap_or_default())
}

async fn until_says(
    kymas: &Api<Kyma>,
    kyma: &str,
    status: &str,
    reason: &str,
    within: Duration,
) -> Result<()> {
    let wanted = (status.to_owned(), reason.to_owned());
    wait::until(&format!("RuntimeEvents {status}, {reason}"), within, || async {
        Ok((says(kymas, kyma).await? == wanted).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_event_is_detected_and_repaired_by_polling() -> Result<()> {
    let env = env::shared().await?;
    let spare = spare::shared().await?;
    let _alone = spare.register_alone().await;
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, NAMESPACE).await?;
    fleet::push_lighthouse(&env.registry.of(NAMESPACE), "1.0.0", fixtures::LIGHTHOUSE_1_0_0).await?;
    fleet::offer_template(&kcp, NAMESPACE, "1.0.0").await?;
    fleet::release(&kcp, NAMESPACE, &[("regular", "1.0.0")]).await?;
    let polling = vec!["--fallback-poll=20".to_owned()];
    let receiver =
        Receiver::start_with(&env.harness, &env.kcp, NAMESPACE, &env.registry.of(NAMESPACE), polling).await?;
    let member = Member { cluster: &spare.runtime4, kyma: "canary", id: "runtime-canary" };
    fleet::register(&kcp, NAMESPACE, &member).await?;
    let agent = Agent::start(&env.harness, &receiver, &member).await?;
    let kymas: Api<Kyma> = Api::namespaced(kcp.clone(), NAMESPACE);
    until_says(&kymas, member.kyma, "True", "Proven", SOON).await?;
    let proven = "tidewatch_receiver_runtimes{state=\"proven\"}";
    ensure!(metric(&receiver.admin, proven).await? == 1);
    let polls = "tidewatch_receiver_looks_total{reason=\"poll\"}";
    let runtime = member.cluster.client()?;
    story::set_modules(&runtime, &json!([{"name": "lighthouse"}])).await?;
    let deployments: Api<Deployment> = Api::namespaced(runtime.clone(), SYSTEM);
    let there = |what: &'static str, within| {
        let deployments = deployments.clone();
        async move {
            wait::until(what, within, || async { Ok(deployments.get_opt(MANAGER).await?.map(drop)) }).await
        }
    };
    there("the module's Deployment", SOON).await?;
    fleet::settled(&receiver).await?;
    ensure!(metric(&receiver.admin, polls).await? == 0, "a proven runtime is not polled");

    // Simulates the loss of all events.
    drop(agent);
    deployments.delete(MANAGER, &DeleteParams::background()).await?;
    // Without pods the module is not ready, so it is retried anyway.
    there("the Deployment to be restored", NOTICED).await?;
    until_says(&kymas, member.kyma, "False", "NoCanary", NOTICED).await?;
    let before = metric(&receiver.admin, polls).await?;
    deployments.delete(MANAGER, &DeleteParams::background()).await?;
    there("the Deployment to be restored by a poll", NOTICED).await?;
    wait::until("a poll", SOON, || async {
        Ok((metric(&receiver.admin, polls).await? > before).then_some(()))
    })
    .await?;

    let agent = Agent::start(&env.harness, &receiver, &member).await?;
    until_says(&kymas, member.kyma, "True", "Proven", SOON).await?;
    observed::no_panic(&receiver.process)?;
    observed::no_panic(&agent.process).context("the agent")
}
