//! Module availability: beta, internal and restricted modules, and the platform's policy.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{State, names::labels};
use tidewatch_tests::{modules::Version, observed, solo::Solo};

use crate::windows::gauge_becomes;

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");

fn version(module: &str, release: Value) -> Version {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": module, "namespace": "kyma-system"}});
    Version { release, ..Version::new(module, "1.0.0", vec![object]) }
}

fn labelled(module: &str, labels: &Value) -> Version {
    Version { labels: labels.clone(), ..version(module, json!({})) }
}

async fn is_installed(solo: &Solo, module: &str) -> Result<bool> {
    Ok(solo.objects(CONFIG_MAP, Some("kyma-system")).get_opt(module).await?.is_some())
}

async fn denied(solo: &Solo, module: &str, why: &str) -> Result<()> {
    solo.module(module, &format!("to say {why}"), |m| m.state == State::Error && m.message.contains(why))
        .await?;
    solo.gone(module).await?;
    ensure!(!is_installed(solo, module).await?, "{module} is installed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_access_removes_the_module_with_a_reason() -> Result<()> {
    let restricted = vec!["--restricted-default-modules=urchin,other".to_owned()];
    let solo = Solo::start_with("kcp-access", "lagoon", restricted).await?;
    solo.offer(&labelled("kelp", &json!({labels::BETA: "true"}))).await?;
    let trial = json!({"kymaSelector": {"matchLabels": {"plan": "trial"}}});
    solo.offer(&version("urchin", trial.clone())).await?;
    solo.offer(&version("anemone", trial)).await?;
    solo.offer(&labelled("cockle", &json!({labels::INTERNAL: "True"}))).await?;
    // Deprecated fields without effect.
    solo.offer(&version("limpet", json!({"beta": true, "internal": true}))).await?;
    let all = ["kelp", "urchin", "anemone", "cockle", "limpet"];
    solo.enable(&json!(all.map(|name| json!({"name": name})))).await?;
    denied(&solo, "kelp", "in beta").await?;
    denied(&solo, "urchin", "restricted").await?;
    denied(&solo, "anemone", "not set up").await?;
    denied(&solo, "cockle", "internal").await?;
    solo.ready("limpet", "1.0.0").await?;

    solo.label(&json!({"operator.kyma-project.io/beta": "true", "plan": "trial"})).await?;
    solo.ready("kelp", "1.0.0").await?;
    solo.ready("urchin", "1.0.0").await?;
    denied(&solo, "anemone", "not set up").await?;

    denied(&solo, "cockle", "internal").await?;

    solo.label(&json!({"operator.kyma-project.io/internal": "true"})).await?;
    solo.ready("cockle", "1.0.0").await?;
    solo.label(&json!({"operator.kyma-project.io/internal": null, "operator.kyma-project.io/beta": null}))
        .await?;
    denied(&solo, "cockle", "internal").await?;
    denied(&solo, "kelp", "in beta").await?;
    solo.event("ModuleNotAvailable", &["'kelp' is removed", "beta"]).await?;
    // The release's selector excludes it.
    let paid = json!({"kymaSelector": {"matchLabels": {"plan": "paid"}}});
    solo.offer(&version("urchin", paid)).await?;
    denied(&solo, "urchin", "restricted").await?;
    ensure!(is_installed(&solo, "limpet").await?, "limpet is everybody's");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_platform_policy_overrides_the_users_entry() -> Result<()> {
    let solo = Solo::start("kcp-policy", "inlet").await?;
    for module in ["mussel", "oyster", "whelk"] {
        let mut offer = version(module, json!({}));
        offer.channels = vec!["regular".into(), "fast".into()];
        solo.offer(&offer).await?;
    }
    solo.enable(&json!([{"name": "mussel"}, {"name": "whelk", "channel": "fast"}])).await?;
    solo.ready("mussel", "1.0.0").await?;
    solo.ready("whelk", "1.0.0").await?;

    let maps: Api<ConfigMap> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let says = async |policy: &str| -> Result<()> {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tidewatch-policy"}, "data": {"policy.yaml": policy}});
        let params = PatchParams::apply("platform").force();
        maps.patch("tidewatch-policy", &params, &Patch::Apply(&map)).await?;
        Ok(())
    };
    let inlet = "rules:\n- forbid: [mussel]\n  require: [oyster]\n  fix: [{name: whelk, channel: regular}]\n";
    says(inlet).await?;
    denied(&solo, "mussel", "policy forbids").await?;
    solo.ready("oyster", "1.0.0").await?;
    solo.module("oyster", "to say who wants it", |m| m.message.contains("required by the platform")).await?;
    solo.module("whelk", "to say what is set", |m| {
        m.channel == "regular"
            && m.state == State::Ready
            && m.message.contains("channel regular instead of fast")
    })
    .await?;

    // An unreadable policy leaves the previous one in force.
    says("rules: {").await?;
    solo.enable(&json!([{"name": "mussel"}, {"name": "whelk"}])).await?;
    solo.module("whelk", "to have nothing set", |m| m.message.is_empty()).await?;
    denied(&solo, "mussel", "policy forbids").await?;
    let readable = "central_policy_read_success";
    gauge_becomes(&solo, readable, "0").await?;

    maps.delete("tidewatch-policy", &DeleteParams::default()).await?;
    solo.ready("mussel", "1.0.0").await?;
    gauge_becomes(&solo, readable, "1").await?;
    solo.gone("oyster").await?;
    ensure!(!is_installed(&solo, "oyster").await?, "oyster was wanted by the policy alone");
    observed::no_panic(&solo.receiver.process)
}
