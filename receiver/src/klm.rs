//! The Go lifecycle manager's metrics (`docs/reference/metrics.md`, "Names of the Go lifecycle manager").
//!
//! Series per object are off by default.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounterVec};
use rustls::ServerConfig;
use tidewatch_api::{
    Kyma, Manifest, State,
    names::{annotations, labels},
};
use tidewatch_engine::{
    Engine, WorkKey, clusters::ErrorClass, gate::Mode, history::Record, key::OutcomeKind, stages::Stage,
    trigger::Reason,
};
use tidewatch_telemetry::metrics::{MetricsError, Registry, series};
use tidewatch_tls::Store;

/// The Go manager's default: 14 days.
const CLOSE_TO_EXPIRY: SignedDuration = SignedDuration::from_hours(14 * 24);
const CLOSE_HELP: &str = "Whether the certificate by which agents verify the receiver ends within 14 days.";
/// As in the Go manager.
const LONG_RECONCILE_SECONDS: f64 = 60.0;
/// Manifests with such a series, at most.
const LONG_RECONCILES: usize = 1_000;

const KYMA_STATES: [State; 5] =
    [State::Processing, State::Deleting, State::Ready, State::Error, State::Warning];
const MODULE_STATES: [State; 6] =
    [State::Processing, State::Deleting, State::Ready, State::Error, State::Warning, State::Unmanaged];

/// Includes unused reasons, so their panels show 0.
const REASONS: [&str; 40] = [
    "kyma_under_deletion_with_no_access_secret",
    "kyma_status_update_to_deleting",
    "labels_and_finalizers_update",
    "crds_sync",
    "image_pull_secret_sync",
    "manifest_reconciliation",
    "module_catalog_sync",
    "skr_webhook_installation",
    "initial_state_handling",
    "sync_context_retrieval",
    "remote_kyma_deletion",
    "spec_replacement_from_remote",
    "status_sync_to_remote",
    "processing_kyma_state",
    "finalizers_removal_from_remote_kyma",
    "remote_module_catalog_deletion",
    "manifest_crs_cleanup",
    "kyma_deletion",
    "kyma_retrieval",
    "kyma_unauthorized",
    "manifest_retrieval",
    "manifest_initialize",
    "manifest_add_finalizer",
    "manifest_parse_spec",
    "manifest_update_synced_oci_ref",
    "manifest_init_synced_oci_ref",
    "manifest_client_init",
    "manifest_render_resources",
    "manifest_prune_diff_not_finished",
    "manifest_prune_diff",
    "manifest_pre_delete_enqueue_required",
    "manifest_pre_delete",
    "manifest_sync_resources_enqueue_required",
    "manifest_sync_resources",
    "manifest_sync_state",
    "manifest_unauthorized",
    "manifest_reconcile_finished",
    "manifest_unmanaged_update",
    "manifest_labels_removal",
    "manifest_orphaned",
];
const TYPES: [&str; 2] = ["intended", "unexpected"];

/// Metrics of finished reconciles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KlmMetrics {
    requeues: IntCounterVec,
    durations: Option<GaugeVec>,
}

impl KlmMetrics {
    /// Registers them; `objects`: per Kyma and Manifest.
    pub fn register(registry: &Registry, objects: bool) -> Result<Self, MetricsError> {
        let requeues = registry.named_as("lifecycle_mgr").counter_vec(
            "requeue_reason_total",
            "Reconciles that are repeated without an event, by reason.",
            &["requeue_reason", "requeue_type"],
        )?;
        for (reason, kind) in REASONS.iter().flat_map(|reason| TYPES.map(|kind| (*reason, kind))) {
            requeues.with_label_values(&[reason, kind]);
        }
        let duration = || {
            registry.named_as("").gauge_vec(
                "reconcile_duration_seconds",
                "Duration of a Manifest's last reconcile, if it took a minute or more.",
                &["manifest_name"],
            )
        };
        Ok(Self { requeues, durations: if objects { Some(duration()?) } else { None } })
    }

    /// Counts a finished reconcile.
    pub fn reconciled(&self, key: &WorkKey, record: &Record) {
        if record.next_try_seconds.is_some()
            && let Some((reason, kind)) = requeue(key, record)
        {
            self.requeues.with_label_values(&[reason, kind]).inc();
        }
        if let (Some(durations), WorkKey::Manifest { name, .. }) = (&self.durations, key) {
            reconcile_took(durations, name, record.work_seconds);
        }
    }
}

fn reconcile_took(durations: &GaugeVec, name: &str, seconds: f64) {
    // The old value is outdated; the number of series is bounded.
    let _none_before = durations.remove_label_values(&[name]);
    if seconds >= LONG_RECONCILE_SECONDS && series(durations) < LONG_RECONCILES {
        durations.with_label_values(&[name]).set(seconds);
    }
}

/// Maps a [`Stage`] to the Go manager's reason and type.
fn requeue(key: &WorkKey, record: &Record) -> Option<(&'static str, &'static str)> {
    let Record { outcome, stages, next_try_for, .. } = record;
    let outcome = *outcome;
    let kind = if record.is_error() { "unexpected" } else { "intended" };
    // Statuses are written last.
    let is_report = |stage: &Stage| matches!(stage, Stage::WriteKcp | Stage::WriteRuntime);
    let steps = || stages.iter().map(|time| time.stage);
    let at = steps().rfind(|stage| !is_report(stage)).or_else(|| steps().next_back());
    let waits = kind == "intended";
    // Only upgrades both apply and delete.
    let removes = steps().all(|stage| stage != Stage::Apply);
    let refused = *next_try_for == Some(Reason::Failed(ErrorClass::Unauthorized.metric_label()));
    let reason = match (key, at) {
        (WorkKey::Kyma { .. }, _) if refused => "kyma_unauthorized",
        (WorkKey::Manifest { .. }, _) if refused => "manifest_unauthorized",
        (WorkKey::Kyma { .. }, Some(Stage::Delete)) => "kyma_deletion",
        (WorkKey::Kyma { .. }, _) if waits => "processing_kyma_state",
        (WorkKey::Kyma { .. }, None | Some(Stage::ReadKcp)) => "kyma_retrieval",
        (WorkKey::Kyma { .. }, Some(Stage::Connect)) => "sync_context_retrieval",
        (WorkKey::Kyma { .. }, Some(Stage::Prepare)) => "crds_sync",
        (WorkKey::Kyma { .. }, Some(Stage::ReadRuntime)) => "spec_replacement_from_remote",
        (WorkKey::Kyma { .. }, Some(_)) => "manifest_reconciliation",
        (WorkKey::Catalog { .. }, _) => "module_catalog_sync",
        (WorkKey::Manifest { .. }, Some(Stage::Delete)) => match (removes, waits) {
            (true, true) => "manifest_pre_delete_enqueue_required",
            (true, false) => "manifest_pre_delete",
            (false, true) => "manifest_prune_diff_not_finished",
            (false, false) => "manifest_prune_diff",
        },
        (WorkKey::Manifest { .. }, _) if outcome == OutcomeKind::Done => "manifest_reconcile_finished",
        (WorkKey::Manifest { .. }, _) if waits => "manifest_sync_resources_enqueue_required",
        (WorkKey::Manifest { .. }, None | Some(Stage::ReadKcp | Stage::WriteKcp)) => "manifest_retrieval",
        (WorkKey::Manifest { .. }, Some(Stage::Connect)) => "manifest_client_init",
        (WorkKey::Manifest { .. }, Some(Stage::Render)) => "manifest_render_resources",
        (WorkKey::Manifest { .. }, Some(_)) => "manifest_sync_resources",
        _ => return None,
    };
    Some((reason, kind))
}

/// Certificate renewal dates by Kyma. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<Mutex<HashMap<String, Timestamp>>>);

impl Certificates {
    /// Records a renewal date.
    pub fn seen(&self, kyma: &str, renewed_by: Timestamp) {
        let mut all = self.0.lock();
        match all.get_mut(kyma) {
            Some(before) => *before = renewed_by,
            None => drop(all.insert(kyma.to_owned(), renewed_by)),
        }
    }

    /// Calls `set` for existing Kymas: 1 if overdue.
    fn each(&self, is_there: impl Fn(&str) -> bool, now: Timestamp, mut set: impl FnMut(&str, f64)) {
        let mut all = self.0.lock();
        all.retain(|kyma, _| is_there(kyma));
        for (kyma, renewed_by) in &*all {
            set(kyma, f64::from(u8::from(*renewed_by <= now)));
        }
    }
}

/// Registers metrics computed at each scrape.
pub fn register_sizes(
    registry: &Registry,
    engine: &Engine,
    store: Option<&Arc<Store<ServerConfig>>>,
    objects: bool,
) -> Result<Option<Certificates>, MetricsError> {
    let registry = registry.named_as("lifecycle_mgr");
    let shared = engine.clone();
    #[allow(clippy::cast_precision_loss, reason = "a count of modules is far below 2^52")]
    registry.gauge_fn("mandatory_modules", "Versions of mandatory modules that are offered.", move || {
        shared.state().read().catalog.mandatory().len() as f64
    })?;
    let fips = f64::from(u8::from(tidewatch_tls::provider().fips()));
    registry.gauge_fn(
        "fips_mode",
        "Whether the cryptography in use is approved by FIPS 140.",
        move || fips,
    )?;
    if let Some(own) = store.map(Arc::clone) {
        registry.gauge_fn("gateway_secret_server_cert_close_to_expiry", CLOSE_HELP, move || {
            f64::from(u8::from(is_close(own.not_after(), Timestamp::now())))
        })?;
    }
    if objects { register_objects(&registry, engine).map(Some) } else { Ok(None) }
}

fn is_close(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now) < CLOSE_TO_EXPIRY
}

/// A standby exports no objects, or sums count them twice.
fn works(engine: &Engine) -> bool {
    !matches!(engine.mode(), Mode::Standby)
}

fn register_objects(registry: &Registry, engine: &Engine) -> Result<Certificates, MetricsError> {
    let (certificates, shared) = (Certificates::default(), engine.clone());
    let seen = certificates.clone();
    registry.gauge_vec_fn(
        "self_signed_cert_not_renew",
        "Whether the certificate of the last request of a Kyma's agent is overdue for renewal.",
        &["kyma_name"],
        move |set| {
            let names: HashSet<String> = shared.state().read().kymas.names().into_iter().collect();
            let works = works(&shared);
            seen.each(
                |kyma| names.contains(kyma),
                Timestamp::now(),
                |kyma, value| {
                    if works {
                        set(&[kyma], value);
                    }
                },
            );
        },
    )?;
    let shared = engine.clone();
    registry.gauge_vec_fn(
        "kyma_state",
        "1 for the state that a Kyma is in.",
        &["kyma_name", "state", "shoot", "instance_id"],
        move |set| {
            for kyma in kyma_series(&shared) {
                for_each_state(&KYMA_STATES, kyma.state, |state, value| {
                    set(&[&kyma.name, state, &kyma.shoot, &kyma.instance], value);
                });
            }
        },
    )?;
    let shared = engine.clone();
    registry.gauge_vec_fn(
        "module_state",
        "1 for the state of a module in its Kyma.",
        &["module_name", "kyma_name", "state", "shoot", "instance_id"],
        move |set| {
            for kyma in kyma_series(&shared) {
                let modules = shared.state().read().kymas.module_states(&kyma.name);
                for (module, now) in &modules {
                    for_each_state(&MODULE_STATES, *now, |state, value| {
                        set(&[module, &kyma.name, state, &kyma.shoot, &kyma.instance], value);
                    });
                }
            }
        },
    )?;
    let shared = engine.clone();
    registry.gauge_vec_fn(
        "mandatory_module_state",
        "1 for the state that a mandatory module of a Kyma is in.",
        &["module_name", "kyma_name", "state"],
        move |set| {
            for kyma in kymas(&shared) {
                for module in mandatory_modules(&shared, &kyma) {
                    for_each_state(&MODULE_STATES, module.state, |state, value| {
                        set(&[&module.name, &kyma, state], value);
                    });
                }
            }
        },
    )?;
    Ok(certificates)
}

fn for_each_state(all: &[State], now: State, mut set: impl FnMut(&'static str, f64)) {
    for state in all {
        set(state.as_str(), f64::from(u8::from(*state == now)));
    }
}

#[derive(Debug, PartialEq)]
struct KymaSeries {
    name: String,
    state: State,
    shoot: String,
    instance: String,
}

impl From<&Kyma> for KymaSeries {
    fn from(kyma: &Kyma) -> Self {
        let domain = kyma.annotations().get(annotations::SKR_DOMAIN).map_or("", String::as_str);
        // As the Go manager: the first label within a domain.
        let shoot =
            domain.split_once('.').filter(|(_, rest)| rest.contains('.')).map_or("", |(host, _)| host);
        Self {
            name: kyma.name_any(),
            state: kyma.status.as_ref().map(|status| status.state).unwrap_or_default(),
            shoot: shoot.to_owned(),
            instance: kyma.labels().get(labels::INSTANCE_ID).cloned().unwrap_or_default(),
        }
    }
}

fn kymas(engine: &Engine) -> Vec<String> {
    if works(engine) { engine.state().read().kymas.names() } else { Vec::new() }
}

/// One lock per Kyma, so no reconcile waits for all.
fn kyma_series(engine: &Engine) -> impl Iterator<Item = KymaSeries> {
    let names = kymas(engine);
    names
        .into_iter()
        .filter_map(|name| engine.state().read().kymas.get(&name))
        .map(|kyma| KymaSeries::from(kyma.as_ref()))
}

#[derive(Debug, PartialEq)]
struct ModuleSeries {
    name: String,
    state: State,
}

/// Kymas report other modules.
fn mandatory_module(manifest: &Manifest) -> Option<ModuleSeries> {
    let name = manifest.labels().get(labels::MODULE_NAME).filter(|_| manifest.is_mandatory())?;
    let state = if manifest.is_unmanaged() {
        State::Unmanaged
    } else {
        manifest.status.as_ref().map(|status| status.state).unwrap_or_default()
    };
    Some(ModuleSeries { name: name.clone(), state })
}

fn mandatory_modules(engine: &Engine, kyma: &str) -> Vec<ModuleSeries> {
    engine.state().read().manifests.of(kyma).filter_map(mandatory_module).collect()
}

#[cfg(test)]
mod tests;
