//! The harness itself; all other tests depend on it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{ConfigMap, Namespace},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tidewatch_real_only::real_only;
use tidewatch_tests::{cluster::ADMIN, env, wait};

const LONG: Duration = Duration::from_mins(1);

async fn namespace(client: &Client, name: &str) -> Result<Api<Namespace>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await?;
    Ok(namespaces)
}

#[tokio::test]
async fn the_api_server_version_is_the_pinned_one() -> Result<()> {
    let env = env::shared().await?;
    for cluster in [&env.kcp, &env.runtime1, &env.runtime2] {
        assert_eq!(cluster.client()?.apiserver_version().await?.git_version, "v1.36.3", "{}", cluster.name());
    }
    Ok(())
}

#[tokio::test]
async fn a_deployment_with_any_node_requirements_becomes_available() -> Result<()> {
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
                "spec": {"containers": [{
                    "name": "web", "image": "example.local/web:1",
                    "securityContext": {"privileged": true},
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
                }]},
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

#[real_only("the fake API server has no controllers of Jobs")]
#[tokio::test]
async fn a_finished_job_is_deleted_by_its_ttl() -> Result<()> {
    let client = env::shared().await?.runtime1.client()?;
    namespace(&client, "harness-job").await?;
    let jobs: Api<Job> = Api::namespaced(client, "harness-job");
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "once"},
        "spec": {
            "ttlSecondsAfterFinished": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "once", "image": "example.local/once:1"}],
            }},
        },
    }))?;
    jobs.create(&PostParams::default(), &job).await?;
    wait::until("the Job to be gone", LONG, || async {
        Ok(jobs.get_opt("once").await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test]
async fn an_aggregated_role_gets_its_rules() -> Result<()> {
    let client = env::shared().await?.kcp.client()?;
    let api: Api<ClusterRole> = Api::all(client);
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let labels = json!({"harness.tidewatch.dev/aggregates": "true"});
    let part = json!({"metadata": {"name": "harness-part", "labels": labels}, "rules": rules});
    let whole = json!({"metadata": {"name": "harness-whole"}, "rules": [],
                       "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]}});
    for role in [whole, part] {
        api.create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    }
    let wanted: Vec<PolicyRule> = serde_json::from_value(rules)?;
    wait::until("the role to have the rules of its part", LONG, || async {
        Ok((api.get("harness-whole").await?.rules == Some(wanted.clone())).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_deleted_namespace_goes_with_its_content() -> Result<()> {
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
async fn control_planes_share_no_objects_tokens_or_cas() -> Result<()> {
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
