//! Test modules of arbitrary objects, pushed and released in one call.

use anyhow::Result;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleReleaseMeta, ModuleTemplate,
    names::{API_VERSION, labels},
};
use tidewatch_oci::{Credentials, ModulePackage, Pushed, Registry, RegistryConfig, push};

use crate::kcp;

/// Field manager of these writes.
const MANAGER: &str = "tidewatch-tests";

/// One version of a module.
#[derive(Clone, Debug)]
pub struct Version {
    /// The module.
    pub module: String,
    /// Its version.
    pub version: String,
    /// The objects it installs.
    pub objects: Vec<Value>,
    /// Its image references.
    pub images: Vec<String>,
    /// Further component resources and their objects.
    pub sources: Vec<(String, Vec<Value>)>,
    /// User and password for the push.
    pub pushed_by: Option<(String, String)>,
    /// The channels of this version.
    pub channels: Vec<String>,
    /// Additional template labels.
    pub labels: Value,
    /// Additional template spec: `data`, `requires`, `associatedResources` etc.
    pub template: Value,
    /// Additional release spec: `versions`, `allowDowngrade`, `kymaSelector` etc.
    pub release: Value,
}

impl Version {
    /// Creates a version for the channel `regular`.
    pub fn new(module: &str, version: &str, objects: Vec<Value>) -> Self {
        Self {
            module: module.to_owned(),
            version: version.to_owned(),
            objects,
            images: Vec::new(),
            sources: Vec::new(),
            pushed_by: None,
            channels: vec!["regular".to_owned()],
            labels: json!({}),
            template: json!({}),
            release: json!({}),
        }
    }

    /// Returns the package to push.
    #[must_use]
    pub fn package(&self) -> ModulePackage {
        ModulePackage {
            component_name: kcp::component(&self.module),
            version: self.version.clone(),
            raw_manifest: documents(&self.objects),
            default_cr: None,
            images: self.images.clone(),
            sources: self.sources.iter().map(|(name, objects)| (name.clone(), documents(objects))).collect(),
        }
    }

    /// Pushes the component.
    pub async fn push(&self, registry: &str) -> Result<Pushed> {
        let package = self.package();
        let mut config = RegistryConfig::default();
        if let Some((username, password)) = self.pushed_by.clone() {
            let host = registry.split('/').next().unwrap_or_default().to_owned();
            config.credentials.insert(host, Credentials::Basic { username, password });
        }
        Ok(push(&Registry::new(config)?, registry, &package).await?)
    }

    /// Pushes the component, applies the template and releases it. Removes the release's other channels
    /// unless `release` names them. A mandatory module has no channels.
    pub async fn offer(&self, kcp: &Client, namespace: &str, registry: &str) -> Result<()> {
        self.push(registry).await?;
        self.release(kcp, namespace).await
    }

    /// Applies template and release of an already pushed component.
    pub async fn release(&self, kcp: &Client, namespace: &str) -> Result<()> {
        let name = ModuleTemplate::object_name(&self.module, &self.version);
        let mut template = json!({
            "apiVersion": API_VERSION, "kind": "ModuleTemplate",
            "metadata": {"name": name, "labels": {labels::MODULE_NAME: self.module}},
            "spec": {"moduleName": self.module, "version": self.version, "descriptor": {}}
        });
        extend(&mut template["metadata"]["labels"], &self.labels);
        extend(&mut template["spec"], &self.template);
        let params = PatchParams::apply(MANAGER).force();
        let api: Api<ModuleTemplate> = Api::namespaced(kcp.clone(), namespace);
        api.patch(&name, &params, &Patch::Apply(template)).await?;

        let channels: Vec<Value> =
            self.channels.iter().map(|c| json!({"channel": c, "version": self.version})).collect();
        let mut release = json!({
            "apiVersion": API_VERSION, "kind": "ModuleReleaseMeta",
            "metadata": {"name": self.module},
            "spec": {"moduleName": self.module, "ocmComponentName": kcp::component(&self.module)}
        });
        if self.release["mandatory"].is_null() {
            release["spec"]["channels"] = channels.into();
        }
        extend(&mut release["spec"], &self.release);
        let api: Api<ModuleReleaseMeta> = Api::namespaced(kcp.clone(), namespace);
        api.patch(&self.module, &params, &Patch::Apply(release)).await?;
        Ok(())
    }
}

fn documents(objects: &[Value]) -> String {
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    documents.join("\n---\n")
}

/// Merges `more` into `spec`; `more` wins.
fn extend(spec: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extending_a_spec_replaces_present_fields() {
        let mut spec = json!({"channels": [1], "moduleName": "m"});
        extend(&mut spec, &json!({"channels": [2], "allowDowngrade": true}));
        assert_eq!(spec, json!({"channels": [2], "moduleName": "m", "allowDowngrade": true}));
    }
}
