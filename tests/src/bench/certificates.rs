//! Certificates of a fleet: enrolment, and a rotation of the CA, by `tidewatch simulate`.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::{Figure, Goal, Spec, folder};
use crate::binaries;

const SCENARIO: &str = "certificates";
/// Runtimes per second.
const ENROLLED: f64 = 50.0;
const NONE: &str = "none: the goal is a figure";

pub(super) fn specs(runtimes: usize) -> Vec<Spec> {
    let spec = |what: String, unit, goal| Spec { name: what, unit, goal, yardstick: NONE.into() };
    let rotation =
        |what: &str| format!("rotation of the CA with {runtimes} connected agents under load: {what}");
    vec![
        spec(
            format!(
                "{runtimes} runtimes registered -> agents installed, certificates signed, event paths proven"
            ),
            "/s",
            Goal::AtLeast(ENROLLED),
        ),
        spec(rotation("until all trust the next CA"), "s", Goal::None),
        spec(rotation("until the replaced CA is gone (certificates live 180 s)"), "s", Goal::None),
        spec(rotation("failed requests and connections of agents"), "", Goal::AtMost(0.0)),
    ]
}

pub(super) async fn run(runtimes: usize) -> Result<Vec<Figure>> {
    let report = simulate(runtimes).await?;
    ensure!(report["passed"] == true, "{}", report["outcome"]);
    let steps = report["steps"].as_array().context("the report has no steps")?;
    // The first step starts one runtime alone; the next two register and prove the others.
    let seconds: f64 = steps.iter().skip(1).take(2).filter_map(|step| step["seconds"].as_f64()).sum();
    let rotation = |field: &str| {
        let value = report["rotation"][field].as_f64().with_context(|| format!("no {field}"))?;
        anyhow::Ok(Figure { value, against: None })
    };
    #[allow(clippy::cast_precision_loss, reason = "a count of runtimes is far below 2^52")]
    let rate = (runtimes - 1) as f64 / seconds;
    Ok(vec![
        Figure { value: rate, against: None },
        rotation("trustedSeconds")?,
        rotation("seconds")?,
        rotation("failures")?,
    ])
}

async fn simulate(runtimes: usize) -> Result<Value> {
    let output = Command::new(binaries::find("tidewatch")?)
        .args(["simulate", "--scenario", SCENARIO, "--modules=1", "-o=json", "--runtimes"])
        .arg(runtimes.to_string())
        .args(["--agents-check=600", "--folder"])
        .arg(folder().join(SCENARIO))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    serde_json::from_slice(&output.stdout).context("the simulation gave no report")
}
