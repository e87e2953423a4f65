//! Template fields that a Manifest keeps, to be complete without its ModuleTemplate.

use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crate::names::annotations;
use crate::{
    CustomStateCheck, GroupKind, GroupVersionKind, IgnoredFields, Manifest, ModuleTemplateSpec, Requires,
};

/// ModuleTemplate fields without a place in a Manifest's spec. Stored in [`annotations::MODULE_TERMS`], if any is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModuleTerms {
    /// Kinds whose user-created objects block the module's removal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub associated_resources: Vec<GroupVersionKind>,
    /// State mapping of the default custom resource, for old templates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub custom_state_check: Vec<CustomStateCheck>,
    /// Requirements for an install or change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
    /// Fields that users may change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_fields: Vec<IgnoredFields>,
    /// Kinds that may be recreated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recreate: Vec<GroupKind>,
    /// Further resources of the component with objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Location of `sources`, from the component's descriptor. Only in a Manifest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// Longest time to become ready, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// A further resource of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Layer {
    /// Name.
    pub name: String,
    /// Layer digest.
    #[serde(rename = "ref")]
    pub ref_: String,
    /// Packaging, as in `spec.install.source.type`.
    #[serde(rename = "type")]
    pub type_: String,
}

/// The annotation is unreadable. Its content is unknown, not empty.
#[derive(Debug, thiserror::Error)]
#[error(
    "the annotation {} of the Manifest cannot be read: remove it, and it is written again",
    annotations::MODULE_TERMS
)]
pub struct TermsError(#[source] serde_json::Error);

impl ModuleTerms {
    /// Terms of a template.
    pub fn of(template: &ModuleTemplateSpec) -> Self {
        Self {
            associated_resources: template.associated_resources.clone(),
            custom_state_check: template.custom_state_check.clone(),
            requires: template.requires.clone(),
            ignore_fields: template.ignore_fields.clone(),
            recreate: template.recreate.clone(),
            sources: template.sources.clone(),
            layers: Vec::new(),
            progress_deadline_seconds: template.progress_deadline_seconds,
        }
    }

    /// The annotation's value; `None` if empty.
    pub fn to_annotation(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        serde_json::to_string(self).ok()
    }
}

impl Manifest {
    /// Parses the annotation; default if absent.
    pub fn terms(&self) -> Result<ModuleTerms, TermsError> {
        match self.annotations().get(annotations::MODULE_TERMS) {
            None => Ok(ModuleTerms::default()),
            Some(text) => serde_json::from_str(text).map_err(TermsError),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(annotation: Option<&str>) -> Manifest {
        let mut manifest = Manifest::default();
        if let Some(text) = annotation {
            manifest.annotations_mut().insert(annotations::MODULE_TERMS.into(), text.into());
        }
        manifest
    }

    #[test]
    fn a_manifest_carries_its_templates_terms() {
        let template: ModuleTemplateSpec = serde_json::from_value(json!({
            "requires": {"modules": ["quay"], "apis": [{"group": "x.dev", "version": "v1", "kind": "Beam"}]},
            "ignoreFields": [{"group": "apps", "kind": "Deployment", "paths": ["/spec/replicas"]}],
            "recreate": [{"group": "batch", "kind": "Job"}],
            "sources": ["dashboards"],
            "progressDeadlineSeconds": 90,
            "associatedResources": [{"group": "x.dev", "version": "v1", "kind": "Beam"}],
        }))
        .unwrap();
        let terms = ModuleTerms::of(&template);
        assert_eq!(manifest(terms.to_annotation().as_deref()).terms().unwrap(), terms);
        assert_eq!(terms.requires.as_ref().unwrap().modules, ["quay"]);
    }

    #[test]
    fn empty_terms_are_no_annotation() {
        assert_eq!(ModuleTerms::of(&ModuleTemplateSpec::default()).to_annotation(), None);
        assert_eq!(manifest(None).terms().unwrap(), ModuleTerms::default());
    }

    #[test]
    fn unreadable_terms_are_an_error() {
        assert!(manifest(Some("{")).terms().is_err());
        assert!(manifest(Some(r#"{"ofALaterVersion": 1}"#)).terms().is_ok());
    }
}
