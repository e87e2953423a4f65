//! Explains unready objects in the status, from what [`related`](super::related) has read.

use jiff::Timestamp;
use tidewatch_api::{Manifest, object::ObjectRef};
use tidewatch_deployer::readiness::{self, Facts, ObjectReadiness};
use tidewatch_planner::manifest::{self, is_ready_by_go_manager};

use super::{
    apply::Applied,
    related::{Related, deadline, has_related, read_related, related, storage_class},
};
use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    key::WorkKey,
    reconcile::manifest::ManifestReconciler,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CauseSearch {
    /// When to read again: pod changes are not events.
    pub(super) recheck_at: Option<Timestamp>,
    /// Whether it found a cause that the objects do not report.
    pub(super) found: bool,
}

impl ManifestReconciler {
    /// Judges a module manager that another party installs. `objects` are the module's own.
    pub(super) async fn judge_manager(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        manager: &ObjectRef,
        objects: &[ObjectRef],
        applied: &mut Applied,
    ) -> Result<(), ObjectError> {
        // Named as in the template.
        let named = ObjectRef {
            namespace: manifest.spec.manager.as_ref().map(|m| m.namespace.clone()).unwrap_or_default(),
            ..manager.clone()
        };
        // The Go manager never checked for it.
        let needs_it = || !is_ready_by_go_manager(manifest);
        let live = match objects::get(runtime, manager).await {
            Ok(Some(live)) => live,
            Ok(None) if !needs_it() => return Ok(()),
            Ok(None) => {
                applied.awaited.status.push(manager.gvk.clone());
                applied.missing.get_or_insert_with(|| format!("the module's manager {named} is not there"));
                return Ok(());
            }
            Err(error) if error.is_kind_missing() && !needs_it() => return Ok(()),
            Err(error) if error.is_kind_missing() => {
                applied.awaits_kind(&manager.gvk.group, objects);
                let message = || format!("the kind of the module's manager {named} is not served");
                applied.missing.get_or_insert_with(message);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let since = manifest::not_ready_since(manifest);
        let facts = Facts { not_ready_since: since, deadline: deadline(manifest), ..Facts::default() };
        let judged = readiness::readiness(&live, &facts, self.kcp.now());
        // Uses the name in the template, because a cluster-scoped object has no namespace.
        if has_related(&live, &judged) {
            applied.unexplained.push(live);
        }
        applied.judged.push((manager.clone(), judged));
        Ok(())
    }

    /// Reads pods and storage of unready objects and judges them again. If that fails, the object's own cause stays.
    pub(super) async fn causes(
        &self,
        key: &WorkKey,
        manifest: &Manifest,
        runtime: &Gated,
        applied: &mut Applied,
    ) -> CauseSearch {
        let now = self.kcp.now();
        let mut searched = CauseSearch::default();
        // Delayed statuses count too.
        let since = manifest::not_ready_since(manifest).or_else(|| self.states.status_delayed_since(key));
        let mut is_progressing = false;
        for object in std::mem::take(&mut applied.unexplained) {
            let Some(id) = ObjectRef::of(&object) else { continue };
            let Some((_, judged)) = applied.judged.iter_mut().find(|(other, _)| other.same_object(&id))
            else {
                continue;
            };
            let facts = Facts { not_ready_since: since, deadline: deadline(manifest), ..Facts::default() };
            let found = match related(&id.gvk) {
                Some(Related::Pods) => {
                    let is_error = matches!(judged, ObjectReadiness::Error { .. });
                    is_progressing |= !is_error;
                    if !is_error && !since.is_some_and(|since| readiness::is_first_check_due(since, now)) {
                        continue;
                    }
                    read_related(runtime, &id, &object).await.map(|(pods, claims, refused)| {
                        let refused = refused.as_deref();
                        let facts = Facts { pods: &pods, claims: &claims, refused, ..facts };
                        readiness::readiness(&object, &facts, now)
                    })
                }
                Some(Related::StorageClass) => {
                    let class = storage_class(runtime, &object).await;
                    class.map(|class| {
                        readiness::readiness(&object, &Facts { storage_class: Some(&class), ..facts }, now)
                    })
                }
                None => continue,
            };
            match found {
                Ok(found) => {
                    searched.found |= found.is_unready() && found != *judged;
                    *judged = found;
                }
                Err(error) => {
                    let (object, words) = (id.to_string(), error.message());
                    tracing::debug!(object, error = words, "its cause could not be looked for");
                    // Each call may take as long, and the status must still be written.
                    if error.is_cut_off() {
                        break;
                    }
                }
            }
        }
        if is_progressing {
            searched.recheck_at = readiness::next_pod_check(since.unwrap_or(now), now);
        }
        searched
    }
}
