//! The whole way of another manager's events: a Watcher in KCP, an agent in the runtime, the manager's own service.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use tidewatch_api::{State, Watcher, names};
use tidewatch_tests::{
    env,
    fleet::{self, Agent, Member, Receiver},
    observed::metric,
    spare, story, wait,
};
use tidewatch_tls::xfcc;

use crate::service::{Heard, Service, free};

const NAMESPACE: &str = "kcp-watcher-path";
const SOON: Duration = Duration::from_mins(1);

async fn put_config_map(api: &Api<ConfigMap>, name: &str, keeper: &str, content: &str) -> Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"content": content},
                      "metadata": {"name": name, "labels": {"watcher-path": keeper}}});
    api.patch(name, &PatchParams::apply("tidewatch-tests").force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Until the service is told of this object. A start may tell once more of one that was deleted before.
async fn told(keeper: &mut Service, name: &str) -> Result<()> {
    loop {
        let heard = keeper.next().await?;
        if *watched(&heard) == json!({"Namespace": "default", "Name": name}) {
            return Ok(());
        }
        ensure!(watched(&heard)["Name"] == "path-mine", "{heard:?}");
    }
}

fn watched(heard: &Heard) -> &Value {
    &heard.body["watched"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_receives_each_change_the_agent_holds() -> Result<()> {
    let env = env::shared().await?;
    let spare = spare::shared().await?;
    let _alone = spare.register_alone().await;
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, NAMESPACE).await?;
    let watchers: Api<Watcher> = Api::namespaced(kcp.clone(), NAMESPACE);
    let watcher = json!({
        "apiVersion": names::API_VERSION, "kind": "Watcher", "metadata": {"name": "keeper"},
        "spec": {"serviceInfo": {"name": "svc", "namespace": "ops", "port": 80}, "manager": "keeper",
                 "resourceToWatch": {"group": "", "version": "*", "resource": "configmaps"}, "field": "spec",
                 "labelsToWatch": {"watcher-path": "yes"}, "gateway": {"selector": {"matchLabels": {"a": "b"}}}}
    });
    watchers.patch("keeper", &PatchParams::apply("tidewatch-tests"), &Patch::Apply(watcher)).await?;
    let address = free()?;
    let route = vec![format!("--route-address=keeper={address}")];
    let receiver =
        Receiver::start_with(&env.harness, &env.kcp, NAMESPACE, &env.registry.of(NAMESPACE), route).await?;
    let member = Member { cluster: &spare.runtime4, kyma: "harbour", id: "runtime-harbour" };
    spare::take_over(member.cluster).await?;
    fleet::register(&kcp, NAMESPACE, &member).await?;
    fleet::kyma_in_state(&kcp, NAMESPACE, member.kyma, State::Ready).await?;
    let mut agent = Agent::start(&env.harness, &receiver, &member).await?;
    let dirty = async |agent: &Agent| anyhow::Ok(agent.status().await?["dirtyKeys"].clone());
    let maps: Api<ConfigMap> = Api::namespaced(member.cluster.client()?, "default");
    let own = CertificateDer::from_pem_slice(agent.identity.issued.cert_pem.as_bytes())?;

    // Created, changed and deleted: told each time, with the certificate of the runtime.
    let mut keeper = Service::start(address).await?;
    put_config_map(&maps, "path-other", "no", "one").await?;
    put_config_map(&maps, "path-mine", "yes", "one").await?;
    let first = keeper.next().await?;
    ensure!(first.path == "/v2/keeper/event", "{first:?}");
    ensure!(xfcc::parse(first.certificate.as_bytes())? == own, "{first:?}");
    ensure!(*watched(&first) == json!({"Namespace": "default", "Name": "path-mine"}), "{first:?}");
    put_config_map(&maps, "path-mine", "yes", "two").await?;
    ensure!(watched(&keeper.next().await?)["Name"] == "path-mine");
    maps.delete("path-mine", &DeleteParams::default()).await?;
    ensure!(watched(&keeper.next().await?)["Name"] == "path-mine");
    wait::until("all to be let go", SOON, || async { Ok((dirty(&agent).await? == 0).then_some(())) }).await?;

    // A dead service: the agent holds the change, and the engine's own events pass.
    drop(keeper);
    put_config_map(&maps, "path-held", "yes", "one").await?;
    wait::until("the dead service to be tried", SOON, || async {
        let tried = "tidewatch_receiver_forwards_total{manager=\"keeper\",result=\"unreachable\"}";
        Ok((metric(&receiver.admin, tried).await? >= 2).then_some(()))
    })
    .await?;
    let acknowledged = "tidewatch_agent_events_acknowledged_total";
    let before = metric(&agent.admin, acknowledged).await?;
    story::set_modules(&member.cluster.client()?, &json!([{"name": "not-there"}])).await?;
    wait::until("the engine's event to be let go", SOON, || async {
        Ok((metric(&agent.admin, acknowledged).await? > before).then_some(()))
    })
    .await?;
    wait::until("only the held one to be left", SOON, || async {
        Ok((dirty(&agent).await? == 1).then_some(()))
    })
    .await?;

    // An agent that is restarted meanwhile still holds it; the service gets it when it lives.
    agent.process.kill().await?;
    agent.start_again().await?;
    wait::until("the new agent to hold it", SOON, || async {
        Ok(agent.status().await?["dirtyKeys"].as_u64().filter(|dirty| *dirty > 0))
    })
    .await?;
    let mut keeper = Service::start(address).await?;
    told(&mut keeper, "path-held").await?;
    wait::until("it to be let go", SOON, || async {
        Ok((agent.status().await?["dirtyKeys"] == 0).then_some(()))
    })
    .await?;

    // What is deleted while there is no agent is told by name when there is one.
    let own_maps: Api<ConfigMap> = Api::namespaced(member.cluster.client()?, "kyma-system");
    let names = own_maps.get("tidewatch-agent-names-0").await?.data.unwrap_or_default();
    ensure!(names.values().any(|text| text.lines().any(|line| line == "default/path-held")), "{names:?}");
    agent.process.kill().await?;
    maps.delete("path-held", &DeleteParams::default()).await?;
    agent.start_again().await?;
    told(&mut keeper, "path-held").await?;
    wait::until("it to be let go", SOON, || async {
        Ok((agent.status().await?["dirtyKeys"] == 0).then_some(()))
    })
    .await?;
    maps.delete("path-other", &DeleteParams::default()).await?;
    Ok(())
}
