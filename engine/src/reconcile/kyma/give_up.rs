//! Says in KCP which modules their users have taken over.

use serde_json::json;
use tidewatch_api::names::{self, annotations, field_managers};
use tidewatch_planner::kyma::Plan;

use crate::{
    key::WorkKey,
    outcome::Lost,
    queue::{Class, Push},
    reconcile::kyma::KymaReconciler,
    trigger::Trigger,
};

impl KymaReconciler {
    /// Marks the Manifests of modules that are not to be managed any more, and asks for their reconciles. From then on
    /// nothing of theirs is deleted, whatever becomes of the module's entry.
    pub(super) async fn unmanage_modules(
        &self,
        kyma: &str,
        plan: &Plan,
        causes: &[Trigger],
    ) -> Result<(), Lost> {
        for (name, uid) in &plan.give_up {
            let body = json!({
                "apiVersion": names::API_VERSION, "kind": "Manifest",
                // With the uid: one that is gone meanwhile is not made anew.
                "metadata": {"name": name, "uid": uid, "annotations": {annotations::IS_UNMANAGED: "true"}}
            });
            self.kcp
                .apply(&self.kcp.manifests(), name, field_managers::LIFECYCLE_MANAGER, false, &body)
                .await?;
            let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: name.clone() };
            // One push per cause; they are merged under the key.
            let mut causes: Vec<Option<Trigger>> = causes.iter().cloned().map(Some).collect();
            if causes.is_empty() {
                causes.push(None);
            }
            for cause in causes {
                self.queue.push(key.clone(), Push { class: Class::UserEdit, cause, guards: Vec::new() });
            }
        }
        Ok(())
    }
}
