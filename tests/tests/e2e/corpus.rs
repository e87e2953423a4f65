//! The checks of `make corpus` on a realistic test module.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    corpus::{
        self, Stage,
        report::{Check, Row, table},
    },
    env,
    report::Recorder,
};

/// Long enough for an event-driven conflict; `make corpus` takes two minutes.
const ALONE: Duration = Duration::from_secs(5);

#[real_only("kubectl and an audit log belong to real control planes")]
#[tokio::test(flavor = "multi_thread")]
async fn a_module_with_typical_traits_passes_every_check() -> Result<()> {
    let env = env::shared().await?;
    let harness = env.harness.clone().with_audit();
    let (etcd, kcp, registry) = (env.etcd(), &env.kcp, &env.registry);
    let stage = Stage { harness: &harness, etcd, kcp, registry, namespace: "kcp-corpus" };
    let files = corpus::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus"))?;
    let rows = Box::pin(corpus::check(&stage, &files, ALONE, 1, &Recorder::default())).await?;
    ensure!(rows.len() == 1 && rows.iter().all(Row::passes), "{}", table(&rows));
    let Check::Passed { note: Some(note) } = &rows[0].ready else { anyhow::bail!("{:?}", rows[0].ready) };
    ensure!(note.starts_with("Service harbourmaster/harbourmaster"), "{note}");
    Ok(())
}
