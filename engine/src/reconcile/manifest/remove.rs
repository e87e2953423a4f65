//! What goes: objects that are not wanted any more, and a Manifest that is being deleted (what users have made with it first,
//! then the default CR, then its objects in a safe order, then the finalizers).

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, ManifestStatus, inventory,
    names::finalizers,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::{
    namespace::{for_long, held},
    ownership::{self, Verdict},
    prune,
};
use tidewatch_planner::{
    blockers::CRS_WAITED_FOR,
    force::Forced,
    manifest_status::{self, Progress},
    notice::{About, Notice},
    writers::{has_own_inventory, has_written_inventory},
};

use super::{
    Stopped,
    blockers::{self, Obstacle, Whose},
    is_crd, is_namespace,
    passed::Mark,
    sync::Work,
};
use crate::{
    clusters::{
        Gated,
        objects::{self, Deleted, ObjectError},
    },
    kcp::Kcp,
    key::{Cause, Queue, WorkKey},
    outcome::{Lost, Outcome},
    queue::{Class, Push},
    reconcile::{
        manifest::{ManifestFailures, source::Bundles, sync::Syncer, told::Watched},
        owners::Owners,
        standing::Standing,
    },
    stages::{Stage, stage},
};

/// What is still there of what was to go.
#[derive(Default)]
pub(super) struct Remains {
    /// What is on its way, or waits for that, and why if that is worth saying.
    pub(super) left: Vec<(ObjectRef, Option<String>)>,
    /// What stays for as long as its users want: CRDs with objects, namespaces with such objects; and why.
    pub(super) theirs: Vec<(ObjectRef, String)>,
    /// The kinds of what is on its way.
    going: Vec<Gvk>,
    /// Whether something has to happen besides.
    besides: bool,
}

impl Remains {
    /// The kinds of what the rest waits for; `None` if it waits for more than their end.
    pub(super) fn going(&self, users: Theirs) -> Option<Vec<Gvk>> {
        let others = self.besides || users == Theirs::HoldsBack && !self.theirs.is_empty();
        (!others).then(|| self.going.clone())
    }

    /// All of it. What is its users' comes first: the rest waits for that.
    fn all(self) -> Vec<(ObjectRef, Option<String>)> {
        let theirs = self.theirs.into_iter().map(|(object, why)| (object, Some(why)));
        theirs.chain(self.left).collect()
    }
}

/// Adds objects to a Manifest's inventory.
fn add(manifest: &mut Manifest, objects: &[ObjectRef]) {
    if !objects.is_empty() {
        let status = manifest.status.get_or_insert_default();
        status.synced = inventory::synced(&inventory::union(&inventory::inventory(&status.synced), objects));
    }
}

/// Whether what is its users' holds back what would go after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Theirs {
    /// The module goes, so it has to go first.
    HoldsBack,
    /// The module stays: an upgrade is complete without it.
    Stays,
}

/// Why an object is still there after it was to go.
enum Left {
    /// It is on its way.
    Going,
    /// A CRD with instances.
    Instances,
    /// A namespace with objects of users, of kinds that the module defines: the first of them, and how many.
    Users(String),
    /// A CRD none of whose versions is served: nobody can tell whether it has instances.
    Unserved,
    /// Another Manifest, which is being deleted, has it too.
    Await(String),
}

/// What holds an object that has been on its way for long, and who can end that.
async fn held_by(runtime: &Gated, object: &ObjectRef) -> String {
    // One that cannot be read is told of by its name.
    let live = stage(Stage::ReadRuntime, objects::get(runtime, object)).await.ok().flatten();
    live.and_then(|live| held(object, &live)).map_or_else(
        || "it takes longer than a deletion does".to_owned(),
        |held| format!("{held}: whoever has set a finalizer has to take it away"),
    )
}

/// Ends Manifests: deleted, transferred, unmanaged or forced.
pub(crate) struct Removal {
    pub(crate) kcp: Kcp,
    pub(crate) owners: Arc<Owners>,
    pub(crate) watched: Arc<Watched>,
    pub(crate) failures: Arc<ManifestFailures>,
    pub(crate) bundles: Arc<Bundles>,
    pub(crate) remover: Arc<Remover>,
    pub(crate) syncer: Arc<Syncer>,
}

impl Removal {
    /// A Manifest with what was in its inventory before somebody else wrote it or took it away, as far as it is remembered.
    pub(super) fn with_remembered(&self, mut manifest: Manifest) -> Manifest {
        if has_written_inventory(&manifest) {
            return manifest;
        }
        let before = self.kcp.index().inventory(&manifest);
        add(&mut manifest, &before);
        manifest
    }

    /// A Manifest that goes, with what it is to have besides where somebody else has written its inventory or taken it away, and
    /// without what is not its own: for the objects of a kind that somebody only says it defines, nobody waits. Besides, why that is not
    /// known, if it is not: without it something would be left in the runtime that nobody takes care of.
    pub(super) async fn with_inventory(
        &self,
        kyma: &str,
        mut manifest: Manifest,
        runtime: &Gated,
    ) -> (Manifest, Option<Stopped>) {
        if has_own_inventory(&manifest) {
            return (manifest, None);
        }
        let rendered = Box::pin(stage(Stage::Render, self.bundles.bundle(&manifest, runtime))).await;
        let stopped = rendered.map(|(bundle, _)| add(&mut manifest, &bundle.objects)).err();
        let mut own = Vec::new();
        let mut objects =
            inventory::inventory(&manifest.status.clone().unwrap_or_default().synced).into_iter();
        while let Some(object) = objects.next() {
            match stage(Stage::ReadRuntime, objects::look(runtime, &object)).await {
                Ok(None) => {}
                Ok(Some(there)) => match self.remover.verdict(kyma, &manifest, &object, &there) {
                    Verdict::NotOurs => {
                        tracing::warn!(
                            kyma,
                            manifest = manifest.name_any(),
                            %object,
                            "not removed: somebody has written it into the inventory, and it carries no marks of ours"
                        );
                    }
                    _ => own.push(object),
                },
                // Whoever removes it says so. Who does not answer is not asked for each of many objects.
                Err(error) => {
                    own.push(object);
                    if error.is_cut_off() {
                        own.extend(objects.by_ref());
                    }
                }
            }
        }
        if let Some(status) = &mut manifest.status {
            status.synced = inventory::synced(&own);
        }
        let unknown = |stopped: Stopped| Stopped {
            message: format!(
                "its inventory was changed or taken away by somebody, and what there is to remove cannot be found out: {} \
                 (whoever wants the rest left there forces the deletion)",
                stopped.message
            ),
            ..stopped
        };
        (manifest, stopped.map(unknown))
    }

    pub(super) async fn delete(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Outcome, Lost> {
        match stage(Stage::Delete, self.obstacle(kyma, manifest, runtime)).await {
            Ok(None) => {}
            Ok(Some(obstacle)) if obstacle.of == Whose::Leaving => {
                return self.make_way(kyma, manifest, runtime, obstacle).await;
            }
            Ok(Some(obstacle)) => return self.wait_for(kyma, manifest, runtime, obstacle, |_| false).await,
            Err(stopped) => return self.failures.stopped(manifest, stopped).await,
        }
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let status = |left: &[ObjectRef], progress: Progress| -> ManifestStatus {
            manifest_status::manifest_status(manifest, &progress, left, None, self.kcp.now())
        };
        // Everything of ours is to go; `prune` knows what never does.
        let gone = prune::prune(&inventory, &[]);
        match stage(Stage::Delete, self.remover.remove(kyma, manifest, runtime, gone, Theirs::HoldsBack))
            .await
        {
            Ok(remains) => match (remains.going(Theirs::HoldsBack), remains.all().as_slice()) {
                (_, []) => self.release_manifest(manifest).await,
                (going, left @ [(first, why), ..]) => {
                    let since =
                        manifest.metadata.deletion_timestamp.as_ref().map_or(self.kcp.now(), |at| at.0);
                    let long_at = for_long(since);
                    let for_long = long_at <= self.kcp.now();
                    let why = match why {
                        None if for_long => Some(held_by(runtime, first).await),
                        why => why.clone(),
                    };
                    let what = why.as_ref().map_or_else(
                        || format!("waiting for {first} to be gone ({} left)", left.len()),
                        |why| format!("waiting for {first} to be gone ({why}; {} left)", left.len()),
                    );
                    let left: Vec<ObjectRef> = left.iter().map(|(object, _)| object.clone()).collect();
                    self.kcp
                        .write_manifest_status(manifest, &status(&left, Progress::Deleting(what.clone())))
                        .await?;
                    if for_long {
                        let notice = Notice::warning(
                            About::RuntimeKyma,
                            "ModuleDeletionHeld",
                            format!("module '{}': {what}", manifest.module_name().unwrap_or_default()),
                        )
                        .of_occasion(manifest.uid().unwrap_or_default());
                        self.kcp.notify_user(kyma, runtime, notice).await;
                    }
                    let look_at = (!for_long).then_some(long_at);
                    Ok(self
                        .watched
                        .leaving(kyma, runtime, going.as_deref(), what)
                        .await
                        .if_waiting_due_by(look_at))
                }
            },
            Err(error) => self.failures.stopped(manifest, error.into()).await,
        }
    }

    /// Lets go of what others that are on their way out may wait for, the module's custom resources of their kinds, and waits for
    /// theirs: the rest, and with it what takes care of those, is kept in good order meanwhile, and goes after them.
    async fn make_way(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        obstacle: Obstacle,
    ) -> Result<Outcome, Lost> {
        let groups = self.kcp.index().groups_of_leaving(kyma);
        let goes =
            |object: &ObjectRef| prune::removal_rank(&object.gvk) == 0 && groups.contains(&object.gvk.group);
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let first = prune::prune(&inventory, &[]).into_iter().filter(&goes).collect();
        // Whether or not what is kept can be found out.
        let removing = self.remover.remove(kyma, manifest, runtime, first, Theirs::HoldsBack);
        if let Err(error) = stage(Stage::Delete, removing).await {
            return self.failures.stopped(manifest, error.into()).await;
        }
        self.wait_for(kyma, manifest, runtime, obstacle, goes).await
    }

    /// Keeps a module that cannot go yet in good order, but for what `goes` already, and says what it waits for.
    async fn wait_for(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        Obstacle { what, kinds, there, of }: Obstacle,
        goes: impl Fn(&ObjectRef) -> bool + Send,
    ) -> Result<Outcome, Lost> {
        let says = manifest.status.as_ref().and_then(|status| status.last_operation.as_ref());
        if of == Whose::Users && !says.is_some_and(|says| says.operation.starts_with(CRS_WAITED_FOR)) {
            Box::pin(self.notify_blocked(kyma, manifest, runtime, &there)).await;
        }
        let (objects, missing, failure) = match stage(Stage::Render, self.bundles.bundle(manifest, runtime))
            .await
        {
            Ok((bundle, _)) => {
                let first = Progress::Deleting(what.clone());
                let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.name_any() };
                let mark = Mark::default();
                let work = Work { key: &key, kyma, mark, only: None, again: true, defined: false };
                let synced = self.syncer.sync(&work, manifest, runtime, bundle.without(goes), first).await?;
                (synced.objects, synced.applied.missing, synced.applied.failed)
            }
            Err(stopped) => (
                inventory::inventory(&manifest.status.clone().unwrap_or_default().synced),
                None,
                Some(stopped),
            ),
        };
        let failed = failure.is_some() || missing.is_some();
        let behind = |why: &str| format!("{what}; the module is not kept up to date meanwhile: {why}");
        let what = match failure {
            None => missing.as_deref().map_or_else(|| what.clone(), behind),
            Some(stopped) => {
                if let Some(lost) = stopped.lost {
                    return Err(lost);
                }
                if stopped.discredits_client {
                    self.owners.clusters.discredit(kyma);
                }
                behind(&stopped.message)
            }
        };
        let progress = Progress::Deleting(what.clone());
        let status = manifest_status::manifest_status(manifest, &progress, &objects, None, self.kcp.now());
        self.kcp.write_manifest_status(manifest, &status).await?;
        Ok(if !failed && self.watched.watches_changes(kyma, runtime, &kinds).await {
            Outcome::waiting(what)
        } else {
            Outcome::recheck_rarely(what)
        })
    }

    /// Tells the runtime's user once that a removal waits for what only they can end. The status says which objects these are.
    async fn notify_blocked(&self, kyma: &str, manifest: &Manifest, runtime: &Gated, kinds: &[Gvk]) {
        let kinds: Vec<String> = kinds.iter().map(|gvk| format!("{}.{}", gvk.kind, gvk.group)).collect();
        let notice = Notice::warning(About::RuntimeKyma, "ModuleDeletionBlocked", format!(
                "module '{}' is not removed before your resources of it are: {}; its entry in the status of this Kyma names them",
                manifest.module_name().unwrap_or_default(),
                kinds.join(", ")
            )).of_occasion(manifest.uid().unwrap_or_default());
        self.kcp.notify_user(kyma, runtime, notice).await;
    }

    /// Takes our finalizers off a Manifest, and says which others hold it.
    pub(super) async fn release_manifest(&self, manifest: &Manifest) -> Result<Outcome, Lost> {
        const OURS: [&str; 3] = [finalizers::MANIFEST, finalizers::DEFAULT_CR, finalizers::LABEL_REMOVAL];
        self.kcp.drop_finalizers(&self.kcp.manifests(), manifest, &OURS).await?;
        let others: Vec<&str> =
            manifest.finalizers().iter().map(String::as_str).filter(|one| !OURS.contains(one)).collect();
        if manifest.metadata.deletion_timestamp.is_some() && !others.is_empty() {
            let what = format!(
                "the module is removed; its Manifest {} waits for the finalizer {}: whoever has set it has to take it away",
                manifest.name_any(),
                others.join(", ")
            );
            let status = manifest_status::manifest_status(
                manifest,
                &Progress::Deleting(what.clone()),
                &[],
                None,
                self.kcp.now(),
            );
            self.kcp.write_manifest_status(manifest, &status).await?;
            return Ok(Outcome::waiting(what));
        }
        Ok(Outcome::done())
    }

    /// Lets a Manifest go whose cluster is gone, whoever else holds it: nobody can do anything there any more.
    pub(super) async fn release_with_cluster(&self, manifest: &Manifest) -> Result<Outcome, Lost> {
        let all: Vec<&str> = manifest.finalizers().iter().map(String::as_str).collect();
        self.kcp.drop_finalizers(&self.kcp.manifests(), manifest, &all).await?;
        Ok(Outcome::done())
    }
}

/// Deletes modules' objects, unless they are shared or in use.
pub(crate) struct Remover {
    pub(crate) kcp: Kcp,
    pub(crate) queue: Queue,
    pub(crate) standing: Arc<Standing>,
}

impl Remover {
    /// Removes a Manifest's objects in their order, a rank at a time: what is left of one rank holds back the next. What is not ours,
    /// or another Manifest's too, stays and is forgotten. A CRD that has instances is left alone.
    pub(super) async fn remove(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        objects: Vec<ObjectRef>,
        users: Theirs,
    ) -> Result<Remains, ObjectError> {
        let mut remains = Remains::default();
        let mut objects = objects.into_iter();
        let mut rank = None;
        while let Some(object) = objects.next() {
            let this = prune::removal_rank(&object.gvk);
            let holds_back =
                !remains.left.is_empty() || users == Theirs::HoldsBack && !remains.theirs.is_empty();
            if rank.is_some_and(|rank| rank != this) && holds_back {
                remains.left.push((object, None));
                remains.left.extend(objects.map(|object| (object, None)));
                return Ok(remains);
            }
            rank = Some(this);
            match Box::pin(self.remove_one(kyma, manifest, runtime, &object)).await? {
                None => {}
                Some(Left::Going) => {
                    remains.going.push(object.gvk.clone());
                    remains.left.push((object, None));
                }
                Some(Left::Await(other)) => {
                    let why = format!("the Manifest {other} has it too, and is being deleted");
                    remains.left.push((object, Some(why)));
                    remains.besides = true;
                }
                Some(Left::Instances) => {
                    remains.theirs.push((object, "objects of its kind exist".to_owned()));
                }
                Some(Left::Users(users)) => {
                    remains.theirs.push((object, format!("users have in it: {users}")));
                }
                Some(Left::Unserved) => {
                    let why = "none of its versions is served, so nobody can tell whether objects of its kind exist; \
                               serve one, or delete it";
                    remains.theirs.push((object, why.to_owned()));
                }
            }
        }
        Ok(remains)
    }

    /// Removes what is left of a forced deletion, all at once and waiting for nothing. Returns what is still there, in words.
    pub(super) async fn remove_by_force(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        objects: Vec<ObjectRef>,
    ) -> Result<Vec<String>, ObjectError> {
        let mut left = Vec::new();
        for object in objects {
            match Box::pin(self.remove_one(kyma, manifest, runtime, &object)).await {
                Ok(None) => {}
                Err(error) if error.is_passing() || error.is_cut_off() => return Err(error),
                // A webhook without a server, a right that is missing: that is what the force is for.
                Ok(Some(Left::Going)) => left.push(Forced::going(&object)),
                Ok(Some(_)) | Err(_) => left.push(object.to_string()),
            }
        }
        Ok(left)
    }

    /// Asks for the reconcile of another Manifest that has an object too: it applies it again, with its own marks.
    pub(super) fn notify_sharer(&self, kyma: &str, manifest: &str, other: String) {
        let object = format!("Manifest/{manifest}");
        let cause = Cause::Kcp { object, change: "a shared object was let go" };
        let push = Push { class: Class::Rollout, cause: Some(cause), guards: Vec::new() };
        self.queue.push(WorkKey::Manifest { kyma: kyma.to_owned(), name: other }, push);
    }

    /// What becomes of an object of a Manifest's inventory that is there.
    fn verdict(
        &self,
        kyma: &str,
        manifest: &Manifest,
        object: &ObjectRef,
        there: &objects::Present,
    ) -> Verdict {
        let name = manifest.name_any();
        let state = self.kcp.index();
        let others = state.other_claims(kyma, &name, object);
        let is_anothers = |other: &str| state.is_of_another(kyma, other);
        ownership::verdict((&self.kcp.namespace, &name), &there.marks, &others, is_anothers)
    }

    /// Removes one object, if it is ours alone. `None`: it is gone, or is not ours to remove.
    async fn remove_one(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        object: &ObjectRef,
    ) -> Result<Option<Left>, ObjectError> {
        let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.name_any() };
        self.standing.forget(Standing::key(&key, object));
        let Some(there) = objects::look(runtime, object).await? else { return Ok(None) };
        let name = manifest.name_any();
        match self.verdict(kyma, manifest, object, &there) {
            Verdict::Delete => {}
            Verdict::Shared(other) => {
                tracing::info!(kyma, manifest = name, %object, other, "not removed: another Manifest has it too");
                self.notify_sharer(kyma, &name, other);
                return Ok(None);
            }
            Verdict::NotOurs => {
                let owner = there.marks.owned_by;
                tracing::warn!(kyma, manifest = name, %object, owner, "not removed: it carries no marks of ours");
                return Ok(None);
            }
            Verdict::Await(other) => return Ok(Some(Left::Await(other))),
        }
        if there.deleting {
            return Ok(Some(Left::Going));
        }
        if is_crd(&object.gvk)
            && let Some(crd) = objects::get(runtime, object).await?
        {
            let Some(gvk) = objects::defined_kind(&crd) else { return Ok(Some(Left::Unserved)) };
            if !objects::list(runtime, &gvk, "", 1).await?.first.is_empty() {
                return Ok(Some(Left::Instances));
            }
        }
        if is_namespace(&object.gvk)
            && let Some(users) = blockers::users_in(runtime, manifest, &object.name).await?
        {
            return Ok(Some(Left::Users(users)));
        }
        let deleted = objects::delete(runtime, object, &there.uid).await?;
        tracing::info!(kyma, manifest = name, %object, "deleted");
        Ok((deleted == Deleted::Going).then_some(Left::Going))
    }
}

#[cfg(test)]
mod tests;
