//! A Kyma that is being deleted: one step after the other, each repeatable.

use std::fmt::Write as _;

use kube::{ResourceExt, api::ListParams};
use serde_json::Value;
use tidewatch_api::{
    Kyma, KymaStatus, Manifest,
    names::{annotations, finalizers, labels},
    object::{Gvk, ObjectRef},
};
use tidewatch_planner::{
    deletion::{self, InRuntime, Left, Runtime, Step, Thing},
    force::{self, Forced},
    kyma::{deleting_status, runtime_status, skipped},
    notice::About,
    ours::CRDS,
};

use super::{
    Lost, Outcome, Shared,
    apply::{self, Deleted, ObjectError},
    error_report,
    kyma::{marked_by, runtime_kyma, write_runtime_status},
};
use crate::{
    gate::Gated,
    kcp::writes::lost,
    key::WorkKey,
    queue::{Class, Push},
    reconcile::{agent_config, legacy_watcher::remove_watcher},
    stages::{Stage, stage},
};

/// Modules that are named in a message.
const MODULES: usize = 5;

fn crd(name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        namespace: String::new(),
        name: name.into(),
    }
}

/// The objects of a step, in the order in which they go.
fn objects_of(thing: Thing) -> Vec<ObjectRef> {
    let [kymas, templates, releases] = CRDS;
    match thing {
        Thing::TemplateCrd => vec![crd(templates)],
        Thing::ReleaseCrd => vec![crd(releases)],
        Thing::Kyma => vec![runtime_kyma()],
        Thing::KymaCrd => vec![crd(kymas)],
        Thing::AgentConfiguration => agent_config::objects().into(),
    }
}

/// One deletion: what is known of it, which its steps change.
struct Deletion<'a> {
    kyma: &'a Kyma,
    manifests: Vec<Manifest>,
    runtime: Option<Gated>,
    /// The runtime's Kyma, as it was read.
    remote: Value,
    force: Option<Forced>,
    /// What a forced deletion has not waited for.
    skipped: Vec<String>,
}

impl Deletion<'_> {
    /// Whether a failure holds nothing up: the deletion is forced, and the next try would not end otherwise.
    fn passes(&self, error: &ObjectError) -> bool {
        self.force.is_some() && !error.is_passing()
    }
}

/// Why nothing is done for a Kyma whose runtime is another one's.
pub(super) fn shares_with(other: &str) -> String {
    format!(
        "the Kyma '{other}' of the control plane has this runtime: the Kyma in it says so (annotation {}); nothing is changed for this one; \
         delete it, or give it the id (label {}) and the kubeconfig of a runtime of its own; if '{other}' has another runtime by now, take \
         that annotation off",
        annotations::OWNED_BY,
        labels::RUNTIME_ID
    )
}

impl Shared {
    pub(super) async fn delete_kyma(&self, kyma: &Kyma) -> Result<Outcome, Lost> {
        let name = kyma.name_any();
        let force = force::forced(kyma);
        let mut deletion = Deletion {
            kyma,
            manifests: self.look().manifests_of(&name),
            runtime: None,
            remote: Value::Null,
            force,
            skipped: Vec::new(),
        };
        match self.access(&name).await? {
            Ok(runtime) => deletion.runtime = Some(runtime),
            Err(why) if why.cluster_is_gone() => {
                if let Some(wait) = self.doubts(&name).await? {
                    return Ok(wait);
                }
            }
            // A kubeconfig that cannot be used says nothing about the cluster: it is not taken as gone.
            Err(why) if deletion.force.is_none() => {
                let message = why.message();
                self.say_deleting(&deletion, &message).await?;
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
                Runtime::There(there)
            }
            Err(error) if deletion.passes(&error) => {
                deletion.skipped.push(format!("all in the runtime: {}", error.message()));
                deletion.runtime = None;
                Runtime::Gone
            }
            Err(error) => return self.runtime_failed(kyma, &error).await,
        };
        let deleting = deletion.manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_some()).count();
        let left = Left {
            said: kyma.status.as_ref().is_some_and(|s| s.state == tidewatch_api::State::Deleting),
            manifests: deletion.manifests.len() - deleting,
            manifests_deleting: deleting,
            runtime: in_runtime,
        };
        self.go_on(deletion, left).await
    }

    /// One step after the other, until one has to be waited for.
    async fn go_on(&self, mut deletion: Deletion<'_>, mut left: Left) -> Result<Outcome, Lost> {
        let name = deletion.kyma.name_any();
        loop {
            let step = deletion::next(left);
            tracing::info!(kyma = name, ?step, "the Kyma is being deleted");
            match step {
                Step::Say => {
                    self.say_deleting(&deletion, "the Kyma is being deleted").await?;
                    left.said = true;
                }
                Step::SayInRuntime => {
                    let status = self.status_of(&deletion, "the Kyma is being deleted");
                    self.say_in_runtime(&mut deletion, &status).await?;
                    // That it cannot be shown to the user holds nothing up.
                    if let Runtime::There(there) = &mut left.runtime {
                        there.kyma = Some(true);
                    }
                }
                Step::DeleteManifests => {
                    for manifest in
                        deletion.manifests.iter().filter(|m| m.metadata.deletion_timestamp.is_none())
                    {
                        self.delete_kcp(&self.manifests(), &manifest.name_any()).await?;
                    }
                    return self.await_manifests(deletion).await;
                }
                Step::AwaitManifests => return self.await_manifests(deletion).await,
                Step::Remove(thing) => {
                    let Some(runtime) = deletion.runtime.clone() else { return Ok(Outcome::done()) };
                    match stage(Stage::Delete, delete(&runtime, thing)).await {
                        Ok(going) if going.is_empty() => {}
                        Ok(going) if deletion.force.is_some() => {
                            deletion.skipped.extend(going.iter().map(Forced::going));
                        }
                        Ok(going) => {
                            let what = format!("waiting for {} to be gone", going.join(", "));
                            self.say_deleting(&deletion, &what).await?;
                            return Ok(Outcome::recheck_rarely(what));
                        }
                        Err(error) if deletion.passes(&error) => {
                            let objects: Vec<_> = objects_of(thing).iter().map(ToString::to_string).collect();
                            deletion.skipped.push(format!("{}: {}", objects.join(", "), error.message()));
                        }
                        Err(error) => return self.runtime_failed(deletion.kyma, &error).await,
                    }
                    if thing == Thing::AgentConfiguration {
                        let mut state = self.change();
                        self.agents.forget(&name);
                        state.forget_agent(&name);
                    }
                    if let Runtime::There(there) = &mut left.runtime {
                        there.without(thing);
                    }
                }
                Step::DropFinalizer => return self.let_kyma_go(&deletion).await,
            }
        }
    }

    /// Another Kyma of KCP that has a runtime by now, by what the Kyma in it says.
    fn has_instead(&self, kyma: &str, remote: &Value) -> Option<String> {
        let (namespace, owner) = marked_by(remote)?.split_once('/')?;
        let is_other = namespace == self.config.namespace && owner != kyma;
        (is_other && self.look().kyma(owner).is_some()).then(|| owner.to_owned())
    }

    /// The runtime of a Kyma, if no other Kyma has it; else how a reconcile of something in it ends.
    pub(super) async fn own_runtime(&self, kyma: &str) -> Result<Result<Gated, Outcome>, Lost> {
        let runtime = match self.access(kyma).await? {
            Ok(runtime) => runtime,
            // The Kyma's status says so, and its reconcile asks for this again.
            Err(why) => return Ok(Err(Outcome::waiting(why.message()))),
        };
        match self.has_already(kyma, &runtime).await {
            Ok(None) => Ok(Ok(runtime)),
            Ok(Some(other)) => Ok(Err(Outcome::waiting(shares_with(&other)))),
            Err(error) => self.failed_at(kyma, error).map(Err),
        }
    }

    /// Another Kyma of KCP that stays and has the runtime of this one, by what both are called and by what the Kyma in it says. Two that
    /// write there would take each other's modules away. The runtime is asked only if KCP names it twice.
    pub(super) async fn has_already(
        &self,
        kyma: &str,
        runtime: &Gated,
    ) -> Result<Option<String>, ObjectError> {
        let others = self.look().others_of_runtime(kyma);
        if others.is_empty() {
            return Ok(None);
        }
        let remote = remote_kyma(runtime).await?;
        let owner = self.has_instead(kyma, &remote);
        Ok(owner.filter(|owner| others.contains(owner)))
    }

    /// The same by what the Kyma in the runtime says alone, whatever KCP calls both: what was found is known to all that is done in it from
    /// then on.
    pub(super) fn has_taken(&self, kyma: &str, remote: &Value) -> Option<String> {
        let owner = self.has_instead(kyma, remote);
        let (owner, is_known) = {
            let state = self.look();
            let owner = owner.filter(|owner| state.stays(owner));
            let is_known = state.taken_by(kyma) == owner.as_ref();
            (owner, is_known)
        };
        if !is_known {
            self.change().note_taken(kyma, owner.clone());
        }
        owner
    }

    /// Another Kyma of KCP that has a runtime by now: what is known by its name alone may be of its modules.
    pub(super) async fn owner_now(&self, kyma: &str, runtime: &Gated) -> Result<Option<String>, ObjectError> {
        let remote = remote_kyma(runtime).await?;
        Ok(self.has_instead(kyma, &remote))
    }

    /// What is left of ours in a runtime, and its Kyma. `None` if another Kyma of KCP has the runtime by now.
    async fn left_in(&self, kyma: &str, runtime: &Gated) -> Result<Option<(Value, InRuntime)>, ObjectError> {
        let remote = remote_kyma(runtime).await?;
        if let Some(owner) = self.has_instead(kyma, &remote) {
            tracing::warn!(kyma, owner, "the runtime has another Kyma by now, and stays as it is");
            return Ok(None);
        }
        let mut there = InRuntime::default();
        if !remote.is_null() {
            there.kyma = Some(remote["status"]["state"] == "Deleting");
        }
        for (thing, is_there) in [
            (Thing::TemplateCrd, &mut there.template_crd),
            (Thing::ReleaseCrd, &mut there.release_crd),
            (Thing::KymaCrd, &mut there.kyma_crd),
        ] {
            for object in objects_of(thing) {
                *is_there |= apply::look(runtime, &object).await?.is_some();
            }
        }
        for object in agent_config::objects() {
            there.agent +=
                usize::from(apply::get(runtime, &object).await?.as_ref().is_some_and(agent_config::is_ours));
        }
        Ok(Some((remote, there)))
    }

    /// Says which modules are left and what they wait for. Their end is an event.
    async fn await_manifests(&self, mut deletion: Deletion<'_>) -> Result<Outcome, Lost> {
        let name = deletion.kyma.name_any();
        let mut modules: Vec<&str> = deletion.manifests.iter().filter_map(Manifest::module_name).collect();
        modules.sort_unstable();
        let more = if modules.len() > MODULES { ", …" } else { "" };
        modules.truncate(MODULES);
        let mut what = format!("waiting for the modules to be removed: {}{more}", modules.join(", "));
        if let Some(skipped) = deletion.manifests.iter().find_map(skipped) {
            let _ = write!(what, "; {skipped}");
        }
        let status = self.status_of(&deletion, &what);
        self.write_kyma_status(deletion.kyma, &status).await?;
        self.say_in_runtime(&mut deletion, &status).await?;
        if deletion.force.is_some() {
            for manifest in &deletion.manifests {
                let key = WorkKey::Manifest { kyma: name.clone(), name: manifest.name_any() };
                self.queue.push(key, Push { class: Class::UserEdit, cause: None, guards: Vec::new() });
            }
        }
        Ok(Outcome::waiting(what))
    }

    /// When no Manifest is left, by a list of now.
    async fn let_kyma_go(&self, deletion: &Deletion<'_>) -> Result<Outcome, Lost> {
        let name = deletion.kyma.name_any();
        if self.has_manifests(&name).await? {
            // The watch has not shown it yet.
            return Ok(Outcome::recheck_soon("waiting for a Manifest that was just made".into()));
        }
        if let Some(runtime) = &deletion.runtime
            && let Err(error) = self.remove_pull_secret(&name, runtime).await
            && !deletion.passes(&error)
        {
            return self.runtime_failed(deletion.kyma, &error).await;
        }
        // Of a runtime that was taken over and never proven.
        if let Some(runtime) = &deletion.runtime
            && let Err(error) = remove_watcher(&name, runtime).await
            && !deletion.passes(&error)
        {
            return self.runtime_failed(deletion.kyma, &error).await;
        }
        self.remove_go_certificate(&name).await?;
        if let Some(force) = &deletion.force {
            tracing::warn!(kyma = name, by = force.by, why = force.why, "deleted by force");
            let notice = force.notice(About::Kyma, &format!("Kyma {name}"), &deletion.skipped);
            self.audit(&name, &[notice]).await?;
        }
        let ours = [finalizers::KYMA, finalizers::LEGACY_PURGE];
        self.drop_finalizers(&self.kymas(), deletion.kyma, &ours).await?;
        self.discredit(&name);
        Ok(Outcome::done())
    }

    /// Whether KCP has a Manifest of the Kyma, by a list of now.
    async fn has_manifests(&self, kyma: &str) -> Result<bool, Lost> {
        let params = ListParams::default().labels(&format!("{}={kyma}", labels::KYMA_NAME)).limit(1);
        let list = stage(Stage::ReadKcp, self.manifests().list_metadata(&params)).await;
        list.map(|list| !list.items.is_empty())
            .map_err(|e| lost(format!("listing the Manifests of {kyma}"), e))
    }

    fn status_of(&self, deletion: &Deletion<'_>, message: &str) -> KymaStatus {
        deleting_status(deletion.kyma, &deletion.manifests, message.to_owned(), self.now())
    }

    async fn say_deleting(&self, deletion: &Deletion<'_>, message: &str) -> Result<(), Lost> {
        self.write_kyma_status(deletion.kyma, &self.status_of(deletion, message)).await
    }

    /// The user should see it too. That it cannot be shown is no failure.
    async fn say_in_runtime(&self, deletion: &mut Deletion<'_>, status: &KymaStatus) -> Result<(), Lost> {
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

/// The Kyma in a runtime; null if there is none.
pub(super) async fn remote_kyma(runtime: &Gated) -> Result<Value, ObjectError> {
    match apply::get(runtime, &runtime_kyma()).await {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(error) if error.is_kind_missing() => Ok(Value::Null),
        Err(error) => Err(error),
    }
}

/// Deletes what belongs to a step, and returns what is still there.
async fn delete(runtime: &Gated, thing: Thing) -> Result<Vec<String>, ObjectError> {
    let mut going = Vec::new();
    for object in objects_of(thing) {
        if thing == Thing::AgentConfiguration
            && !apply::get(runtime, &object).await?.as_ref().is_some_and(agent_config::is_ours)
        {
            continue;
        }
        if apply::remove(runtime, &object).await? == Deleted::Going {
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

    /// A runtime whose Kyma, if it has one, is of this one in KCP.
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
    async fn a_runtime_that_another_kyma_has_by_now_is_not_this_ones() {
        let (engine, _) = engine_on(|_, _| not_found());
        let lagoon = json!({"metadata": {"name": "lagoon", "uid": "u"}, "spec": {"channel": "regular"}});
        drop(engine.0.change().apply_kyma(serde_json::from_value(lagoon).unwrap()));
        for (owner, anothers) in [
            (Some("kcp-system/lagoon"), Some("lagoon")),
            (Some("kcp-system/harbour"), None),
            (Some("kcp-system/gone"), None),
            (Some("elsewhere/lagoon"), None),
            (None, None),
        ] {
            let runtime = runtime(owner);
            let now = engine.0.owner_now("harbour", &runtime).await.unwrap();
            assert_eq!(now.as_deref(), anothers, "{owner:?}");
            if anothers.is_some() {
                assert!(engine.0.left_in("harbour", &runtime).await.unwrap().is_none());
            }
        }
    }
}
