//! Restores engine-owned objects outside of modules: the catalog, CRDs, the namespace. An object that another writer keeps reverting is
//! suspended for a while, as in modules.

use std::sync::Arc;

use serde_json::Value;
use tidewatch_api::object::{ObjectRef, content_hash};
use tidewatch_deployer::{
    conflict::RevertDecision,
    drift::{self, Difference, Ignored},
};

use super::{
    applied::AppliedStates,
    suspended::{OtherChange, Suspended},
};
use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    kcp::Kcp,
    key::WorkKey,
    reconcile::echoes::EchoFilter,
};

/// An object that differs from its wanted content.
#[derive(Debug)]
pub(super) struct Drifted<'a> {
    pub(super) object: &'a ObjectRef,
    pub(super) wanted: &'a Value,
    pub(super) manager: &'static str,
    pub(super) live: Option<&'a Value>,
    /// Whether the engine had applied this content before: then another writer has reverted it.
    pub(super) again: bool,
}

pub(crate) struct Restorer {
    pub(crate) kcp: Kcp,
    pub(crate) states: Arc<AppliedStates>,
    pub(crate) echoes: Arc<EchoFilter>,
}

impl Restorer {
    /// Applies an object. Returns its suspension, if it is suspended or on trial after one.
    pub(super) async fn restore(
        &self,
        work: &WorkKey,
        runtime: &Gated,
        drifted: Drifted<'_>,
    ) -> Result<Option<Suspended>, ObjectError> {
        let Drifted { object, wanted, manager, live, again } = drifted;
        let (content, now) = (content_hash(wanted), self.kcp.now());
        let difference = live.map(|live| {
            drift::difference(live, wanted, manager, &Ignored::default()).unwrap_or(Difference::NotApplied)
        });
        let verdict = self.states.history(work, |history| history.verdict(object.into(), content, now));
        if again && let RevertDecision::Suspended(until) = verdict {
            let change = difference.map_or(OtherChange::Deletes, OtherChange::from);
            let suspended = Suspended::of_engine(object, change, until);
            tracing::warn!(kyma = work.kyma(), detail = suspended.message(), "left as somebody keeps it");
            return Ok(Some(suspended));
        }
        let made = objects::apply(runtime, wanted, manager).await?;
        self.echoes.record_write(work, object, &made);
        if !again {
            return Ok(None);
        }
        let made = drift::content(&made, wanted, manager);
        self.states.change_history(work, |history| history.record_apply(object.into(), content, made, now));
        match difference {
            Some(difference) => {
                tracing::info!(kyma = work.kyma(), %object, %difference, "set back to what it is to be");
            }
            None => tracing::info!(kyma = work.kyma(), %object, "made again: it was gone"),
        }
        let until = self.states.history(work, |history| history.on_trial(object.into(), now));
        Ok(until.map(|until| Suspended::of_engine(object, OtherChange::Ended, until)))
    }

    pub(super) fn on_trial(&self, work: &WorkKey, object: &ObjectRef) -> Option<Suspended> {
        let until = self.states.history(work, |history| history.on_trial(object.into(), self.kcp.now()))?;
        Some(Suspended::of_engine(object, OtherChange::Ended, until))
    }
}
