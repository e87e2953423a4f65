//! When a module is ready, by which of its objects, and how long it may take; and which version it is by its Kyma's channel.

use anyhow::{Result, ensure};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION},
};
use tidewatch_tests::{modules::Version, observed, solo::Solo};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");

/// A workload of one pod; of one that no node takes, if it is `stuck`.
fn deployment(name: &str, stuck: bool) -> Value {
    let labels = json!({"app": name});
    let nodes = if stuck { json!({"nobody": "has-it"}) } else { json!({}) };
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
           "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
               "spec": {"nodeSelector": nodes, "containers": [{"name": "main", "image": "example.test/x:1"}]}}}})
}

fn map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"version": version}})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ready_in_time_is_an_error_unless_the_manager_alone_counts() -> Result<()> {
    let solo = Solo::start("kcp-deadline", "davit").await?;
    let objects = || vec![deployment("davit", false), deployment("winch", true)];
    // A Deployment's own deadline would be longer.
    let brief = |mut object: Value| {
        object["spec"]["progressDeadlineSeconds"] = 3.into();
        object
    };
    let mut version = Version::new("davit", "1.0.0", objects().into_iter().map(brief).collect());
    version.template = json!({"progressDeadlineSeconds": 5});
    solo.offer(&version).await?;
    solo.enable(&json!([{"name": "davit"}])).await?;
    let late = solo
        .module("davit", "to be in Error once its time is over", |m| {
            m.state == State::Error && m.message.contains("not ready within")
        })
        .await?;
    ensure!(late.message.contains("Deployment default/winch"), "{}", late.message);

    let mut version = Version::new("davit", "1.1.0", objects());
    version.template = json!({"manager": {"group": "apps", "version": "v1", "kind": "Deployment", "name": "davit",
                                          "namespace": "default"}});
    solo.offer(&version).await?;
    solo.ready("davit", "1.1.0").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_follows_its_kymas_channel_unless_it_has_its_own() -> Result<()> {
    let solo = Solo::start("kcp-kyma-channel", "sluice").await?;
    for module in ["lock", "gate"] {
        let offer = |version: &str| Version::new(module, version, vec![map(module, version)]);
        let both = json!({"channels": [{"channel": "regular", "version": "1.0.0"}, {"channel": "fast", "version": "1.1.0"}]});
        solo.offer(&offer("1.0.0")).await?;
        solo.offer(&Version { release: both, ..offer("1.1.0") }).await?;
    }
    solo.enable(&json!([{"name": "lock"}, {"name": "gate", "channel": "regular"}])).await?;
    solo.ready("lock", "1.0.0").await?;
    solo.ready("gate", "1.0.0").await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let fast = Patch::Merge(json!({"spec": {"channel": "fast"}}));
    kymas.patch(RUNTIME_KYMA_NAME, &PatchParams::default(), &fast).await?;
    solo.tell((GROUP, VERSION, "Kyma"), RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await?;
    solo.ready("lock", "1.1.0").await?;
    solo.ready("gate", "1.0.0").await?;
    let maps = solo.objects(CONFIG_MAP, Some("default"));
    ensure!(maps.get("lock").await?.data["data"]["version"] == "1.1.0", "it is not what is installed");
    observed::no_panic(&solo.receiver.process)
}
