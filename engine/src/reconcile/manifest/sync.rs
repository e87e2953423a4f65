//! Makes a runtime have what a Manifest's bundle says: its objects, and no others of its inventory.

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
    status::not_looked,
    stopped::Stopped,
    told::Watched,
    work::Work,
};
use crate::{
    clusters::{Gated, objects},
    error::chain,
    index::owners::Speaker,
    kcp::Kcp,
    outcome::Lost,
    reconcile::{seen::Seen, standing::Standing},
    stages::{Stage, stage},
};

/// A Manifest, its inventory before, the objects of it that go, and the objects that another Manifest has too, with its name.
type Own<'a> = (&'a Manifest, &'a [ObjectRef], &'a [ObjectRef], &'a [(ObjectRef, String)]);

/// What became of it.
pub(super) struct Synced {
    /// The Manifest with its status as it was written meanwhile.
    pub(super) manifest: Manifest,
    pub(super) applied: Applied,
    /// Objects of the version before that are not gone yet.
    pub(super) left: Vec<ObjectRef>,
    /// The kinds of what of these is on its way; `None` if the rest waits for more.
    pub(super) going: Option<Vec<Gvk>>,
    /// The inventory: the bundle's objects and those that are left.
    pub(super) objects: Vec<ObjectRef>,
    /// What is in the inventory that KCP has, and gone for certain; `None` if something is to be removed that is not.
    pub(super) gone: Option<Vec<ObjectRef>>,
    /// What was looked at of what is asked for as before, if not everything: what is not among it is as it was.
    pub(super) only: Option<Only>,
    /// What each object is to be.
    pub(super) contents: Arc<Contents>,
}

/// What was applied of a bundle.
#[derive(Default)]
struct Done {
    applied: Applied,
    /// What each object is to be.
    contents: Arc<Contents>,
    /// What was looked at, if not everything.
    only: Option<Only>,
}

impl Done {
    fn failed(why: Stopped) -> Self {
        Self { applied: Applied { failed: Some(why), ..Applied::default() }, ..Self::default() }
    }
}

/// An inventory in which objects have the identity that is wanted of them, where the scope of their kind says that it is theirs:
/// or they would be removed under their former one. Asks for the scope of few kinds, if any.
async fn identified(runtime: &Gated, mut inventory: Vec<ObjectRef>, wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    for (at, twin) in prune::twins(&inventory, wanted) {
        // Where nobody can tell, the entry stays as it is.
        if let Ok(scope) = objects::scope(runtime, &twin.gvk).await
            && let Some(entry) = inventory.get_mut(at)
            && prune::is_one(entry, twin, scope)
        {
            entry.clone_from(twin);
        }
    }
    inventory
}

/// Makes runtimes have the objects of bundles.
pub(crate) struct Syncer {
    pub(crate) kcp: Kcp,
    pub(crate) passes: Arc<Passes>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) watched: Arc<Watched>,
    pub(crate) remover: Arc<Remover>,
}

impl Syncer {
    /// Applies what is wanted and removes what is not any more. `first` is what the status says if the inventory grows.
    pub(super) async fn sync(
        &self,
        work: &Work<'_>,
        manifest: &Manifest,
        runtime: &Gated,
        mut bundle: Bundle,
        first: Progress,
    ) -> Result<Synced, Lost> {
        let kyma = work.kyma;
        let before = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let before = identified(runtime, before, &bundle.objects).await;
        let mut gone = prune::prune(&before, &bundle.objects);
        let all = inventory::union(&before, &bundle.objects);
        let mut manifest = manifest.clone();
        // Written before the first object is: whatever a crash leaves behind is in the inventory.
        let known: HashSet<_> = before.iter().map(ObjectRef::identity).collect();
        // What no API server takes is not said to come at each pass.
        let grows = all.iter().any(|object| object.can_exist() && !known.contains(&object.identity()));
        let only = work.only.clone().filter(|only| only.is_anew() || !grows && only.all_gone(&gone));
        // Then the pass before has left nothing to claim or to remove.
        let is_settled = only.as_ref().is_some_and(|only| !only.is_anew());
        if grows {
            let status = not_looked(&manifest, &first, &all, self.kcp.now());
            self.kcp.write_manifest_status_in_place(&mut manifest, status).await?;
        }
        if !is_settled {
            self.claim(kyma, &manifest, &all);
        }
        let (definitions, cr) = (Definitions::of(&bundle.first), default_cr(&manifest));
        let named = bundle.objects.iter().chain(cr.as_ref());
        let only = only.map(|only| only.with_kinds(&definitions, named));
        // What is not looked at is marked as it was.
        let looked = only.as_ref().filter(|only| !only.is_anew());
        let shared = self.mark_shared(kyma, &manifest, &mut bundle, looked);

        let own = (&manifest, before.as_slice(), gone.as_slice(), shared.as_slice());
        let Done { mut applied, contents, only } = match manifest.terms() {
            Err(error) => Done::failed(Stopped::for_good(chain(&error))),
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
        // What was applied just now may have told the scope of a kind.
        gone = prune::prune(&identified(runtime, gone, &bundle.objects).await, &bundle.objects);
        let mut left = gone.clone();
        let (mut kept, mut going) = (Vec::new(), None);
        if applied.failed.is_none() && !applied.unasked {
            if self.kcp.index().is_skipped(&manifest.name_any()) {
                return Err(left_alone());
            }
            let removing = self.remover.remove(kyma, &manifest, runtime, left.clone(), Theirs::Stays);
            match stage(Stage::Delete, removing).await {
                // What is its users' stays theirs: the upgrade is complete without its removal.
                Ok(remains) => {
                    going = remains.going(Theirs::Stays);
                    kept = remains.theirs.into_iter().map(|(object, _)| object).collect();
                    left = remains.left.into_iter().map(|(object, _)| object).collect();
                }
                Err(error) => applied.failed = Some(error.into()),
            }
        }
        let objects = inventory::union(&inventory::union(&left, &kept), &bundle.objects);
        // What was let go is not held against others any more.
        self.claim(kyma, &manifest, &objects);
        let gone = (left.is_empty() && kept.is_empty()).then_some(gone);
        Ok(Synced { manifest, applied, left, going, objects, gone, only: None, contents })
    }

    /// Applies the objects of a bundle: those that `only` says, and if it is about what was asked for before, what is to be another one.
    /// The others were ready, or are nothing that could be.
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
                // Whose an object is may have changed since it was looked at.
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

    /// What has to be looked at where something else is asked for than before: besides what was heard of, what is to be another one, and
    /// what nobody would have told of.
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

    /// The Manifests whose objects it may make anew as its own; none where it makes none anew.
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

    /// What it owns from now on; others take that into account.
    fn claim(&self, kyma: &str, manifest: &Manifest, objects: &[ObjectRef]) {
        let owned: Vec<ObjectRef> = objects.iter().cloned().chain(default_cr(manifest)).collect();
        let mut state = self.kcp.index_mut();
        state.owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);
    }

    /// Marks objects that another Manifest has too for one of them, and returns those that stay so: all, or `only` these.
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
