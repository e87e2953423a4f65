//! Marks unmanaged modules in KCP.

use serde_json::json;
use tidewatch_api::names::{self, annotations, field_managers};
use tidewatch_planner::kyma::Plan;

use crate::{
    error::Error,
    key::WorkKey,
    queue::{Class, Push},
    reconcile::kyma::KymaReconciler,
    trigger::Trigger,
};

impl KymaReconciler {
    /// Marks the Manifests of unmanaged modules and requests their reconciles. From then on their objects are never deleted, even if the
    /// module's entry goes.
    pub(super) async fn unmanage_modules(
        &self,
        kyma: &str,
        plan: &Plan,
        causes: &[Trigger],
    ) -> Result<(), Error> {
        for (name, uid) in &plan.unmanage {
            let body = json!({
                "apiVersion": names::API_VERSION, "kind": "Manifest",
                // The uid prevents recreation after a deletion.
                "metadata": {"name": name, "uid": uid, "annotations": {annotations::IS_UNMANAGED: "true"}}
            });
            self.kcp
                .apply(&self.kcp.manifests(), name, field_managers::LIFECYCLE_MANAGER, false, &body)
                .await?;
            let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: name.clone() };
            // One push per trigger; the queue merges them by key.
            let mut causes: Vec<Option<Trigger>> = causes.iter().cloned().map(Some).collect();
            if causes.is_empty() {
                causes.push(None);
            }
            for cause in causes {
                self.queue
                    .push(key.clone(), Push { class: Class::UserEdit, trigger: cause, guards: Vec::new() });
            }
        }
        Ok(())
    }
}
