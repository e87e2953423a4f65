//! The condition on a Kyma that says whether its runtime's events are proven to arrive.

use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::names::{self, conditions, field_managers};

use super::{Finish, Lost, Shared, kcp_writes::lost};
use crate::plan::{
    status::{self, Says},
    writers::has_entry,
};

impl Shared {
    /// Writes what was last told about the way, under a field manager of its own: the Kyma's reconcile writes the
    /// other conditions. Nothing is written while nothing was told or the same stands there already.
    pub(super) async fn reconcile_path(&self, name: &str) -> Result<Finish, Lost> {
        let (told, seen) = {
            let state = self.look("reconcile path").await;
            (state.path(name), state.kyma(name))
        };
        let Some(told) = told else { return Ok(Finish::Done) };
        if told.proven {
            self.want_exchange(name, None).await;
        }
        // A canary comes every minute from every runtime: what was last seen of the Kyma is good enough to do nothing. Of what nobody is
        // known to have written it would go unnoticed if somebody changes it.
        let says_so = |kyma: &tidewatch_api::Kyma| {
            let conditions = kyma.status.iter().flat_map(|status| &status.conditions);
            let said = conditions.into_iter().find(|c| c.type_ == conditions::RUNTIME_EVENTS);
            let is_ours = has_entry(&kyma.metadata, field_managers::EVENT_PATH);
            said.filter(|_| is_ours).is_some_and(|c| {
                (c.status == "True", c.reason.as_str(), c.message.as_str())
                    == (told.proven, told.reason, told.message.as_str())
            })
        };
        if seen.is_some_and(|kyma| says_so(&kyma)) {
            return Ok(Finish::Done);
        }
        let kyma = self.kymas().get_opt(name).await.map_err(|e| lost(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma.filter(|kyma| !says_so(kyma)) else { return Ok(Finish::Done) };
        let Some(before) = kyma.status.clone() else {
            // A condition alone would not be a valid status.
            return Ok(Finish::Recheck("the Kyma has no status yet".into()));
        };
        let says = Says {
            type_: conditions::RUNTIME_EVENTS,
            holds: told.proven,
            reason: told.reason,
            message: told.message.clone(),
        };
        let now = status::whole_seconds(self.now());
        let condition = status::condition(&before.conditions, says, None, now);
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": kyma.name_any()}, "status": {"conditions": [condition]}
        });
        self.apply_kcp(&self.kymas(), name, field_managers::EVENT_PATH, true, &body).await?;
        Ok(Finish::Done)
    }
}
