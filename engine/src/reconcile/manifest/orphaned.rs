//! Orphaned Manifests: installed objects stay, and nothing is applied.

use std::time::Duration;

use kube::ResourceExt;
use tidewatch_api::{Manifest, State, inventory};
use tidewatch_planner::{
    kyma::Orphan,
    manifest_status::{self, Progress},
};

use crate::{
    error::Error,
    outcome::{Outcome, found_report},
    reconcile::manifest::ManifestReconciler,
    stages::{Stage, stage},
};

impl ManifestReconciler {
    /// Ends the reconcile of an orphaned Manifest; `None`: a Kyma owns it. A new owner is an event.
    pub(super) async fn report_orphaned(
        &self,
        kyma: &str,
        manifest: &Manifest,
    ) -> Result<Option<Outcome>, Error> {
        let known = self.kcp.index().kymas.get(kyma);
        if Orphan::of(known.as_deref(), manifest).is_none() {
            return Ok(None);
        }
        // The Kyma watch may lag behind the Manifest watch.
        let read = stage(Stage::ReadKcp, self.kcp.kymas().get_opt(kyma)).await;
        let there = read.map_err(|e| Error::kcp(format!("reading Kyma {kyma}"), e))?;
        let Some(Orphan { message, reported_from: told_from }) = Orphan::of(there.as_ref(), manifest) else {
            return Ok(None);
        };
        if let Ok(left) = Duration::try_from(told_from.duration_since(self.kcp.now()))
            && !left.is_zero()
        {
            return Ok(Some(Outcome::after(left, message)));
        }
        let report = found_report(State::Error, message.clone());
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let progress = Progress::Failed { state: State::Error, message };
        let status = manifest_status::manifest_status(manifest, &progress, &inventory, None, self.kcp.now());
        self.kcp.write_manifest_status_unobserved(manifest, &status).await?;
        tracing::debug!(kyma, manifest = manifest.name_any(), "no Kyma owns it; it is left as it is");
        Ok(Some(Outcome::failed(report)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tidewatch_api::names::{API_VERSION, field_managers, labels};

    use super::*;
    use crate::outcome::Next;
    use crate::{
        engine::Engine,
        key::WorkKey,
        reconcile::tests::{Requests, engine_on, not_found},
        trigger::Triggers,
    };

    /// A Manifest with an installed object, created at this second of 1970.
    fn manifest(created: i64) -> Value {
        let created = jiff::Timestamp::from_second(created).unwrap().to_string();
        json!({"apiVersion": API_VERSION, "kind": "Manifest",
            "metadata": {"name": "m", "namespace": "kcp-system", "uid": "m1", "generation": 1, "resourceVersion": "5",
                         "creationTimestamp": created, "labels": {labels::KYMA_NAME: "harbour"}},
            "spec": {"version": "1.0.0"},
            "status": {"state": "Ready", "synced": [
                {"group": "", "version": "v1", "kind": "ConfigMap", "namespace": "n", "name": "a"}]}})
    }

    /// An engine whose KCP has a Manifest and a Kyma, and no kubeconfig.
    fn engine(manifest: Value) -> (Engine, Requests, Arc<Mutex<Value>>) {
        let kept = Arc::new(Mutex::new(manifest));
        let there = Arc::clone(&kept);
        let (engine, requests) = engine_on(move |_, path| {
            if path.ends_with("/manifests/m") || path.ends_with("/manifests/m/status") {
                (200, there.lock().clone())
            } else if path.ends_with("/kymas/harbour") {
                (
                    200,
                    json!({"apiVersion": API_VERSION, "kind": "Kyma", "spec": {"channel": "regular"},
                        "metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "k"}}),
                )
            } else if path.ends_with("/secrets") {
                let metadata = json!({"resourceVersion": "1"});
                (
                    200,
                    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": []}),
                )
            } else {
                not_found()
            }
        });
        (engine, requests, kept)
    }

    async fn reconcile(engine: &Engine) -> Outcome {
        let key = WorkKey::Manifest { kyma: "harbour".into(), name: "m".into() };
        // The future is large.
        let reconciled = engine.dispatcher.reconcilers.manifest.reconcile(
            &key,
            "harbour",
            "m",
            Triggers { listed: &[], count: 0 },
        );
        Box::pin(reconciled).await.unwrap()
    }

    fn writes(requests: &Requests) -> Vec<String> {
        requests.lock().drain(..).filter(|line| !line.starts_with("GET")).collect()
    }

    #[tokio::test]
    async fn an_orphaned_manifest_is_reported_once_after_five_minutes() {
        // The engine's clock is at the start of 1970.
        let (engine, requests, _) = engine(manifest(-10));
        let finish = reconcile(&engine).await;
        assert!(
            matches!(finish.next, Next::After(left) if left.as_secs() == 290)
                && finish.message().starts_with("orphaned:"),
            "{finish:?}"
        );
        assert_eq!(writes(&requests), [""; 0]);

        let (engine, requests, kept) = self::engine(manifest(-301));
        let finish = reconcile(&engine).await;
        assert!(finish.report().is_some_and(|report| report.state == State::Error), "{finish:?}");
        let path = "PATCH /apis/operator.kyma-project.io/v1beta2/namespaces/kcp-system/manifests/m/status";
        assert_eq!(writes(&requests), [path]);

        // Store the reported status.
        let before: Manifest = serde_json::from_value(kept.lock().clone()).unwrap();
        let message = Orphan::of(None, &before).unwrap().message;
        let inventory = inventory::inventory(&before.status.clone().unwrap().synced);
        let said = Progress::Failed { state: State::Error, message };
        let status =
            manifest_status::manifest_status(&before, &said, &inventory, None, engine.dispatcher.kcp.now());
        assert_eq!(status.synced, before.status.unwrap().synced, "what is installed is not forgotten");
        kept.lock()["status"] = serde_json::to_value(status).unwrap();
        kept.lock()["metadata"]["managedFields"] =
            json!([{"manager": field_managers::APPLIER, "operation": "Apply", "subresource": "status"}]);
        reconcile(&engine).await;
        assert_eq!(writes(&requests), [""; 0], "once");
    }

    #[tokio::test]
    async fn a_manifest_with_an_unknown_owner_is_not_orphaned() {
        let mut owned = manifest(-301);
        owned["metadata"]["ownerReferences"] =
            json!([{"apiVersion": API_VERSION, "kind": "Kyma", "name": "harbour", "uid": "k"}]);
        let (engine, _, kept) = engine(owned);
        let finish = reconcile(&engine).await;
        assert!(finish.report().is_some_and(|report| report.message.contains("kubeconfig")), "{finish:?}");
        // A deleted orphan continues too.
        {
            let metadata = &mut kept.lock()["metadata"];
            metadata["ownerReferences"] = json!([]);
            metadata["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
        }
        let finish = reconcile(&engine).await;
        assert!(finish.due.is_some(), "it is waited until the cluster is known to be gone: {finish:?}");
    }
}
