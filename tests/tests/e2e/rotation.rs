//! The CA is rotated under load, without a failed event.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tidewatch_demo::pod::mount;
use tidewatch_tests::{
    binaries, cluster::ADMIN, fleet::Agent, http, modules::Version, observed, solo::Solo, wait,
};

const SOON: Duration = Duration::from_mins(2);
const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");

/// A module of one object, which [`load`] changes.
pub(crate) fn ferry() -> Version {
    let objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ferry"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"line": "north"},
               "metadata": {"name": "timetable", "namespace": "ferry"}}),
    ];
    Version::new("ferry", "1.0.0", objects)
}

/// Changes the object of [`ferry`] so often, by default again and again. Each change is undone by its event alone.
pub(crate) async fn load(solo: &Solo, rounds: Option<usize>) -> Result<()> {
    let maps = solo.objects(CONFIG_MAP, Some("ferry"));
    for round in 0..rounds.unwrap_or(usize::MAX) {
        let edit = json!({"data": {"line": round.to_string()}});
        solo.patch(CONFIG_MAP, "ferry", "timetable", "editor", &edit).await?;
        wait::until("the edit to be set back", SOON, || async {
            let map = maps.get("timetable").await?;
            Ok((map.data["data"]["line"] == "north").then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Runs `tidewatch certs`.
pub(crate) async fn certs(solo: &Solo, command: &str, more: &[String]) -> Result<Value> {
    let kubeconfig = solo.env.kcp.kubeconfig_yaml(ADMIN)?;
    let kubeconfig = solo.env.harness.write(&format!("{}/admin.yaml", solo.namespace), &kubeconfig)?;
    let output = tokio::process::Command::new(binaries::find("tidewatch")?)
        .args(["certs", command, "-o=json", "--namespace", solo.namespace])
        .args(more)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Requests a rotation, and waits for its end.
async fn rotate(solo: &Solo) -> Result<()> {
    let receiver = [format!("--admin={}", solo.receiver.admin)];
    let before = certs(solo, "status", &receiver).await?;
    ensure!(before["ca"]["step"] == "stable", "{before:#}");
    certs(solo, "rotate", &[]).await?;
    wait::until("the CA to be rotated", SOON, || async {
        let status = certs(solo, "status", &receiver).await?;
        let is_done = status["ca"]["step"] == "stable" && status["ca"]["since"] != before["ca"]["since"];
        ensure!(is_done, "{status:#}");
        ensure!(status["lagging"] == json!([]), "{status:#}");
        Ok(Some(()))
    })
    .await
}

/// Failures of connections and requests of an agent since its start.
pub(super) async fn failures(agent: &Agent) -> Result<Vec<String>> {
    let page = http::text(&format!("{}/metrics", agent.admin)).await?;
    let ended = "tidewatch_agent_connections_ended_total{";
    let is_failure = |line: &&str| {
        line.starts_with("tidewatch_agent_send_failures_total{")
            || line.starts_with(ended) && !line.contains("\"renewed\"") && !line.contains("\"old\"")
    };
    Ok(page.lines().filter(is_failure).map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ca_is_rotated_without_a_failed_event() -> Result<()> {
    // `make soak-certs` rotates more often.
    let rounds = std::env::var("TIDEWATCH_ROTATIONS").ok().map_or(Ok(1), |text| text.parse::<u32>())?;
    let lifetimes = ["--agent-certificate-lifetime=15s", "--ca-rotation-patience=100s"].map(str::to_owned);
    let solo = Solo::start_watched("kcp-rotation", "pier", lifetimes.to_vec()).await?;
    let agent = solo.agent().await?;
    solo.offer(&ferry()).await?;
    solo.enable(&json!([{"name": "ferry"}])).await?;
    solo.ready_by_its_agent("ferry", "1.0.0").await?;
    solo.watching(&agent, "engine.configmaps.spec").await?;
    let before = failures(&agent).await?;

    let folder = agent.identity.cert.parent().context("no folder")?;
    let rotations = async {
        for round in 0..rounds {
            rotate(&solo).await.with_context(|| format!("rotation {round}"))?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = mount(solo.runtime.clone(), folder) => ended?,
        ended = load(&solo, None) => ended?,
        ended = rotations => ended?,
    }
    let after = failures(&agent).await?;
    ensure!(after == before, "failures: {before:?}, then {after:?}");
    observed::no_panic(&solo.receiver.process)?;
    observed::no_panic(&agent.process)
}
