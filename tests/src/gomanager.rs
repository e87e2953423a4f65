//! Replays the Go lifecycle manager's writes for one Kyma with one upgraded, Ready module.
//!
//! The writes use its order and field managers in both clusters, so API servers store identical objects. A
//! second replay simulates a Go manager that continues.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, GroupVersionKind, TypeMeta},
    discovery::ApiResource,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, crds,
    names::{
        API_VERSION, GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION, annotations, field_managers,
        finalizers, labels,
    },
};
use tidewatch_deployer::transform::DISCLAIMER;
use tidewatch_planner::naming::manifest_name;

use crate::{fleet, kcp, modules::Version, wait};

mod watcher;

pub use watcher::{watcher, watcher_in};

const SOON: Duration = Duration::from_mins(1);
/// Its field manager of updates: the program's name.
pub const UPDATER: &str = "manager";
/// Time of its last status.
const THEN: &str = "2026-01-01T00:00:00Z";
/// Its leader election Lease.
pub const LEASE: &str = "893110f7.kyma-project.io";
/// The module version before the upgrade.
const BEFORE: &str = "0.9.0";
/// CRDs that it maintains in a runtime.
const CRDS: [&str; 3] = [
    "kymas.operator.kyma-project.io",
    "moduletemplates.operator.kyma-project.io",
    "modulereleasemetas.operator.kyma-project.io",
];

/// A Kyma of the Go manager.
pub struct GoManager<'a> {
    /// KCP.
    pub kcp: Client,
    /// The runtime.
    pub runtime: Client,
    /// The namespace in KCP.
    pub namespace: &'a str,
    /// The Kyma's name.
    pub kyma: &'a str,
    /// The registry of modules.
    pub registry: String,
    /// The module.
    pub module: Version,
}

/// Returns a small module: namespace, manager, settings, Secret, RBAC, a CRD and a default CR.
pub fn module(name: &str, version: &str) -> Version {
    let (app, group) = (json!({"app": name}), format!("{name}.example.test"));
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut module = Version::new(
        name,
        version,
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("quays.{group}")},
                   "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Quay", "plural": "quays", "singular": "quay"},
                            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": name}}),
            json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": name},
                   "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
            json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": name},
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                   "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": name}]}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": name}, "data": {"level": "info"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pass", "namespace": name}, "data": {"word": "YQ=="}}),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": name},
                   "spec": {"replicas": 0, "selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": {
                       "serviceAccountName": name,
                       "containers": [{"name": "main", "image": format!("example.test/{name}:{version}"), "args": ["-v"]}]}}}}),
        ],
    );
    module.images = vec![format!("example.test/{name}:{version}")];
    let cr = json!({"apiVersion": format!("{group}/v1"), "kind": "Quay", "metadata": {"name": "one"}, "spec": {"berths": 3}});
    module.template = json!({"data": cr, "requiresDowntime": false});
    module
}

fn api(client: &Client, object: &Value) -> Result<(Api<DynamicObject>, String)> {
    let gvk = GroupVersionKind::try_from(serde_json::from_value::<TypeMeta>(object.clone())?)?;
    let resource = if gvk.kind == "NetworkPolicy" {
        ApiResource::from_gvk_with_plural(&gvk, "networkpolicies")
    } else {
        ApiResource::from_gvk(&gvk)
    };
    let name = object["metadata"]["name"].as_str().context("an object without a name")?.to_owned();
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, name))
}

async fn apply(client: &Client, manager: &str, object: &Value) -> Result<DynamicObject> {
    let (api, name) = api(client, object)?;
    let applied = api.patch(&name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await;
    applied.with_context(|| format!("{manager} applies {name}"))
}

async fn apply_status(client: &Client, manager: &str, object: &Value) -> Result<()> {
    let (api, name) = api(client, object)?;
    let applied = api.patch_status(&name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await;
    applied.with_context(|| format!("{manager} applies the status of {name}")).map(drop)
}

/// Updates fields; skips unchanged objects.
async fn update(client: &Client, manager: &str, object: &Value) -> Result<()> {
    let (api, name) = api(client, object)?;
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    let updated = api.patch(&name, &params, &Patch::Merge(object)).await;
    updated.with_context(|| format!("{manager} updates {name}")).map(drop)
}

/// Creates an object with an update, if absent.
async fn create(client: &Client, manager: &str, object: &Value) -> Result<()> {
    let (api, name) = api(client, object)?;
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    match api.create(&params, &serde_json::from_value(object.clone())?).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{manager} creates {name}")),
    }
}

fn condition(type_: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": message, "observedGeneration": 1,
           "lastTransitionTime": THEN})
}

impl GoManager<'_> {
    /// Returns the Manifest's name.
    pub fn manifest(&self) -> String {
        manifest_name(self.kyma, &self.component(), &self.module.module)
    }

    fn component(&self) -> String {
        kcp::component(&self.module.module)
    }

    fn template(&self) -> String {
        format!("{}-{}", self.module.module, self.module.version)
    }

    /// Returns the applied objects without the default CR.
    pub fn objects(&self) -> Vec<Value> {
        let marks = |object: &Value| {
            let mut object = object.clone();
            object["metadata"]["labels"] = json!({labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME,
                labels::COMPONENT: self.manifest(), labels::PART_OF: labels::PART_OF_KYMA});
            object["metadata"]["annotations"] = json!({annotations::OWNED_BY: format!("{}/{}", self.namespace, self.manifest()),
                annotations::MANAGED_DISCLAIMER: DISCLAIMER});
            object
        };
        self.module.objects.iter().map(marks).collect()
    }

    /// Returns the default CR.
    pub fn default_cr(&self) -> Value {
        let mut cr = self.module.template["data"].clone();
        cr["metadata"]["namespace"] = RUNTIME_NAMESPACE.into();
        cr
    }

    /// Returns the runtime's catalog.
    pub fn catalog(&self) -> [Value; 2] {
        let mut spec = json!({"moduleName": self.module.module, "version": self.module.version, "descriptor": {},
                              "channel": "", "mandatory": false});
        for (key, value) in self.module.template.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        // Includes kubectl's annotation from KCP.
        let note = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}\n"});
        let object = |kind: &str, name: &str, mut marks: Value, spec: Value| {
            marks[labels::MANAGED_BY] = labels::MANAGED_BY_RUNTIME.into();
            json!({"apiVersion": API_VERSION, "kind": kind, "spec": spec, "metadata": {
                "name": name, "namespace": RUNTIME_NAMESPACE, "labels": marks, "annotations": note}})
        };
        let channels: Vec<Value> = self
            .module
            .channels
            .iter()
            .map(|c| json!({"channel": c, "version": self.module.version}))
            .collect();
        let release = json!({"moduleName": self.module.module, "ocmComponentName": self.component(), "beta": false,
                             "internal": false, "channels": channels});
        let label = json!({labels::MODULE_NAME: self.module.module});
        [
            object("ModuleTemplate", &self.template(), label, spec),
            object("ModuleReleaseMeta", &self.module.module, json!({}), release),
        ]
    }

    /// Makes all writes until Kyma and module are Ready in both clusters. `kubeconfig` is the runtime's.
    pub async fn works(&self, kubeconfig: &str) -> Result<()> {
        self.module.offer(&self.kcp, self.namespace, &self.registry).await?;
        let layer = self.module.push(&self.registry).await?.raw_manifest_digest.to_string();
        fleet::put_kubeconfig(&self.kcp, self.namespace, self.kyma, kubeconfig).await?;
        let owner = self.register().await?;
        self.prepare_runtime().await?;
        if self.is_new().await? {
            // The upgraded Manifest keeps the first generation's conditions.
            let before = format!("sha256:{}", "0".repeat(64));
            self.put_manifest(&owner, BEFORE, &before).await?;
            self.say_ready(&before).await?;
        }
        self.put_manifest(&owner, &self.module.version, &layer).await?;
        self.install().await?;
        self.say_ready(&layer).await?;
        for object in self.catalog() {
            apply(&self.runtime, field_managers::CATALOG_SYNC, &object).await?;
        }
        for object in watcher() {
            apply(&self.runtime, field_managers::KCP, &object).await?;
        }
        self.say_kyma_ready().await
    }

    async fn is_new(&self) -> Result<bool> {
        let manifests = Api::<Manifest>::namespaced(self.kcp.clone(), self.namespace);
        Ok(manifests.get_opt(&self.manifest()).await?.is_none())
    }

    /// The user's Kyma in KCP with the Go manager's additions.
    async fn register(&self) -> Result<OwnerReference> {
        let metadata = json!({"name": self.kyma, "namespace": self.namespace});
        let mut kyma = json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": metadata, "spec": {"channel": "regular"}});
        kyma["metadata"]["labels"] = json!({labels::RUNTIME_ID: self.kyma, labels::INSTANCE_ID: "i-1"});
        kyma["metadata"]["annotations"] =
            json!({annotations::SKR_DOMAIN: tidewatch_demo::fleet::domain(self.kyma)});
        create(&self.kcp, "kubectl-client-side-apply", &kyma).await?;
        let mut added = json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": metadata});
        added["metadata"]["finalizers"] = json!([finalizers::KYMA]);
        added["metadata"]["labels"] = json!({labels::MANAGED_BY: labels::MANAGED_BY_KCP});
        update(&self.kcp, UPDATER, &added).await?;
        let watcher = json!({"apiVersion": API_VERSION, "kind": "Watcher", "spec": {
                "serviceInfo": {"name": "klm-controller-manager-events", "namespace": "kcp-system", "port": 8082},
                "manager": "lifecycle-manager", "labelsToWatch": {labels::WATCHED_BY: labels::WATCHED_BY_KYMA}, "field": "spec",
                "resourceToWatch": {"group": GROUP, "version": "*", "resource": "kymas"},
                "gateway": {"selector": {"matchLabels": {labels::WATCHER_GATEWAY: labels::WATCHER_GATEWAY_DEFAULT}}}},
            "metadata": {"name": "go-watcher", "namespace": self.namespace, "labels": {labels::MANAGED_BY: labels::MANAGED_BY_KCP}}});
        apply(&self.kcp, "kubectl", &watcher).await?;
        let uid = Api::<Kyma>::namespaced(self.kcp.clone(), self.namespace).get(self.kyma).await?.uid();
        Ok(OwnerReference {
            api_version: API_VERSION.into(),
            kind: "Kyma".into(),
            name: self.kyma.into(),
            uid: uid.context("the Kyma has no uid")?,
            controller: Some(true),
            block_owner_deletion: Some(true),
        })
    }

    /// Creates the runtime's namespace, CRDs and Kyma with its module list.
    async fn prepare_runtime(&self) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE, "labels": {
            labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME, labels::ISTIO_INJECTION: labels::ENABLED,
            labels::WARDEN_VALIDATE: labels::ENABLED}}});
        apply(&self.runtime, field_managers::KYMA_SYNC, &namespace).await?;
        for name in CRDS {
            // Includes the API server's defaults.
            let crd = crds::all().into_iter().find(|crd| crd.name_any() == name).context("no such CRD")?;
            let mut body = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": name, "labels": {labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME}},
                "spec": serde_json::to_value(&crd.spec)?});
            body["spec"]["conversion"] = json!({"strategy": "None"});
            apply(&self.runtime, field_managers::KCP, &body).await?;
            established(&self.runtime, &body).await?;
        }
        let metadata = json!({"name": RUNTIME_KYMA_NAME, "namespace": RUNTIME_NAMESPACE});
        let kyma = json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": metadata, "spec": {"channel": "regular"}});
        create(&self.runtime, UPDATER, &kyma).await?;
        let mut marked = json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": metadata});
        marked["metadata"]["labels"] = json!({labels::WATCHED_BY: labels::WATCHED_BY_KYMA,
            labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME, labels::RUNTIME_ID: self.kyma});
        marked["metadata"]["annotations"] =
            json!({annotations::OWNED_BY: format!("{}/{}", self.namespace, self.kyma)});
        apply(&self.runtime, field_managers::KYMA_SYNC, &marked).await?;
        let wish = json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": metadata, "spec": {"modules": [
            {"name": self.module.module, "managed": true, "customResourcePolicy": "CreateAndDelete"}]}});
        update(&self.runtime, "kubectl-patch", &wish).await
    }

    async fn put_manifest(&self, owner: &OwnerReference, version: &str, layer: &str) -> Result<()> {
        let component = self.component();
        let metadata = json!({"name": self.manifest(), "namespace": self.namespace});
        let mut manifest = json!({"apiVersion": API_VERSION, "kind": "Manifest", "metadata": metadata, "spec": {
            "customResourcePolicy": "CreateAndDelete", "remote": false, "version": version,
            "install": {"name": "raw-manifest", "source": {
                "name": component, "repo": self.registry, "ref": layer, "type": "oci-dir"}},
            "localizedImages": self.module.images, "resource": self.default_cr()}});
        manifest["metadata"]["labels"] = json!({labels::CHANNEL: "regular", labels::CONTROLLER_NAME: "",
            labels::KYMA_NAME: self.kyma, labels::MANAGED_BY: labels::MANAGED_BY_KCP, labels::MODULE_NAME: self.module.module});
        manifest["metadata"]["annotations"] =
            json!({annotations::FQDN: component, annotations::OCM_COMPONENT_NAME: component});
        manifest["metadata"]["ownerReferences"] = json!([owner]);
        apply(&self.kcp, field_managers::KCP, &manifest).await?;
        manifest["metadata"]["finalizers"] = json!([finalizers::MANIFEST, finalizers::LABEL_REMOVAL]);
        apply(&self.kcp, field_managers::APPLIER, &manifest).await?;
        let mut held = json!({"apiVersion": API_VERSION, "kind": "Manifest", "metadata": metadata});
        held["metadata"]["finalizers"] =
            json!([finalizers::MANIFEST, finalizers::LABEL_REMOVAL, finalizers::DEFAULT_CR]);
        apply(&self.kcp, field_managers::DEFAULT_CR, &held).await?;
        let mut noted = json!({"apiVersion": API_VERSION, "kind": "Manifest", "metadata": metadata});
        noted["metadata"]["annotations"] = json!({annotations::SYNC_OCI_REF: layer});
        update(&self.kcp, UPDATER, &noted).await
    }

    async fn install(&self) -> Result<()> {
        for object in self.objects() {
            apply(&self.runtime, field_managers::APPLIER, &object).await?;
            if object["kind"] == "CustomResourceDefinition" {
                established(&self.runtime, &object).await?;
            }
        }
        for object in self.objects().iter().filter(|object| object["kind"] == "Deployment") {
            let (api, name) = api(&self.runtime, object)?;
            wait::until("the module's Deployment to be available", SOON, || async {
                let conditions = api.get(&name).await?.data["status"]["conditions"].clone();
                let all = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
                Ok(all.iter().any(|c| c["type"] == "Available" && c["status"] == "True").then_some(()))
            })
            .await?;
        }
        create(&self.runtime, field_managers::DEFAULT_CR, &self.default_cr()).await
    }

    async fn say_ready(&self, layer: &str) -> Result<()> {
        ensure!(layer.starts_with("sha256:"), "{layer}");
        // The Go manager's order differs from the manifest's.
        let mut synced: Vec<Value> = self
            .objects()
            .iter()
            .map(|object| {
                let (group, version) = object["apiVersion"]
                    .as_str()
                    .and_then(|v| v.split_once('/'))
                    .unwrap_or(("", "v1"));
                json!({"group": group, "version": version, "kind": object["kind"], "name": object["metadata"]["name"],
                       "namespace": object["metadata"]["namespace"].as_str().unwrap_or_default()})
            })
            .collect();
        synced.reverse();
        let status = json!({"state": "Ready", "synced": synced, "conditions": [
                condition("Resources", "ResourcesAvailable", "resources are parsed and ready for use"),
                condition("Installation", "Ready", "installation is ready and resources can be used"),
                condition("ModuleCR", "ModuleCRCreated", "module CR was created")],
            "lastOperation": {"operation": "resources are ready", "lastUpdateTime": THEN}});
        let body = json!({"apiVersion": API_VERSION, "kind": "Manifest", "status": status,
                          "metadata": {"name": self.manifest(), "namespace": self.namespace}});
        apply_status(&self.kcp, field_managers::APPLIER, &body).await
    }

    /// Writes both Kymas' status: applied in KCP, updated in the runtime.
    async fn say_kyma_ready(&self) -> Result<()> {
        let cr = self.default_cr();
        let tracked = |kind: &str, metadata: Value| json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata});
        let status = |namespace: &str| {
            json!({"state": "Ready", "activeChannel": "regular", "conditions": [
                    condition("CRDsSync", "Ready", "CRDs are synchronized to the SKR"),
                    condition("Modules", "Ready", "all modules are in ready state"),
                    condition("ModuleCatalog", "Ready", "module templates are synchronized"),
                    condition("SKRWebhook", "Ready", "skrwebhook is synchronized")],
                "lastOperation": {"operation": "kyma is ready", "lastUpdateTime": THEN},
                "modules": [{
                    "name": self.module.module, "channel": "regular", "version": self.module.version, "state": "Ready",
                    "fqdn": self.component(), "ocmComponentName": self.component(), "maintenance": false,
                    "resource": {"apiVersion": cr["apiVersion"], "kind": cr["kind"],
                                 "metadata": {"name": cr["metadata"]["name"], "namespace": cr["metadata"]["namespace"]}},
                    "template": tracked("ModuleTemplate", json!({"name": self.template(), "namespace": namespace, "generation": 1}))}]})
        };
        let mut in_kcp = json!({"apiVersion": API_VERSION, "kind": "Kyma", "status": status(self.namespace),
                                "metadata": {"name": self.kyma, "namespace": self.namespace}});
        in_kcp["status"]["modules"][0]["manifest"] =
            tracked("Manifest", json!({"name": self.manifest(), "namespace": self.namespace}));
        apply_status(&self.kcp, field_managers::KCP, &in_kcp).await?;
        let remote = json!({"apiVersion": API_VERSION, "kind": "Kyma",
                            "metadata": {"name": RUNTIME_KYMA_NAME, "namespace": RUNTIME_NAMESPACE}});
        let (api, name) = api(&self.runtime, &remote)?;
        let mut there = api.get(&name).await?;
        there.data["status"] = status(RUNTIME_NAMESPACE);
        there.metadata.managed_fields = None;
        let params = PostParams { field_manager: Some(UPDATER.to_owned()), ..PostParams::default() };
        api.replace_status(&name, &params, &there).await.context("the status of the runtime's Kyma")?;
        Ok(())
    }
}

/// Returns the live object.
pub async fn live(client: &Client, object: &Value) -> Result<DynamicObject> {
    let (api, name) = api(client, object)?;
    api.get(&name).await.with_context(|| format!("{} {name}", object["kind"]))
}

/// Writes the Go manager's last Lease renewal.
pub async fn leads(kcp: &Client, namespace: &str) -> Result<()> {
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": LEASE}, "spec": {
        "holderIdentity": "manager-0_a", "leaseDurationSeconds": 8, "leaseTransitions": 4, "renewTime": "2020-01-01T00:00:00.000000Z"}}))?;
    Api::<Lease>::namespaced(kcp.clone(), namespace).create(&PostParams::default(), &lease).await?;
    Ok(())
}

/// Removes the engine's objects of other tests from a runtime.
pub async fn clean(runtime: &Client) -> Result<()> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut left = vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tidewatch-agent-config", "namespace": RUNTIME_NAMESPACE}}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "tidewatch-agent-watches"}}),
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "tidewatch-agent-watches"}}),
    ];
    left.extend(watcher());
    left.extend(CRDS.map(|name| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}})));
    for object in &left {
        let (api, name) = api(runtime, object)?;
        match api.delete(&name, &DeleteParams::background()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
    }
    for object in &left {
        let (api, name) = api(runtime, object)?;
        wait::until(&format!("{name} to be gone"), SOON, || async {
            Ok(api.get_opt(&name).await?.is_none().then_some(()))
        })
        .await?;
    }
    // Other appliers' fields of the namespace are not the Go manager's.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE, "managedFields": [{}]}});
    let (api, name) = api(runtime, &namespace)?;
    if api.get_opt(&name).await?.is_some() {
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&namespace)).await?;
    }
    Ok(())
}

async fn established(client: &Client, crd: &Value) -> Result<()> {
    let (api, name) = api(client, crd)?;
    wait::until(&format!("{name} to be established"), SOON, || async {
        let conditions = api.get(&name).await?.data["status"]["conditions"].clone();
        let all = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(all.iter().any(|c| c["type"] == "Established" && c["status"] == "True").then_some(()))
    })
    .await
}

/// Returns the `fieldsV1` paths with several owners among the entries that `counts`.
pub fn shared_fields(object: &DynamicObject, counts: impl Fn(&Value) -> bool) -> Vec<String> {
    let entries = serde_json::to_value(&object.metadata.managed_fields).unwrap_or_default();
    let mut owners = std::collections::BTreeMap::<String, usize>::new();
    for entry in entries.as_array().into_iter().flatten().filter(|entry| counts(entry)) {
        leaves("", &entry["fieldsV1"], &mut |leaf| *owners.entry(leaf).or_default() += 1);
    }
    owners.into_iter().filter(|(_, count)| *count > 1).map(|(leaf, _)| leaf).collect()
}

fn leaves(at: &str, fields: &Value, found: &mut impl FnMut(String)) {
    let Some(members) = fields.as_object() else { return };
    let below: Vec<_> = members.iter().filter(|(key, _)| *key != ".").collect();
    if below.is_empty() {
        found(at.to_owned());
    }
    for (key, value) in below {
        leaves(&format!("{at}/{key}"), value, found);
    }
}

/// Returns a Kyma reference for [`live`].
pub fn kyma_in_runtime() -> Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Kyma",
           "metadata": {"name": RUNTIME_KYMA_NAME, "namespace": RUNTIME_NAMESPACE}})
}
