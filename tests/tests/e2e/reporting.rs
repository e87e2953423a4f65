//! What users and operators are told of a module: in the Kyma's status, in its metric and in Events.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::Api;
use serde_json::json;
use tidewatch_api::{Kyma, State};
use tidewatch_tests::{cluster::ADMIN, fleet, modules::Version, observed, ports, solo::Solo, wait};

const SOON: Duration = Duration::from_mins(1);
const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");

fn map(namespace: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fender", "namespace": namespace}, "data": {"a": "1"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_recoveries_and_upgrades_cause_events() -> Result<()> {
    let solo = Solo::start("kcp-told", "quayside").await?;
    solo.offer(&Version::new("fender", "1.0.0", vec![map("fender-nowhere")])).await?;
    solo.enable(&json!([{"name": "fender"}])).await?;
    solo.event("NamespaceMissing", &["module 'fender'", "fender-nowhere"]).await?;
    solo.offer(&Version::new("fender", "1.1.0", vec![map("kyma-system")])).await?;
    solo.ready("fender", "1.1.0").await?;
    solo.event("ModuleReady", &["module 'fender'"]).await?;
    solo.offer(&Version::new("fender", "1.2.0", vec![map("kyma-system")])).await?;
    solo.ready("fender", "1.2.0").await?;
    solo.event("ModuleUpgraded", &["module 'fender'", "from 1.1.0 to version 1.2.0"]).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metrics_agree_on_an_unreachable_runtime() -> Result<()> {
    let arguments = vec!["--object-metrics".to_owned()];
    let solo = Solo::start_with("kcp-agrees", "breakwater", arguments).await?;
    solo.offer(&Version::new("fender", "1.0.0", vec![map("kyma-system")])).await?;
    solo.enable(&json!([{"name": "fender"}])).await?;
    solo.ready("fender", "1.0.0").await?;

    let (url, nobody) = (solo.cluster.url(), format!("https://127.0.0.1:{}", ports::free()?));
    let dead = solo.cluster.kubeconfig_yaml(ADMIN)?.replace(url, &nobody);
    fleet::put_kubeconfig(&solo.kcp, solo.namespace, solo.kyma, &dead).await?;
    solo.tell(CONFIG_MAP, "kyma-system", "fender").await?;
    let failed =
        |m: &tidewatch_api::ModuleStatus| m.state == State::Error && m.message.contains("cannot be reached");
    solo.module("fender", "to say that the runtime cannot be reached", failed).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    wait::until("Kyma, Manifest and metric to agree", SOON, || async {
        let kyma = kymas.get(solo.kyma).await?.status.map(|status| status.state);
        let manifest = solo.manifest("fender").await?.status.map(|status| status.state);
        let series = format!(
            "lifecycle_mgr_module_state{{instance_id=\"\",kyma_name=\"{}\",module_name=\"fender\"",
            solo.kyma
        );
        let page = tidewatch_tests::http::text(&format!("{}/metrics", solo.receiver.admin)).await?;
        let metric = page
            .lines()
            .find(|line| line.starts_with(&series) && line.contains("\"Error\""))
            .map(str::to_owned);
        let says = metric.as_deref().is_some_and(|line| line.ends_with(" 1"));
        ensure!(
            (kyma, manifest, says) == (Some(State::Error), Some(State::Error), true),
            "{kyma:?}, {manifest:?}, {metric:?}"
        );
        Ok(Some(()))
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}
