//! Leadership of a control plane, and the pause switch.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, State};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    env,
    fleet::{self, Receiver},
    http,
    modules::Version,
    observed,
    solo::Solo,
    wait,
};

use crate::mandatory::guard;

const NAME: &str = "893110f7.kyma-project.io";
const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
const SOON: Duration = Duration::from_mins(1);

async fn holder(leases: &Api<Lease>) -> Result<String> {
    let lease = leases.get_opt(NAME).await?;
    Ok(lease.and_then(|l| l.spec).and_then(|s| s.holder_identity).unwrap_or_default())
}

async fn holder_is(leases: &Api<Lease>, place: &str) -> Result<()> {
    wait::until(&format!("the Lease to be held by {place}"), SOON, || async {
        Ok(holder(leases).await?.starts_with(&format!("tidewatch.{place}_")).then_some(()))
    })
    .await
}

async fn is_ready(receiver: &Receiver) -> Result<bool> {
    Ok(http::status(&format!("{}/readyz", receiver.admin)).await? == hyper::StatusCode::OK)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_receiver_leads_and_another_takes_over() -> Result<()> {
    let (env, namespace) = (env::shared().await?, "kcp-lease");
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, namespace).await?;
    let leases: Api<Lease> = Api::namespaced(kcp.clone(), namespace);
    // The Go manager's Lease counts for its duration without renewal.
    let theirs: Lease = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {"holderIdentity": "manager-0_a", "leaseDurationSeconds": 8, "leaseTransitions": 4,
                 "renewTime": "2020-01-01T00:00:00.000000Z"}}))?;
    leases.create(&PostParams::default(), &theirs).await?;
    let modules = &env.registry.of(namespace);
    let start = |place: &'static str| async move {
        let identity = vec![format!("--identity={place}")];
        Receiver::begin(&env.harness, &env.kcp, namespace, modules, place, identity).await
    };
    let mut first = start("pod-a").await?;
    wait::until("the first to have seen who works", SOON, || async {
        Ok(observed::text(&first.process)?.contains("manager-0_a").then_some(()))
    })
    .await?;
    ensure!(
        holder(&leases).await? == "manager-0_a" && !fleet::leads(&first.admin).await?,
        "it works beside the Go manager"
    );
    holder_is(&leases, "pod-a").await?;
    first.ready().await?;

    let mut second = start("pod-b").await?;
    wait::until("the second to have seen who works", SOON, || async {
        Ok(observed::text(&second.process)?.contains("tidewatch.pod-a_").then_some(()))
    })
    .await?;
    // A rollout waits until the standby can take over.
    wait::until("the standby to be ready", SOON, || async { Ok(is_ready(&second).await?.then_some(())) })
        .await?;
    ensure!(!fleet::leads(&second.admin).await?, "both lead");

    // An orderly end releases the Lease at once; after a kill it must expire.
    first.process.begin_end();
    holder_is(&leases, "pod-b").await?;
    second.ready().await?;
    let third = start("pod-c").await?;
    second.process.kill().await?;
    holder_is(&leases, "pod-c").await?;
    third.ready().await?;
    // A restarted holder does not wait.
    second.start_again_unready()?;
    let taken: Value = json!({"spec": {"holderIdentity": "tidewatch.pod-b_gone"}});
    leases.patch(NAME, &PatchParams::default(), &Patch::Merge(&taken)).await?;
    holder_is(&leases, "pod-b").await?;
    // A process that lost the Lease ends.
    wait::until("the one that lost the Lease to end", SOON, || async { Ok(third.process.ended().map(drop)) })
        .await?;
    let lease = leases.get(NAME).await?.spec.context("no spec")?;
    ensure!(lease.lease_transitions.unwrap_or(0) >= 7, "{lease:?}");
    Ok(())
}

#[real_only("the simulated API server has no EndpointSlices")]
#[tokio::test(flavor = "multi_thread")]
async fn agents_service_leads_to_the_leader() -> Result<()> {
    let (env, namespace) = (env::shared().await?, "kcp-leader-service");
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, namespace).await?;
    let modules = &env.registry.of(namespace);
    let start = |place: &'static str, ip: &'static str| {
        let service = ["--leader-service=tidewatch-receiver", "--node-name=node"].map(str::to_owned);
        let args = [&service[..], &[format!("--identity={place}"), format!("--pod-ip={ip}")]].concat();
        Receiver::begin(&env.harness, &env.kcp, namespace, modules, place, args)
    };
    let slices: Api<EndpointSlice> = Api::namespaced(kcp.clone(), namespace);
    let leads_to = |ip: &'static str| {
        let slices = slices.clone();
        async move {
            wait::until(&format!("the Service to lead to {ip}"), SOON, || async {
                let slice = slices.get_opt("tidewatch-receiver").await?;
                let addresses: Vec<String> = slice
                    .into_iter()
                    .flat_map(|slice| slice.endpoints.unwrap_or_default())
                    .flat_map(|endpoint| endpoint.addresses)
                    .collect();
                Ok((addresses == [ip]).then_some(()))
            })
            .await
        }
    };
    let mut first = start("pod-a", "10.1.0.1").await?;
    leads_to("10.1.0.1").await?;
    let second = start("pod-b", "10.1.0.2").await?;
    wait::until("the standby to be ready", SOON, || async { Ok(is_ready(&second).await?.then_some(())) })
        .await?;
    leads_to("10.1.0.1").await?;
    first.process.begin_end();
    leads_to("10.1.0.2").await
}

async fn is_paused(solo: &Solo, wanted: u64) -> Result<()> {
    wait::until("the receiver to know whether it is paused", SOON, || async {
        let paused = observed::metric(&solo.receiver.admin, "tidewatch_receiver_paused").await?;
        Ok((paused == wanted).then_some(()))
    })
    .await
}

async fn an_edit_stays(solo: &Solo, value: &str) -> Result<()> {
    is_paused(solo, 1).await?;
    let before = solo.applies().await?;
    solo.patch(CONFIG_MAP, "kyma-system", "dune", "user", &json!({"data": {"a": value}})).await?;
    solo.told(CONFIG_MAP, "kyma-system", "dune").await?;
    let map = solo.objects(CONFIG_MAP, Some("kyma-system")).get("dune").await?;
    ensure!(map.data["data"]["a"] == value && solo.applies().await? == before, "it was written while paused");
    Ok(())
}

async fn it_is_undone(solo: &Solo) -> Result<()> {
    is_paused(solo, 0).await?;
    wait::until("the edit to be undone", SOON, || async {
        let map = solo.objects(CONFIG_MAP, Some("kyma-system")).get("dune").await?;
        Ok((map.data["data"]["a"] == "1").then_some(()))
    })
    .await?;
    solo.module("dune", "to be Ready", |m| m.state == State::Ready).await.map(drop)
}

async fn says_paused(solo: &Solo, paused: bool) -> Result<()> {
    let says = |kyma: &Value| {
        let all = kyma["status"]["conditions"].as_array().into_iter().flatten();
        all.filter(|c| c["type"] == "Paused").map(|c| c["status"] == "True").collect::<Vec<_>>()
    };
    let wanted = if paused { vec![true] } else { Vec::new() };
    wait::until("the Kyma to say whether the engine is paused", SOON, || async {
        let in_kcp = Api::<Kyma>::namespaced(solo.kcp.clone(), solo.namespace).get(solo.kyma).await?;
        let of_user = Api::<Kyma>::namespaced(solo.runtime.clone(), "kyma-system").get("default").await?;
        let said = [says(&serde_json::to_value(in_kcp)?), says(&serde_json::to_value(of_user)?)];
        ensure!(said.iter().all(|said| *said == wanted), "{said:?}");
        Ok(Some(()))
    })
    .await
}

/// Mandatory modules wait too; a withdrawn release is never installed.
async fn a_release_waits(solo: &Solo) -> Result<()> {
    let last = || async {
        let page = solo.receiver.runtime(solo.kyma).await?;
        let of_it = page["reconciles"].as_array().into_iter().flatten();
        let newest = of_it.filter(|record| record["key"] == "Mandatory/strand");
        let newest = newest.max_by_key(|record| record["finishedAt"].as_str().map(str::to_owned));
        anyhow::Ok(newest.map(|record| record["message"].to_string()).unwrap_or_default())
    };
    let before = solo.manifest("guard").await?;
    solo.offer(&guard("1.1.0")).await?;
    wait::until("the mandatory modules to wait for the end of the pause", SOON, || async {
        let said = last().await?;
        ensure!(said.contains("paused"), "{said}");
        Ok(Some(()))
    })
    .await?;
    let now = solo.manifest("guard").await?;
    ensure!(now.metadata.generation == before.metadata.generation, "it was changed in KCP while paused");
    solo.offer(&guard("1.0.0")).await
}

/// Unchanged after the pause.
async fn nothing_came_of_it(solo: &Solo) -> Result<()> {
    fleet::at_rest(&solo.receiver).await?;
    let manifest = solo.manifest("guard").await?;
    ensure!(
        manifest.spec.version == "1.0.0" && manifest.metadata.generation == Some(1),
        "version {}, generation {:?}",
        manifest.spec.version,
        manifest.metadata.generation
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_stops_writes_to_runtimes_and_nothing_is_lost() -> Result<()> {
    let mut solo = Solo::start("kcp-pause", "strand").await?;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dune", "namespace": "kyma-system"},
                        "data": {"a": "1"}});
    solo.offer(&Version::new("dune", "1.0.0", vec![object])).await?;
    solo.enable(&json!([{"name": "dune"}])).await?;
    solo.ready("dune", "1.0.0").await?;
    solo.offer(&guard("1.0.0")).await?;
    crate::mandatory::ready(&solo, "1.0.0").await?;
    nothing_came_of_it(&solo).await?;

    let maps: Api<ConfigMap> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let pause = json!({"metadata": {"name": "tidewatch-engine"}, "data": {"paused": "true"}});
    maps.create(&PostParams::default(), &serde_json::from_value(pause)?).await?;
    an_edit_stays(&solo, "theirs").await?;
    says_paused(&solo, true).await?;
    a_release_waits(&solo).await?;
    maps.delete("tidewatch-engine", &DeleteParams::default()).await?;
    it_is_undone(&solo).await?;
    says_paused(&solo, false).await?;
    nothing_came_of_it(&solo).await?;

    // The flag overrides the ConfigMap for the process's lifetime.
    solo.receiver.restart_with(|arguments| arguments.push("--pause".to_owned())).await?;
    an_edit_stays(&solo, "theirs again").await?;
    solo.receiver.restart_with(|arguments| arguments.retain(|argument| argument != "--pause")).await?;
    solo.tell(CONFIG_MAP, "kyma-system", "dune").await?;
    it_is_undone(&solo).await?;
    observed::no_panic(&solo.receiver.process)
}
