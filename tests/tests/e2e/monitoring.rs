//! Dashboards and alert rules of the chart, asked of a Prometheus that scrapes receiver and agent.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    observed,
    prometheus::{self, Prometheus, Target},
    solo::Solo,
    wait,
};
use tokio::time::Instant;

use crate::{
    rotation::{ferry, load},
    routes::put_watcher,
    service::{Service, free},
};

const NAMESPACE: &str = "kcp-monitoring";
/// The agent checks for lost events once a minute.
const SHOWN: Duration = Duration::from_secs(90);

/// Waits until each panel of each dashboard has data.
async fn all_panels_show(prometheus: &Prometheus) -> Result<()> {
    let dashboards = prometheus::dashboards()?;
    ensure!(dashboards.len() >= 4 && dashboards.iter().all(|dashboard| !dashboard.panels.is_empty()));
    wait::until("every panel to have data", SHOWN, || async {
        let mut missing = Vec::new();
        for dashboard in &dashboards {
            missing.extend(prometheus.without_data(dashboard).await?);
        }
        ensure!(missing.is_empty(), "without data:\n{}", missing.join("\n"));
        Ok(Some(()))
    })
    .await
}

#[real_only("Prometheus is built with Go")]
#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_data_and_every_rule_is_evaluated() -> Result<()> {
    let address = free()?;
    let _keeper = Service::start(address).await?;
    let arguments = vec!["--object-metrics".to_owned(), format!("--route-address=keeper={address}")];
    let solo = Solo::start_watched(NAMESPACE, "breakwater", arguments).await?;
    put_watcher(NAMESPACE, "keeper", "", "configmaps").await?;
    let agent = solo.agent().await?;
    let targets = [
        Target { job: "tidewatch-receiver", namespace: NAMESPACE, admin: &solo.receiver.admin },
        Target { job: "tidewatch-agent", namespace: "kyma-system", admin: &agent.admin },
    ];
    let prometheus = Prometheus::start(&solo.env.harness, NAMESPACE, &targets).await?;
    solo.offer(&ferry()).await?;
    solo.enable(&json!([{"name": "ferry"}])).await?;
    solo.ready_by_its_agent("ferry", "1.0.0").await?;
    let began = Instant::now();
    tokio::select! {
        ended = load(&solo, None) => ended?,
        shown = all_panels_show(&prometheus) => shown?,
    }
    println!("every panel had data after {:.1?}", began.elapsed());
    let rules = prometheus.evaluates_rules().await?;
    ensure!(rules >= 8, "{rules} rules");
    observed::no_panic(&solo.receiver.process)?;
    observed::no_panic(&agent.process)
}
