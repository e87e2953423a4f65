//! Reconciles a Kyma's condition about the delivery of its runtime's events.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::names::{self, conditions, field_managers};
use tidewatch_planner::{
    notice::{About, Notice},
    status::{self, ConditionValue},
    writers::has_entry,
};

use crate::{
    error::Error, events::Notifier, index::PathReport, kcp::Kcp, outcome::Outcome,
    reconcile::followups::FollowUps,
};

/// Reason if the runtime neither sends nor answers.
const UNREACHABLE: &str = "Unreachable";

pub(crate) struct EventPathReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) followups: Arc<FollowUps>,
    pub(crate) notifier: Arc<Notifier>,
}

impl EventPathReconciler {
    /// Writes the last path report with its own field manager, if the condition differs.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let (told, known) = {
            let state = self.kcp.index();
            (state.kymas.event_path(name), state.kymas.get(name))
        };
        let Some(told) = told else { return Ok(Outcome::done()) };
        if told.proven {
            self.followups.legacy_watcher(name, None);
        }
        // Canaries come every minute from every runtime, so compare with the index first. The field manager must own the condition, or
        // changes by others would go unnoticed.
        let says_so = |kyma: &tidewatch_api::Kyma| {
            let conditions = kyma.status.iter().flat_map(|status| &status.conditions);
            let reported = conditions.into_iter().find(|c| c.type_ == conditions::RUNTIME_EVENTS);
            let is_engine_owned = has_entry(&kyma.metadata, field_managers::EVENT_PATH);
            reported.filter(|_| is_engine_owned).is_some_and(|c| {
                (c.status == "True", c.reason.as_str(), c.message.as_str())
                    == (told.proven, told.reason, told.message.as_str())
            })
        };
        if known.is_some_and(|kyma| says_so(&kyma)) {
            return Ok(Outcome::done());
        }
        let kyma = self
            .kcp
            .kymas()
            .get_opt(name)
            .await
            .map_err(|e| Error::kcp(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma.filter(|kyma| !says_so(kyma)) else { return Ok(Outcome::done()) };
        let Some(before) = kyma.status.clone() else {
            // A condition alone is no valid status.
            return Ok(Outcome::recheck_soon("the Kyma has no status yet".into()));
        };
        let reported = ConditionValue {
            type_: conditions::RUNTIME_EVENTS,
            holds: told.proven,
            reason: told.reason,
            message: told.message.clone(),
        };
        let now = status::whole_seconds(self.kcp.now());
        let condition = status::condition(&before.conditions, reported, None, now);
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": kyma.name_any()}, "status": {"conditions": [condition]}
        });
        let notice = change(&before.conditions, &told);
        self.kcp.apply(&self.kcp.kymas(), name, field_managers::EVENT_PATH, true, &body).await?;
        if let Some(notice) = notice {
            let _alone = self.notifier.notify(name, None, &[notice]).await;
        }
        Ok(Outcome::done())
    }
}

fn change(before: &[Condition], told: &PathReport) -> Option<Notice> {
    let reported = before.iter().find(|c| c.type_ == conditions::RUNTIME_EVENTS)?;
    let (was_proven, message) = (reported.status == "True", told.message.clone());
    match (was_proven, told.proven) {
        (false, true) => Some(Notice::normal(About::Kyma, "RuntimeEventsProven", message)),
        // A hibernated runtime is no problem.
        (true, false) if told.reason == UNREACHABLE => {
            Some(Notice::normal(About::Kyma, "RuntimeEventsUnproven", message))
        }
        (true, false) => Some(Notice::warning(About::Kyma, "RuntimeEventsUnproven", message)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tidewatch_planner::notice::Kind;

    use super::*;

    #[test]
    fn only_a_change_of_the_event_path_is_reported() {
        let report = |proven, reason| PathReport { proven, reason, message: "m".into() };
        let told = |before: Option<bool>, now: PathReport| {
            let reported = before.map(|holds| {
                let reported = ConditionValue {
                    type_: conditions::RUNTIME_EVENTS,
                    holds,
                    reason: "R",
                    message: "m".into(),
                };
                status::condition(&[], reported, None, Timestamp::UNIX_EPOCH)
            });
            change(reported.as_slice(), &now).map(|notice| (notice.kind, notice.reason))
        };
        let (proven, silent, asleep) =
            (report(true, "Proven"), report(false, "NoCanary"), report(false, UNREACHABLE));
        assert_eq!(told(Some(true), silent.clone()), Some((Kind::Warning, "RuntimeEventsUnproven")));
        assert_eq!(told(Some(true), asleep), Some((Kind::Normal, "RuntimeEventsUnproven")));
        assert_eq!(told(Some(false), proven.clone()), Some((Kind::Normal, "RuntimeEventsProven")));
        for (before, now) in
            [(None, silent.clone()), (None, proven.clone()), (Some(true), proven), (Some(false), silent)]
        {
            assert_eq!(told(before, now), None);
        }
    }
}
