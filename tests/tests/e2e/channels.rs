//! Versions by channel; the channel `none` never updates a module.

use anyhow::{Result, ensure};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleStatus, State,
    names::{GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION},
};
use tidewatch_tests::{modules::Version, observed, solo::Solo};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");

fn map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"version": version}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_modules_own_channel_overrides_the_kymas() -> Result<()> {
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

#[tokio::test(flavor = "multi_thread")]
async fn channel_none_installs_nothing_and_removes_nothing() -> Result<()> {
    let solo = Solo::start("kcp-no-channel", "flume").await?;
    let offer = |version: &str| Version::new("bolt", version, vec![map("bolt", version)]);
    let refused = |m: &ModuleStatus| m.state == State::Error && m.message.contains("'none'");
    let maps = solo.objects(CONFIG_MAP, Some("default"));
    solo.offer(&offer("1.0.0")).await?;
    let none = json!([{"name": "bolt", "channel": "none"}]);
    solo.enable(&none).await?;
    let said = solo.module("bolt", "to be refused", refused).await?;
    ensure!(said.manifest.is_none() && maps.get_opt("bolt").await?.is_none(), "it is installed: {said:?}");

    solo.enable(&json!([{"name": "bolt"}])).await?;
    solo.ready("bolt", "1.0.0").await?;
    solo.enable(&none).await?;
    solo.module("bolt", "to be refused again", refused).await?;
    solo.offer(&offer("1.1.0")).await?;
    solo.look().await?;
    let manifest = solo.manifest("bolt").await?;
    ensure!(
        manifest.metadata.deletion_timestamp.is_none() && manifest.spec.version == "1.0.0",
        "{manifest:?}"
    );
    ensure!(maps.get("bolt").await?.data["data"]["version"] == "1.0.0", "what is installed has changed");
    observed::no_panic(&solo.receiver.process)
}
