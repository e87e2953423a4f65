//! Applies a Manifest's bundle to its runtime, and removes other objects of its inventory.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, ModuleTerms, State, inventory,
    object::{Gvk, ObjectId, ObjectRef},
};
use tidewatch_deployer::{
    bundle::Bundle,
    definitions::Definitions,
    ownership, prune,
    readiness::{self, Facts, ObjectReadiness},
    transform,
};
use tidewatch_planner::{
    manifest::{self, default_cr},
    manifest_status::Progress,
};

use super::{
    agent_watches::AgentWatches,
    apply::{Applied, Installer, Unanswered, jobs, phases::manifest_is_skipped},
    desired,
    remover::{Remover, UserObjects},
    scope::SyncScope,
    status::unread_status,
    work::Work,
};
use crate::{
    clusters::{Gated, objects},
    error::{Error, chain},
    index::owners::Speaker,
    kcp::Kcp,
    reconcile::{applied::AppliedStates, echoes::EchoFilter},
    stages::{Stage, stage},
};

/// A Manifest, its previous inventory, its objects to remove, and shared objects with the other Manifest's name.
type Own<'a> = (&'a Manifest, &'a [ObjectRef], &'a [ObjectRef], &'a [(ObjectRef, String)]);

/// The result of a sync.
pub(super) struct Synced {
    /// With the status as last written.
    pub(super) manifest: Manifest,
    pub(super) applied: Applied,
    /// Objects of the previous version that still exist.
    pub(super) remaining: Vec<ObjectRef>,
    /// The kinds in deletion; `None` if the wait is for more than deletions.
    pub(super) deleting: Option<Vec<Gvk>>,
    /// The inventory: the bundle and the objects left.
    pub(super) objects: Vec<ObjectRef>,
    /// Removed objects still in KCP's inventory; `None` if a removal is incomplete.
    pub(super) removed: Option<Vec<ObjectRef>>,
    /// The objects read, if not all. The others are unchanged.
    pub(super) scope: Option<SyncScope>,
    /// Hashes of the wanted objects.
    pub(super) desired: HashMap<ObjectId, u64>,
}

#[derive(Default)]
struct Done {
    applied: Applied,
    desired: HashMap<ObjectId, u64>,
    scope: Option<SyncScope>,
}

impl Done {
    fn failed(why: Error) -> Self {
        Self { applied: Applied { failed: Some(why), ..Applied::default() }, ..Self::default() }
    }
}

/// Gives entries the identity of the wanted object if the scope shows that both are one.
///
/// Otherwise the object would be removed under its former identity.
async fn identified(runtime: &Gated, mut inventory: Vec<ObjectRef>, wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    for (at, twin) in prune::twins(&inventory, wanted) {
        if let Ok(scope) = objects::scope(runtime, &twin.gvk).await
            && let Some(entry) = inventory.get_mut(at)
            && prune::is_same_object(entry, twin, scope)
        {
            entry.clone_from(twin);
        }
    }
    inventory
}

/// Applies bundles to runtimes.
pub(crate) struct Syncer {
    pub(crate) kcp: Kcp,
    pub(crate) states: Arc<AppliedStates>,
    pub(crate) echoes: Arc<EchoFilter>,
    pub(crate) watched: Arc<AgentWatches>,
    pub(crate) remover: Arc<Remover>,
}

impl Syncer {
    /// Applies wanted objects and removes the others. `first` is the status if the inventory grows.
    pub(super) async fn sync(
        &self,
        work: &Work<'_>,
        manifest: &Manifest,
        runtime: &Gated,
        mut bundle: Bundle,
        first: Progress,
    ) -> Result<Synced, Error> {
        let kyma = work.kyma;
        let before = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let before = identified(runtime, before, &bundle.objects).await;
        let mut removed = prune::prune(&before, &bundle.objects);
        let all = inventory::union(&before, &bundle.objects);
        let mut manifest = manifest.clone();
        // Written before the first apply, so the inventory covers all objects after a crash.
        let known: HashSet<_> = before.iter().map(ObjectRef::identity).collect();
        // Objects that no API server accepts would otherwise cause a write in every pass.
        let grows = all.iter().any(|object| object.can_exist() && !known.contains(&object.identity()));
        let scope = work
            .scope
            .clone()
            .filter(|scope| scope.has_new_inputs() || !grows && scope.has_removed(&removed));
        // Then the last pass left nothing to claim or remove.
        let is_settled = scope.as_ref().is_some_and(|scope| !scope.has_new_inputs());
        if grows {
            let status = unread_status(&manifest, &first, &all, self.kcp.now());
            self.kcp.write_manifest_status_in_place(&mut manifest, status).await?;
        }
        if !is_settled {
            self.claim(kyma, &manifest, &all);
        }
        let (definitions, cr) = (Definitions::of(&bundle.first), default_cr(&manifest));
        let named = bundle.objects.iter().chain(cr.as_ref());
        let scope = scope.map(|scope| scope.with_kinds(&definitions, named));
        // Unread objects keep their marks.
        let read = scope.as_ref().filter(|scope| !scope.has_new_inputs());
        let shared = self.mark_shared(kyma, &manifest, &mut bundle, read);

        let own = (&manifest, before.as_slice(), removed.as_slice(), shared.as_slice());
        let Done { mut applied, desired, scope } = match manifest.terms() {
            Err(error) => Done::failed(Error::Final(chain(&error))),
            Ok(mut terms) => {
                terms.ignore_fields.extend(transform::controller_fields(bundle.iter()));
                self.apply(work, own, runtime, (&mut bundle, &terms), scope).await
            }
        };
        if is_settled {
            let (remaining, objects) = (Vec::new(), bundle.objects);
            let removed = Some(removed);
            return Ok(Synced {
                manifest,
                applied,
                remaining,
                deleting: None,
                objects,
                removed,
                scope,
                desired,
            });
        }
        // The apply may have made a kind's scope known.
        removed = prune::prune(&identified(runtime, removed, &bundle.objects).await, &bundle.objects);
        let mut remaining = removed.clone();
        let (mut kept, mut deleting) = (Vec::new(), None);
        if applied.failed.is_none() && !applied.keeps_predecessors {
            if self.kcp.index().manifests.is_skipped(&manifest.name_any()) {
                return Err(manifest_is_skipped());
            }
            let removing =
                self.remover.remove(kyma, &manifest, runtime, remaining.clone(), UserObjects::Ignore);
            match stage(Stage::Delete, removing).await {
                // User-owned objects stay, and do not block the upgrade.
                Ok(remains) => {
                    deleting = remains.deleting(UserObjects::Ignore);
                    kept = remains.user_owned.into_iter().map(|(object, _)| object).collect();
                    remaining = remains.remaining.into_iter().map(|(object, _)| object).collect();
                }
                Err(error) => applied.failed = Some(error.into()),
            }
        }
        let objects = inventory::union(&inventory::union(&remaining, &kept), &bundle.objects);
        // Releases the claims on removed objects.
        self.claim(kyma, &manifest, &objects);
        let removed = (remaining.is_empty() && kept.is_empty()).then_some(removed);
        Ok(Synced { manifest, applied, remaining, deleting, objects, removed, scope: None, desired })
    }

    /// Applies the objects in `scope` and, for changed wanted state, the changed ones.
    ///
    /// The others were ready, or have no readiness.
    async fn apply(
        &self,
        work: &Work<'_>,
        own: Own<'_>,
        runtime: &Gated,
        (bundle, terms): (&mut Bundle, &ModuleTerms),
        scope: Option<SyncScope>,
    ) -> Done {
        let (manifest, _, _, shared) = own;
        let (definitions, cr, name) =
            (Definitions::of(&bundle.first), default_cr(manifest), manifest.name_any());
        let own_name = (&*self.kcp.namespace, name.as_str());
        let (scope, desired) = match scope {
            Some(scope) if !scope.has_new_inputs() && shared.is_empty() => {
                let desired = scope.desired().clone();
                (Some(scope), desired)
            }
            Some(scope) if !scope.has_new_inputs() => {
                // The owner may have changed since the last read.
                let hashes = desired::hashes(bundle, own_name, terms);
                let is_known =
                    |(id, hash): &&(ObjectRef, Option<u64>)| scope.reads(id) || scope.is_unchanged(id, *hash);
                let desired = desired::by_object(hashes.iter().filter(is_known));
                (Some(scope), desired)
            }
            scope => {
                let hashes = desired::hashes(bundle, own_name, terms);
                let scope = match scope {
                    Some(scope) => {
                        let scope = self.with_changed(work.kyma, runtime, scope, &hashes).await;
                        Some(scope.with_kinds(&definitions, bundle.objects.iter().chain(cr.as_ref())))
                    }
                    None => None,
                };
                (scope, desired::by_object(&hashes))
            }
        };
        let mut phases = [&mut bundle.first, &mut bundle.main, &mut bundle.custom].map(std::mem::take);
        let jobs = jobs::among(phases.iter().flat_map(|phase| phase.iter()));
        if let Some(scope) = &scope {
            for phase in &mut phases {
                phase.retain(|object| ObjectRef::of(object).is_none_or(|id| scope.reads(&id)));
            }
        }
        let predecessors = self.predecessors(work.kyma, manifest, terms);
        let installer = self.installer(work, own, runtime, (terms, &definitions));
        let installer = Installer { predecessors: &predecessors, ..installer };
        let served = scope.as_ref().map(|scope| scope.served(&definitions)).unwrap_or_default();
        let manifest = name.as_str();
        let may_continue = || !self.kcp.index().manifests.is_skipped(manifest);
        let mut applied = Box::pin(installer.phases(phases, served, &may_continue)).await;
        if let Some(scope) = &scope {
            let others = bundle.objects.iter().filter(|id| !scope.reads(id));
            applied.judged.extend(others.map(|id| (id.clone(), ObjectReadiness::Unknown)));
        }
        applied.jobs_completed =
            self.states.history(work.key, |history| jobs::have_completed(history, &jobs));
        Done { applied, desired, scope }
    }

    /// Adds changed objects to the scope, and objects whose changes are not events.
    async fn with_changed(
        &self,
        kyma: &str,
        runtime: &Gated,
        mut scope: SyncScope,
        hashes: &[(ObjectRef, Option<u64>)],
    ) -> SyncScope {
        let kinds: BTreeSet<&Gvk> = hashes.iter().map(|(id, _)| &id.gvk).collect();
        let watched = self.watched.watched_kinds(kyma, runtime, kinds).await;
        let is_read = |(id, hash): &(ObjectRef, Option<u64>)| {
            !scope.is_unchanged(id, *hash) || !watched.contains(&id.gvk)
        };
        let read: Vec<&ObjectRef> = hashes.iter().filter(|one| is_read(one)).map(|(id, _)| id).collect();
        scope.add(read);
        scope
    }

    /// The Manifests whose objects this one may delete and create again.
    fn predecessors(&self, kyma: &str, manifest: &Manifest, terms: &ModuleTerms) -> Vec<String> {
        if terms.recreate.is_empty() {
            return Vec::new();
        }
        self.kcp.index().predecessors(kyma, manifest)
    }

    fn installer<'a>(
        &'a self,
        work: &Work<'a>,
        (manifest, before, removed, shared): Own<'a>,
        runtime: &'a Gated,
        (terms, definitions): (&'a ModuleTerms, &'a Definitions),
    ) -> Installer<'a> {
        Installer {
            runtime,
            states: &self.states,
            shared,
            predecessors: &[],
            echoes: &self.echoes,
            key: work.key,
            kyma: work.kyma,
            before,
            removed,
            terms,
            facts: Facts {
                not_ready_since: manifest::not_ready_since(manifest),
                deadline: readiness::deadline_of(terms),
                ..Facts::default()
            },
            was_ready: manifest::has_been_ready(manifest, manifest.metadata.generation),
            jobs_completed: manifest::have_jobs_completed(manifest, manifest.metadata.generation),
            warned: manifest.status.as_ref().is_some_and(|status| status.state == State::Warning),
            definitions,
            unanswered: Unanswered::default(),
            now: self.kcp.now(),
        }
    }

    fn claim(&self, kyma: &str, manifest: &Manifest, objects: &[ObjectRef]) {
        let owned: Vec<ObjectRef> = objects.iter().cloned().chain(default_cr(manifest)).collect();
        let mut state = self.kcp.index_mut();
        state.owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);
    }

    /// Marks shared objects for one of their Manifests, and returns those that stay shared. Only objects in `scope` are read.
    fn mark_shared(
        &self,
        kyma: &str,
        manifest: &Manifest,
        bundle: &mut Bundle,
        scope: Option<&SyncScope>,
    ) -> Vec<(ObjectRef, String)> {
        let name = manifest.name_any();
        let mut shared = Vec::new();
        let state = self.kcp.index();
        for object in bundle.iter_mut() {
            let Some(id) = ObjectRef::of(object) else { continue };
            if scope.is_some_and(|scope| !scope.reads(&id)) {
                continue;
            }
            let others = state.other_claims(kyma, &name, &id);
            let marked = ownership::marked_for(&name, &others);
            if marked != name {
                transform::mark(object, (&self.kcp.namespace, marked));
            }
            if let Some(other) = others.iter().find(|claim| !claim.deleting) {
                shared.push((id, other.manifest.clone()));
            }
        }
        shared
    }
}
