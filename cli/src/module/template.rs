//! ModuleTemplate of a pushed version.

use anyhow::Context;
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleTemplate,
    names::{KCP_NAMESPACE, labels},
};
use tidewatch_oci::{ModulePackage, manifests_of};

pub(super) fn yaml(module: &str, package: &ModulePackage) -> anyhow::Result<String> {
    let mut template = json!({
        "apiVersion": "operator.kyma-project.io/v1beta2",
        "kind": "ModuleTemplate",
        "metadata": {
            "name": ModuleTemplate::object_name(module, &package.version),
            "namespace": KCP_NAMESPACE,
            "labels": {labels::MODULE_NAME: module},
        },
        "spec": {"moduleName": module, "version": package.version, "descriptor": {}},
    });
    if let Some(cr) = &package.default_cr {
        template["spec"]["data"] = manifests_of(cr.as_bytes(), "")?.into_iter().next().unwrap_or(Value::Null);
    }
    serde_saphyr::to_string(&template).context("the ModuleTemplate cannot be written as YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_carries_the_default_custom_resource() {
        let package = ModulePackage {
            component_name: "example.com/module/lighthouse".into(),
            version: "1.0.0".into(),
            raw_manifest: String::new(),
            default_cr: Some(
                "apiVersion: x.io/v1\nkind: Beacon\nmetadata: {name: default}\nspec: {on: true}\n".into(),
            ),
            images: Vec::new(),
            sources: Vec::new(),
        };
        let template: ModuleTemplate =
            serde_saphyr::from_str(&yaml("lighthouse", &package).unwrap()).unwrap();
        assert_eq!(template.metadata.name.as_deref(), Some("lighthouse-1.0.0"));
        assert_eq!(
            (template.spec.module_name.as_str(), template.spec.version.as_str()),
            ("lighthouse", "1.0.0")
        );
        let data = serde_json::to_value(template.spec.data.unwrap()).unwrap();
        assert_eq!((&data["kind"], &data["spec"]["on"]), (&"Beacon".into(), &true.into()));
        let plain = yaml("lighthouse", &ModulePackage { default_cr: None, ..package }).unwrap();
        assert!(!plain.contains("\n  data:"), "{plain}");
    }
}
