//! Reports a paused engine in a Kyma's statuses.
//!
//! The condition `Paused` in the runtime's Kyma is the only write to a runtime during a pause. The first reconcile after the pause removes
//! the condition.

use std::sync::Arc;

use serde_json::Value;
use tidewatch_api::{Kyma, KymaStatus, names::field_managers};
use tidewatch_deployer::adoption::take_over_status;
use tidewatch_planner::kyma::paused_status;

use super::runtime_kyma::{marked_by, remote_kyma, write_runtime_status};
use crate::{
    clusters::Clusters,
    error::Error,
    kcp::Kcp,
    stages::{Stage, stage},
};

pub(crate) struct PauseNotice {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl PauseNotice {
    /// Writes the pause into a Kyma's statuses, once per pause.
    pub(super) async fn publish(&self, name: &str) -> Result<(), Error> {
        if !self.kcp.gate.must_report_pause(name) || !self.kcp.index().kymas.contains(name) {
            return Ok(());
        }
        let read = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(name)).await;
        let kyma = read.map_err(|e| Error::kcp(format!("reading Kyma {name}"), e))?;
        if let Some(kyma) = kyma.filter(|kyma| !kyma.is_skipped()) {
            let status = paused_status(&kyma, self.kcp.now());
            self.kcp.write_kyma_status(&kyma, &status).await?;
            self.publish_in_runtime(name, &kyma, &status).await?;
        }
        self.kcp.gate.pause_reported(name);
        Ok(())
    }

    /// Writes the pause into the runtime's status. Skips unreachable runtimes and those not migrated yet.
    async fn publish_in_runtime(&self, name: &str, kyma: &Kyma, status: &KymaStatus) -> Result<(), Error> {
        if self.clusters.is_suspended(name) {
            return Ok(());
        }
        let Ok(runtime) = self.clusters.access(name).await? else { return Ok(()) };
        let said = async {
            let remote = stage(Stage::ReadRuntime, remote_kyma(&runtime)).await?;
            let mark = format!("{}/{name}", kyma.metadata.namespace.as_deref().unwrap_or_default());
            if marked_by(&remote) != Some(mark.as_str()) || !is_engine_owned(&remote) {
                return Ok(());
            }
            stage(Stage::WriteRuntime, write_runtime_status(&runtime.for_pause_status(), &remote, status))
                .await
        };
        if let Err(error) = said.await {
            tracing::debug!(
                kyma = name,
                error = error.message(),
                "the runtime's Kyma does not say that the engine is paused"
            );
        }
        Ok(())
    }
}

/// Whether only the engine owns the status. A pause does not take over a Go manager's status.
fn is_engine_owned(remote: &Value) -> bool {
    let entries = remote["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut ours = entries.filter(|entry| {
        entry["manager"] == field_managers::KCP
            && entry["operation"] == "Apply"
            && entry["subresource"] == "status"
    });
    ours.next().is_some() && take_over_status(remote, field_managers::KCP).is_none()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::Api;
    use serde_json::json;
    use tidewatch_api::names;

    use super::*;
    use crate::{
        gate::{Gate, Mode},
        key::WorkKey,
        reconcile::tests::{engine_on, runtime_on},
    };

    fn kyma() -> Value {
        json!({"apiVersion": names::API_VERSION, "kind": "Kyma",
               "metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "u", "resourceVersion": "7"},
               "spec": {"channel": "regular"}, "status": {"state": "Ready"}})
    }

    #[tokio::test(start_paused = true)]
    async fn each_pause_writes_the_kymas_paused_condition_once() {
        let (engine, requests) = engine_on(|_, _| (200, kyma()));
        engine.state().write().apply_kyma(serde_json::from_value(kyma()).unwrap());
        let written = || requests.lock().iter().filter(|call| call.starts_with("PATCH")).count();
        let say = async || engine.dispatcher.pause.publish("harbour").await.unwrap();
        say().await;
        assert!(requests.lock().is_empty(), "it is not paused");
        engine.set_mode(Mode::Paused);
        let asked = engine.queue().next().await;
        assert_eq!(asked.key(), &WorkKey::Kyma { kyma: "harbour".into() }, "each Kyma is asked for");
        for _ in 0..2 {
            say().await;
        }
        assert_eq!((written(), requests.lock().len()), (1, 2), "{requests:?}");
        engine.set_mode(Mode::Live);
        say().await;
        assert_eq!(written(), 1);
        engine.set_mode(Mode::Paused);
        say().await;
        assert_eq!(written(), 2, "another pause");
    }

    #[tokio::test]
    async fn a_paused_engine_writes_only_the_pause_to_runtimes() {
        let (gate, writes) = (Gate::default(), Arc::new(parking_lot::Mutex::new(0)));
        let count = Arc::clone(&writes);
        let runtime = runtime_on(move |_| {
            *count.lock() += 1;
            (200, json!({"metadata": {}}))
        })
        .through(gate.clone());
        let write = async |runtime: &crate::clusters::Gated| {
            let maps: Api<ConfigMap> = Api::default_namespaced(runtime.kube());
            runtime
                .write("trying", maps.create(&kube::api::PostParams::default(), &ConfigMap::default()))
                .await
                .is_ok()
        };
        for (mode, any, word) in
            [(Mode::Live, true, true), (Mode::Paused, false, true), (Mode::Standby, false, false)]
        {
            let label = mode.label();
            gate.set(mode);
            assert_eq!(
                (write(&runtime).await, write(&runtime.for_pause_status()).await),
                (any, word),
                "{label}"
            );
        }
        assert_eq!(*writes.lock(), 3);
    }

    #[test]
    fn only_an_engine_owned_status_already_shows_the_pause() {
        let entry = |manager: &str, operation: &str| {
            json!({"manager": manager, "operation": operation, "subresource": "status", "apiVersion": names::API_VERSION,
                   "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {"f:state": {}}}})
        };
        let of = |entries: &[Value]| is_engine_owned(&json!({"metadata": {"managedFields": entries}}));
        let ours = entry(field_managers::KCP, "Apply");
        assert!(of(std::slice::from_ref(&ours)));
        assert!(!of(&[]) && !of(&[entry("manager", "Update")]));
    }
}
