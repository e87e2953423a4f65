//! The harness itself: if these fail, nothing else here means anything.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tidewatch_tests::{cluster::ADMIN, env, wait};

const LONG: Duration = Duration::from_mins(1);

async fn namespace(client: &Client, name: &str) -> Result<Api<Namespace>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await?;
    Ok(namespaces)
}

#[tokio::test]
async fn the_version_is_the_pinned_one() -> Result<()> {
    let env = env::shared().await?;
    for cluster in [&env.kcp, &env.runtime1, &env.runtime2] {
        assert_eq!(cluster.client()?.apiserver_version().await?.git_version, "v1.36.3", "{}", cluster.name());
    }
    Ok(())
}

#[tokio::test]
async fn a_deployment_becomes_available() -> Result<()> {
    let client = env::shared().await?.runtime1.client()?;
    namespace(&client, "harness-deployment").await?;
    let deployments: Api<Deployment> = Api::namespaced(client, "harness-deployment");
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "example.local/web:1"}]},
            },
        },
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    wait::until("the Deployment to be Available", LONG, || async {
        let status = deployments.get("web").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let available = conditions.iter().any(|c| c.type_ == "Available" && c.status == "True");
        Ok((available && status.available_replicas == Some(1)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_deleted_namespace_goes_with_what_is_in_it() -> Result<()> {
    let client = env::shared().await?.kcp.client()?;
    let namespaces = namespace(&client, "harness-deletion").await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, "harness-deletion");
    let metadata = ObjectMeta { name: Some("inside".to_owned()), ..ObjectMeta::default() };
    config_maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await?;
    namespaces.delete("harness-deletion", &DeleteParams::default()).await?;
    wait::until("the namespace to be gone", LONG, || async {
        Ok(namespaces.get_opt("harness-deletion").await?.is_none().then_some(()))
    })
    .await?;
    assert!(config_maps.get_opt("inside").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_control_planes_share_nothing() -> Result<()> {
    let env = env::shared().await?;
    let config_map = ConfigMap {
        metadata: ObjectMeta { name: Some("only-here".to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("key".to_owned(), "value".to_owned())])),
        ..ConfigMap::default()
    };
    let config_maps = |client| Api::<ConfigMap>::default_namespaced(client);
    let here = config_maps(env.kcp.client()?);
    here.create(&PostParams::default(), &config_map).await?;
    assert!(here.get_opt("only-here").await?.is_some());
    for other in [&env.runtime1, &env.runtime2] {
        assert!(config_maps(other.client()?).get_opt("only-here").await?.is_none(), "{}", other.name());
        assert_ne!(other.token(ADMIN)?, env.kcp.token(ADMIN)?);
        assert_ne!(other.ca_pem(), env.kcp.ca_pem());
    }
    here.delete("only-here", &DeleteParams::default()).await?;
    Ok(())
}
