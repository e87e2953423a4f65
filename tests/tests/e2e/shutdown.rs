//! How the programs end.

use std::time::Duration;

use anyhow::Result;
use tidewatch_tests::{
    env,
    fleet::{self, Receiver},
    wait,
};

const NAMESPACE: &str = "kcp-shutdown";

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_told_to_end_ends_cleanly() -> Result<()> {
    let env = env::shared().await?;
    fleet::prepare_kcp(&env.kcp.client()?, NAMESPACE).await?;
    let mut receiver = Receiver::start(&env.harness, &env.kcp, NAMESPACE, env.registry.host()).await?;
    // SIGTERM, and SIGKILL only after ten seconds: an exit code of 0 means that it went by itself.
    receiver.process.begin_end();
    let status = wait::until("the receiver to end", Duration::from_secs(15), || async {
        Ok(receiver.process.ended())
    })
    .await?;
    assert!(status.success(), "{status}: {}", receiver.process.log_tail(20));
    Ok(())
}
