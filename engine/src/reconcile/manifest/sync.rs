//! Applies a Manifest's bundle to its runtime, and removes other objects of its inventory.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, ModuleTerms, State, inventory,
    object::{Gvk, ObjectRef},
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
    apply::{Applied, Installer, Silent, jobs, phases::left_alone},
    contents::{self, Contents},
    passed::{Only, Passes},
    remover::{Remover, Theirs},
    status::unread_status,
    told::Watched,
    work::Work,
};
use crate::{
    clusters::{Gated, objects},
    error::{Error, chain},
    index::owners::Speaker,
    kcp::Kcp,
    reconcile::{seen::Seen, standing::Standing},
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
    pub(super) left: Vec<ObjectRef>,
    /// The kinds in deletion; `None` if the wait is for more than deletions.
    pub(super) going: Option<Vec<Gvk>>,
    /// The inventory: the bundle and the objects left.
    pub(super) objects: Vec<ObjectRef>,
    /// Removed objects still in KCP's inventory; `None` if a removal is incomplete.
    pub(super) gone: Option<Vec<ObjectRef>>,
    /// The objects read, if not all. The others are unchanged.
    pub(super) only: Option<Only>,
    pub(super) contents: Arc<Contents>,
}

#[derive(Default)]
struct Done {
    applied: Applied,
    contents: Arc<Contents>,
    only: Option<Only>,
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
            && prune::is_one(entry, twin, scope)
        {
            entry.clone_from(twin);
        }
    }
    inventory
}

/// Applies bundles to runtimes.
pub(crate) struct Syncer {
    pub(crate) kcp: Kcp,
    pub(crate) passes: Arc<Passes>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) watched: Arc<Watched>,
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
        let mut gone = prune::prune(&before, &bundle.objects);
        let all = inventory::union(&before, &bundle.objects);
        let mut manifest = manifest.clone();
        // Written before the first apply, so the inventory covers all objects after a crash.
        let known: HashSet<_> = before.iter().map(ObjectRef::identity).collect();
        // Objects that no API server accepts would otherwise cause a write in every pass.
        let grows = all.iter().any(|object| object.can_exist() && !known.contains(&object.identity()));
        let only = work.only.clone().filter(|only| only.is_anew() || !grows && only.all_gone(&gone));
        // Then the last pass left nothing to claim or remove.
        let is_settled = only.as_ref().is_some_and(|only| !only.is_anew());
        if grows {
            let status = unread_status(&manifest, &first, &all, self.kcp.now());
            self.kcp.write_manifest_status_in_place(&mut manifest, status).await?;
        }
        if !is_settled {
            self.claim(kyma, &manifest, &all);
        }
        let (definitions, cr) = (Definitions::of(&bundle.first), default_cr(&manifest));
        let named = bundle.objects.iter().chain(cr.as_ref());
        let only = only.map(|only| only.with_kinds(&definitions, named));
        // Unread objects keep their marks.
        let looked = only.as_ref().filter(|only| !only.is_anew());
        let shared = self.mark_shared(kyma, &manifest, &mut bundle, looked);

        let own = (&manifest, before.as_slice(), gone.as_slice(), shared.as_slice());
        let Done { mut applied, contents, only } = match manifest.terms() {
            Err(error) => Done::failed(Error::Final(chain(&error))),
            Ok(mut terms) => {
                terms.ignore_fields.extend(transform::left_to_controllers(bundle.iter()));
                self.apply(work, own, runtime, (&mut bundle, &terms), only).await
            }
        };
        if is_settled {
            let (left, objects) = (Vec::new(), bundle.objects);
            let gone = Some(gone);
            return Ok(Synced { manifest, applied, left, going: None, objects, gone, only, contents });
        }
        // The apply may have made a kind's scope known.
        gone = prune::prune(&identified(runtime, gone, &bundle.objects).await, &bundle.objects);
        let mut left = gone.clone();
        let (mut kept, mut going) = (Vec::new(), None);
        if applied.failed.is_none() && !applied.unasked {
            if self.kcp.index().is_skipped(&manifest.name_any()) {
                return Err(left_alone());
            }
            let removing = self.remover.remove(kyma, &manifest, runtime, left.clone(), Theirs::Stays);
            match stage(Stage::Delete, removing).await {
                // User-owned objects stay, and do not block the upgrade.
                Ok(remains) => {
                    going = remains.going(Theirs::Stays);
                    kept = remains.theirs.into_iter().map(|(object, _)| object).collect();
                    left = remains.left.into_iter().map(|(object, _)| object).collect();
                }
                Err(error) => applied.failed = Some(error.into()),
            }
        }
        let objects = inventory::union(&inventory::union(&left, &kept), &bundle.objects);
        // Releases the claims on removed objects.
        self.claim(kyma, &manifest, &objects);
        let gone = (left.is_empty() && kept.is_empty()).then_some(gone);
        Ok(Synced { manifest, applied, left, going, objects, gone, only: None, contents })
    }

    /// Applies the objects that `only` selects and, for changed wanted state, the changed ones.
    ///
    /// The others were ready, or have no readiness.
    async fn apply(
        &self,
        work: &Work<'_>,
        own: Own<'_>,
        runtime: &Gated,
        (bundle, terms): (&mut Bundle, &ModuleTerms),
        only: Option<Only>,
    ) -> Done {
        let (manifest, _, _, shared) = own;
        let (definitions, cr, name) =
            (Definitions::of(&bundle.first), default_cr(manifest), manifest.name_any());
        let own_name = (&*self.kcp.namespace, name.as_str());
        let (only, contents) = match only {
            Some(only) if !only.is_anew() && shared.is_empty() => {
                let contents = Arc::clone(only.contents());
                (Some(only), contents)
            }
            Some(only) if !only.is_anew() => {
                // The owner may have changed since the last read.
                let each = contents::of(bundle, own_name, terms);
                let known = |(id, hash): &&(ObjectRef, Option<u64>)| {
                    only.has(id) || contents::is_among(only.contents(), *hash)
                };
                let contents = self.passes.share(contents::kept(each.iter().filter(known)));
                (Some(only), contents)
            }
            only => {
                let each = contents::of(bundle, own_name, terms);
                let only = match only {
                    Some(only) => {
                        let only = self.changed(work.kyma, runtime, only, &each).await;
                        Some(only.with_kinds(&definitions, bundle.objects.iter().chain(cr.as_ref())))
                    }
                    None => None,
                };
                (only, self.passes.share(contents::kept(&each)))
            }
        };
        let mut phases = [&mut bundle.first, &mut bundle.main, &mut bundle.custom].map(std::mem::take);
        let jobs = jobs::among(work.key, phases.iter().flat_map(|phase| phase.iter()));
        if let Some(only) = &only {
            for phase in &mut phases {
                phase.retain(|object| ObjectRef::of(object).is_none_or(|id| only.has(&id)));
            }
        }
        let heir_to = self.predecessors(work.kyma, manifest, terms);
        let installer = self.installer(work, own, runtime, (terms, &definitions));
        let installer = Installer { heir_to: &heir_to, ..installer };
        let stood = only.as_ref().map(|only| only.stood(&definitions)).unwrap_or_default();
        let manifest = name.as_str();
        let go_on = || !self.kcp.index().is_skipped(manifest);
        let mut applied = Box::pin(installer.phases(phases, stood, &go_on)).await;
        if let Some(only) = &only {
            let others = bundle.objects.iter().filter(|id| !only.has(id));
            applied.judged.extend(others.map(|id| (id.clone(), ObjectReadiness::Unknown)));
        }
        applied.jobs_completed = jobs::have_completed(&self.standing, &jobs);
        Done { applied, contents, only }
    }

    /// Adds changed objects to `only`, and objects whose changes are not events.
    async fn changed(
        &self,
        kyma: &str,
        runtime: &Gated,
        mut only: Only,
        contents: &[(ObjectRef, Option<u64>)],
    ) -> Only {
        let kinds: BTreeSet<&Gvk> = contents.iter().map(|(id, _)| &id.gvk).collect();
        let told = self.watched.watched_kinds(kyma, runtime, kinds).await;
        let before = Arc::clone(only.contents());
        let stays = |(id, hash): &&(ObjectRef, Option<u64>)| {
            contents::is_among(&before, *hash) && told.contains(&id.gvk)
        };
        only.look_at(contents.iter().filter(|one| !stays(one)).map(|(id, _)| id));
        only
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
        (manifest, before, gone, shared): Own<'a>,
        runtime: &'a Gated,
        (terms, definitions): (&'a ModuleTerms, &'a Definitions),
    ) -> Installer<'a> {
        Installer {
            runtime,
            standing: &self.standing,
            shared,
            heir_to: &[],
            seen: &self.seen,
            key: work.key,
            kyma: work.kyma,
            before,
            gone,
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
            silent: Silent::default(),
            now: self.kcp.now(),
        }
    }

    fn claim(&self, kyma: &str, manifest: &Manifest, objects: &[ObjectRef]) {
        let owned: Vec<ObjectRef> = objects.iter().cloned().chain(default_cr(manifest)).collect();
        let mut state = self.kcp.index_mut();
        state.owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);
    }

    /// Marks shared objects for one of their Manifests, and returns those that stay shared. `only`: of these.
    fn mark_shared(
        &self,
        kyma: &str,
        manifest: &Manifest,
        bundle: &mut Bundle,
        only: Option<&Only>,
    ) -> Vec<(ObjectRef, String)> {
        let name = manifest.name_any();
        let mut shared = Vec::new();
        let state = self.kcp.index();
        for object in bundle.iter_mut() {
            let Some(id) = ObjectRef::of(object) else { continue };
            if only.is_some_and(|only| !only.has(&id)) {
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
