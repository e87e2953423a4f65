//! `--dry-run`: reconciles everything once and reports would-be changes.
//!
//! Writes use `dryRun=All`. Takes no Lease, so the leader continues.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::names::labels;
use tidewatch_engine::{
    Engine, Trigger, WorkKey,
    clusters::AddressPolicy,
    gate::{Mode, Recorder},
    history::Observer,
    index::extensions,
    queue::Class,
};
use tidewatch_telemetry::{BuildInfo, metrics::Registry, stdio};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod book;
mod fields;
mod progress;
mod report;

use book::Book;
use progress::Progress;
pub use report::{Entry, Output, Report, Verdict, Write};

use crate::{
    args::DryRunArgs,
    config::{Config, StartError},
    kcp_client,
    maintenance::PolicyFile,
    registry_credentials::RegistryCredentials,
};

const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Prints the report and returns the exit code.
pub async fn print(config: Config, args: &DryRunArgs) -> Result<u8, StartError> {
    let report = run(config, args.dry_run_limit).await?;
    stdio::result(&report.render(args.output)).map_err(StartError::Output)?;
    Ok(report.verdict.exit_code())
}

/// Returns the report, after `limit` at most.
pub async fn run(config: Config, limit: Duration) -> Result<Report, StartError> {
    let mut wrong = Vec::new();
    let Config { kubeconfig, mut engine, registry_credentials, denied_servers, maintenance_policy, .. } =
        config;
    let kube = kcp_client::kube_config(kubeconfig).await?;
    engine.addresses = AddressPolicy::new(denied_servers.into_iter().chain(kcp_client::own_server(&kube)))?;
    let (external, namespace) = (engine.external_registries.clone(), engine.namespace.clone());
    let client = kcp_client::kcp_client(kube, engine.limits.call_deadline, None)?;
    let book = Arc::new(Book::default());
    let observer = Arc::clone(&book) as Arc<dyn Observer>;
    let engine = Engine::new(client, engine, observer, Arc::new(Timestamp::now))?;
    if let Some(file) = registry_credentials {
        RegistryCredentials::new(file, &engine).await?;
    }
    engine.set_mode(Mode::DryRun(Arc::clone(&book) as Arc<dyn Recorder>));
    let registry =
        Registry::new("tidewatch_receiver", BuildInfo::new("tidewatch-receiver", env!("CARGO_PKG_VERSION")))?;
    if let Some(mut windows) = PolicyFile::new(maintenance_policy, &engine, &registry)? {
        windows.reload().await;
        wrong.extend(windows.unusable().map(|why| format!("the maintenance policy cannot be used: {why}")));
    }

    let (stop, loaded) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let (stopped, ready, running) = (stop.clone(), Arc::clone(&loaded), engine.clone());
    let work = tokio::spawn(async move {
        running.run(stopped, move || ready.store(true, Ordering::Release)).await;
    });
    wrong.extend(watch(&engine, &book, &loaded, limit).await);
    stop.cancel();
    // Reconciles in flight have deadlines.
    let _ended = work.await;
    if loaded.load(Ordering::Acquire) && engine.state().read().kymas.names().is_empty() {
        wrong.push(format!("there is no Kyma in the namespace {namespace}; --namespace names another one"));
    }
    Ok(report(&engine, &external, &book, wrong))
}

/// Waits for all reconciles; returns a timeout's message.
async fn watch(engine: &Engine, book: &Book, loaded: &AtomicBool, limit: Duration) -> Vec<String> {
    let (mut progress, begun, mut idle) = (Progress::new(), Instant::now(), 0_u32);
    let mut asked = false;
    // Twice: a reconcile that just ended may request another.
    while idle < 2 {
        if begun.elapsed() > limit {
            progress.finish();
            let why = if loaded.load(Ordering::Acquire) {
                "not all was looked at"
            } else {
                "the control plane did not answer"
            };
            return vec![format!("{why} within {} s; give it more time by --dry-run-limit", limit.as_secs())];
        }
        tokio::time::sleep(CHECK_EVERY).await;
        if !asked && loaded.load(Ordering::Acquire) {
            ask(engine);
            asked = true;
        }
        let is_idle = asked
            && engine.queue().inspect(|queue| {
                queue.ready().all(|(_, keys)| keys == 0) && queue.working() == 0 && queue.delayed() == 0
            });
        idle = if is_idle { idle + 1 } else { 0 };
        progress.show(book.reconciled_kymas(), engine.state().read().kymas.names().len());
    }
    progress.finish();
    Vec::new()
}

/// Requests Ready and mandatory modules, which a start skips.
fn ask(engine: &Engine) {
    let mut keys = Vec::new();
    {
        let state = engine.state().read();
        for kyma in state.kymas.names() {
            let names = state.manifests.of(&kyma).map(ResourceExt::name_any);
            keys.extend(names.map(|name| WorkKey::Manifest { kyma: kyma.clone(), name }));
            keys.push(WorkKey::Mandatory { kyma });
        }
    }
    for key in keys {
        engine.enqueue(key, Class::Resync, Some(Trigger::SafetyResync));
    }
}

fn report(engine: &Engine, external: &[String], book: &Book, mut missing: Vec<String>) -> Report {
    if book.dropped() > 0 {
        missing.push(format!("{} writes are left out: more objects than a report holds", book.dropped()));
    }
    let state = engine.state().read();
    let runtimes = state.kymas.names().into_iter().map(|name| {
        let left_alone = state.kymas.get(&name).is_some_and(|kyma| kyma.is_skipped());
        let mut page = book.page(&name);
        if !page.is_reconciled {
            page.failures.push("it was not looked at".to_owned());
        }
        if !left_alone {
            let skipped = state.manifests.of(&name).filter(|manifest| manifest.is_skipped());
            page.failures.extend(skipped.map(|manifest| {
                let label = labels::SKIP_RECONCILIATION;
                format!("the Manifest {} has the label {label}: it was not looked at", manifest.name_any())
            }));
        }
        let entry = Entry::of(page, extensions::of_kyma(&state, &name), left_alone);
        (name, entry)
    });
    let runtimes = runtimes.collect();
    let control_plane = Entry::of(book.page(""), extensions::of_catalog(&state, external), false);
    Report::new(control_plane, runtimes, missing)
}
