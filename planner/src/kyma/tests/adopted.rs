//! State left by the Go manager needs no write; one test per shape.

use std::sync::Arc;

use serde_json::Value;

use super::*;
use crate::windows::Policy;

const COMPONENT: &str = "tidewatch.dev/module/lighthouse";

fn manifest() -> Value {
    let condition = |type_: &str, reason: &str, message: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": message, "observedGeneration": 1,
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let cr = json!({"apiVersion": "lighthouse.tidewatch.dev/v1alpha1", "kind": "Beacon",
        "metadata": {"name": "default", "namespace": "kyma-system"}, "spec": {"height": 40}});
    json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Manifest",
        "metadata": {
            "name": manifest_name("harbour", COMPONENT, "lighthouse"), "namespace": "kcp-system", "generation": 1, "uid": "m-uid",
            "annotations": {"operator.kyma-project.io/fqdn": COMPONENT, "operator.kyma-project.io/ocm-component-name": COMPONENT,
                            "sync-oci-ref": "sha256:aa"},
            "finalizers": ["declarative.kyma-project.io/finalizer", "label-removal-finalizer", "resource.kyma-project.io/finalizer"],
            "labels": {"operator.kyma-project.io/channel": "regular", "operator.kyma-project.io/controller-name": "",
                       "operator.kyma-project.io/kyma-name": "harbour", "operator.kyma-project.io/managed-by": "lifecycle-manager",
                       "operator.kyma-project.io/module-name": "lighthouse"},
            "ownerReferences": [{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "name": "harbour", "uid": "kyma-uid",
                                 "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"customResourcePolicy": "CreateAndDelete", "remote": false, "version": "1.0.0", "resource": cr,
                 "install": {"name": "raw-manifest", "source": {
                     "name": COMPONENT, "ref": "sha256:aa", "repo": "localhost:5000", "type": "oci-dir"}},
                 "localizedImages": ["example.local/lighthouse:1.0.0"]},
        "status": {"state": "Ready", "lastOperation": {"operation": "resources are ready", "lastUpdateTime": "2026-01-01T00:00:00Z"},
            "synced": [{"group": "apps", "version": "v1", "kind": "Deployment", "name": "lighthouse", "namespace": "lighthouse"}],
            "conditions": [condition("Resources", "ResourcesAvailable", "resources are parsed and ready for use"),
                           condition("Installation", "Ready", "installation is ready and resources can be used"),
                           condition("ModuleCR", "ModuleCRCreated", "module CR was created")]}
    })
}

fn reported() -> Value {
    let at = |kind: &str, name: &str| json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": kind, "metadata": {"name": name, "namespace": "kcp-system"}});
    let mut reported = json!({"name": "lighthouse", "channel": "regular", "version": "1.0.0", "state": "Ready", "maintenance": false,
        "fqdn": COMPONENT, "ocmComponentName": COMPONENT, "template": at("ModuleTemplate", "lighthouse-1.0.0"),
        "manifest": at("Manifest", &manifest_name("harbour", COMPONENT, "lighthouse")),
        "resource": {"apiVersion": "lighthouse.tidewatch.dev/v1alpha1", "kind": "Beacon",
                     "metadata": {"name": "default", "namespace": "kyma-system"}}});
    reported["template"]["metadata"]["generation"] = 1.into();
    reported
}

struct Found {
    manifest: Value,
    reported: Value,
    wanted: KymaSpec,
    catalog: FakeCatalog,
    windows: Option<Policy>,
}

fn found() -> Found {
    Found {
        manifest: manifest(),
        reported: reported(),
        wanted: wanted(&["lighthouse"]),
        catalog: catalog(),
        windows: None,
    }
}

impl Found {
    /// Clusters set uids.
    fn template(&mut self, change: impl FnOnce(&mut tidewatch_api::ModuleTemplate)) {
        let template = self.catalog.templates.get_mut("lighthouse-1.0.0").unwrap();
        let template = Arc::make_mut(template);
        template.metadata.uid = Some("t-uid".into());
        change(template);
    }

    fn plan(&self) -> (Plan, KymaStatus) {
        let conditions = ["CRDsSync", "Modules"].map(|type_| {
            let message = if type_ == "Modules" { "all modules are in ready state" } else { "CRDs are synchronized to the SKR" };
            json!({"type": type_, "status": "True", "reason": "Ready", "message": message, "observedGeneration": 3,
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let status = json!({"state": "Ready", "activeChannel": "regular", "conditions": conditions, "modules": [self.reported],
            "lastOperation": {"operation": "kyma is ready", "lastUpdateTime": "2026-01-01T00:00:00Z"}});
        let mut kyma = kyma();
        kyma.status = serde_json::from_value(status).unwrap();
        let manifest: Option<Manifest> = serde_json::from_value(self.manifest.clone()).unwrap();
        let (listed_modules, sources) = (choose(&self.wanted, &self.catalog, &[]), sources());
        let plan = plan(&Input {
            kyma: &kyma,
            wanted: &self.wanted,
            modules: &listed_modules,
            sources: &sources,
            manifests: manifest.as_slice(),
            facts: Facts { windows: self.windows.as_ref(), ..Facts::default() },
            // A Tuesday.
            now: "2026-03-03T12:00:00Z".parse().unwrap(),
        });
        (plan, kyma.status.unwrap())
    }

    fn stays(&self) {
        let (plan, status) = self.plan();
        assert_eq!((plan.apply, plan.delete, plan.unmanage), (vec![], vec![], vec![]));
        assert_eq!(plan.status, status);
    }
}

#[test]
fn adopts_an_installed_module() {
    let mut found = found();
    found.template(|_| ());
    found.stays();
}

#[test]
fn adopts_an_upgraded_module() {
    let mut found = found();
    found.template(|_| ());
    found.manifest["metadata"]["generation"] = 4.into();
    found.stays();
}

#[test]
fn adopts_a_ready_module_with_terms() {
    let mut found = found();
    found.template(|template| {
        let of = json!([{"group": "x.dev", "version": "v1", "kind": "Lamp"}]);
        template.spec.associated_resources = serde_json::from_value(of).unwrap();
    });
    found.manifest["metadata"]["generation"] = 4.into();
    let (plan, status) = found.plan();
    assert_eq!((plan.delete, plan.unmanage, &plan.status), (vec![], vec![], &status));
    let [written] = plan.apply.try_into().expect("the marks");
    let before: Manifest = serde_json::from_value(found.manifest.clone()).unwrap();
    assert_eq!(written.spec, before.spec);
    // An equal spec keeps the generation.
    for (key, value) in written.annotations() {
        found.manifest["metadata"]["annotations"][key] = value.clone().into();
    }
    assert_ne!(
        serde_json::from_value::<Manifest>(found.manifest.clone()).unwrap().annotations(),
        before.annotations()
    );
    found.stays();
}

/// The Go manager copies the controller's label if the template had labels then.
#[test]
fn adopts_a_module_with_changed_template_labels() {
    let mut found = found();
    found.template(|template| template.metadata.labels = None);
    found.manifest["metadata"]["labels"].as_object_mut().unwrap().remove(labels::CONTROLLER_NAME);
    found.stays();
    found.template(|template| template.metadata.labels = Some([("any".to_owned(), "x".to_owned())].into()));
    found.stays();
}

#[test]
fn adopts_a_module_with_policy_ignore() {
    let mut found = found();
    found.wanted.modules[0].custom_resource_policy = CustomResourcePolicy::Ignore;
    found.manifest["spec"]["customResourcePolicy"] = "Ignore".into();
    found.manifest["status"]["conditions"].as_array_mut().unwrap().pop();
    found.reported.as_object_mut().unwrap().remove("resource");
    found.stays();
}

#[test]
fn adopts_a_default_cr_without_namespace_and_name() {
    let mut found = found();
    found.template(|template| {
        template.annotations_mut().insert(annotations::IS_CLUSTER_SCOPED.into(), "true".into());
        template.labels_mut().insert(labels::CONTROLLER_NAME.into(), "keeper".into());
        template.spec.data.as_mut().unwrap().0["metadata"].as_object_mut().unwrap().remove("name");
    });
    let name = found.manifest["metadata"]["name"].clone();
    found.manifest["metadata"]["labels"][labels::CONTROLLER_NAME] = "keeper".into();
    found.manifest["spec"]["resource"]["metadata"]["name"] = name.clone();
    found.reported["resource"]["metadata"] = json!({"name": name, "namespace": ""});
    found.stays();
}

#[test]
fn adopts_an_unmanaged_module() {
    let mut found = found();
    found.wanted.modules[0].managed = false;
    found.manifest = Value::Null;
    found.reported["state"] = "Unmanaged".into();
    for gone in ["manifest", "template", "resource"] {
        found.reported.as_object_mut().unwrap().remove(gone);
    }
    found.stays();
    // Formerly managed.
    found.reported = reported();
    let (plan, _) = found.plan();
    let module = &plan.status.modules[0];
    assert_eq!((module.state, module.version.as_str(), &module.manifest), (State::Unmanaged, "", &None));
}

#[test]
fn adopts_a_module_waiting_for_its_window() {
    let mut found = found();
    let policy = r#"{"rules": [], "default": {"days": ["Wed"], "begin": "20:00:00Z", "end": "00:00:00Z"}}"#;
    found.windows = Some(Policy::parse(policy).unwrap());
    found.wanted.modules[0].channel = Some("fast".into());
    found.reported["channel"] = "fast".into();
    found.reported["maintenance"] = true.into();
    found.manifest["metadata"]["generation"] = 2.into();
    let template = found.catalog.templates.get_mut("lighthouse-1.1.0").unwrap();
    Arc::make_mut(template).spec.requires_downtime = Some(true);
    let (mut plan, status) = found.plan();
    assert_eq!((plan.apply, plan.delete), (vec![], vec![]));
    // Only this engine names the time.
    let message = std::mem::take(&mut Arc::make_mut(&mut plan.status.modules[0]).message);
    assert!(message.starts_with("the update to 1.1.0 needs a downtime and waits"), "{message}");
    Arc::make_mut(&mut plan.status.modules[0]).channel = "fast".into();
    assert_eq!(plan.status, status);
}
