//! One receiver manages the cluster in which it runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, State, crds,
    names::{KCP_NAMESPACE, RUNTIME_NAMESPACE},
};
use tidewatch_tests::{
    ControlPlane, Options, Process, User, binaries, env, fixtures,
    fleet::{self, RECEIVER_USER},
    http, observed, ports, wait,
};

const SYSTEM: &str = "lighthouse-system";
const MANAGER: &str = "lighthouse-keeper";
const SOON: Duration = Duration::from_mins(1);

/// The rights that the chart binds in this mode, besides the receiver's role.
const CLUSTER_ADMIN: &str = r#"{
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "tidewatch-receiver"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "tidewatch-receiver", "namespace": "kcp-system"}]
}"#;

/// A cluster with its receiver, and with `lighthouse` in the catalog.
struct Single {
    client: Client,
    namespace: &'static str,
    admin: String,
    process: Process,
    // Last field: the receiver ends first.
    _cluster: ControlPlane,
}

impl Single {
    async fn start(name: &str, namespace: &'static str) -> Result<Self> {
        let env = env::shared().await?;
        let users = vec![User { name: RECEIVER_USER.to_owned(), groups: Vec::new() }];
        let options = Options { pods: true, users, ..Options::named(name) };
        let cluster = Box::pin(ControlPlane::start(&env.harness, env.etcd(), options)).await?;
        let (client, modules) = (cluster.client()?, env.registry.of(name));
        tidewatch_demo::fleet::prepare_kcp(&client, namespace).await?;
        fleet::admit_receiver(&client, namespace).await?;
        fleet::apply_yaml(&client, CLUSTER_ADMIN).await?;
        fleet::push_lighthouse(&modules, "1.0.0", fixtures::LIGHTHOUSE_1_0_0).await?;
        fleet::offer_template(&client, namespace, "1.0.0").await?;
        fleet::release(&client, namespace, &[("regular", "1.0.0")]).await?;

        let kubeconfig = cluster.kubeconfig_yaml(RECEIVER_USER)?;
        let kubeconfig = env.harness.write(&format!("{name}/receiver.yaml"), &kubeconfig)?;
        let port = ports::free()?;
        // Polling would hide lost events.
        let args = vec![
            "--single-cluster".to_owned(),
            format!("--admin=127.0.0.1:{port}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--namespace={namespace}"),
            format!("--modules={modules}"),
            "--fallback-poll=0".to_owned(),
            "--safety-resync=0".to_owned(),
            "--log-format=text".to_owned(),
            "--log-level=info,tidewatch_engine=debug,tidewatch_receiver=debug,tidewatch_agent=debug"
                .to_owned(),
        ];
        let program = binaries::find("tidewatch-receiver")?;
        let process = Process::start(&env.harness.spec(&format!("{name}/receiver"), &program, args))?;
        let admin = format!("http://127.0.0.1:{port}");
        let single = Self { client, namespace, admin, process, _cluster: cluster };
        let ready = || async {
            let status = http::status(&format!("{}/readyz", single.admin)).await?;
            Ok((status == hyper::StatusCode::OK).then_some(()))
        };
        single.process.ready("to answer /readyz", SOON, ready).await?;
        Ok(single)
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Applies a Kyma as `kubectl apply -f kyma.yaml` does: no label, no annotation, no Secret.
    async fn apply_kyma(&self, name: &str, modules: &Value) -> Result<()> {
        let kyma = json!({
            "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"channel": "regular", "modules": modules}
        });
        fleet::apply_yaml(&self.client, &kyma.to_string()).await
    }

    async fn module_is_ready(&self, kyma: &str) -> Result<()> {
        let what = format!("the module of {kyma} to be Ready");
        let is_ready = |kyma: &Kyma| {
            kyma.module_status("lighthouse").is_some_and(|module| module.state == State::Ready)
                && kyma.status.as_ref().is_some_and(|status| status.state == State::Ready)
        };
        fleet::kyma_where(self.kymas(), kyma, &what, is_ready).await.map(drop)
    }

    async fn is_proven(&self, kyma: &str) -> Result<()> {
        let proven = || async {
            let page = http::json(&format!("{}/runtimes/{kyma}", self.admin)).await?;
            Ok((page["eventPath"] == "proven").then_some(()))
        };
        self.process.ready("to have proven the event path", SOON, proven).await
    }

    /// Deletes the module's Deployment and waits until an event has restored it.
    async fn deployment_is_restored_by_an_event(&self, kyma: &str) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), SYSTEM);
        let old = deployments.get(MANAGER).await?.uid().context("no uid")?;
        deployments.delete(MANAGER, &DeleteParams::background()).await?;
        wait::until("the Deployment to come back", SOON, || async {
            let there = deployments.get_opt(MANAGER).await?.and_then(|deployment| deployment.uid());
            Ok(there.filter(|uid| *uid != old).map(drop))
        })
        .await?;
        let page = http::json(&format!("{}/runtimes/{kyma}", self.admin)).await?;
        let records = page["reconciles"].as_array().cloned().unwrap_or_default();
        let causes = records
            .iter()
            .filter(|record| record["key"].as_str().is_some_and(|key| key.starts_with("Manifest/")))
            .flat_map(|record| record["causes"].as_array().cloned().unwrap_or_default());
        let is_of_deployment = |cause: &Value| {
            cause["type"] == "event" && cause["object"].as_str().is_some_and(|o| o.starts_with("Deployment"))
        };
        ensure!(causes.into_iter().any(|cause| is_of_deployment(&cause)), "no event: {page:#}");
        self.module_is_ready(kyma).await
    }

    /// Deletes a Kyma. Its module must go, and what the receiver needs must stay.
    async fn delete_kyma(&self, kyma: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let product = || async {
            let mut uids = vec![namespaces.get(self.namespace).await?.uid()];
            uids.push(namespaces.get(RUNTIME_NAMESPACE).await?.uid());
            for crd in crds::all() {
                uids.push(definitions.get(&crd.name_any()).await?.uid());
            }
            anyhow::Ok(uids)
        };
        let before = product().await?;
        self.kymas().delete(kyma, &DeleteParams::default()).await?;
        wait::until("the Kyma to go", SOON, || async {
            Ok(self.kymas().get_opt(kyma).await?.is_none().then_some(()))
        })
        .await?;
        wait::until("the module's namespace and CRD to go", SOON, || async {
            let namespace = namespaces.get_opt(SYSTEM).await?;
            let definition = definitions.get_opt("beacons.lighthouse.tidewatch.dev").await?;
            Ok((namespace.is_none() && definition.is_none()).then_some(()))
        })
        .await?;
        let manifests: Api<Manifest> = Api::namespaced(self.client.clone(), self.namespace);
        ensure!(manifests.list(&ListParams::default()).await?.items.is_empty(), "a Manifest is left");
        ensure!(product().await? == before, "an object of the product was deleted");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receivers_own_cluster_is_managed_by_events() -> Result<()> {
    let single = Single::start("single", KCP_NAMESPACE).await?;
    single.apply_kyma("harbour", &json!([{"name": "lighthouse"}])).await?;
    single.module_is_ready("harbour").await?;
    single.is_proven("harbour").await?;
    let all: Api<Kyma> = Api::all(single.client.clone());
    ensure!(all.list(&ListParams::default()).await?.items.len() == 1, "there is a copy of the Kyma");
    single.deployment_is_restored_by_an_event("harbour").await?;

    // The user removes the module, and enables it again.
    single.apply_kyma("harbour", &json!([])).await?;
    let kyma = fleet::kyma_where(single.kymas(), "harbour", "the module to be removed", |kyma| {
        kyma.status.as_ref().is_some_and(|status| status.modules.is_empty() && status.state == State::Ready)
    });
    ensure!(kyma.await?.spec.modules.is_empty(), "the engine has written the user's list");
    single.apply_kyma("harbour", &json!([{"name": "lighthouse"}])).await?;
    single.module_is_ready("harbour").await?;

    single.delete_kyma("harbour").await?;
    // The next Kyma gets the cluster, and its events.
    single.apply_kyma("lagoon", &json!([{"name": "lighthouse"}])).await?;
    single.module_is_ready("lagoon").await?;
    // Before, a retry may restore it first.
    single.is_proven("lagoon").await?;
    single.deployment_is_restored_by_an_event("lagoon").await?;
    observed::no_panic(&single.process)
}

/// The Kyma of a Kyma cluster, `kyma-system/default`, is at once that of KCP and that of the runtime.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_cluster_has_one_kyma_and_a_second_one_waits() -> Result<()> {
    let single = Single::start("single-default", RUNTIME_NAMESPACE).await?;
    single.apply_kyma("default", &json!([{"name": "lighthouse"}])).await?;
    single.module_is_ready("default").await?;
    single.apply_kyma("second", &json!([])).await?;
    let refused = fleet::kyma_where(single.kymas(), "second", "the second Kyma to be refused", |kyma| {
        let operation = kyma.status.as_ref().and_then(|status| status.last_operation.as_ref());
        operation.is_some_and(|last| last.operation.contains("the Kyma 'default' has this cluster"))
    });
    ensure!(refused.await?.status.is_some_and(|status| status.state == State::Error), "no error");
    single.deployment_is_restored_by_an_event("default").await?;

    // Nothing of the first Kyma goes with the second.
    single.kymas().delete("second", &DeleteParams::default()).await?;
    wait::until("the second Kyma to go", SOON, || async {
        Ok(single.kymas().get_opt("second").await?.is_none().then_some(()))
    })
    .await?;
    single.module_is_ready("default").await?;

    // A waiting Kyma gets the cluster of a deleted one.
    single.apply_kyma("third", &json!([])).await?;
    single.delete_kyma("default").await?;
    fleet::kyma_in_state(&single.client, single.namespace, "third", State::Ready).await?;
    observed::no_panic(&single.process)
}
