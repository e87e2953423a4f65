//! Reconciles a runtime's agent configuration: a `ConfigMap`, a `ClusterRole` and its binding.

use std::{collections::HashMap, sync::Arc};

use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Watcher,
    names::{self, field_managers, finalizers},
    object::{Gvk, ObjectRef},
};
use tidewatch_planner::{
    agent::{Rule, role_steps, watcher_status},
    agent_install::signing_request_watch,
    watches::{Derived, MAX_DERIVED, definitions, derive, well_known},
};
use tokio::time::Instant;

use crate::{
    clusters::{
        Clusters, ErrorClass, Gated,
        objects::{self, ObjectError},
    },
    config::EngineConfig,
    error::Error,
    index::AgentInput,
    kcp::{Kcp, writes::differs},
    key::{Queue, WorkKey},
    outcome::{Outcome, SERVED_AFTER, error_report},
    queue::{Class, Push},
    reconcile::{
        agent_install::AgentInstaller, followups::FollowUps, manifest::agent_watches::AgentWatches,
        owners::RuntimeOwners,
    },
    stages::{Stage, stage},
    trigger::{Change, Trigger, Triggers, is_of_definition},
};

const MANAGED_BY: &str = "tidewatch";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn config_map() -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of("v1", "ConfigMap"),
        namespace: names::RUNTIME_NAMESPACE.into(),
        name: names::AGENT_CONFIG_MAP.into(),
    }
}

fn rbac(kind: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of(RBAC, kind), namespace: String::new(), name: names::AGENT_WATCHES_ROLE.into() }
}

/// The objects in a runtime. In KCP's own cluster the receiver watches by its own rights.
pub(crate) fn objects(runtime: &Gated) -> Vec<ObjectRef> {
    let rights = [rbac("ClusterRoleBinding"), rbac("ClusterRole")];
    let rights = rights.into_iter().filter(|_| !runtime.is_own_cluster());
    std::iter::once(config_map()).chain(rights).collect()
}

pub(crate) fn is_engine_owned(object: &Value) -> bool {
    object["metadata"]["labels"]["app.kubernetes.io/managed-by"].as_str() == Some(MANAGED_BY)
}

fn body(id: &ObjectRef, rest: &Value) -> Value {
    let mut body = json!({
        "apiVersion": id.gvk.api_version(), "kind": id.gvk.kind,
        "metadata": {"name": id.name, "labels": {"app.kubernetes.io/managed-by": MANAGED_BY}}
    });
    if !id.namespace.is_empty() {
        body["metadata"]["namespace"] = id.namespace.as_str().into();
    }
    for (key, value) in rest.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

/// With all defaults, so that it equals the API server's object.
fn binding(account: &str, users: &[String]) -> Value {
    let account = json!({"kind": "ServiceAccount", "name": account,
                         "namespace": names::RUNTIME_NAMESPACE});
    let user = |name: &String| json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
    let subjects: Vec<Value> = std::iter::once(account).chain(users.iter().map(user)).collect();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                      "name": names::AGENT_WATCHES_ROLE});
    body(&rbac("ClusterRoleBinding"), &json!({"roleRef": role, "subjects": subjects}))
}

pub(crate) struct AgentConfigReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) queue: Queue,
    pub(crate) followups: Arc<FollowUps>,
    pub(crate) owners: Arc<RuntimeOwners>,
    pub(crate) watched: Arc<AgentWatches>,
    pub(crate) installer: Arc<AgentInstaller>,
}

impl AgentConfigReconciler {
    pub(crate) async fn reconcile(&self, name: &str, triggers: Triggers<'_>) -> Result<Outcome, Error> {
        let (kyma, input, is_done, modules) = {
            let state = self.kcp.index();
            let input = state.agent_input(name);
            let is_done = self.clusters.records.read(name, |record| record.agent_config) == Some(input.hash);
            (state.kymas.get(name), input, is_done, state.manifests.has_any(name))
        };
        let Some(kyma) = kyma else {
            self.clusters.records.change_existing(name, |record| record.agent_config = None);
            return Ok(Outcome::done());
        };
        let deleting = kyma.metadata.deletion_timestamp.is_some();
        // Modules that are being deleted wait for events, too.
        let leave = (deleting && !modules) || kyma.is_skipped();
        if leave || is_done {
            return Ok(Outcome::done());
        }
        let runtime = match self.owners.own_runtime(name).await? {
            Ok(runtime) => runtime,
            Err(outcome) => return Ok(outcome),
        };
        match stage(Stage::Apply, self.install_and_configure(&kyma, &runtime, &input, deleting)).await {
            Ok((Derived { missing, over_capacity: left_out, .. }, _)) if missing.is_empty() => {
                {
                    let mut state = self.kcp.index_mut();
                    state.kymas.set_lacks_kinds(name, false);
                    self.clusters.records.change(name, |record| record.agent_config = Some(input.hash));
                }
                // Other needs may have been noted meanwhile.
                self.followups.agent_config(name, triggers.listed);
                if left_out.is_empty() {
                    return Ok(Outcome::done());
                }
                let left_out = left_out.join(", ");
                tracing::warn!(kyma = name, left_out, "more kinds are installed than an agent watches");
                let message = "not watched, and looked at by the safety resync only";
                Ok(Outcome::waiting(format!("{message}: {left_out}")))
            }
            // Their CRDs may come a moment later, or never. Reconciles that need these kinds wait, and have CRDs watched.
            Ok((Derived { missing, .. }, failed)) => {
                let message = format!("not watched before they are served: {}", missing.join(", "));
                let (fresh, is_old) = {
                    let mut state = self.kcp.index_mut();
                    let fresh =
                        state.kymas.set_lacks_kinds(name, true) || triggers.may_include(is_of_definition);
                    (fresh, state.agent_input(name).hash != input.hash)
                };
                if is_old {
                    self.followups.agent_config(name, triggers.listed);
                }
                Ok(
                    match !failed && self.watched.watches_status_of_all(name, &runtime, &definitions()).await
                    {
                        true if fresh => {
                            Outcome::waiting(message).due_at(Some(self.kcp.now() + SERVED_AFTER))
                        }
                        true => Outcome::waiting(message),
                        false => Outcome::recheck_rarely(message),
                    },
                )
            }
            Err(ObjectError::Call(error)) if error.class == ErrorClass::NotFound && !deleting => {
                // An apply creates missing objects, so the namespace is missing.
                self.clusters.records.change_existing(name, |record| record.prepared.hash = None);
                let key = WorkKey::Kyma { kyma: name.to_owned() };
                let cause = Trigger::Kcp { object: key.clone(), change: Change::NamespaceMissing };
                self.queue
                    .push(key, Push { class: Class::Rollout, trigger: Some(cause), guards: Vec::new() });
                Ok(Outcome::recheck_soon(format!("waiting for the namespace {}", names::RUNTIME_NAMESPACE)))
            }
            Err(error) => self.clusters.failed_at(name, error),
        }
    }

    /// Installs the agent, unless the Kyma is being deleted, and configures its watches.
    async fn install_and_configure(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        input: &AgentInput,
        deleting: bool,
    ) -> Result<(Derived, bool), ObjectError> {
        let name = kyma.name_any();
        if let Some(id) = kyma.runtime_id().filter(|_| !deleting) {
            if self.installer.install(kyma, runtime, id).await? {
                self.clusters.records.change(&name, |record| record.agent_installed = Some(Instant::now()));
            }
            self.followups.agent_certificate(&name, None);
        }
        self.configure(&name, runtime, input, deleting).await
    }

    /// Writes differing objects: added permissions, then the watches, then revoked permissions. Returns the watches, and whether the
    /// discovery of a kind failed.
    ///
    /// While the Kyma is `deleting`, only existing objects are changed; otherwise the agent could not report its end.
    async fn configure(
        &self,
        kyma: &str,
        runtime: &Gated,
        input: &AgentInput,
        deleting: bool,
    ) -> Result<(Derived, bool), ObjectError> {
        let (mut plurals, mut failed) = (HashMap::new(), false);
        for (group, kind, versions) in input.needs.kinds() {
            let plural = match well_known(group, kind) {
                Some(plural) => Some(plural.to_owned()),
                None => match objects::watchable(runtime, group, kind, versions).await {
                    // Watch the others; this kind counts as missing and is retried.
                    Err(error) if error.is_of_one_kind() => {
                        let error = error.message();
                        failed = true;
                        tracing::warn!(
                            kyma,
                            group,
                            kind,
                            error,
                            "a kind cannot be looked for, and is not watched"
                        );
                        None
                    }
                    found => found?,
                },
            };
            plurals.extend(plural.map(|plural| ((group, kind), plural)));
        }
        let plural = |group: &str, kind: &str| plurals.get(&(group, kind)).cloned();
        let mut derived = derive(&input.needs, plural, &input.plan.config.watches, MAX_DERIVED);
        derived.watches.extend(self.config.agents.is_some().then(signing_request_watch));
        let (config, rules) = input.plan.with(std::mem::take(&mut derived.watches));
        let map = config_map();
        let there = if deleting { objects::metadata(runtime, &map).await? } else { None };
        if deleting && there.is_none() {
            return Ok((derived, failed));
        }
        let text = config.text();
        {
            // Before the write: the agent may report it at once.
            let mut state = self.kcp.index_mut();
            state.configure_agent(kyma, config);
            // The previous configuration may be partly overwritten.
            self.clusters.records.change_existing(kyma, |record| record.agent_config = None);
        }

        let mut wanted = body(&map, &json!({"data": {names::AGENT_CONFIG_KEY: text}}));
        if let Some(there) = there {
            // Prevents recreation after a concurrent deletion.
            wanted["metadata"]["uid"] = there["uid"].clone();
        }
        if runtime.is_own_cluster() {
            // The receiver watches its own cluster with its own rights.
            write_if_different(runtime, &map, &wanted).await?;
        } else {
            self.permit_and_write(runtime, &rules, (&map, &wanted)).await?;
        }
        Ok((derived, failed))
    }

    /// Writes the watches between the added and the revoked permissions.
    async fn permit_and_write(
        &self,
        runtime: &Gated,
        rules: &[Rule],
        (map, watches): (&ObjectRef, &Value),
    ) -> Result<(), ObjectError> {
        let role = rbac("ClusterRole");
        let present = objects::get(runtime, &role).await?;
        let steps = role_steps(present.as_ref().map(|role| &role["rules"]), rules);
        if let Some(rules) = &steps.before {
            write_role(runtime, &role, rules).await?;
        }
        let binding = binding(self.installer.service_account(), &self.config.agent_users);
        write_if_different(runtime, &rbac("ClusterRoleBinding"), &binding).await?;
        write_if_different(runtime, map, watches).await?;
        match &steps.after {
            Some(rules) => write_role(runtime, &role, rules).await,
            None => Ok(()),
        }
    }
}

pub(crate) struct WatcherReconciler {
    pub(crate) kcp: Kcp,
}

impl WatcherReconciler {
    /// Writes a Watcher's status; removes the finalizer of a deleted one.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let (watcher, plan) = {
            let state = self.kcp.index();
            (state.watchers.get(name), state.watchers.plan())
        };
        let Some(watcher) = watcher else { return Ok(Outcome::done()) };
        let api: Api<Watcher> = Api::namespaced(self.kcp.client.clone(), &self.kcp.namespace);
        if watcher.metadata.deletion_timestamp.is_some() {
            // Only the Go manager's Watchers have it.
            self.kcp.drop_finalizers(&api, watcher.as_ref(), &[finalizers::WATCHER]).await?;
            return Ok(Outcome::done());
        }
        let Some(verdict) = plan.verdicts.get(name) else { return Ok(Outcome::done()) };
        let status = watcher_status(&watcher, verdict, self.kcp.now());
        if watcher.status.as_ref() != Some(&status) {
            let body = json!({"apiVersion": names::API_VERSION, "kind": "Watcher",
                              "metadata": {"name": watcher.name_any()}, "status": status});
            self.kcp.apply(&api, name, field_managers::KCP, true, &body).await?;
        }
        Ok(match verdict {
            Ok(_) => Outcome::done(),
            Err(fault) => Outcome::failed(error_report(fault.to_string())),
        })
    }
}

async fn write_role(runtime: &Gated, role: &ObjectRef, rules: &[Rule]) -> Result<(), ObjectError> {
    let body = body(role, &json!({"rules": rules}));
    objects::apply(runtime, &body, field_managers::AGENT).await.map(drop)
}

async fn write_if_different(runtime: &Gated, id: &ObjectRef, wanted: &Value) -> Result<(), ObjectError> {
    if let Some(present) = objects::get(runtime, id).await? {
        if !differs(&present, wanted) {
            return Ok(());
        }
        // A binding's roleRef is immutable.
        if differs(&present["roleRef"], &wanted["roleRef"]) {
            objects::remove(runtime, id).await?;
        }
    }
    objects::apply(runtime, wanted, field_managers::AGENT).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::{engine_on, not_found, runtime_on};

    /// As for a kind that is served again after its watch was removed.
    #[tokio::test]
    async fn a_failed_write_forgets_the_last_agent_config() {
        let (engine, _) = engine_on(|_, _| not_found());
        let runtime = runtime_on(|_| (500, json!({"kind": "Status", "status": "Failure", "code": 500})));
        let input = engine.dispatcher.kcp.index().agent_input("harbour");
        let records = &engine.dispatcher.clusters.records;
        records.change("harbour", |record| record.agent_config = Some(input.hash));
        assert!(
            engine
                .dispatcher
                .reconcilers
                .agent_config
                .configure("harbour", &runtime, &input, false)
                .await
                .is_err()
        );
        let known = records.read("harbour", |record| record.agent_config);
        assert_eq!(known, None, "it is unknown how much of it was written");
    }
}
