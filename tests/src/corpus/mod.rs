//! `make corpus DIR=…`: installs each YAML file as a module and compares it with kubectl's result.

mod files;
mod kubectl;
mod module;
pub mod normal;
pub mod report;
mod serves;

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use futures::future::try_join;
use jiff::Timestamp;
use tidewatch_oci::{self, ModulePackage, RegistryConfig};

pub use files::{File, read};
use module::Module;
use report::{Check, Row};

use crate::{
    ControlPlane, Etcd, Harness, Lifetime, Options, Registry, User,
    fleet::{self, RECEIVER_USER, Receiver},
    harness::target_folder,
    idle::left_alone,
    modules::Version,
    report::{Line, Reporter, Terminal},
};

const NAMESPACE: &str = "kcp-system";
/// Observation time without changes, to detect conflicts.
pub const ALONE: Duration = Duration::from_mins(2);
/// Concurrent runtimes; each takes half a gigabyte.
pub const AT_ONCE: usize = 6;
/// Production settings: polling and the twice-daily resync are on.
const ARGUMENTS: [&str; 2] = ["--fallback-poll=120", "--safety-resync=43200"];

/// The control planes for the checks.
pub struct Stage<'a> {
    /// The harness; API servers started with it write audit logs.
    pub harness: &'a Harness,
    /// The etcd of the runtimes.
    pub etcd: &'a Etcd,
    /// The control plane of Tidewatch.
    pub kcp: &'a ControlPlane,
    /// The registry of modules.
    pub registry: &'a Registry,
    /// An exclusive namespace in KCP.
    pub namespace: &'a str,
}

/// Checks a folder's YAML files on new control planes.
///
/// # Errors The folder is unreadable or the checks cannot run. A failed check is no error.
pub fn main(folder: &Path, alone: Duration, at_once: usize, terminal: &Terminal) -> Result<Vec<Row>> {
    let files = read(folder)?;
    let place = target_folder().join("corpus");
    let _none_before = std::fs::remove_dir_all(&place);
    // Can block on a build of the control planes.
    let harness = Harness::new(&place, Lifetime::WithUs)?.with_audit();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot make a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            rows = run(harness, &files, alone, at_once, terminal) => rows,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

async fn run(
    harness: Harness,
    files: &[File],
    alone: Duration,
    at_once: usize,
    terminal: &Terminal,
) -> Result<Vec<Row>> {
    terminal.working("starting etcd, a registry and the control plane of Tidewatch");
    let (etcd, registry) = try_join(Etcd::start(&harness), Registry::start(&harness)).await?;
    let users = vec![User { name: RECEIVER_USER.to_owned(), groups: Vec::new() }];
    let kcp =
        Box::pin(ControlPlane::start(&harness, &etcd, Options { users, ..Options::named("kcp") })).await?;
    let stage =
        Stage { harness: &harness, etcd: &etcd, kcp: &kcp, registry: &registry, namespace: NAMESPACE };
    Box::pin(check(&stage, files, alone, at_once, terminal)).await
}

/// Checks files, `at_once` concurrently.
///
/// Each file has its own runtime. All share one receiver, its restart and the observation time `alone`.
///
/// # Errors The checks cannot run. A failed check is no error.
pub async fn check(
    stage: &Stage<'_>,
    files: &[File],
    alone: Duration,
    at_once: usize,
    reporter: &dyn Reporter,
) -> Result<Vec<Row>> {
    let kcp = stage.kcp.client()?;
    fleet::prepare_kcp(&kcp, stage.namespace).await?;
    let mut refused = Vec::new();
    let mut offered = Vec::new();
    for file in files {
        match offer(stage, file).await {
            Ok(()) => offered.push(file),
            Err(error) => {
                let ready = Check::failed(format!("it cannot be pushed: {error:#}"));
                refused.push(Row { file: file.name(), objects: file.objects.len(), ready, ..Row::default() });
            }
        }
    }
    let modules = stage.registry.of(stage.namespace);
    let arguments = ARGUMENTS.map(str::to_owned).to_vec();
    let mut receiver =
        Receiver::start_with(stage.harness, stage.kcp, stage.namespace, &modules, arguments).await?;
    let mut rows = refused;
    for batch in offered.chunks(at_once.max(1)) {
        rows.extend(Box::pin(check_batch(stage, &mut receiver, batch, alone, reporter)).await?);
    }
    rows.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(rows)
}

async fn offer(stage: &Stage<'_>, file: &File) -> Result<()> {
    let version = Version::new(&file.module, "1.0.0", Vec::new());
    let package = ModulePackage { raw_manifest: file.text.clone(), ..version.package() };
    let registry = tidewatch_oci::Registry::new(RegistryConfig::default())?;
    tidewatch_oci::push(&registry, &stage.registry.of(stage.namespace), &package).await?;
    version.release(&stage.kcp.client()?, stage.namespace).await
}

async fn check_batch(
    stage: &Stage<'_>,
    receiver: &mut Receiver,
    files: &[&File],
    alone: Duration,
    reporter: &dyn Reporter,
) -> Result<Vec<Row>> {
    let mut modules = Vec::new();
    for file in files {
        modules.push(Box::pin(Module::install(stage, receiver, file, reporter)).await?);
    }
    reporter.working("starting the receiver again");
    // The later checks report a restless module.
    let _restless = fleet::at_rest_but_for_retries(receiver).await;
    let restarted = Timestamp::now();
    receiver.restart().await?;
    let mut against = Vec::new();
    for module in &modules {
        let looked = module.look(receiver).await;
        against.push(looked.err().map(|error| format!("{error:#}")));
    }
    let restless = fleet::at_rest_but_for_retries(receiver).await.err().map(|error| format!("{error:#}"));
    for (module, against) in modules.iter_mut().zip(against) {
        let why = against.into_iter().chain(restless.clone()).collect();
        module.check_quiet(receiver, restarted, why)?;
        module.begin_watch().await;
    }
    let since = Timestamp::now();
    left_alone("nothing is changed", alone, reporter).await;
    for module in &mut modules {
        module.check_no_fight(since).await?;
    }
    let mut rows = Vec::new();
    for mut module in modules {
        let began = tokio::time::Instant::now();
        reporter.working(&format!("{}: removing it", module.row.file));
        module.remove().await?;
        reporter.done(Line {
            what: format!("{}: removed", module.row.file),
            took: began.elapsed(),
            seq: None,
        });
        rows.push(module.row);
    }
    Ok(rows)
}
