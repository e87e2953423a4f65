//! Asks a control plane.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tidewatch_api::{
    crds,
    names::{CA_SECRET, REVOCATIONS, SERVER_SECRET},
};
use tidewatch_certs::{Validity, secret::TLS_CRT};
use tidewatch_oci::BaseUrl;
use tidewatch_receiver::{lease, pause};

use super::{
    Doctor,
    facts::{Asked, Facts, Kcp, Leader, NoAnswer, Registry},
    runtimes::runtimes,
};
use crate::{
    certificate_status,
    clusters::{Side, explain, is_forbidden},
    rights::{Right, missing_of_user},
};

/// The receiver's shipped roles.
const ROLES: &str = include_str!("../../../deploy/charts/tidewatch/files/rbac/receiver.yaml");
const RECEIVER: &str = "tidewatch-receiver";
const DEADLINE: Duration = Duration::from_secs(10);

/// The receiver's Deployment, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deployed {
    service_account: Option<String>,
    modules: Option<String>,
    insecure: Vec<String>,
}

pub(super) async fn collect(doctor: &Doctor) -> anyhow::Result<Facts> {
    let client = doctor.kcp.client().await?;
    let namespace = doctor.kcp.namespace.clone();
    let version = asked(client.apiserver_version().await).map(|version| version.git_version);
    // Without an answer, every other question would only wait.
    let kcp = match &version {
        Ok(_) => Some(kcp(doctor, &client, &namespace).await?),
        Err(_) => None,
    };
    Ok(Facts { now: Timestamp::now(), namespace, version, kcp })
}

async fn kcp(doctor: &Doctor, client: &Client, namespace: &str) -> anyhow::Result<Kcp> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployed = asked(deployments.get_opt(RECEIVER).await).map(|found| found.as_ref().map(deployed_of));
    let account = |deployed: &Option<Deployed>| {
        let account = deployed.as_ref()?.service_account.as_deref().unwrap_or("default");
        Some(format!("system:serviceaccount:{namespace}:{account}"))
    };
    let user = match &doctor.receiver_user {
        Some(user) => Ok(Some(user.clone())),
        None => deployed.as_ref().map(account).map_err(NoAnswer::clone),
    };
    let missing = async |rights: &[Right]| match &user {
        Ok(Some(user)) => asked(missing_of_user(client, user, rights).await),
        Ok(None) => Ok(Vec::new()),
        Err(why) => Err(why.clone()),
    };
    let (rights, certificate_rights) = shipped_rights(namespace)?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let (mut certificates, mut rotation) = (Vec::new(), None);
    for name in [CA_SECRET, SERVER_SECRET] {
        let secret = asked(secrets.get_opt(name).await);
        if let Ok(Some(secret)) = &secret {
            rotation = rotation.or_else(|| {
                certificate_status::rotation(secret).map(|(step, since)| (step.to_owned(), since.to_owned()))
            });
        }
        certificates.push((name, secret.map(|secret| secret.as_ref().map(validity))));
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let paused = maps.get_opt(pause::NAME).await.map(|map| pause::is_paused(map.as_ref()));
    let revoked = asked(maps.get_opt(REVOCATIONS).await);
    let revoked = revoked.map(|map| map.and_then(|map| map.data).unwrap_or_default());
    let known = revoked.clone().unwrap_or_default();
    let registry = match (&doctor.registry, &deployed) {
        (None, Err(why)) => Registry::Unreadable(why.clone()),
        (named, deployed) => {
            let deployed = deployed.clone().ok().flatten().unwrap_or_default();
            registry(named.clone().or(deployed.modules), &deployed.insecure).await
        }
    };
    Ok(Kcp {
        definitions: definitions(client).await,
        missing_rights: missing(&rights).await,
        missing_certificate_rights: missing(&certificate_rights).await,
        user: user.ok().flatten(),
        lease: asked(leases.get_opt(lease::NAME).await.map(|lease| lease.map(|lease| leader(&lease)))),
        paused: asked(paused),
        certificates,
        rotation,
        runtimes: runtimes(client, namespace, doctor.runtime.as_deref(), doctor.runtimes, &known).await,
        revoked,
        registry,
    })
}

pub(super) fn asked<T>(answer: Result<T, kube::Error>) -> Asked<T> {
    answer.map_err(|error| NoAnswer {
        forbidden: is_forbidden(&error),
        message: explain(Side::KcpAlone, &error),
    })
}

fn deployed_of(deployment: &Deployment) -> Deployed {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let container = pod.and_then(|pod| pod.containers.iter().find(|container| container.name == "receiver"));
    let args = || container.and_then(|container| container.args.as_ref()).into_iter().flatten();
    let values = |flag: &'static str| args().filter_map(move |arg| arg.strip_prefix(flag)).map(str::to_owned);
    Deployed {
        service_account: pod.and_then(|pod| pod.service_account_name.clone()),
        modules: values("--modules=").next(),
        insecure: values("--insecure-registry=").collect(),
    }
}

/// Returns the rights of the receiver, and those to keep its own certificates.
fn shipped_rights(namespace: &str) -> anyhow::Result<(Vec<Right>, Vec<Right>)> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(ROLES)?;
    let (mut rights, mut certificates) = (Vec::new(), Vec::new());
    for role in objects.iter().filter(|object| object["kind"] == "Role") {
        let of_role = Right::of_rules(&role["rules"], namespace);
        let is_for_certificates =
            role["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-certificates"));
        if is_for_certificates { certificates.extend(of_role) } else { rights.extend(of_role) }
    }
    Ok((rights, certificates))
}

async fn definitions(client: &Client) -> Vec<(String, Asked<Option<Value>>)> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Vec::new();
    for definition in crds::all() {
        let name = definition.name_any();
        let installed = api.get_opt(&name).await;
        let installed =
            installed.map(|found| found.map(|found| serde_json::to_value(found).unwrap_or_default()));
        found.push((name, asked(installed)));
    }
    found
}

fn leader(lease: &Lease) -> Leader {
    let spec = lease.spec.clone().unwrap_or_default();
    Leader {
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: spec.renew_time.map(|time| time.0),
        seconds: spec.lease_duration_seconds.unwrap_or_default().into(),
    }
}

/// Reads a certificate. The private key is not looked at.
fn validity(secret: &Secret) -> Result<Validity, String> {
    let pem = secret.data.as_ref().and_then(|data| data.get(TLS_CRT));
    let pem = pem.ok_or_else(|| format!("it has no {TLS_CRT}"))?;
    tidewatch_certs::validity(&pem.0).map_err(|error| error.to_string())
}

async fn registry(modules: Option<String>, insecure: &[String]) -> Registry {
    let Some(modules) = modules else { return Registry::Unknown };
    let silent = |address: String, cause: String| Registry::Silent { address, cause };
    let address = match BaseUrl::parse(&modules, insecure) {
        Ok(base) => format!("{}://{}", base.scheme().as_str(), base.registry()),
        Err(error) => return silent(modules, error.to_string()),
    };
    tidewatch_oci::install_crypto_provider();
    let client = match reqwest::Client::builder().timeout(DEADLINE).build() {
        Ok(client) => client,
        Err(error) => return silent(address, error.to_string()),
    };
    match client.get(format!("{address}/v2/")).send().await {
        Ok(answer) => Registry::Answered { address, code: answer.status().as_u16() },
        Err(error) => silent(address, tidewatch_telemetry::chain(&error.without_url()).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_deployment_names_registry_and_service_account() {
        let deployment: Deployment = serde_json::from_value(json!({"spec": {"selector": {}, "template": {"spec": {
            "serviceAccountName": "sa", "containers": [{"name": "receiver", "args": [
                "--namespace=n", "--modules=r.example/m", "--insecure-registry=a", "--insecure-registry=b"]}]}}}}))
        .unwrap();
        let deployed = deployed_of(&deployment);
        assert_eq!(
            (deployed.service_account.as_deref(), deployed.modules.as_deref()),
            (Some("sa"), Some("r.example/m"))
        );
        assert_eq!(deployed.insecure, ["a", "b"]);
        assert_eq!(deployed_of(&Deployment::default()), Deployed::default());
    }

    #[test]
    fn the_shipped_roles_are_the_expected_rights() {
        let (rights, certificates) = shipped_rights("n").unwrap();
        let has = |rights: &[Right], text: &str| rights.iter().any(|right| right.to_string() == text);
        assert!(has(&rights, "create manifests.operator.kyma-project.io"), "{rights:?}");
        assert!(has(&rights, "update leases.coordination.k8s.io 893110f7.kyma-project.io"));
        assert!(
            has(&certificates, "patch secrets tidewatch-ca") && !has(&rights, "patch secrets tidewatch-ca")
        );
    }
}
