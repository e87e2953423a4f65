//! Writes what the plan of a Kyma says in KCP.

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, State,
    names::{self, field_managers},
};

use crate::{
    drive::{Lost, Shared, kcp_writes::lost},
    key::{Cause, WorkKey},
    plan::kyma::{Decision, Plan},
    queue::{Class, Push},
    stages::{Stage, stage},
};

impl Shared {
    /// Writes the Manifests and asks for their reconciles with the same cause, so that an event can be
    /// followed to the objects it changed; and as urgently, so that a rollout does not stand beside users' edits. What
    /// a poll or a resync has found to do is done before the next one is looked at.
    ///
    /// `seen` are the Manifests that the plan was made of. Where a watch lags behind, nothing is written over what it has not
    /// shown yet: a version would go down that a plan by the present one keeps.
    pub(in crate::drive) async fn execute(
        &self,
        kyma: &str,
        plan: &Plan,
        seen: &[Manifest],
        class: Class,
        causes: &[Cause],
    ) -> Result<(), Lost> {
        let class = class.min(Class::Rollout);
        for manifest in &plan.apply {
            let name = manifest.name_any();
            let mut body = serde_json::to_value(manifest).unwrap_or_default();
            body["apiVersion"] = names::API_VERSION.into();
            body["kind"] = "Manifest".into();
            if let Some(body) = body.as_object_mut() {
                body.remove("status");
            }
            match seen.iter().find(|m| m.name_any() == name) {
                Some(old) => body["metadata"]["resourceVersion"] = old.resource_version().into(),
                None => self.is_new(&name).await?,
            }
            self.apply_kcp(&self.manifests(), &name, field_managers::KCP, false, &body).await?;
            let key = WorkKey::Manifest { kyma: kyma.to_owned(), name };
            let mut causes = causes.iter().cloned();
            // One push per cause; they are merged under the key.
            let first = causes.next();
            for cause in std::iter::once(first).chain(causes.map(Some)) {
                let push = Push { class, cause, guards: Vec::new() };
                self.queue.push(key.clone(), push);
            }
        }
        for name in &plan.delete {
            self.delete_kcp(&self.manifests(), name).await?;
        }
        for decision in &plan.decisions {
            let Decision { what, module, from, to, reason } = decision;
            let version = |(version, state): &(String, State)| format!("{version} {state}");
            let (from, to) = (version(from), version(to));
            tracing::info!(decision = what.label(), kyma, module, from, to, reason, "decided");
        }
        Ok(())
    }

    /// That there is no such Manifest, by what KCP says now.
    async fn is_new(&self, name: &str) -> Result<(), Lost> {
        let read = stage(Stage::ReadKcp, self.manifests().get_metadata_opt(name)).await;
        match read.map_err(|e| lost(format!("reading Manifest {name}"), e))? {
            Some(_) => Err(Lost::Behind(format!("Manifest {name}"))),
            None => Ok(()),
        }
    }
}
