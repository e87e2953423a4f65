//! Delays the status writes of a Manifest in progress: it is usually Ready soon.
//!
//! Each write would also cost a reconcile and two writes of its Kyma.

use std::time::Duration;

use tidewatch_api::{Manifest, ManifestStatus};
use tidewatch_planner::manifest;

use crate::{error::Error, key::WorkKey, reconcile::manifest::ManifestReconciler};

impl ManifestReconciler {
    /// Writes a changed status, or returns how long it is delayed.
    pub(super) async fn write_status(
        &self,
        key: &WorkKey,
        manifest: &Manifest,
        status: &ManifestStatus,
        may_delay: bool,
    ) -> Result<Option<Duration>, Error> {
        let may_delay = may_delay && manifest::may_defer_status(manifest, status);
        let left = self.states.delay_status(key, may_delay, self.kcp.now());
        if left.is_none() {
            self.kcp.write_manifest_status(manifest, status).await?;
        }
        Ok(left)
    }
}
