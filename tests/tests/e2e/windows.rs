//! When an update reaches a runtime: maintenance windows, their policy, and the spread of a rollout.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleStatus, State,
    names::{GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION},
};
use tidewatch_tests::{env, http, modules::Version, observed, solo::Solo, wait};

const KYMA: (&str, &str, &str) = (GROUP, VERSION, "Kyma");
/// A window that nobody lives to see, and one that is open.
const CLOSED: &str =
    r#"{"rules": [], "default": {"begin": "2999-01-01T00:00:00Z", "end": "2999-01-01T12:00:00Z"}}"#;
const OPEN: &str =
    r#"{"rules": [], "default": {"begin": "2000-01-01T00:00:00Z", "end": "2999-01-01T00:00:00Z"}}"#;

fn version(module: &str, version: &str, downtime: bool) -> Version {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": module, "namespace": "kyma-system"}, "data": {"version": version}});
    Version { template: json!({"requiresDowntime": downtime}), ..Version::new(module, version, vec![object]) }
}

/// The module's version in the runtime.
async fn installed(solo: &Solo, module: &str) -> Result<String> {
    let map = solo.objects(("", "v1", "ConfigMap"), Some("kyma-system")).get(module).await?;
    Ok(map.data["data"]["version"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the module stays in version 1.0.0 and says why; returns its state.
async fn stays(solo: &Solo, module: &str, why: &str) -> Result<State> {
    let said = |m: &ModuleStatus| m.maintenance && m.version == "1.0.0" && m.message.contains(why);
    let status = solo.module(module, &format!("to stay in 1.0.0 and to say {why}"), said).await?;
    ensure!(solo.manifest(module).await?.spec.version == "1.0.0", "the Manifest has another version");
    ensure!(installed(solo, module).await? == "1.0.0", "another version is installed");
    Ok(status.state)
}

async fn gauge(solo: &Solo, name: &str) -> Result<String> {
    let page = http::text(&format!("{}/metrics", solo.receiver.admin)).await?;
    let name = format!("tidewatch_receiver_{name} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&name));
    Ok(line.with_context(|| format!("there is no {name}"))?.to_owned())
}

pub(crate) async fn gauge_becomes(solo: &Solo, name: &str, value: &str) -> Result<()> {
    wait::until(&format!("{name} to be {value}"), Duration::from_mins(1), || async {
        Ok((gauge(solo, name).await? == value).then_some(()))
    })
    .await
}

async fn policy_file(name: &str) -> Result<PathBuf> {
    Ok(env::shared().await?.harness.folder().join(name))
}

/// A receiver with a policy file, and module `module` in version 1.0.0, which has an update that needs a downtime.
async fn with_update(
    namespace: &'static str,
    kyma: &'static str,
    policy: &Path,
    module: &str,
) -> Result<Solo> {
    let arguments = vec![format!("--maintenance-policy={}", policy.display())];
    let solo = Solo::start_with(namespace, kyma, arguments).await?;
    // An installation needs no window.
    solo.offer(&version(module, "1.0.0", true)).await?;
    solo.enable(&json!([{"name": module}])).await?;
    solo.ready(module, "1.0.0").await?;
    solo.offer(&version(module, "1.1.0", true)).await?;
    Ok(solo)
}

#[tokio::test(flavor = "multi_thread")]
async fn downtime_updates_wait_for_their_window_unless_skipped() -> Result<()> {
    let file = policy_file("windows-closed.json").await?;
    std::fs::write(&file, CLOSED)?;
    let solo = with_update("kcp-windows", "mooring", &file, "winch").await?;
    let state = stays(&solo, "winch", "window from 2999-01-01T00:00:00Z to 2999-01-01T12:00:00Z").await?;
    ensure!(state == State::Ready, "nothing is wrong with what waits: {state}");
    let kymas = solo.objects(KYMA, Some(RUNTIME_NAMESPACE));
    wait::until("the runtime's Kyma to say so, too", Duration::from_mins(1), || async {
        let modules = kymas.get(RUNTIME_KYMA_NAME).await?.data["status"]["modules"].clone();
        let says = |m: &Value| {
            m["name"] == "winch"
                && m["maintenance"] == true
                && m["message"].as_str().is_some_and(|text| text.contains("skipMaintenanceWindows"))
        };
        Ok(modules.as_array().into_iter().flatten().any(says).then_some(()))
    })
    .await?;
    gauge_becomes(&solo, "maintenance_waiting", "1").await?;

    // Other updates wait for no window.
    solo.offer(&version("capstan", "1.0.0", false)).await?;
    solo.enable(&json!([{"name": "winch"}, {"name": "capstan"}])).await?;
    solo.ready("capstan", "1.0.0").await?;
    solo.offer(&version("capstan", "1.1.0", false)).await?;
    solo.ready("capstan", "1.1.0").await?;
    ensure!(installed(&solo, "winch").await? == "1.0.0", "winch did not wait");

    // The one in the runtime counts; KCP's says nothing of it.
    let kcp: Api<tidewatch_api::Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let skip = json!({"spec": {"skipMaintenanceWindows": true}});
    kcp.patch(solo.kyma, &PatchParams::default(), &Patch::Merge(&skip)).await?;
    wait::until("the change in KCP to be looked at", Duration::from_mins(1), || async {
        let page = http::text(&format!("{}/runtimes/{}", solo.receiver.admin, solo.kyma)).await?;
        Ok(page.contains("\"changed\"").then_some(()))
    })
    .await?;
    stays(&solo, "winch", "2999-01-01").await?;
    solo.patch(KYMA, RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME, "user", &skip).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await?;
    solo.ready("winch", "1.1.0").await?;
    let winch = solo.module("winch", "to wait no more", |m| !m.maintenance).await?;
    ensure!(winch.message.is_empty() && installed(&solo, "winch").await? == "1.1.0", "{winch:?}");
    gauge_becomes(&solo, "maintenance_waiting", "0").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_policy_takes_effect_without_a_restart() -> Result<()> {
    let file = policy_file("windows-changing.json").await?;
    let solo = with_update("kcp-policies", "berth", &file, "anchor").await?;
    // The file is not there yet: nobody knows when downtimes are welcome, so there are none.
    ensure!(gauge(&solo, "maintenance_policy_read_success").await? == "0", "it is not there");
    let state = stays(&solo, "anchor", "no maintenance policy").await?;
    ensure!(state == State::Warning, "an operator has to do something: {state}");

    std::fs::write(&file, CLOSED)?;
    stays(&solo, "anchor", "window from 2999-01-01").await?;
    ensure!(gauge(&solo, "maintenance_policy_read_success").await? == "1", "it was read");

    // One that cannot be read changes nothing.
    std::fs::write(&file, r#"{"rules": [{"match": {"plan": "("}, "windows": []}]}"#)?;
    gauge_becomes(&solo, "maintenance_policy_read_success", "0").await?;
    solo.enable(&json!([{"name": "anchor"}])).await?;
    stays(&solo, "anchor", "window from 2999-01-01").await?;

    // Nothing but the file changes.
    std::fs::write(&file, OPEN)?;
    solo.ready("anchor", "1.1.0").await?;
    gauge_becomes(&solo, "maintenance_policy_read_success", "1").await?;
    gauge_becomes(&solo, "maintenance_waiting", "0").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_spread_and_edits_not_delayed() -> Result<()> {
    // A turn comes some time in four months; within this test once in 100,000 runs.
    let arguments = vec!["--rollout-window=10000000".to_owned()];
    let mut solo = Solo::start_with("kcp-spread", "roads", arguments).await?;
    wait::until("the runtime's catalog", Duration::from_mins(1), || async {
        Ok((solo.reconciles("Catalog").await? > 0).then_some(()))
    })
    .await?;
    solo.offer(&version("beacon", "1.0.0", false)).await?;
    solo.enable(&json!([{"name": "beacon"}])).await?;
    solo.ready("beacon", "1.0.0").await?;
    // The catalog's turn: what is released is new there.
    gauge_becomes(&solo, "queue_later", "1").await?;
    tidewatch_tests::fleet::settled(&solo.receiver).await?;
    let before = solo.reconciles("Kyma").await?;

    solo.offer(&version("beacon", "1.1.0", false)).await?;
    gauge_becomes(&solo, "queue_later", "2").await?;
    ensure!(solo.reconciles("Kyma").await? == before, "the Kyma did not wait for its turn");
    ensure!(installed(&solo, "beacon").await? == "1.0.0", "the update did not wait");

    // A receiver that starts again goes on with the rollout.
    solo.receiver.restart().await?;
    gauge_becomes(&solo, "queue_later", "1").await?;
    tidewatch_tests::fleet::settled(&solo.receiver).await?;
    ensure!(installed(&solo, "beacon").await? == "1.0.0", "a restart has cut the rollout short");

    // A user's edit is done at once, and so is what is due by then.
    solo.offer(&version("buoy", "1.0.0", false)).await?;
    solo.enable(&json!([{"name": "beacon"}, {"name": "buoy"}])).await?;
    solo.ready("buoy", "1.0.0").await?;
    solo.ready("beacon", "1.1.0").await?;
    observed::no_panic(&solo.receiver.process)
}
