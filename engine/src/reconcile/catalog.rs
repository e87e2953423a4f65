//! Reconciles the catalog in a runtime: the visible part of KCP's catalog, and its condition.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{self, conditions, field_managers},
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::drift::{self, Ignored};
use tidewatch_planner::{
    catalog::{Changes, Id, KINDS, View, changes, changes_since, ordered},
    status::{self, ConditionValue},
    writers::has_entry,
};

use super::{restore::Drifted, runtime_kyma::runtime_kyma, suspended::Suspended};
use crate::{
    clusters::{
        Clusters, Gated,
        objects::{self, Deleted, ObjectError},
        record::catalog::CatalogRecord,
    },
    error::Error,
    kcp::Kcp,
    key::{Queue, WorkKey},
    outcome::Outcome,
    pace::NEXT_TRY,
    queue::{Class, Push},
    reconcile::{echoes::EchoFilter, owners::RuntimeOwners, restore::Restorer},
    stages::{Stage, stage},
    trigger::{Change, Trigger, Triggers},
};

const PAGE: u32 = 100;
/// Most pages per kind; a runtime may have many user-owned objects.
const PAGES: usize = 100;
/// The catalog objects that may have changed; `None`: all.
fn doubted(record: &CatalogRecord) -> Option<BTreeSet<Id>> {
    let named = record.doubted.as_ref()?;
    let is = |id: &&Id| !named.is_empty() && named.contains(&reference(id).unversioned());
    Some(record.hashes.keys().filter(is).cloned().collect())
}

/// The objects that the triggers name as changed; `None`: all.
fn named(triggers: Triggers<'_>) -> Option<BTreeSet<ObjectRef>> {
    let objects = || triggers.listed.iter().filter_map(Trigger::object);
    let is_any = triggers.listed.len() < triggers.count || objects().any(ObjectRef::is_all_of_kind);
    (!is_any).then(|| objects().map(ObjectRef::unversioned).collect())
}

fn reference(id: &Id) -> ObjectRef {
    let (kind, name) = id;
    ObjectRef {
        gvk: Gvk::of(names::API_VERSION, kind),
        namespace: names::RUNTIME_NAMESPACE.into(),
        name: name.clone(),
    }
}

pub(crate) struct CatalogReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) queue: Queue,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) restorer: Arc<Restorer>,
    pub(crate) echoes: Arc<EchoFilter>,
}

impl CatalogReconciler {
    pub(crate) async fn reconcile(&self, name: &str, triggers: Triggers<'_>) -> Result<Outcome, Error> {
        let (kyma, view, mark, doubts) = {
            let mut index = self.kcp.index_mut();
            // Recorded even if this reconcile fails: the events do not come again.
            let doubts = self.clusters.records.change(name, |record| {
                record.doubt_catalog(named(triggers));
                record.catalog.as_ref().map_or(0, |catalog| catalog.doubts)
            });
            (index.kymas.get(name), index.view(name), index.catalog_mark(name), doubts)
        };
        let (Some(kyma), Some(view), Some(mark)) = (kyma, view, mark) else {
            self.clusters.records.change_existing(name, |record| record.catalog = None);
            return Ok(Outcome::done());
        };
        if kyma.metadata.deletion_timestamp.is_some() || kyma.is_skipped() {
            return Ok(Outcome::done());
        }
        let runtime = match self.owners.own_runtime(name).await? {
            Ok(runtime) => runtime,
            Err(outcome) => return Ok(outcome),
        };
        let synced = stage(Stage::Apply, self.sync(name, &runtime, &view)).await;
        let now = self.kcp.now();
        let condition = match &synced {
            Ok(conflicts) => {
                let suspended = conflicts.iter().map(|conflicts| conflicts.object().unversioned()).collect();
                self.clusters.records.change(name, |record| {
                    let before = record.catalog.as_ref();
                    let synced = CatalogRecord::synced(before, mark, &view.hashes, suspended, doubts, now);
                    record.catalog = Some(synced);
                });
                said_of(conflicts)
            }
            Err(ObjectError::Held(held)) => return Err((*held).into()),
            Err(error) => {
                self.clusters.records.change_existing(name, |record| record.catalog = None);
                let message = "module templates are out of sync and need to be resynchronized";
                (false, format!("{message}: {}; {NEXT_TRY}", error.message()))
            }
        };
        let has_status = self.report(&kyma, condition.0, &condition.1).await?;
        let (reported, conflicts) = match synced {
            Ok(conflicts) if condition.0 && self.is_reported(name) => (Ok(true), conflicts),
            Ok(conflicts) => {
                let reported = self.report_in_runtime(&runtime, condition.0, &condition.1);
                (stage(Stage::WriteRuntime, reported).await, conflicts)
            }
            Err(error) => {
                // Report the failure in the runtime if possible.
                let _told = self.report_in_runtime(&runtime, condition.0, &condition.1).await;
                (Err(error), Vec::new())
            }
        };
        match reported {
            Ok(true) => {
                self.set_reported(name, condition.0);
                if !has_status {
                    return Ok(Outcome::recheck_soon("the Kyma has no status yet".into()));
                }
                Ok(match conflicts.iter().map(|conflicts| conflicts.until).min() {
                    Some(until) => Outcome::waiting(condition.1).due_at(Some(until)),
                    None => Outcome::done(),
                })
            }
            // The Kyma's reconcile writes the status and requests this one again.
            Ok(false) => Ok(Outcome::waiting("the runtime's Kyma has no status yet".into())),
            Err(error @ ObjectError::Held(_)) => self.clusters.failed_at(name, error),
            Err(error) => {
                self.clusters.records.change_existing(name, |record| record.catalog = None);
                if error.is_kind_missing() || error.is_not_found() {
                    // The CRDs or the namespace are missing: the Kyma's reconcile installs them and requests this one again.
                    self.clusters.records.change_existing(name, |record| record.prepared.hash = None);
                    let key = WorkKey::Kyma { kyma: name.to_owned() };
                    let cause = Trigger::Kcp { object: key.clone(), change: Change::CatalogCrdsMissing };
                    self.queue
                        .push(key, Push { class: Class::Rollout, trigger: Some(cause), guards: Vec::new() });
                }
                self.clusters.failed_at(name, error)
            }
        }
    }

    fn is_reported(&self, kyma: &str) -> bool {
        self.clusters
            .records
            .read(kyma, |record| record.catalog.as_ref().is_some_and(|catalog| catalog.reported))
    }

    fn set_reported(&self, kyma: &str, reported: bool) {
        self.clusters.records.change_existing(kyma, |record| {
            if let Some(catalog) = &mut record.catalog {
                catalog.reported = reported;
            }
        });
    }

    /// Writes differing objects and returns the suspended ones. Known objects are read only if doubted. A rejected object does not block
    /// the others; the first rejection is the error.
    async fn sync(&self, kyma: &str, runtime: &Gated, view: &View) -> Result<Vec<Suspended>, ObjectError> {
        if runtime.is_own_cluster() {
            // KCP's catalog is the runtime's.
            return Ok(Vec::new());
        }
        let known = self.clusters.records.read(kyma, |record| record.catalog.clone());
        let work = WorkKey::Catalog { kyma: kyma.to_owned() };
        let doubted = known.as_ref().and_then(doubted);
        let synced = known.as_ref().map(|done| Arc::clone(&done.hashes)).unwrap_or_default();
        let (todo, live) = match &doubted {
            Some(doubted) => {
                let (new, gone) = changes_since(&synced, &view.hashes);
                let checked: BTreeSet<&Id> = gone.iter().chain(doubted).collect();
                let mut live = BTreeMap::new();
                for id in &checked {
                    if let Some(object) = objects::get(runtime, &reference(id)).await? {
                        self.echoes.record_read(&work, &reference(id), &object);
                        live.insert((*id).clone(), object);
                    }
                }
                let wanted = checked.iter().filter_map(|id| view.objects.get_key_value(*id));
                let Changes { apply, delete } = changes(wanted, &live, is_applied);
                let all: BTreeSet<Id> = apply.into_iter().chain(new).collect();
                (Changes { apply: ordered(all.into_iter()), delete }, live)
            }
            None => {
                let live = present(runtime).await?;
                (changes(&view.objects, &live, is_applied), live)
            }
        };
        let (mut refused, mut conflicts) = (None, Vec::new());
        for id in &todo.apply {
            let Some(wanted) = view.objects.get(id) else { continue };
            let again = synced.contains_key(id) && synced.get(id) == view.hashes.get(id);
            let object = &reference(id);
            let drifted =
                Drifted { object, wanted, manager: field_managers::CATALOG_SYNC, live: live.get(id), again };
            match self.restorer.restore(&work, runtime, drifted).await {
                Err(error) if error.is_refused() => refused = refused.or(Some(error)),
                result => conflicts.extend(result?),
            }
        }
        // Delete releases before the templates that they name.
        for (id, uid) in &todo.delete {
            if matches!(objects::delete(runtime, &reference(id), uid).await?, Deleted::Gone) {
                self.echoes.deleted(&work, &reference(id), uid);
            }
        }
        if !todo.apply.is_empty() || !todo.delete.is_empty() {
            let (applied, deleted) = (todo.apply.len(), todo.delete.len());
            tracing::info!(kyma, applied, deleted, "the runtime's catalog was changed");
        }
        let unchanged = view.objects.keys().filter(|id| !todo.apply.contains(id));
        let checked = unchanged.filter(|id| doubted.as_ref().is_none_or(|doubted| doubted.contains(*id)));
        conflicts.extend(checked.filter_map(|id| self.restorer.on_trial(&work, &reference(id))));
        refused.map_or(Ok(conflicts), Err)
    }

    /// Writes the condition in KCP with its own field manager, if it differs or another manager owns it. `false` if the Kyma has no
    /// status: a condition alone is invalid.
    async fn report(&self, kyma: &Kyma, holds: bool, message: &str) -> Result<bool, Error> {
        let same = |kyma: &Kyma| {
            let status = kyma.status.as_ref().and_then(|s| serde_json::to_value(&s.conditions).ok());
            has_entry(&kyma.metadata, field_managers::CATALOG_STATUS)
                && is_said(condition_in(&status.unwrap_or_default()), holds, message)
        };
        if same(kyma) {
            return Ok(true);
        }
        let name = kyma.name_any();
        let fresh = self
            .kcp
            .kymas()
            .get_opt(&name)
            .await
            .map_err(|e| Error::kcp(format!("reading Kyma {name}"), e))?;
        // The Kyma is gone or up to date.
        let Some(fresh) = fresh.filter(|k| !same(k)) else { return Ok(true) };
        if fresh.status.is_none() {
            return Ok(false);
        }
        let before = fresh.status.clone().unwrap_or_default().conditions;
        let now = status::whole_seconds(self.kcp.now());
        // No observed generation: `kubectl wait` rejects a condition of another generation.
        let condition = status::condition(&before, condition(holds, message), None, now);
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": name}, "status": {"conditions": [condition]}
        });
        self.kcp.apply(&self.kcp.kymas(), &name, field_managers::CATALOG_STATUS, true, &body).await?;
        Ok(true)
    }

    /// Writes the condition in the runtime. `false` if its Kyma has no status.
    async fn report_in_runtime(
        &self,
        runtime: &Gated,
        holds: bool,
        message: &str,
    ) -> Result<bool, ObjectError> {
        if runtime.is_own_cluster() {
            // It is the condition in KCP.
            return Ok(true);
        }
        let Some(remote) = objects::get(runtime, &runtime_kyma(runtime)).await? else { return Ok(false) };
        if is_said(condition_of(&remote), holds, message) {
            return Ok(true);
        }
        if remote["status"]["state"].as_str().is_none_or(str::is_empty) {
            return Ok(false);
        }
        let before = serde_json::from_value(remote["status"]["conditions"].clone()).unwrap_or_default();
        let before: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> = before;
        let now = status::whole_seconds(self.kcp.now());
        let condition = status::condition(&before, condition(holds, message), None, now);
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE},
            "status": {"conditions": [condition]}
        });
        objects::apply_subresource(runtime, "status", &body, field_managers::CATALOG_STATUS).await?;
        Ok(true)
    }
}

/// The condition after all possible writes.
fn said_of(conflicts: &[Suspended]) -> (bool, String) {
    match conflicts {
        [] => (true, "module templates are synchronized".to_owned()),
        [first] => (false, first.message()),
        [first, rest @ ..] => (false, format!("{} (and {} more)", first.message(), rest.len())),
    }
}

fn condition(holds: bool, message: &str) -> ConditionValue<'static> {
    ConditionValue {
        type_: conditions::MODULE_CATALOG,
        holds,
        reason: conditions::REASON_READY,
        message: message.to_owned(),
    }
}

pub(crate) fn condition_of(remote: &Value) -> Option<&Value> {
    condition_in(&remote["status"]["conditions"])
}

fn condition_in(all: &Value) -> Option<&Value> {
    all.as_array()?.iter().find(|c| c["type"] == conditions::MODULE_CATALOG)
}

fn is_said(condition: Option<&Value>, holds: bool, message: &str) -> bool {
    let status = if holds { "True" } else { "False" };
    condition.is_some_and(|c| {
        c["status"] == status && c["message"] == message && c["reason"] == conditions::REASON_READY
    })
}

async fn present(runtime: &Gated) -> Result<BTreeMap<Id, Value>, ObjectError> {
    let mut present = BTreeMap::new();
    for kind in KINDS {
        let gvk = Gvk::of(names::API_VERSION, kind);
        let api = objects::api(runtime, &gvk, names::RUNTIME_NAMESPACE).await?;
        let mut params = ListParams::default().limit(PAGE);
        for _ in 0..PAGES {
            let page = match runtime.call(&format!("listing the {kind}s"), api.list(&params)).await {
                Ok(page) => page,
                Err(error) => return Err(objects::explain(runtime, &gvk, error).await),
            };
            for object in page.items {
                let name = object.name_any();
                present.insert((kind, name), serde_json::to_value(object).unwrap_or_default());
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break;
            }
        }
    }
    Ok(present)
}

/// Whether applying a catalog object would change nothing.
fn is_applied(live: &Value, wanted: &Value) -> bool {
    drift::difference(live, wanted, field_managers::CATALOG_SYNC, &Ignored::default()).is_none()
}

#[cfg(test)]
mod tests;
