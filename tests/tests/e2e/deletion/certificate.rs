//! The Kyma's deletion removes the certificate of the Go manager's watcher.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use tidewatch_api::names::labels;
use tidewatch_tests::{
    fleet::{RECEIVER_USER, apply_yaml},
    observed, wait,
};

use super::{SOON, World, crds, dynamic, put};

const NAMESPACE: &str = "istio-system";
const ROLE: &str = include_str!("../../../../deploy/charts/tidewatch/files/rbac/takeover.yaml");

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
           "metadata": {"name": "certificates.cert-manager.io"},
           "spec": {"group": "cert-manager.io", "scope": "Namespaced",
                    "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate", "listKind": "CertificateList"},
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
}

fn certificate(name: &str, purpose: &str) -> Value {
    json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": name, "namespace": NAMESPACE},
           "spec": {"secretName": name, "secretTemplate": {"labels": {labels::PURPOSE: purpose}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_kyma_takes_its_watcher_certificate_along() -> Result<()> {
    let world = World::start("kcp-certificate").await?;
    let kcp = world.kcp.clone();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    apply_yaml(&kcp, &namespace.to_string()).await?;
    put(&crds(&kcp), &definition()).await?;
    apply_yaml(&kcp, ROLE).await?;
    let of = |client| dynamic(client, "cert-manager.io/v1", "Certificate", "certificates", Some(NAMESPACE));
    let receiver = world.env.kcp.client_of(RECEIVER_USER)?;
    wait::until("the receiver to be let in", SOON, || async {
        Ok(of(&receiver).get_opt("none").await.is_ok().then_some(()))
    })
    .await?;
    let secrets: Api<Secret> = Api::namespaced(kcp.clone(), NAMESPACE);
    let certificates = of(&kcp);
    // The Kyma's own and another one's.
    let its = format!("{}-webhook-tls", world.namespace);
    let names = [its.as_str(), "another-webhook-tls"];
    for name in names {
        put(&certificates, &certificate(name, labels::PURPOSE_WATCHER_CERT)).await?;
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}});
        apply_yaml(&kcp, &secret.to_string()).await?;
    }
    world.kymas().delete(world.namespace, &DeleteParams::default()).await?;
    world.kyma_gone().await?;
    ensure!(certificates.get_opt(&its).await?.is_none(), "its Certificate is left");
    ensure!(secrets.get_opt(&its).await?.is_none(), "its Secret is left");
    ensure!(certificates.get_opt(names[1]).await?.is_some(), "another's Certificate is gone");
    ensure!(secrets.get_opt(names[1]).await?.is_some(), "another's Secret is gone");
    crds(&kcp).delete("certificates.cert-manager.io", &DeleteParams::default()).await?;
    Api::<Namespace>::all(kcp).delete(NAMESPACE, &DeleteParams::default()).await?;
    observed::no_panic(&world.receiver.process)
}
