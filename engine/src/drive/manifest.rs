//! One reconcile of a Manifest: its objects in the runtime.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    CustomResourcePolicy, Manifest, ManifestStatus, SourceType, State,
    names::{self, field_managers, finalizers},
};

use super::{
    Finish, Lost, NEXT_TRY, Shared,
    apply::{self, Deleted, ObjectError},
    chain, error_report,
    kcp_writes::lost,
};
use crate::{
    kcp::state::default_cr,
    key::Report,
    oci::{self, Digest, OciError},
    plan::{
        manifest::{self as plan, Bundle, Progress},
        object::{Gvk, ObjectRef},
        owners::Speaker,
        readiness::{self, Facts, ObjectReadiness, Readiness},
    },
    runtime::RuntimeClient,
    stages::{Stage, stage},
};

/// Objects applied to one runtime at the same time.
const CONCURRENCY: usize = 4;

/// What a reconcile found out before it stopped.
pub(super) struct Stopped {
    pub(super) message: String,
    /// Whether trying again can help without anybody changing anything.
    pub(super) retryable: bool,
    /// Whether the client should be built anew.
    pub(super) discredits_client: bool,
    /// The kind of failure.
    pub(super) class: &'static str,
}

impl From<ObjectError> for Stopped {
    fn from(error: ObjectError) -> Self {
        Self {
            message: error.message(),
            retryable: error.is_retryable(),
            discredits_client: error.discredits_client(),
            class: error.class(),
        }
    }
}

impl Stopped {
    const fn for_good(message: String) -> Self {
        Self { message, retryable: false, discredits_client: false, class: "final" }
    }
}

impl Shared {
    pub(super) async fn reconcile_manifest(&self, kyma: &str, name: &str) -> Result<Finish, Lost> {
        let read = stage(Stage::ReadKcp, self.manifests().get_opt(name)).await;
        let manifest = read.map_err(|e| lost(format!("reading Manifest {name}"), e))?;
        let Some(manifest) = manifest else {
            self.state.write().owners.release(kyma, name);
            return Ok(Finish::Done);
        };
        if manifest.is_skipped() {
            return Ok(Finish::Done);
        }
        let runtime = match self.access(kyma).await? {
            Ok(runtime) => runtime,
            Err(why) if manifest.metadata.deletion_timestamp.is_some() && why.cluster_is_gone() => {
                return self.let_manifest_go(&manifest).await;
            }
            Err(why) => return self.stopped(&manifest, Stopped::for_good(why.message())).await,
        };
        if manifest.metadata.deletion_timestamp.is_some() {
            return self.delete_manifest(kyma, &manifest, &runtime).await;
        }
        self.hold(&manifest).await?;
        let bundle = match stage(Stage::Render, self.bundle_of(&manifest, &runtime)).await {
            Ok(bundle) => bundle,
            Err(stopped) => return self.stopped(&manifest, stopped).await,
        };
        self.install(kyma, &manifest, &runtime, bundle).await
    }

    /// Finalizers, before anything is created in the runtime.
    async fn hold(&self, manifest: &Manifest) -> Result<(), Lost> {
        let mut wanted = vec![finalizers::MANIFEST];
        if manifest.spec.resource.is_some() {
            wanted.push(finalizers::DEFAULT_CR);
        }
        if wanted.iter().all(|w| manifest.finalizers().iter().any(|f| f == w)) {
            return Ok(());
        }
        let name = manifest.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Manifest",
            "metadata": {"name": name, "uid": manifest.uid(), "finalizers": wanted}
        });
        self.apply_kcp(&self.manifests(), &name, field_managers::DEFAULT_CR, false, &body).await.map(drop)
    }

    /// Reads, verifies, renders and orders the module's objects.
    async fn bundle_of(&self, manifest: &Manifest, runtime: &RuntimeClient) -> Result<Bundle, Stopped> {
        let source = manifest.install_source().map_err(|e| Stopped::for_good(e.to_string()))?;
        let media_type = match source.type_ {
            SourceType::OciDir => "application/x-tar",
            SourceType::OciRef => "application/yaml",
            other => {
                let message = format!("install sources of type {} are not supported yet", other.as_str());
                return Err(Stopped::for_good(message));
            }
        };
        let layer = self.layer(&source.repo, &source.name, &source.ref_).await?;
        // Unpacking and parsing is work for a CPU, of up to 32 MiB: not for the threads that wait for I/O.
        let rendered = tokio::task::spawn_blocking(move || oci::manifests_of(&layer, media_type))
            .await
            .map_err(|_| Stopped::for_good("the module's manifest could not be read".to_owned()))?
            .map_err(|e| {
                Stopped::for_good(format!(
                    "the module's manifest ({}) cannot be used: {}",
                    source.ref_,
                    chain(&e)
                ))
            })?;
        let mut scopes = BTreeMap::new();
        for gvk in plan::foreign_kinds(&rendered) {
            if let Some(scope) = apply::scope(runtime, &gvk).await? {
                scopes.insert(gvk, scope);
            }
        }
        plan::bundle((&self.config.namespace, &manifest.name_any()), rendered, &scopes)
            .map_err(|e| Stopped::for_good(e.to_string()))
    }

    async fn layer(&self, repo: &str, name: &str, digest: &str) -> Result<Arc<[u8]>, Stopped> {
        let read = async {
            let digest = Digest::parse(digest)?;
            self.registry.layer(repo, name, &digest).await
        };
        read.await.map_err(|error: OciError| Stopped {
            message: format!("the module's layer cannot be read: {}", chain(&error)),
            // Content that does not match its digest may be pushed again, and a registry sends no events.
            retryable: error.is_retryable()
                || matches!(error, OciError::DigestMismatch { .. } | OciError::NotFound { .. }),
            discredits_client: false,
            class: error.metric_label(),
        })
    }

    async fn install(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &RuntimeClient,
        bundle: Bundle,
    ) -> Result<Finish, Lost> {
        let before = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let gone = plan::prune(&before, &bundle.objects);
        let all = plan::union(&before, &bundle.objects);
        // Written before the first object is: whatever a crash leaves behind is in the inventory.
        let manifest = if all.iter().any(|o| !before.iter().any(|b| b.same_object(o))) {
            let progress = Progress::Waiting("the module's objects are being applied".into());
            let status =
                plan::manifest_status(manifest, &progress, &all, cr_condition(manifest, false), self.now());
            self.write_manifest_status(manifest, &status).await?;
            &Manifest { status: Some(status), ..manifest.clone() }
        } else {
            manifest
        };
        let owned: Vec<ObjectRef> = all.iter().cloned().chain(default_cr(manifest)).collect();
        self.state.write().owners.claim(Speaker::Reconcile, kyma, &manifest.name_any(), &owned);

        let facts = Facts { not_ready_since: readiness::not_ready_since(manifest), ..Facts::default() };
        let mut applied = Applied::default();
        for phase in [bundle.first, bundle.main, bundle.custom] {
            applied.take(stage(Stage::Apply, apply_all(runtime, phase, &facts, self.now())).await);
        }
        let mut left = Vec::new();
        if applied.failed.is_none() {
            match stage(Stage::Delete, remove(runtime, gone)).await {
                Ok(remaining) => left = remaining,
                Err(error) => applied.failed = Some(error.into()),
            }
        } else {
            left = gone;
        }
        let cr = if applied.failed.is_none() {
            stage(Stage::Apply, create_default_cr(manifest, runtime)).await
        } else {
            Ok(Some(false))
        };
        let mut cr_there = None;
        match cr {
            Ok(there) => {
                cr_there = there;
                if there == Some(false) && applied.failed.is_none() {
                    applied.missing.get_or_insert("the kind of the default CR is not served yet".into());
                }
            }
            Err(error) => applied.failed = Some(error.into()),
        }

        let objects = plan::union(&left, &bundle.objects);
        let write = |progress: Progress| {
            plan::manifest_status(
                manifest,
                &progress,
                &objects,
                cr_condition(manifest, cr_there == Some(true)),
                self.now(),
            )
        };
        if let Some(stopped) = applied.failed {
            return self.stopped_with(kyma, manifest, stopped, write).await;
        }
        if let Some(what) = applied.missing {
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(Finish::Recheck(what));
        }
        if let Some(first) = left.first() {
            let what = format!("waiting for {first} of the previous version to be gone");
            let status = write(Progress::Waiting(what.clone()));
            self.write_manifest_status(manifest, &status).await?;
            return Ok(Finish::Recheck(what));
        }
        let (readiness, told) = (readiness::of_module(manifest, &applied.judged), applied.is_told());
        let status = write(Progress::Applied(readiness.clone()));
        self.write_manifest_status(manifest, &status).await?;
        Ok(match readiness {
            Readiness::Ready => Finish::Done,
            // The agent reports the workload's next change.
            Readiness::Processing(what) if told => Finish::Waiting(what),
            Readiness::Processing(what) => Finish::Recheck(what),
            Readiness::Error(message) if told => Finish::Settled(error_report(message)),
            Readiness::Error(message) => Finish::Failed(error_report(message), "unready"),
        })
    }

    /// Ends a reconcile that stopped before anything was applied: the inventory stays as it is.
    async fn stopped(&self, manifest: &Manifest, stopped: Stopped) -> Result<Finish, Lost> {
        let inventory = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let write =
            |progress: Progress| plan::manifest_status(manifest, &progress, &inventory, None, self.now());
        let kyma = manifest.kyma_name().unwrap_or_default().to_owned();
        self.stopped_with(&kyma, manifest, stopped, write).await
    }

    pub(super) async fn stopped_with(
        &self,
        kyma: &str,
        manifest: &Manifest,
        stopped: Stopped,
        write: impl FnOnce(Progress) -> ManifestStatus,
    ) -> Result<Finish, Lost> {
        if stopped.discredits_client {
            self.runtimes.invalidate(kyma);
        }
        let class = stopped.class;
        let next =
            if stopped.retryable { NEXT_TRY } else { "tried again when the module or the runtime changes" };
        let report = Report { state: State::Error, message: format!("{}; {next}", stopped.message) };
        let status = write(Progress::Failed { state: report.state, message: report.message.clone() });
        self.write_manifest_status(manifest, &status).await?;
        Ok(if stopped.retryable { Finish::Failed(report, class) } else { Finish::Settled(report) })
    }
}

/// The `ModuleCR` condition, for Manifests that create one.
fn cr_condition(manifest: &Manifest, there: bool) -> Option<bool> {
    let wanted = manifest.spec.resource.is_some()
        && manifest.spec.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
    wanted.then_some(there)
}

/// What became of a set of objects.
#[derive(Default)]
struct Applied {
    judged: Vec<(ObjectRef, ObjectReadiness)>,
    /// A kind that is not served yet.
    missing: Option<String>,
    failed: Option<Stopped>,
}

impl Applied {
    fn take(&mut self, other: Self) {
        self.judged.extend(other.judged);
        if self.missing.is_none() {
            self.missing = other.missing;
        }
        if self.failed.is_none() {
            self.failed = other.failed;
        }
    }

    /// Whether the agent reports the next change of all that is not ready. Of other kinds nobody does yet.
    fn is_told(&self) -> bool {
        self.judged
            .iter()
            .all(|(object, readiness)| !readiness.is_unready() || object.gvk.kind == "Deployment")
    }
}

/// Applies objects side by side. One that fails does not hold the others back; the first failure is told.
async fn apply_all(
    runtime: &RuntimeClient,
    objects: Vec<Value>,
    facts: &Facts<'_>,
    now: Timestamp,
) -> Applied {
    let mut results = stream::iter(objects)
        .map(|object| async move { apply::apply(runtime, &object, field_managers::APPLIER).await })
        .buffered(CONCURRENCY);
    let mut applied = Applied::default();
    while let Some(result) = results.next().await {
        match result {
            Ok(object) => applied
                .judged
                .extend(ObjectRef::of(&object).map(|id| (id, readiness::readiness(&object, facts, now)))),
            Err(error) if error.is_kind_missing() => applied.missing = Some(error.message()),
            Err(error) => {
                applied.failed.get_or_insert(error.into());
            }
        }
    }
    applied
}

/// Creates the default CR if it is not there. It is never changed: after its creation it is the user's.
/// `None`: none is wanted; `Some(false)`: its kind is not served yet.
async fn create_default_cr(
    manifest: &Manifest,
    runtime: &RuntimeClient,
) -> Result<Option<bool>, ObjectError> {
    let Some(cr) = manifest.spec.resource.as_ref().filter(|_| cr_condition(manifest, true).is_some()) else {
        return Ok(None);
    };
    let body = cr.to_value();
    let Some(id) = ObjectRef::of(&body) else { return Err(ObjectError::Malformed("the default CR".into())) };
    let there = match apply::get(runtime, &id).await {
        Ok(Some(_)) => Ok(true),
        Ok(None) => apply::create(runtime, &body, field_managers::DEFAULT_CR).await.map(|()| true),
        Err(error) => Err(error),
    };
    match there {
        Err(error) if error.is_kind_missing() => Ok(Some(false)),
        other => other.map(Some),
    }
}

/// Removes objects in their order, a rank at a time: what is left of one rank holds back the next. Returns
/// what is not gone yet. A CRD that has instances is left alone.
pub(super) async fn remove(
    runtime: &RuntimeClient,
    objects: Vec<ObjectRef>,
) -> Result<Vec<ObjectRef>, ObjectError> {
    let mut left: Vec<ObjectRef> = Vec::new();
    let mut objects = objects.into_iter();
    let mut rank = None;
    while let Some(object) = objects.next() {
        let this = plan::removal_rank(&object.gvk);
        if rank.is_some_and(|rank| rank != this) && !left.is_empty() {
            left.push(object);
            left.extend(objects);
            return Ok(left);
        }
        rank = Some(this);
        if is_crd(&object.gvk)
            && let Some(crd) = apply::get(runtime, &object).await?
            && apply::has_instances(runtime, &crd).await?
        {
            left.push(object);
            continue;
        }
        if apply::delete(runtime, &object).await? == Deleted::Going {
            left.push(object);
        }
    }
    Ok(left)
}

fn is_crd(gvk: &Gvk) -> bool {
    gvk.group == "apiextensions.k8s.io" && gvk.kind == "CustomResourceDefinition"
}
