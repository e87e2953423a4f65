//! What a Manifest keeps of its ModuleTemplate, so that it is complete when that is gone.

use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crate::names::annotations;
use crate::{
    CustomStateCheck, GroupKind, GroupVersionKind, IgnoredFields, Manifest, ModuleTemplateSpec, Requires,
};

/// What a ModuleTemplate says besides what a Manifest's spec has room for. Kept in the annotation
/// [`annotations::MODULE_TERMS`], which is not there if there is nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModuleTerms {
    /// Kinds whose objects a user makes with the module; they hold back its removal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub associated_resources: Vec<GroupVersionKind>,
    /// How the state is read from the default custom resource, for old templates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub custom_state_check: Vec<CustomStateCheck>,
    /// What has to be there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
    /// Fields that users may change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_fields: Vec<IgnoredFields>,
    /// Kinds whose objects may be deleted and made anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recreate: Vec<GroupKind>,
    /// Further resources of the component with objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Where `sources` are, as the component's descriptor says. Only in a Manifest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// How long it may take to become ready, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// A further resource of a component, in its repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Layer {
    /// Name of the resource.
    pub name: String,
    /// Digest of the layer.
    #[serde(rename = "ref")]
    pub ref_: String,
    /// How it is packed, in the words of `spec.install.source.type`.
    #[serde(rename = "type")]
    pub type_: String,
}

/// The annotation cannot be read. What it said is not known, which is not the same as nothing.
#[derive(Debug, thiserror::Error)]
#[error(
    "the annotation {} of the Manifest cannot be read: remove it, and it is written again",
    annotations::MODULE_TERMS
)]
pub struct TermsError(#[source] serde_json::Error);

impl ModuleTerms {
    /// What a template says.
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

    /// The annotation's value; `None` if there is nothing to say.
    pub fn to_annotation(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        // Strings, numbers and lists of them: nothing that could fail.
        serde_json::to_string(self).ok()
    }
}

impl Manifest {
    /// What the Manifest keeps of its template; nothing if it has no such annotation.
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
    fn a_manifest_keeps_what_its_template_says() {
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
    fn nothing_said_is_no_annotation() {
        assert_eq!(ModuleTerms::of(&ModuleTemplateSpec::default()).to_annotation(), None);
        assert_eq!(manifest(None).terms().unwrap(), ModuleTerms::default());
    }

    #[test]
    fn what_cannot_be_read_is_not_nothing() {
        assert!(manifest(Some("{")).terms().is_err());
        assert!(manifest(Some(r#"{"ofALaterVersion": 1}"#)).terms().is_ok());
    }
}
