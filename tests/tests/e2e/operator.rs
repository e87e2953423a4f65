//! The listener's example with kube's `Controller::reconcile_on` on a real control plane.

use std::time::Duration;

use anyhow::{Result, ensure};
use tidewatch_tests::{Process, binaries, cluster::ADMIN, env, observed, wait};

const SOON: Duration = Duration::from_mins(1);

/// The controller acknowledges one event after its reconcile, the other because the object does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_operator_reconciles_and_acknowledges_events() -> Result<()> {
    let env = env::shared().await?;
    let kubeconfig = env.harness.write("operator/kcp.yaml", &env.kcp.kubeconfig_yaml(ADMIN)?)?;
    let args = vec![format!("--kubeconfig={}", kubeconfig.display())];
    let process =
        Process::start(&env.harness.spec("operator/operator", &binaries::example("operator")?, args))?;
    wait::until("the example to end", SOON, || async { Ok(process.ended()) }).await?;
    let said = observed::text(&process)?;
    ensure!(said.contains("2 events reconciled and acknowledged"), "it said: {said}");
    observed::no_panic(&process)
}
