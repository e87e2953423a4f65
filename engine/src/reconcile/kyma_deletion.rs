//! Deletes a Kyma in repeatable steps.

use std::{fmt::Write as _, sync::Arc};

use kube::{ResourceExt, api::ListParams};
use serde_json::Value;
use tidewatch_api::{
    Kyma, KymaStatus, Manifest,
    names::{finalizers, labels},
    object::{Gvk, ObjectRef},
};
use tidewatch_planner::{
    agent_install::created_by_agent,
    deletion::{self, Remaining, Runtime, RuntimeObject, RuntimeObjects, Step},
    engine_owned::CRDS,
    force::{self, Forced},
    kyma::{deleting_status, runtime_status, skipped_message},
    notice::About,
};

use super::{
    agent_config,
    agent_install::AgentInstaller,
    legacy_watcher::remove_watcher,
    runtime_kyma::{copied_kyma, remote_kyma, write_runtime_status},
};
use crate::{
    clusters::{
        Clusters, Gated,
        objects::{self, Deleted, ObjectError},
    },
    error::Error,
    events::Notifier,
    kcp::Kcp,
    key::{Queue, WorkKey},
    outcome::{Outcome, error_report},
    queue::{Class, Push},
    reconcile::{kyma::failures::Failures, owners::RuntimeOwners, pull_secret::PullSecrets},
    stages::{Stage, stage},
};

const MODULES: usize = 5;

fn crd(name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        namespace: String::new(),
        name: name.into(),
    }
}

/// The objects of a step, in deletion order.
fn objects_of(thing: RuntimeObject, runtime: &Gated, installer: &AgentInstaller) -> Vec<ObjectRef> {
    let [kymas, templates, releases] = CRDS;
    match thing {
        RuntimeObject::TemplateCrd => vec![crd(templates)],
        RuntimeObject::ReleaseCrd => vec![crd(releases)],
        RuntimeObject::Kyma => vec![copied_kyma()],
        RuntimeObject::KymaCrd => vec![crd(kymas)],
        RuntimeObject::AgentConfiguration => [agent_config::objects(runtime), installer.objects()].concat(),
    }
}

struct Deletion<'a> {
    kyma: &'a Kyma,
    manifests: Vec<Manifest>,
    runtime: Option<Gated>,
    remote: Value,
    force: Option<Forced>,
    skipped: Vec<String>,
}

impl Deletion<'_> {
    /// Whether a forced deletion skips this failure: a retry would fail, too.
    fn passes(&self, error: &ObjectError) -> bool {
        self.force.is_some() && !error.is_transient()
    }
}

pub(crate) struct KymaDeletion {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) queue: Queue,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) failures: Arc<Failures>,
    pub(crate) pull_secrets: Arc<PullSecrets>,
    pub(crate) installer: Arc<AgentInstaller>,
    pub(crate) notifier: Arc<Notifier>,
}

impl KymaDeletion {
    pub(super) async fn reconcile(&self, kyma: &Kyma) -> Result<Outcome, Error> {
        let name = kyma.name_any();
        let force = force::forced(kyma);
        let mut deletion = Deletion {
            kyma,
            manifests: self.kcp.index().manifests.list(&name),
            runtime: None,
            remote: Value::Null,
            force,
            skipped: Vec::new(),
        };
        match self.clusters.access(&name).await? {
            Ok(runtime) => deletion.runtime = Some(runtime),
            Err(why) if why.cluster_is_gone() => {
                if let Some(wait) = self.clusters.confirm_deleted(&name).await? {
                    return Ok(wait);
                }
            }
            // With an unusable kubeconfig, the cluster may still exist.
            Err(why) if deletion.force.is_none() => {
                let message = why.message();
                self.write_status(&deletion, &message).await?;
                return Ok(Outcome::failed(error_report(message)));
            }
            Err(why) => deletion.skipped.push(format!("all in the runtime: {}", why.message())),
        }
        let found = match &deletion.runtime {
            None => Ok(None),
            Some(runtime) => stage(Stage::ReadRuntime, self.left_in(&name, runtime)).await,
        };
        let in_runtime = match found {
            Ok(None) => {
                deletion.runtime = None;
                Runtime::Gone
            }
            Ok(Some((remote, there))) => {
                deletion.remote = remote;
                Runtime::Exists(there)
            }
            Err(error) if deletion.passes(&error) => {
                deletion.skipped.push(format!("all in the runtime: {}", error.message()));
                deletion.runtime = None;
                Runtime::Gone
            }
            Err(error) => return self.failures.runtime_failed(kyma, &error).await,
        };
        let deleting = deletion.manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_some()).count();
        let left = Remaining {
            status_written: kyma.status.as_ref().is_some_and(|s| s.state == tidewatch_api::State::Deleting),
            manifests: deletion.manifests.len() - deleting,
            manifests_deleting: deleting,
            runtime: in_runtime,
        };
        self.go_on(deletion, left).await
    }

    async fn go_on(&self, mut deletion: Deletion<'_>, mut left: Remaining) -> Result<Outcome, Error> {
        let name = deletion.kyma.name_any();
        loop {
            let step = deletion::next(left);
            tracing::info!(kyma = name, ?step, "the Kyma is being deleted");
            match step {
                Step::WriteStatus => {
                    self.write_status(&deletion, "the Kyma is being deleted").await?;
                    left.status_written = true;
                }
                Step::WriteRuntimeStatus => {
                    let status = self.status_of(&deletion, "the Kyma is being deleted");
                    self.write_status_in_runtime(&mut deletion, &status).await?;
                    // The runtime's status is optional.
                    if let Runtime::Exists(there) = &mut left.runtime {
                        there.kyma = Some(true);
                    }
                }
                Step::DeleteManifests => {
                    for manifest in
                        deletion.manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_none())
                    {
                        self.kcp.delete(&self.kcp.manifests(), &manifest.name_any()).await?;
                    }
                    return self.await_manifests(deletion).await;
                }
                Step::AwaitManifests => return self.await_manifests(deletion).await,
                Step::Remove(thing) => {
                    let Some(runtime) = deletion.runtime.clone() else { return Ok(Outcome::done()) };
                    match stage(Stage::Delete, delete(&runtime, thing, &self.installer)).await {
                        Ok(going) if going.is_empty() => {}
                        Ok(going) if deletion.force.is_some() => {
                            deletion.skipped.extend(going.iter().map(Forced::deleting_label));
                        }
                        Ok(going) => {
                            let what = format!("waiting for {} to be gone", going.join(", "));
                            self.write_status(&deletion, &what).await?;
                            return Ok(Outcome::recheck_rarely(what));
                        }
                        Err(error) if deletion.passes(&error) => {
                            let objects: Vec<_> = objects_of(thing, &runtime, &self.installer)
                                .iter()
                                .map(ToString::to_string)
                                .collect();
                            deletion.skipped.push(format!("{}: {}", objects.join(", "), error.message()));
                        }
                        Err(error) => return self.failures.runtime_failed(deletion.kyma, &error).await,
                    }
                    if thing == RuntimeObject::AgentConfiguration {
                        let mut state = self.kcp.index_mut();
                        self.clusters.records.change_existing(&name, |record| record.agent_config = None);
                        state.agents.forget(&name);
                    }
                    if let Runtime::Exists(there) = &mut left.runtime {
                        there.without(thing);
                    }
                }
                Step::DropFinalizer => return self.release(&deletion).await,
            }
        }
    }
}

impl KymaDeletion {
    /// The engine's remaining objects in a runtime, and its Kyma. `None` if the runtime belongs to another Kyma.
    pub(super) async fn left_in(
        &self,
        kyma: &str,
        runtime: &Gated,
    ) -> Result<Option<(Value, RuntimeObjects)>, ObjectError> {
        let remote = remote_kyma(runtime).await?;
        if let Some(owner) = self.owners.successor(kyma, runtime, &remote) {
            tracing::warn!(kyma, owner, "the runtime has another Kyma by now, and stays as it is");
            return Ok(None);
        }
        let mut there = RuntimeObjects::default();
        if !runtime.is_own_cluster() {
            // In KCP's own cluster these are KCP's.
            self.note_copies(runtime, &remote, &mut there).await?;
        }
        for object in objects_of(RuntimeObject::AgentConfiguration, runtime, &self.installer) {
            there.agent += usize::from(is_of_agent(runtime, &object).await?);
        }
        Ok(Some((remote, there)))
    }

    /// Notes the runtime's Kyma and the CRDs, which exist in KCP, too.
    async fn note_copies(
        &self,
        runtime: &Gated,
        remote: &Value,
        there: &mut RuntimeObjects,
    ) -> Result<(), ObjectError> {
        if !remote.is_null() {
            there.kyma = Some(remote["status"]["state"] == "Deleting");
        }
        for (thing, is_there) in [
            (RuntimeObject::TemplateCrd, &mut there.template_crd),
            (RuntimeObject::ReleaseCrd, &mut there.release_crd),
            (RuntimeObject::KymaCrd, &mut there.kyma_crd),
        ] {
            for object in objects_of(thing, runtime, &self.installer) {
                *is_there |= objects::find(runtime, &object).await?.is_some();
            }
        }
        Ok(())
    }

    /// Reports the remaining modules. Their end is an event.
    async fn await_manifests(&self, mut deletion: Deletion<'_>) -> Result<Outcome, Error> {
        let name = deletion.kyma.name_any();
        let mut modules: Vec<&str> = deletion.manifests.iter().filter_map(Manifest::module_name).collect();
        modules.sort_unstable();
        let more = if modules.len() > MODULES { ", …" } else { "" };
        modules.truncate(MODULES);
        let mut what = format!("waiting for the modules to be removed: {}{more}", modules.join(", "));
        if let Some(skipped) = deletion.manifests.iter().find_map(skipped_message) {
            let _ = write!(what, "; {skipped}");
        }
        let status = self.status_of(&deletion, &what);
        self.kcp.write_kyma_status(deletion.kyma, &status).await?;
        self.write_status_in_runtime(&mut deletion, &status).await?;
        if deletion.force.is_some() {
            for manifest in &deletion.manifests {
                let key = WorkKey::Manifest { kyma: name.clone(), name: manifest.name_any() };
                self.queue.push(key, Push { class: Class::UserEdit, trigger: None, guards: Vec::new() });
            }
        }
        Ok(Outcome::waiting(what))
    }

    /// Removes the finalizer when a fresh list has no Manifest.
    async fn release(&self, deletion: &Deletion<'_>) -> Result<Outcome, Error> {
        let name = deletion.kyma.name_any();
        if self.has_manifests(&name).await? {
            // The watch has not delivered it yet.
            return Ok(Outcome::recheck_soon("waiting for a Manifest that was just made".into()));
        }
        if let Some(runtime) = &deletion.runtime
            && let Err(error) = self.pull_secrets.remove(&name, runtime).await
            && !deletion.passes(&error)
        {
            return self.failures.runtime_failed(deletion.kyma, &error).await;
        }
        // Its event path was never proven.
        if let Some(runtime) = &deletion.runtime
            && let Err(error) = remove_watcher(&name, runtime).await
            && !deletion.passes(&error)
        {
            return self.failures.runtime_failed(deletion.kyma, &error).await;
        }
        self.remove_legacy_certificate(&name).await?;
        if let Some(force) = &deletion.force {
            tracing::warn!(kyma = name, by = force.by, why = force.reason, "deleted by force");
            let notice = force.notice(About::Kyma, &format!("Kyma {name}"), &deletion.skipped);
            self.notifier.audit(&name, &[notice]).await?;
        }
        let ours = [finalizers::KYMA, finalizers::LEGACY_PURGE];
        self.kcp.drop_finalizers(&self.kcp.kymas(), deletion.kyma, &ours).await?;
        self.clusters.discredit(&name);
        Ok(Outcome::done())
    }

    async fn has_manifests(&self, kyma: &str) -> Result<bool, Error> {
        let params = ListParams::default().labels(&format!("{}={kyma}", labels::KYMA_NAME)).limit(1);
        let list = stage(Stage::ReadKcp, self.kcp.manifests().list_metadata(&params)).await;
        list.map(|list| !list.items.is_empty())
            .map_err(|e| Error::kcp(format!("listing the Manifests of {kyma}"), e))
    }

    fn status_of(&self, deletion: &Deletion<'_>, message: &str) -> KymaStatus {
        deleting_status(deletion.kyma, &deletion.manifests, message.to_owned(), self.kcp.now())
    }

    async fn write_status(&self, deletion: &Deletion<'_>, message: &str) -> Result<(), Error> {
        self.kcp.write_kyma_status(deletion.kyma, &self.status_of(deletion, message)).await
    }

    /// Shows the status to the user; a failure is ignored.
    async fn write_status_in_runtime(
        &self,
        deletion: &mut Deletion<'_>,
        status: &KymaStatus,
    ) -> Result<(), Error> {
        let Some(runtime) = deletion.runtime.as_ref().filter(|_| !deletion.remote.is_null()) else {
            return Ok(());
        };
        match stage(Stage::WriteRuntime, write_runtime_status(runtime, &deletion.remote, status)).await {
            Ok(()) => {
                deletion.remote["status"] = serde_json::to_value(runtime_status(status)).unwrap_or_default();
                Ok(())
            }
            Err(ObjectError::Held(held)) => Err(held.into()),
            Err(error) => {
                let (kyma, error) = (deletion.kyma.name_any(), error.message());
                tracing::debug!(kyma, error, "the runtime's status stays as it is");
                Ok(())
            }
        }
    }
}

/// Whether an object of this name exists, and the engine or the agent has created it.
async fn is_of_agent(runtime: &Gated, id: &ObjectRef) -> Result<bool, ObjectError> {
    let object = objects::get(runtime, id).await?;
    Ok(object.is_some_and(|object| {
        agent_config::is_engine_owned(&object) || created_by_agent().any(|own| own == *id)
    }))
}

async fn delete(
    runtime: &Gated,
    thing: RuntimeObject,
    installer: &AgentInstaller,
) -> Result<Vec<String>, ObjectError> {
    let mut going = Vec::new();
    for object in objects_of(thing, runtime, installer) {
        if thing == RuntimeObject::AgentConfiguration && !is_of_agent(runtime, &object).await? {
            continue;
        }
        if objects::remove(runtime, &object).await? == Deleted::Going {
            going.push(object.to_string());
        }
    }
    Ok(going)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::names::annotations;

    use super::*;
    use crate::reconcile::tests::{engine_on, not_found, runtime_on};

    /// A runtime, optionally with a Kyma of this owner in KCP.
    fn runtime(owner: Option<&'static str>) -> Gated {
        runtime_on(move |path| match (path, owner) {
            ("/apis/operator.kyma-project.io/v1beta2", _) => (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "operator.kyma-project.io/v1beta2",
                           "resources": [{"name": "kymas", "singularName": "", "namespaced": true, "kind": "Kyma", "verbs": ["get"]}]}),
            ),
            (_, Some(owner)) => (
                200,
                json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "metadata": {"name": "default",
                           "namespace": "kyma-system", "annotations": {annotations::OWNED_BY: owner}}}),
            ),
            _ => not_found(),
        })
    }

    #[tokio::test]
    async fn a_runtime_of_another_kyma_is_not_cleaned() {
        let (engine, _) = engine_on(|_, _| not_found());
        let lagoon = json!({"metadata": {"name": "lagoon", "uid": "u"}, "spec": {"channel": "regular"}});
        drop(engine.dispatcher.kcp.index_mut().apply_kyma(serde_json::from_value(lagoon).unwrap()));
        for (owner, anothers) in [
            (Some("kcp-system/lagoon"), Some("lagoon")),
            (Some("kcp-system/harbour"), None),
            (Some("kcp-system/gone"), None),
            (Some("elsewhere/lagoon"), None),
            (None, None),
        ] {
            let runtime = runtime(owner);
            let now = engine.dispatcher.reconcilers.kyma.owners.owner("harbour", &runtime).await.unwrap();
            assert_eq!(now.as_deref(), anothers, "{owner:?}");
            if anothers.is_some() {
                assert!(
                    engine
                        .dispatcher
                        .reconcilers
                        .kyma
                        .deletion
                        .left_in("harbour", &runtime)
                        .await
                        .unwrap()
                        .is_none()
                );
            }
        }
    }
}
