//! Writes the plan of a Kyma in KCP.

use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Manifest, State,
    names::{self, field_managers, labels},
};
use tidewatch_deployer::adoption::take_over_spec;
use tidewatch_planner::kyma::{Decision, Plan, is_up_to_date};

use crate::{
    error::Error,
    kcp::Kcp,
    key::{Queue, WorkKey},
    queue::{Class, Push},
    stages::{Stage, stage},
    trigger::Trigger,
};

#[derive(Debug, Default)]
pub(crate) struct Executed {
    /// The first write that met a newer version.
    pub(crate) behind: Option<Error>,
    /// Modules with a rejected Manifest, and KCP's message.
    pub(crate) refused: Vec<(String, String)>,
}

pub(crate) struct Executor {
    pub(crate) kcp: Kcp,
    pub(crate) queue: Queue,
}

impl Executor {
    /// Writes the Manifests and requests their reconciles with the same triggers and class, so that events can be traced and rollouts wait
    /// behind users' edits. A poll's or resync's changes get rollout class.
    ///
    /// `manifests` are the Manifests of the plan. A Manifest newer than `manifests` is not overwritten: an outdated plan could downgrade a version.
    /// It is returned in `behind`, and the reconcile must be repeated. A rejected Manifest does not block others.
    pub(crate) async fn execute(
        &self,
        kyma: &str,
        plan: &Plan,
        manifests: &[Manifest],
        class: Class,
        causes: &[Trigger],
    ) -> Result<Executed, Error> {
        let class = class.min(Class::Rollout);
        let Executed { mut behind, mut refused } = Executed::default();
        for manifest in &plan.apply {
            match self.apply_planned(manifest, manifests).await {
                Ok(()) => {}
                Err(lost @ Error::Outdated(_)) => {
                    behind.get_or_insert(lost);
                    continue;
                }
                Err(lost) => {
                    let Some(why) = lost.refusal() else { return Err(lost) };
                    refused.push((manifest.module_name().unwrap_or_default().to_owned(), why));
                    continue;
                }
            }
            let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.name_any() };
            let mut causes = causes.iter().cloned();
            // One push per trigger; the queue merges them by key.
            let first = causes.next();
            for cause in std::iter::once(first).chain(causes.map(Some)) {
                let push = Push { class, trigger: cause, guards: Vec::new() };
                self.queue.push(key.clone(), push);
            }
        }
        for name in &plan.delete {
            let old = manifests.iter().find(|m| m.name_any() == *name);
            match self.kcp.delete_if_unchanged(&self.kcp.manifests(), name, old).await {
                Err(lost @ Error::Outdated(_)) => {
                    behind.get_or_insert(lost);
                }
                done => done?,
            }
        }
        for decision in &plan.decisions {
            let Decision { kind: what, module, from, to, reason } = decision;
            let version = |(version, state): &(String, State)| format!("{version} {state}");
            let (from, to) = (version(from), version(to));
            tracing::info!(decision = what.label(), kyma, module, from, to, reason, "decided");
        }
        Ok(Executed { behind, refused })
    }

    async fn apply_planned(&self, manifest: &Manifest, manifests: &[Manifest]) -> Result<(), Error> {
        let name = manifest.name_any();
        let mut body = serde_json::to_value(manifest).unwrap_or_default();
        body["apiVersion"] = names::API_VERSION.into();
        body["kind"] = "Manifest".into();
        if let Some(body) = body.as_object_mut() {
            body.remove("status");
        }
        let version = match manifests.iter().find(|m| m.name_any() == name) {
            Some(old) => old.resource_version(),
            None => self.unobserved(manifest).await?,
        };
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = version.into();
        }
        let applied = self.kcp.apply(&self.kcp.manifests(), &name, field_managers::KCP, false, &body).await?;
        match applied.filter(|applied| !is_up_to_date(applied, manifest)) {
            Some(applied) => self.take_over_manifest(&applied, body).await,
            None => Ok(()),
        }
    }

    /// Removes unwanted fields that another field manager keeps: the Go manager applies Manifests under two names. Transfers these fields
    /// to the engine's manager and applies again.
    async fn take_over_manifest(&self, applied: &Manifest, mut body: Value) -> Result<(), Error> {
        let name = applied.name_any();
        let there = serde_json::to_value(applied).unwrap_or_default();
        let Some(entries) = take_over_spec(&there, field_managers::APPLIER, field_managers::KCP) else {
            return Ok(());
        };
        let version = &there["metadata"]["resourceVersion"];
        let fields = json!({"metadata": {"managedFields": entries, "resourceVersion": version}});
        let Some(taken) = self.kcp.merge(&self.kcp.manifests(), &name, &fields).await? else { return Ok(()) };
        body["metadata"]["resourceVersion"] = taken.resource_version().into();
        tracing::info!(manifest = name, "what the Go manager has applied of it by another name is ours now");
        self.kcp.apply(&self.kcp.manifests(), &name, field_managers::KCP, false, &body).await.map(drop)
    }

    /// The resourceVersion of a Manifest that the index lacks. If only its label is missing, the apply restores the label; otherwise the
    /// watch will deliver it soon.
    async fn unobserved(&self, manifest: &Manifest) -> Result<Option<String>, Error> {
        let name = manifest.name_any();
        let read = stage(Stage::ReadKcp, self.kcp.manifests().get_metadata_opt(&name)).await;
        match read.map_err(|e| Error::kcp(format!("reading Manifest {name}"), e))? {
            Some(there)
                if there.labels().get(labels::KYMA_NAME) == manifest.labels().get(labels::KYMA_NAME) =>
            {
                Err(Error::Outdated(format!("applying Manifest {name}")))
            }
            Some(there) => Ok(there.resource_version()),
            None => Ok(None),
        }
    }
}
