//! Applies a bundle's objects, writing only those that differ, and collects the results.

pub(super) mod jobs;

use std::collections::{BTreeSet, HashMap, HashSet};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_api::{
    GroupKind, ModuleTerms,
    names::field_managers,
    object::{Gvk, ObjectRef, content_hash},
};
use tidewatch_deployer::{
    conflict::RevertDecision,
    definitions::Definitions,
    drift::{self, Ignored},
    history::ApplyHistory,
    ownership::Marks,
    readiness::{self, Facts, ObjectReadiness},
    refusal::{self, Cause},
};

use self::{phases::defines, write::Refused};
use super::related;
use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    error::Error,
    key::WorkKey,
    reconcile::{
        applied::AppliedStates,
        echoes::EchoFilter,
        suspended::{OtherChange, Suspended},
    },
};

pub(super) mod phases;
mod write;

/// Concurrent objects per runtime.
const CONCURRENCY: usize = 4;

/// Error classes that mean that an API server refused one object.
const REFUSALS: [&str; 5] = ["invalid", "forbidden", "not_found", "malformed", "final"];

/// Further refusals reported with their cause.
const REFUSALS_REPORTED: usize = 2;

/// Previous objects read to find the holder of a refused value.
const HOLDERS_READ: usize = 8;

/// The result of applying a set of objects.
#[derive(Default)]
pub(super) struct Applied {
    pub(super) judged: Vec<(ObjectRef, ObjectReadiness)>,
    /// A kind that is not served, or an object that must be deleted first.
    pub(super) missing: Option<String>,
    pub(super) awaited: Awaited,
    /// Whether a missing object may come any moment: its predecessor must stay until then.
    pub(super) keeps_predecessors: bool,
    /// Whether objects were left out because their kind is not served or calls got no answer.
    pub(super) has_skipped: bool,
    /// Objects left out because their namespace is terminating.
    pub(super) terminating: Vec<ObjectRef>,
    pub(super) failed: Option<Error>,
    /// Further refusals: the first causes, and the count of the others.
    pub(super) refusals: (Vec<String>, usize),
    /// Objects that could not be applied.
    pub(super) failing: Vec<ObjectRef>,
    /// Objects whose cause may be found by reading more.
    pub(super) unexplained: Vec<Value>,
    /// Suspended objects.
    pub(super) suspended: Vec<Suspended>,
    /// Whether all Jobs with a time to live have completed, and at least one exists.
    pub(super) jobs_completed: bool,
}

/// The events that end a wait: all are needed.
#[derive(Default)]
pub(super) struct Awaited {
    /// Kinds with an awaited status change.
    pub(super) status: Vec<Gvk>,
    /// Kinds with an awaited deletion.
    pub(super) end: Vec<Gvk>,
    /// Groups with an awaited kind that the module does not define.
    pub(super) groups: BTreeSet<String>,
    /// Whether no event reports some of it.
    pub(super) without_event: bool,
}

impl Applied {
    pub(super) fn take(&mut self, other: Self) {
        self.judged.extend(other.judged);
        self.suspended.extend(other.suspended);
        self.awaited.status.extend(other.awaited.status);
        self.awaited.end.extend(other.awaited.end);
        self.awaited.groups.extend(other.awaited.groups);
        self.awaited.without_event |= other.awaited.without_event;
        self.keeps_predecessors |= other.keeps_predecessors;
        self.has_skipped |= other.has_skipped;
        self.jobs_completed |= other.jobs_completed;
        self.terminating.extend(other.terminating);
        self.failing.extend(other.failing);
        self.unexplained.extend(other.unexplained);
        self.unexplained.truncate(related::OBJECTS);
        if self.missing.is_none() {
            self.missing = other.missing;
        }
        if let Some(error) = other.failed {
            self.add_failure(error);
        }
        let (causes, more) = other.refusals;
        for cause in causes {
            self.add_refusal(cause);
        }
        self.refusals.1 += more;
    }

    /// Records a failure: the first with its class, later refusals with their causes.
    fn add_failure(&mut self, error: Error) {
        match &self.failed {
            None => self.failed = Some(error),
            Some(_) if REFUSALS.contains(&error.class()) => self.add_refusal(error.to_string()),
            Some(_) => {}
        }
    }

    fn add_refusal(&mut self, cause: String) {
        let (causes, more) = &mut self.refusals;
        if causes.len() < REFUSALS_REPORTED { causes.push(cause) } else { *more += 1 }
    }

    /// Returns the first failure, with the other refusals.
    pub(super) fn take_failed(&mut self) -> Option<Error> {
        let error = self.failed.take()?;
        let (causes, more) = std::mem::take(&mut self.refusals);
        if causes.is_empty() {
            return Some(error);
        }
        let also = causes.into_iter().map(|cause| format!("; also: {cause}"));
        let also: String = also.chain((more > 0).then(|| format!("; and {more} more"))).collect();
        Some(error.described(|first| format!("{first}{also}")))
    }

    /// Waits for something that no event reports.
    pub(super) fn set_unreported_wait(&mut self, message: String) {
        self.missing = Some(message);
        self.awaited.without_event = true;
    }

    /// Whether all is done, so a later pass may skip ready objects.
    pub(super) const fn is_clean(&self) -> bool {
        self.failed.is_none() && self.is_whole()
    }

    /// Whether only failed objects remain, so a later pass may skip ready ones.
    pub(super) const fn only_fails(&self) -> bool {
        self.failed.is_some() && !self.failing.is_empty() && self.is_whole()
    }

    const fn is_whole(&self) -> bool {
        self.missing.is_none()
            && !self.has_skipped
            && self.suspended.is_empty()
            && self.terminating.is_empty()
    }

    pub(super) fn not_ready(&self) -> impl Iterator<Item = &ObjectRef> {
        self.judged.iter().filter(|(_, readiness)| readiness.is_unready()).map(|(object, _)| object)
    }

    /// The kinds that are not ready, except Deployments: an agent always reports those.
    pub(super) fn unready(&self) -> Vec<Gvk> {
        let unready = self.judged.iter().filter(|(_, readiness)| readiness.is_unready());
        let mut kinds: Vec<Gvk> = unready.map(|(object, _)| object.gvk.clone()).collect();
        kinds.retain(|gvk| gvk.kind != "Deployment");
        kinds.sort();
        kinds.dedup();
        kinds
    }
}

/// The result for one object.
enum ObjectResult {
    /// Unchanged: as wanted, or suspended.
    Unchanged(Value, Option<Suspended>),
    /// Written; as the API server returned it.
    Written(Value, Option<Suspended>),
    /// Missing, and not created while suspended.
    NotCreated(Suspended),
    /// A Job that ended and was removed by its time to live.
    JobEnded(ObjectRef, ObjectReadiness),
    /// Must be deleted first, or retried soon.
    Waits(String, Option<Gvk>),
    /// Its namespace is terminating.
    NamespaceTerminating(ObjectRef),
    /// Skipped, since other calls got no answer.
    Skipped,
}

/// Unanswered calls in one pass. The pass must end and report before its own deadline.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<HashMap<Gvk, usize>>);

impl Unanswered {
    /// Per kind: its webhook may be down.
    const OF_KIND: usize = 2;
    /// In total. With full concurrency, these take half of a reconcile's deadline.
    const ALL: usize = 12;

    fn count(&self, gvk: &Gvk) {
        *self.0.lock().entry(gvk.clone()).or_default() += 1;
    }

    fn is_out(&self, gvk: &Gvk) -> bool {
        let unanswered = self.0.lock();
        unanswered.get(gvk).is_some_and(|count| *count >= Self::OF_KIND)
            || unanswered.values().sum::<usize>() >= Self::ALL
    }
}

/// Applies objects of one Manifest.
pub(super) struct Installer<'a> {
    pub(super) runtime: &'a Gated,
    pub(super) states: &'a AppliedStates,
    /// Objects shared with another Manifest, and its name.
    pub(super) shared: &'a [(ObjectRef, String)],
    /// Predecessors of this Manifest in the same module.
    pub(super) predecessors: &'a [String],
    /// Remembers the versions read and written.
    pub(super) echoes: &'a EchoFilter,
    pub(super) key: &'a WorkKey,
    /// The Kyma that owns the objects.
    pub(super) kyma: &'a str,
    /// The previous inventory. Other objects are applied without a read.
    pub(super) before: &'a [ObjectRef],
    /// Objects of it to remove at the end.
    pub(super) removed: &'a [ObjectRef],
    pub(super) terms: &'a ModuleTerms,
    pub(super) facts: Facts<'a>,
    /// Whether the module was ready with this wanted state.
    pub(super) was_ready: bool,
    /// Whether its Jobs are known to have completed with this wanted state.
    pub(super) jobs_completed: bool,
    /// Whether its Manifest has state Warning.
    pub(super) warned: bool,
    /// Kinds that the module defines.
    pub(super) definitions: &'a Definitions,
    pub(super) unanswered: Unanswered,
    pub(super) now: Timestamp,
}

impl Installer<'_> {
    /// Applies objects concurrently. A failure does not stop the others.
    pub(super) async fn apply_all(&self, objects: Vec<Value>) -> Applied {
        let known: HashSet<_> = self.before.iter().map(ObjectRef::identity).collect();
        let (known, unanswered) = (&known, &self.unanswered);
        let mut results = stream::iter(objects)
            .map(|object| async move {
                let Some(id) = ObjectRef::of(&object) else {
                    let error = tidewatch_oci::unnamed(&object)
                        .map_or_else(|| ObjectError::Malformed("an object".into()), ObjectError::Unnamed);
                    return (None, Err(error.into()));
                };
                if unanswered.is_out(&id.gvk) {
                    return (Some(id), Ok(ObjectResult::Skipped));
                }
                let is_known = known.contains(&id.identity());
                let settled = match self.apply_object(&id, object, is_known).await {
                    Err(Error::Runtime(error)) if error.is_namespace_terminating() => {
                        Ok(ObjectResult::NamespaceTerminating(id.clone()))
                    }
                    Err(Error::Runtime(error)) if error.is_cut_off() => {
                        unanswered.count(&id.gvk);
                        Err(error.into())
                    }
                    other => other,
                };
                (Some(id), settled)
            })
            .buffered(CONCURRENCY);
        let mut applied = Applied::default();
        while let Some((id, result)) = results.next().await {
            let is_written = matches!(result, Ok(ObjectResult::Written(..)));
            match result {
                Ok(ObjectResult::Unchanged(object, suspended) | ObjectResult::Written(object, suspended)) => {
                    let judged = readiness::readiness(&object, &self.facts, self.now);
                    let is_unclear = applied.unexplained.len() < related::OBJECTS
                        && related::has_related(&object, &judged);
                    if let Some(id) = ObjectRef::of(&object) {
                        if is_written {
                            self.echoes.record_write(self.key, &id, &object);
                        } else {
                            self.echoes.record_read(self.key, &id, &object);
                        }
                        applied.judged.push((id, judged));
                    }
                    applied.suspended.extend(suspended);
                    if is_unclear {
                        applied.unexplained.push(object);
                    }
                }
                Ok(ObjectResult::Skipped) => applied.has_skipped = true,
                Ok(ObjectResult::JobEnded(id, judged)) => applied.judged.push((id, judged)),
                Ok(ObjectResult::NotCreated(suspended)) => applied.suspended.push(suspended),
                Ok(ObjectResult::NamespaceTerminating(id)) => applied.terminating.push(id),
                Ok(ObjectResult::Waits(message, Some(kind))) => {
                    applied.missing = Some(message);
                    applied.awaited.end.push(kind);
                }
                Ok(ObjectResult::Waits(message, None)) => applied.set_unreported_wait(message),
                Err(Error::Runtime(error)) if error.is_kind_missing() => {
                    let group = error.group_of_kind().unwrap_or_default();
                    if self.definitions.all().any(|definition| defines(definition, group)) {
                        // The kind is established and will be served within moments.
                        applied.set_unreported_wait(error.message());
                    } else {
                        applied.awaited.groups.insert(group.to_owned());
                        applied.missing = Some(error.message());
                    }
                }
                Err(Error::Runtime(error)) if error.is_of_webhook() => {
                    applied.keeps_predecessors = true;
                    applied.set_unreported_wait(error.message());
                }
                Err(error) => {
                    applied.has_skipped |= id.is_none();
                    applied.failing.extend(id);
                    applied.add_failure(error);
                }
            }
        }
        applied
    }

    /// Judges unserved CRDs once more, without waiting: they are often served moments later.
    pub(super) async fn recheck_definitions(&self, applied: &mut Applied) {
        let pending = |(id, judged): &&mut (ObjectRef, ObjectReadiness)| {
            id.gvk.is_crd() && matches!(judged, ObjectReadiness::Processing { .. })
        };
        stream::iter(applied.judged.iter_mut().filter(pending))
            .for_each_concurrent(CONCURRENCY, |(id, judged)| async move {
                if let Ok(Some(crd)) = objects::get(self.runtime, id).await {
                    self.echoes.record_status_read(self.key, id, &crd);
                    *judged = readiness::readiness(&crd, &self.facts, self.now);
                }
            })
            .await;
    }

    async fn apply_object(&self, id: &ObjectRef, wanted: Value, known: bool) -> Result<ObjectResult, Error> {
        let ignored = Ignored::of(&self.terms.ignore_fields, id);
        // The object may exist, for example from a predecessor. User-owned fields must be read before a write.
        let look = known || !ignored.is_empty() || drift::can_grow(id);
        let live = if look { objects::get(self.runtime, id).await? } else { None };
        let Some(live) = live else { return self.create(id, &wanted, &ignored, known).await };
        if let Some(ended) = jobs::observe(self, id, &wanted, &live) {
            return Ok(ended);
        }
        if live["metadata"]["deletionTimestamp"].is_string() {
            let marked = Marks::of(&live["metadata"]).managed;
            let message = format!("waiting for {id} to be gone, to make it anew");
            return Ok(ObjectResult::Waits(message, marked.then(|| id.gvk.clone())));
        }
        let ignored = ignored.and_grown(id, &wanted, &live);
        self.update(id, live, wanted, &ignored).await
    }

    /// Creates an object.
    async fn create(
        &self,
        id: &ObjectRef,
        wanted: &Value,
        ignored: &Ignored<'_>,
        known: bool,
    ) -> Result<ObjectResult, Error> {
        let content = content_hash(wanted);
        if known && let Some(ended) = jobs::gone(self, id, wanted) {
            return Ok(ended);
        }
        if known
            && let RevertDecision::Suspended(until) =
                self.history(|history| history.verdict(id.into(), content, self.now))
        {
            return Ok(ObjectResult::NotCreated(Suspended::of_module(id, OtherChange::Deletes, until)));
        }
        let made = match self.write(id, wanted, ignored, None).await {
            Ok(made) => made,
            Err(refused) => return self.handle_refusal(id, wanted, refused).await,
        };
        jobs::made(self, id, wanted);
        if self.lost_to_old_schema(id, &made, wanted, &Ignored::default()) {
            return Ok(waits_for_schema(id));
        }
        self.note_schema(id);
        if known && self.was_ready {
            tracing::info!(kyma = self.kyma, object = %id, "made again: it was gone");
        }
        // Creating a deleted object again counts as a conflict round.
        if known || drift::difference(&made, wanted, field_managers::APPLIER, ignored).is_some() {
            let made = drift::content(&made, wanted, field_managers::APPLIER);
            self.change_history(|history| history.record_apply(id.into(), content, made, self.now));
        }
        Ok(ObjectResult::Written(made, self.trial(id)))
    }

    /// Updates an existing object if it differs.
    async fn update(
        &self,
        id: &ObjectRef,
        mut live: Value,
        wanted: Value,
        ignored: &Ignored<'_>,
    ) -> Result<ObjectResult, Error> {
        match self.adopt(id, &live).await {
            Ok(Some(taken)) => live = taken,
            Err(error) if !error.is_transient() => return Err(error.into()),
            // The next pass retries.
            Ok(None) | Err(_) => {}
        }
        let wanted = if ignored.is_empty() { wanted } else { ignored.with_live_values(&wanted, &live) };
        let stands = || self.warned.then(|| self.trial(id)).flatten();
        let Some(difference) = drift::difference(&live, &wanted, field_managers::APPLIER, ignored) else {
            return Ok(ObjectResult::Unchanged(live, stands()));
        };
        let content = content_hash(&wanted);
        let present = drift::content(&live, &wanted, field_managers::APPLIER);
        if self.history(|history| history.is_settled(id.into(), content, present)) {
            return Ok(ObjectResult::Unchanged(live, stands()));
        }
        if let RevertDecision::Suspended(until) =
            self.history(|history| history.verdict(id.into(), content, self.now))
        {
            let change = self.also_of(id).map_or_else(|| OtherChange::from(difference), OtherChange::Wants);
            return Ok(ObjectResult::Unchanged(live, Some(Suspended::of_module(id, change, until))));
        }
        let applied = match self.write(id, &wanted, ignored, Some(&live)).await {
            Ok(applied) => applied,
            Err(refused) => {
                let refused = Refused { live: Some(live), ..refused };
                return self.handle_refusal(id, &wanted, refused).await;
            }
        };
        if self.was_ready {
            tracing::info!(kyma = self.kyma, object = %id, %difference, "set back to what its module says");
        } else {
            // The Kyma logs the upgrade.
            tracing::debug!(kyma = self.kyma, object = %id, %difference, "changed to what its module says");
        }
        if self.lost_to_old_schema(id, &applied, &wanted, ignored) {
            return Ok(waits_for_schema(id));
        }
        self.note_schema(id);
        let made = drift::content(&applied, &wanted, field_managers::APPLIER);
        self.change_history(|history| history.record_apply(id.into(), content, made, self.now));
        Ok(ObjectResult::Written(applied, self.trial(id)))
    }

    fn history<T>(&self, read: impl FnOnce(&ApplyHistory) -> T) -> T {
        self.states.history(self.key, read)
    }

    fn change_history(&self, change: impl FnOnce(&mut ApplyHistory)) {
        self.states.change_history(self.key, change);
    }

    /// Returns the notice for an up-to-date object on trial.
    fn trial(&self, id: &ObjectRef) -> Option<Suspended> {
        let until = self.history(|history| history.on_trial(id.into(), self.now))?;
        Some(Suspended::of_module(id, OtherChange::Ended, until))
    }

    fn also_of(&self, id: &ObjectRef) -> Option<String> {
        self.shared.iter().find(|(shared, _)| shared.same_object(id)).map(|(_, other)| other.clone())
    }

    fn note_schema(&self, id: &ObjectRef) {
        if id.gvk.is_crd() {
            self.change_history(|history| history.record_schema(id.into(), self.now));
        }
    }

    /// Whether the CRD was written moments ago.
    fn is_schema_fresh(&self, id: &ObjectRef) -> bool {
        let crd = self.definitions.definition(&id.gvk);
        crd.is_some_and(|crd| self.history(|history| history.is_schema_fresh(crd.into(), self.now)))
    }

    /// Whether an API server may have dropped wanted fields by an old schema: it drops unknown fields silently.
    fn lost_to_old_schema(
        &self,
        id: &ObjectRef,
        made: &Value,
        wanted: &Value,
        ignored: &Ignored<'_>,
    ) -> bool {
        self.is_schema_fresh(id)
            && drift::difference(made, wanted, field_managers::APPLIER, ignored).is_some()
    }

    /// Handles a refused object: waits if its schema is fresh, or recreates an immutable one if the module allows it.
    async fn handle_refusal(
        &self,
        id: &ObjectRef,
        wanted: &Value,
        refused: Refused,
    ) -> Result<ObjectResult, Error> {
        if let Some(live) = &refused.live
            && (refused.error.is_of_immutable_field() || !refused.leftovers.is_empty())
        {
            return self.recreate(id, live, wanted, &refused.message()).await;
        }
        if refused.error.is_refused() && self.is_schema_fresh(id) {
            return Ok(waits_for_schema(id));
        }
        match self.field_holder(id, &refused.error.causes()).await? {
            Some(message) => Ok(ObjectResult::Waits(message, None)),
            None => Err(refused.into()),
        }
    }

    /// Returns the wait for a leaving object that holds a refused value, such as a port.
    async fn field_holder(&self, id: &ObjectRef, causes: &[Cause]) -> Result<Option<String>, ObjectError> {
        let is_alike = |other: &&ObjectRef| other.gvk.group == id.gvk.group && other.gvk.kind == id.gvk.kind;
        if causes.is_empty() {
            return Ok(None);
        }
        for other in self.removed.iter().filter(is_alike).take(HOLDERS_READ) {
            let live = objects::get(self.runtime, other).await?;
            if let Some(field) = live.and_then(|live| refusal::contested_field(causes, &live)) {
                return Ok(Some(format!(
                    "waiting for {other} of the version before to be gone: it holds {field} of {id}"
                )));
            }
        }
        Ok(None)
    }

    /// Whether the kind of a CRD has instances; true if unknown.
    async fn has_instances(&self, crd: &Value) -> Result<bool, ObjectError> {
        match objects::defined_kind(crd) {
            Some(gvk) => Ok(!objects::list(self.runtime, &gvk, "", 1).await?.first.is_empty()),
            None => Ok(true),
        }
    }

    /// Recreates an object that cannot be changed in place, if that is safe.
    async fn recreate(
        &self,
        id: &ObjectRef,
        live: &Value,
        wanted: &Value,
        why: &str,
    ) -> Result<ObjectResult, Error> {
        let kind = GroupKind { group: id.gvk.group.clone(), kind: id.gvk.kind.clone() };
        if !self.terms.recreate.contains(&kind) {
            return Err(Error::Final(format!(
                "{id} cannot be changed in place ({why}); the installed object stays; name its kind in the template's \
                 'recreate' to have it deleted and made anew, or delete it by hand"
            )));
        }
        if id.gvk.is_crd() && self.has_instances(live).await? {
            return Err(Error::Final(format!(
                "{id} cannot be changed in place ({why}), and is not made anew, though the template's 'recreate' names its kind: objects \
                 of the kind that it defines would go with it; delete them, or have the template leave it as it is"
            )));
        }
        let marks = |object: &Value| Marks::of(&object["metadata"]);
        let is_inherited = |owner: &str| {
            let name = owner.rsplit('/').next().unwrap_or(owner);
            self.predecessors.iter().any(|before| before == name)
        };
        // It may carry the predecessor's marks until this Manifest applies it, which fails here.
        let whose = match (self.also_of(id).filter(|other| !is_inherited(other)), marks(live)) {
            (None, Marks { managed: true, owned_by: Some(owner) }) if is_inherited(&owner) => None,
            (Some(other), _) => Some(format!("the Manifest {other} has it, too")),
            (None, Marks { managed: true, owned_by }) if owned_by == marks(wanted).owned_by => None,
            (None, Marks { managed: true, owned_by: Some(owner) }) => {
                Some(format!("it carries the marks of {owner}"))
            }
            (None, _) => Some("it carries no marks of this module, and may be its user's".to_owned()),
        };
        if let Some(whose) = whose {
            return Err(Error::Final(format!(
                "{id} cannot be changed in place ({why}), and is not made anew, though the template's 'recreate' names its kind: {whose}; \
                 delete it by hand, or have the module call its own otherwise"
            )));
        }
        tracing::info!(kyma = self.kyma, object = %id, "deleted, to be made anew: it cannot be changed in place");
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        objects::delete(self.runtime, id, uid).await?;
        Ok(ObjectResult::Waits(format!("{id} is being made anew"), Some(id.gvk.clone())))
    }
}

fn waits_for_schema(id: &ObjectRef) -> ObjectResult {
    ObjectResult::Waits(format!("waiting for the new schema of {id} to be served"), None)
}

#[cfg(test)]
mod tests;
