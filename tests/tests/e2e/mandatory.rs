//! Mandatory modules.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use tidewatch_api::{
    Kyma, Manifest, ModuleReleaseMeta, State,
    names::{finalizers, labels},
};
use tidewatch_tests::{
    fleet, http, modules::Version, observed, promtool, solo::Solo, story::set_modules, wait,
};

use crate::managed::{CONFIG_MAP, manifests};

const SOON: Duration = Duration::from_mins(1);

pub(crate) fn guard(version: &str) -> Version {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "guard", "namespace": "kyma-system"},
                        "data": {"version": version}});
    let release = json!({"mandatory": {"version": version}});
    Version { release, ..Version::new("guard", version, vec![object]) }
}

/// Waits until the version is Ready and installed.
pub(crate) async fn ready(solo: &Solo, version: &str) -> Result<Manifest> {
    wait::until(&format!("guard to be Ready in {version}"), SOON, || async {
        let manifest = solo.manifest("guard").await?;
        let is_ready = manifest.status.as_ref().is_some_and(|s| s.state == State::Ready);
        let settings = solo.objects(CONFIG_MAP, Some("kyma-system")).get("guard").await?;
        let there = manifest.spec.version == version && settings.data["data"]["version"] == version;
        Ok((is_ready && there).then_some(manifest))
    })
    .await
}

/// Metrics per Kyma and module need an option.
async fn metrics_have_the_names_that_are_known(solo: &Solo) -> Result<()> {
    let wanted = [
        "lifecycle_mgr_mandatory_modules 1",
        r#"lifecycle_mgr_mandatory_module_state{kyma_name="pier",module_name="guard",state="Ready"} 1"#,
        r#"lifecycle_mgr_mandatory_module_state{kyma_name="pier",module_name="guard",state="Error"} 0"#,
        r#"lifecycle_mgr_kyma_state{instance_id="",kyma_name="pier",shoot="pier",state="Ready"} 1"#,
        "lifecycle_mgr_maintenance_window_config_read_success 1",
        "lifecycle_mgr_gateway_secret_server_cert_close_to_expiry 0",
        r#"lifecycle_mgr_requeue_reason_total{requeue_reason="kyma_unauthorized",requeue_type="unexpected"} 0"#,
        r#"watcher_listener_requests_total{server_name="lifecycle-manager"} 0"#,
    ];
    let page = wait::until("the state of the module in the metrics", SOON, || async {
        let page = http::text(&format!("{}/metrics", solo.receiver.admin)).await?;
        Ok(wanted.iter().all(|line| page.lines().any(|l| l == *line)).then_some(page))
    })
    .await?;
    promtool::documented(&page, "lifecycle_mgr_")?;
    match solo.env.harness.promtool()? {
        Some(program) => promtool::check(&program, &page),
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mandatory_module_is_installed_upgraded_and_removed() -> Result<()> {
    let solo = Solo::start_with("kcp-mandatory", "pier", vec!["--object-metrics".into()]).await?;
    solo.offer(&guard("1.0.0")).await?;
    let first = ready(&solo, "1.0.0").await?;
    ensure!(first.is_mandatory(), "its label is missing");
    metrics_have_the_names_that_are_known(&solo).await?;
    let releases: Api<ModuleReleaseMeta> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    wait::until("the finalizer of the release", SOON, || async {
        let held = releases.get("guard").await?.metadata.finalizers.unwrap_or_default();
        Ok(held.iter().any(|f| f == finalizers::MANDATORY_MODULE).then_some(()))
    })
    .await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let status = kymas.get(solo.kyma).await?.status.context("no status")?;
    ensure!(status.modules.is_empty() && status.state == State::Ready, "{status:?}");

    // Users can neither enable nor unmanage it.
    solo.enable(&json!([{"name": "guard", "managed": false}])).await?;
    let of =
        |m: &tidewatch_api::ModuleStatus| m.state == State::Warning && m.message.contains("is mandatory");
    solo.module("guard", "to be refused", of).await?;
    solo.enable(&json!([])).await?;
    fleet::kyma_in_state(&solo.kcp, solo.namespace, solo.kyma, State::Ready).await?;
    let same = ready(&solo, "1.0.0").await?;
    ensure!(same.metadata.uid == first.metadata.uid && !same.is_unmanaged(), "its user has changed it");

    solo.offer(&guard("1.1.0")).await?;
    ready(&solo, "1.1.0").await?;

    // A downgrade is refused and reported.
    solo.offer(&guard("1.0.0")).await?;
    let events: Api<Event> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let told = wait::until("an Event about the downgrade", SOON, || async {
        let all = events.list(&ListParams::default()).await?.items;
        let why = "1.0.0 is lower than the installed 1.1.0";
        let one = all.into_iter().find(|e| e.message.as_ref().is_some_and(|m| m.contains(why)));
        Ok(one.and_then(|e| e.reason))
    })
    .await?;
    ensure!(told == "MandatoryModuleFailed", "{told}");
    ready(&solo, "1.1.0").await?;
    solo.offer(&guard("1.1.0")).await?;

    // A deleted Manifest is recreated.
    let before = ready(&solo, "1.1.0").await?.metadata;
    manifests(&solo).delete(before.name.as_deref().context("no name")?, &DeleteParams::default()).await?;
    wait::until("another Manifest", SOON, || async {
        Ok((solo.manifest("guard").await?.metadata.uid != before.uid).then_some(()))
    })
    .await?;
    ready(&solo, "1.1.0").await?;

    // Deleting the release removes the module; the release waits for it.
    releases.delete("guard", &DeleteParams::default()).await?;
    wait::until("the release to be gone", SOON, || async {
        Ok(releases.get_opt("guard").await?.is_none().then_some(()))
    })
    .await?;
    let label = format!("{}=true", labels::MANDATORY_MODULE);
    let left = manifests(&solo).list(&ListParams::default().labels(&label)).await?.items;
    ensure!(left.is_empty(), "a Manifest is left");
    let settings = solo.objects(CONFIG_MAP, Some("kyma-system")).get_opt("guard").await?;
    ensure!(settings.is_none(), "its objects are left");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_formerly_mandatory_module_chosen_by_a_user_stays() -> Result<()> {
    let solo = Solo::start("kcp-lately", "mole").await?;
    solo.offer(&guard("1.0.0")).await?;
    let first = ready(&solo, "1.0.0").await?;
    fleet::settled(&solo.receiver).await?;
    // Without an agent there are no events.
    set_modules(&solo.runtime, &json!([{"name": "guard"}])).await?;
    let mut chosen = guard("1.0.0");
    chosen.release = json!({});
    chosen.channels = vec!["regular".to_owned()];
    solo.offer(&chosen).await?;
    fleet::settled(&solo.receiver).await?;
    let same = solo.manifest("guard").await?.metadata;
    ensure!(same.uid == first.metadata.uid && same.deletion_timestamp.is_none(), "it was removed: {same:?}");
    solo.look().await?;
    solo.ready("guard", "1.0.0").await?;
    let taken = solo.manifest("guard").await?;
    ensure!(
        taken.metadata.uid == first.metadata.uid && !taken.is_mandatory(),
        "it is another one, or mandatory still"
    );
    // A disabled module is removed.
    set_modules(&solo.runtime, &json!([])).await?;
    solo.look().await?;
    solo.gone("guard").await?;
    observed::no_panic(&solo.receiver.process)
}
