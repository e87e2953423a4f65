//! Deletes the client certificate of the Go manager's watcher from KCP.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
    core::{DynamicObject, GroupVersionKind, Status},
    discovery::ApiResource,
};
use serde_json::Value;
use tidewatch_api::names::labels;

use crate::{
    error::Error,
    reconcile::kyma_deletion::KymaDeletion,
    stages::{Stage, stage},
};

const NAMESPACE: &str = "istio-system";
const ISSUERS: [(&str, &str); 2] = [("cert-manager.io", "v1"), ("cert.gardener.cloud", "v1alpha1")];

/// Whether a Certificate belongs to a watcher, by the labels of its Secret.
fn is_of_a_watcher(certificate: &DynamicObject) -> bool {
    let spec = &certificate.data["spec"];
    let is = |marks: &Value| marks[labels::PURPOSE] == labels::PURPOSE_WATCHER_CERT;
    is(&spec["secretTemplate"]["labels"]) || is(&spec["secretLabels"])
}

/// Whether a retry may succeed. A third party's unavailable webhook may never recover.
fn is_transient(status: &Status) -> bool {
    status.code == 429 || status.code >= 500 && !status.message.contains("failed calling webhook")
}

/// Logs and ignores a permanent failure, which must not block a Kyma. Returns a temporary one.
fn left(kyma: &str, what: &'static str, why: Error) -> Result<(), Error> {
    match &why {
        Error::Kcp { source, .. } if matches!(&**source, kube::Error::Api(status) if !is_transient(status)) =>
        {
            tracing::warn!(kyma, what, error = %why, cause = %source, "of the Go manager's watcher something is left in the control plane");
            Ok(())
        }
        _ => Err(why),
    }
}

impl KymaDeletion {
    /// Deletes the Certificate of a runtime and its Secret, which issuers leave behind. Without permission
    /// (`files/rbac/takeover.yaml` of the chart), both stay.
    pub(crate) async fn remove_legacy_certificate(&self, kyma: &str) -> Result<(), Error> {
        let name = format!("{kyma}-webhook-tls");
        let permit = self.kcp.gate.kcp()?;
        if permit.is_dry() {
            // A dry run shows enough without it.
            return Ok(());
        }
        for (group, version) in ISSUERS {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "Certificate"));
            let api: Api<DynamicObject> = Api::namespaced_with(self.kcp.client.clone(), NAMESPACE, &kind);
            let failed = |error| Error::kcp(format!("removing the Certificate {name} of {group}"), error);
            let certificate = match stage(Stage::ReadKcp, api.get(&name)).await {
                Ok(certificate) if is_of_a_watcher(&certificate) => certificate,
                Ok(_) => continue,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    tracing::debug!(
                        kyma,
                        group,
                        "a Certificate of the Go manager's watcher is not looked for: it is not allowed"
                    );
                    continue;
                }
                Err(error) => {
                    left(kyma, "its Certificate", failed(error))?;
                    continue;
                }
            };
            let preconditions = Some(Preconditions { uid: certificate.uid(), resource_version: None });
            // The Secret goes first: after a crash, the Certificate is still found. The issuer may recreate the Secret, so it is deleted
            // again.
            let secrets: Api<Secret> = Api::namespaced(self.kcp.client.clone(), NAMESPACE);
            let delete_secret = || async {
                match stage(Stage::WriteKcp, secrets.delete(&name, &DeleteParams::background())).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    Err(error) => left(
                        kyma,
                        "its Secret",
                        Error::kcp(format!("removing the Secret {NAMESPACE}/{name}"), error),
                    ),
                }
            };
            delete_secret().await?;
            let params = DeleteParams { preconditions, ..DeleteParams::background() };
            match stage(Stage::WriteKcp, api.delete(&name, &params)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    left(kyma, "its Certificate", failed(error))?;
                    continue;
                }
            }
            delete_secret().await?;
            tracing::info!(
                kyma,
                certificate = name,
                group,
                "the certificate of the Go manager's watcher is removed"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_certificate_deletion_is_skipped_others_are_retried() {
        let answer = |code, message: &str| {
            let status = json!({"status": "Failure", "message": message, "reason": "", "code": code});
            let source = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
            left("harbour", "its Secret", Error::kcp("removing it".to_owned(), source))
        };
        for code in [400, 401, 403, 405, 422] {
            assert!(answer(code, "no").is_ok(), "{code}");
        }
        let webhook = r#"Internal error occurred: failed calling webhook "webhook.cert-manager.io": connection refused"#;
        assert!(answer(500, webhook).is_ok(), "whose webhook that is has to mend it");
        for code in [409, 429, 500, 503, 504] {
            assert!(answer(code, "etcdserver: request timed out").is_err(), "{code}");
        }
    }

    #[test]
    fn a_watcher_certificate_is_known_by_its_secrets_label() {
        let of = |spec: Value| -> DynamicObject {
            let object = json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "a"}, "spec": spec});
            serde_json::from_value(object).unwrap()
        };
        let mark = json!({labels::PURPOSE: labels::PURPOSE_WATCHER_CERT});
        assert!(is_of_a_watcher(&of(json!({"secretTemplate": {"labels": mark}}))), "of cert-manager");
        assert!(is_of_a_watcher(&of(json!({"secretLabels": mark}))), "of Gardener's");
        for other in [
            json!(null),
            json!({}),
            json!({"secretLabels": {labels::PURPOSE: "gateway"}}),
            json!({"secretTemplate": 7}),
        ] {
            assert!(!is_of_a_watcher(&of(other.clone())), "{other}");
        }
    }
}
