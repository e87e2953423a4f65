//! One reconcile of a Kyma.

use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec, KymaStatus, State,
    names::{self, annotations, field_managers, finalizers, labels},
};

use super::{
    Finish, Lost, NEXT_TRY, Shared,
    apply::{self, ObjectError},
    error_report,
    kcp_writes::{differs, lost},
};
use crate::{
    key::{Cause, Report, WorkKey},
    plan::{
        kyma::{Input, Plan, failed_status, plan, runtime_status},
        object::{Gvk, ObjectRef},
        versions::choose,
    },
    queue::{Class, Push},
    runtime::RuntimeClient,
    stages::{Stage, stage},
};

/// The runtime's Kyma.
pub(super) fn runtime_kyma() -> ObjectRef {
    ObjectRef {
        gvk: Gvk::of(names::API_VERSION, "Kyma"),
        namespace: names::RUNTIME_NAMESPACE.into(),
        name: names::RUNTIME_KYMA_NAME.into(),
    }
}

impl Shared {
    pub(super) async fn reconcile_kyma(&self, name: &str, causes: &[Cause]) -> Result<Finish, Lost> {
        let read = stage(Stage::ReadKcp, self.kymas().get_opt(name)).await;
        let kyma = read.map_err(|e| lost(format!("reading Kyma {name}"), e))?;
        let Some(kyma) = kyma else {
            self.runtimes.invalidate(name);
            self.prepared.forget(name);
            self.agents.forget(name);
            self.history.forget(name);
            return Ok(Finish::Done);
        };
        if kyma.metadata.deletion_timestamp.is_some() {
            return self.delete_kyma(&kyma).await;
        }
        if kyma.is_skipped() {
            return Ok(Finish::Done);
        }
        self.adopt(&kyma).await?;
        let runtime = match self.access(name).await? {
            Ok(runtime) => runtime,
            // Nothing is known of the runtime, and nothing is changed.
            Err(why) => return self.blocked(&kyma, why.message()).await,
        };
        match self.reconcile_reachable(&kyma, &runtime, causes).await {
            Ok(finish) => Ok(finish),
            Err(Trouble::Lost(lost)) => Err(lost),
            Err(Trouble::Runtime(ObjectError::Kind(why))) => {
                // Our CRDs are not served: not there any more, or not yet. Never an empty list of modules.
                self.prepared.forget(name);
                Ok(Finish::Recheck(why.to_string()))
            }
            Err(Trouble::Runtime(error)) => self.runtime_failed(&kyma, &error).await,
            Err(Trouble::Unreadable(why)) => self.blocked(&kyma, why).await,
        }
    }

    /// Finalizer and label, before anything is created anywhere.
    async fn adopt(&self, kyma: &Kyma) -> Result<(), Lost> {
        let has_label =
            kyma.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_KCP);
        if has_label && kyma.finalizers().iter().any(|f| f == finalizers::KYMA) {
            return Ok(());
        }
        let name = kyma.name_any();
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": "Kyma",
            "metadata": {"name": name, "uid": kyma.uid(), "finalizers": [finalizers::KYMA],
                         "labels": {labels::MANAGED_BY: labels::MANAGED_BY_KCP}}
        });
        self.apply_kcp(&self.kymas(), &name, field_managers::LIFECYCLE_MANAGER, false, &body).await.map(drop)
    }

    async fn reconcile_reachable(
        &self,
        kyma: &Kyma,
        runtime: &RuntimeClient,
        causes: &[Cause],
    ) -> Result<Finish, Trouble> {
        let name = kyma.name_any();
        stage(Stage::Prepare, self.prepare(&name, runtime)).await?;
        self.want_agent(&name, causes);
        let remote = stage(Stage::ReadRuntime, self.runtime_kyma_of(kyma, runtime)).await?;
        self.observer.reachable(&name, true);
        let wanted = wishes(&remote)?;

        let (manifests, catalog) = {
            let state = self.state.read();
            (state.manifests_of(&name), state.catalog_of(wanted.modules.iter().map(|m| m.name.clone())))
        };
        let choices = choose(&wanted, &catalog);
        let sources = stage(Stage::Resolve, self.sources_of(&choices)).await;
        let plan = plan(&Input {
            kyma,
            wanted: &wanted,
            choices: &choices,
            sources: &sources,
            manifests: &manifests,
            now: self.now(),
        });
        self.execute(&name, &plan, causes).await?;
        self.write_kyma_status(kyma, &plan.status).await?;
        stage(Stage::WriteRuntime, write_runtime_status(runtime, &remote, &plan.status)).await?;
        Ok(finish_of(&plan))
    }

    /// Writes the Manifests and asks for their reconciles with the same cause, so that an event can be
    /// followed to the objects it changed.
    async fn execute(&self, kyma: &str, plan: &Plan, causes: &[Cause]) -> Result<(), Lost> {
        for manifest in &plan.apply {
            let name = manifest.name_any();
            let mut body = serde_json::to_value(manifest).unwrap_or_default();
            body["apiVersion"] = names::API_VERSION.into();
            body["kind"] = "Manifest".into();
            if let Some(body) = body.as_object_mut() {
                body.remove("status");
            }
            self.apply_kcp(&self.manifests(), &name, field_managers::KCP, false, &body).await?;
            let key = WorkKey::Manifest { kyma: kyma.to_owned(), name };
            let mut causes = causes.iter().cloned();
            // One push per cause; they are merged under the key.
            let first = causes.next();
            for cause in std::iter::once(first).chain(causes.map(Some)) {
                let push = Push { class: Class::UserEdit, cause, guards: Vec::new() };
                self.queue.push(key.clone(), push);
            }
        }
        for name in &plan.delete {
            self.delete_kcp(&self.manifests(), name).await?;
        }
        Ok(())
    }

    /// The runtime's Kyma, freshly read; created from KCP's if it does not exist, with our labels on it.
    async fn runtime_kyma_of(&self, kyma: &Kyma, runtime: &RuntimeClient) -> Result<Value, ObjectError> {
        let id = runtime_kyma();
        let mark = runtime_mark(kyma, &self.config.namespace);
        let remote = match apply::get(runtime, &id).await? {
            Some(remote) => remote,
            None => {
                // Under another manager than the marks: applying those again must not take the spec away.
                let mut fresh = mark.clone();
                fresh["spec"] = serde_json::to_value(&kyma.spec).unwrap_or_default();
                apply::create(runtime, &fresh, field_managers::KCP).await?;
                Value::Null
            }
        };
        if differs(&remote["metadata"], &mark["metadata"]) {
            return apply::apply(runtime, &mark, field_managers::KYMA_SYNC).await;
        }
        Ok(remote)
    }

    /// It cannot go on until something changes, and that is an event. Only the status is written.
    async fn blocked(&self, kyma: &Kyma, message: String) -> Result<Finish, Lost> {
        let status = failed_status(kyma, State::Error, message.clone(), self.now());
        self.write_kyma_status(kyma, &status).await?;
        Ok(Finish::Settled(error_report(message)))
    }

    /// The runtime answers wrongly or not at all: nothing is changed but what the status says.
    pub(super) async fn runtime_failed(&self, kyma: &Kyma, error: &ObjectError) -> Result<Finish, Lost> {
        if error.discredits_client() {
            self.runtimes.invalidate(&kyma.name_any());
        }
        if error.is_not_found() {
            // The namespace that was made is gone again.
            self.prepared.forget(&kyma.name_any());
        }
        if error.is_unreachable() {
            self.observer.reachable(&kyma.name_any(), false);
        }
        let message = format!("{}; {NEXT_TRY}", error.message());
        let status = failed_status(kyma, State::Error, message.clone(), self.now());
        self.write_kyma_status(kyma, &status).await?;
        Ok(Finish::Failed(error_report(message), error.class()))
    }
}

/// What stops a reconcile.
enum Trouble {
    Lost(Lost),
    Runtime(ObjectError),
    /// The runtime's Kyma makes no sense; the message says why.
    Unreadable(String),
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<ObjectError> for Trouble {
    fn from(error: ObjectError) -> Self {
        Self::Runtime(error)
    }
}

/// Longest part of a parser's message that is passed on, in characters: it may quote what it was given.
const MAX_REASON: usize = 200;

/// What the runtime's user wants. A spec that cannot be read is not an empty list of modules: that would remove
/// them all. (The CRD does not allow one, but the CRD is in the runtime's hands.)
fn wishes(remote: &Value) -> Result<KymaSpec, Trouble> {
    match &remote["spec"] {
        Value::Null => Ok(KymaSpec::default()),
        spec => serde_json::from_value(spec.clone()).map_err(|error| {
            let reason: String = error.to_string().chars().take(MAX_REASON).collect();
            let what = runtime_kyma();
            Trouble::Unreadable(format!(
                "the spec of {what} in the runtime cannot be read: {reason}; nothing was changed; tried again \
                 when it changes"
            ))
        }),
    }
}

fn finish_of(plan: &Plan) -> Finish {
    let message = || plan.status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default();
    match plan.status.state {
        State::Ready => Finish::Done,
        _ if plan.retry => Finish::Failed(Report { state: plan.status.state, message: message() }, "module"),
        state @ (State::Error | State::Warning) => Finish::Settled(Report { state, message: message() }),
        _ => Finish::Waiting(message()),
    }
}

/// Labels and annotations that the runtime's Kyma carries (contract, section 5.9).
fn runtime_mark(kyma: &Kyma, namespace: &str) -> Value {
    let mut marks = json!({
        labels::WATCHED_BY: labels::WATCHED_BY_KYMA,
        labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME,
    });
    for label in [labels::RUNTIME_ID, labels::GLOBAL_ACCOUNT_ID, labels::SUBACCOUNT_ID] {
        if let Some(value) = kyma.labels().get(label) {
            marks[label] = value.as_str().into();
        }
    }
    json!({
        "apiVersion": names::API_VERSION, "kind": "Kyma",
        "metadata": {
            "name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE, "labels": marks,
            "annotations": {annotations::OWNED_BY: format!("{namespace}/{}", kyma.name_any())}
        }
    })
}

/// Writes the status that the runtime's user sees, if it differs.
async fn write_runtime_status(
    runtime: &RuntimeClient,
    remote: &Value,
    status: &KymaStatus,
) -> Result<(), ObjectError> {
    let status = runtime_status(status);
    let before: KymaStatus = serde_json::from_value(remote["status"].clone()).unwrap_or_default();
    if before == status {
        return Ok(());
    }
    let body = json!({
        "apiVersion": names::API_VERSION, "kind": "Kyma",
        "metadata": {"name": names::RUNTIME_KYMA_NAME, "namespace": names::RUNTIME_NAMESPACE},
        "status": status
    });
    apply::apply_status(runtime, &body, field_managers::KCP).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_not_an_empty_one() {
        let wanted = |remote: Value| match wishes(&remote) {
            Ok(spec) => Ok(spec.modules.len()),
            Err(Trouble::Unreadable(why)) => Err(why),
            Err(_) => Err("another trouble".into()),
        };
        assert_eq!(wanted(json!({"spec": {"channel": "regular", "modules": [{"name": "a"}]}})), Ok(1));
        assert_eq!(wanted(json!({"metadata": {}})), Ok(0));
        for bad in [json!("m".repeat(10_000)), json!([{"name": 7}]), json!({"name": "a"})] {
            let why = wanted(json!({"spec": {"channel": "regular", "modules": bad}})).unwrap_err();
            assert!(why.contains("cannot be read") && why.len() < 500, "{why}");
        }
        assert!(wanted(json!({"spec": "everything"})).is_err());
    }
}
