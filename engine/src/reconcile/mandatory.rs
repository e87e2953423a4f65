//! Mandatory modules: their Manifests in KCP, and the finalizers of their releases.

mod needs;

use std::{collections::BTreeSet, sync::Arc};

use kube::{Api, Resource, ResourceExt, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tidewatch_api::{
    Kyma, Manifest, ModuleReleaseMeta, ModuleTemplate, State,
    names::{self, annotations, field_managers, finalizers, labels},
};
use tidewatch_planner::mandatory::{Input, is_legacy, plan};

use super::{
    kyma::{execute::Executed, turns, unread},
    runtime_kyma::list_now,
    sources::rest_of,
};
use crate::{
    clusters::Clusters,
    config::EngineConfig,
    error::Error,
    events::Notifier,
    kcp::Kcp,
    outcome::{Outcome, error_report, found_report},
    pace::next_try,
    queue::Class,
    reconcile::{
        followups::FollowUps,
        kyma::{execute::Executor, needs::WaitingKymas},
        sources::Registries,
    },
    stages::{Stage, stage},
    trigger::Triggers,
};

const PAGE: u32 = 500;

pub(crate) struct MandatoryReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) registries: Arc<Registries>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) followups: Arc<FollowUps>,
    pub(crate) waiting: WaitingKymas,
    pub(crate) notifier: Arc<Notifier>,
}

impl MandatoryReconciler {
    /// Installs, upgrades and removes the mandatory modules of one Kyma. From the runtime it reads only served kinds, and before a
    /// deletion the list of modules.
    pub(super) async fn reconcile(
        &self,
        name: &str,
        class: Class,
        triggers: Triggers<'_>,
    ) -> Result<Outcome, Error> {
        let (kyma, mut offers) = {
            let state = self.kcp.index();
            (state.kymas.get(name), state.catalog.mandatory())
        };
        let Some(kyma) = kyma else { return Ok(self.forget(name)) };
        let leave = |k: &Kyma| k.metadata.deletion_timestamp.is_some() || k.is_skipped();
        if leave(&kyma) {
            return Ok(self.forget(name));
        }
        let turns = turns(&self.kcp, self.config.rollout_window, name, triggers);
        let needs = self.needs(name, &offers, triggers).await?;
        offers.retain(|offer| !turns.contains_key(&offer.module) && !needs.hold(&offer.module));
        let (manifests, (chosen_by_users, asked)) = {
            let state = self.kcp.index();
            (state.manifests.list(name), state.chosen_by_users(name))
        };
        let chosen = offers.iter().filter(|offer| !offer.deleting).filter_map(|o| o.outcome.as_ref().ok());
        let sources = stage(Stage::Resolve, self.registries.sources_for(chosen)).await?;
        let made_of = |kyma: &Kyma, manifests: &[Manifest], asked: Option<&BTreeSet<String>>| {
            plan(&Input {
                kyma,
                modules: &offers,
                sources: &sources,
                manifests,
                optional: &chosen_by_users,
                requested: asked,
            })
        };
        let mut made = made_of(&kyma, &manifests, asked.as_ref());
        if !made.plan.apply.is_empty() || !made.plan.delete.is_empty() {
            // The index suffices to do nothing. A Kyma being deleted gets no Manifest.
            let read = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(name)).await;
            let fresh = read.map_err(|e| Error::kcp(format!("reading Kyma {name}"), e))?;
            let Some(fresh) = fresh.filter(|fresh| !leave(fresh)) else { return Ok(Outcome::done()) };
            let list = if made.plan.delete.is_empty() || chosen_by_users.is_empty() {
                asked
            } else {
                // A deletion needs a fresh list. An unreadable list counts as unknown; the Kyma's next readable list requests this again.
                let now = list_now(&self.clusters, name).await?;
                now.zip(asked).map(|(now, noted)| &now | &noted)
            };
            made = made_of(&fresh, &manifests, list.as_ref());
            let Executed { behind, refused } =
                self.executor.execute(name, &made.plan, &manifests, class, triggers.listed).await?;
            if let Some(behind) = behind {
                return Err(behind);
            }
            made.faults.extend(refused.into_iter().map(|(module, why)| format!("{module}: {why}")));
        }
        made.plan.notices.extend(needs.notices());
        let left_out = self.notifier.notify(name, None, &made.plan.notices).await;
        let look_at = turns.values().copied().chain(left_out).chain(needs.look_at).min();
        if made.faults.is_empty() {
            return Ok(unread(&self.kcp, &sources).unwrap_or_else(|| needs.finish()).due_at(look_at));
        }
        let text = made.faults.join("; ");
        let outcome = if made.plan.retry {
            let rest = rest_of(&sources);
            let next = next_try(self.kcp.now(), rest);
            Outcome::retried(error_report(format!("{text}; {next}")), "module", rest)
        } else {
            Outcome::failed(found_report(State::Error, text))
        };
        Ok(outcome.due_at(look_at))
    }

    fn forget(&self, kyma: &str) -> Outcome {
        self.waiting.forget(kyma);
        Outcome::done()
    }
}

pub(crate) struct ReleaseReconciler {
    pub(crate) kcp: Kcp,
}

impl ReleaseReconciler {
    /// Adds the finalizer to a mandatory release or template. When all of them are being deleted, deletes the module's Manifests
    /// everywhere, and drops the finalizer once a fresh list is empty. Templates of a deleted release no longer make the module mandatory.
    pub(super) async fn reconcile(&self, module: &str) -> Result<Outcome, Error> {
        let (holders, offer) = {
            let state = self.kcp.index();
            let offer = state.catalog.mandatory().into_iter().find(|offer| offer.module == module);
            (state.catalog.holders(module), offer)
        };
        let releases: Api<ModuleReleaseMeta> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        let templates: Api<ModuleTemplate> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        if let Some(release) = holders.release.as_ref().filter(|r| r.mandatory_version().is_some()) {
            self.add_finalizer(&releases, release.as_ref()).await?;
        }
        for template in holders.templates.iter().filter(|t| is_legacy(t)) {
            self.add_finalizer(&templates, template.as_ref()).await?;
        }
        let leaving_release = holders.release.as_ref().filter(|r| waits(r.as_ref()));
        let leaving_templates: Vec<_> = holders.templates.iter().filter(|t| waits(t.as_ref())).collect();
        if leaving_release.is_none() && leaving_templates.is_empty() {
            return Ok(Outcome::done());
        }
        // If something else keeps the module mandatory, the finalizer is dropped at once.
        if offer.is_none_or(|offer| offer.deleting) {
            let left = self.delete_manifests(module).await?;
            if left > 0 {
                return Ok(Outcome::waiting(format!("waiting for {left} Manifests of {module} to be gone")));
            }
        }
        if leaving_release.is_some() && !holders.is_withdrawn {
            let withdrawn = self.withdraw(&templates, &holders.templates).await?;
            if withdrawn && !self.kcp.is_dry() {
                // Until the watch delivers the write, the templates alone would make the module mandatory.
                return Ok(Outcome::recheck_soon("waiting for the templates to be withdrawn".into()));
            }
        }
        let ours = [finalizers::MANDATORY_MODULE];
        if let Some(release) = leaving_release {
            self.kcp.drop_finalizers(&releases, release.as_ref(), &ours).await?;
        }
        for template in leaving_templates {
            self.kcp.drop_finalizers(&templates, template.as_ref(), &ours).await?;
        }
        Ok(Outcome::done())
    }

    /// Marks mandatory templates of a deleted release. Returns whether there are any.
    async fn withdraw(
        &self,
        api: &Api<ModuleTemplate>,
        templates: &[Arc<ModuleTemplate>],
    ) -> Result<bool, Error> {
        let says_so = |t: &&Arc<ModuleTemplate>| is_legacy(t) && t.metadata.deletion_timestamp.is_none();
        let mut any = false;
        for template in templates.iter().filter(says_so) {
            let name = template.name_any();
            // Omitting the finalizer removes it, since the field manager is the same.
            let body = json!({
                "apiVersion": names::API_VERSION, "kind": "ModuleTemplate",
                "metadata": {"name": name, "uid": template.uid(),
                             "annotations": {annotations::MANDATORY_WITHDRAWN: "true"}}
            });
            self.kcp.apply(api, &name, field_managers::LIFECYCLE_MANAGER, false, &body).await?;
            any = true;
        }
        Ok(any)
    }

    async fn add_finalizer<K>(&self, api: &Api<K>, object: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Serialize,
    {
        let held = object.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE);
        if held || object.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let name = object.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": K::kind(&()),
            // The uid prevents recreation after a deletion.
            "metadata": {"name": name, "uid": object.uid(), "finalizers": [finalizers::MANDATORY_MODULE]}
        });
        self.kcp.apply(api, &name, field_managers::LIFECYCLE_MANAGER, false, &body).await.map(drop)
    }

    /// Deletes the Manifests of a mandatory module by a fresh list. Returns how many still exist.
    async fn delete_manifests(&self, module: &str) -> Result<usize, Error> {
        let label = format!("{}=true,{}={module}", labels::MANDATORY_MODULE, labels::MODULE_NAME);
        let mut params = ListParams::default().labels(&label).limit(PAGE);
        let api = self.kcp.manifests();
        let mut left = 0;
        loop {
            let page = stage(Stage::ReadKcp, api.list_metadata(&params)).await;
            let page = page.map_err(|e| Error::kcp(format!("listing the Manifests of {module}"), e))?;
            left += page.items.len();
            for manifest in page.items.iter().filter(|m| m.metadata.deletion_timestamp.is_none()) {
                self.kcp.delete::<Manifest>(&api, &manifest.name_any()).await?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(left);
            }
        }
    }
}

/// Whether an object is being deleted and has the engine's finalizer.
fn waits(object: &impl ResourceExt) -> bool {
    object.meta().deletion_timestamp.is_some()
        && object.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE)
}

#[cfg(test)]
mod tests;
