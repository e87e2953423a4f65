//! Engine-owned objects in every runtime, besides modules.

use tidewatch_api::names;

use super::{catalog::KINDS, watches::CRD};

/// CRDs of Kyma, ModuleTemplate and ModuleReleaseMeta.
pub const CRDS: [&str; 3] = [
    "kymas.operator.kyma-project.io",
    "moduletemplates.operator.kyma-project.io",
    "modulereleasemetas.operator.kyma-project.io",
];

/// Returns whether the Kyma's reconcile prepares such an object: CRDs and namespace. No `name` means any.
#[must_use]
pub fn is_prepared(group: &str, kind: &str, name: Option<&str>) -> bool {
    match (group, kind) {
        crd if crd == CRD => name.is_none_or(|name| CRDS.contains(&name)),
        ("", "Namespace") => name.is_none_or(|name| name == names::RUNTIME_NAMESPACE),
        _ => false,
    }
}

/// Returns whether a kind belongs to the catalog.
#[must_use]
pub fn is_of_catalog(group: &str, kind: &str) -> bool {
    group == names::GROUP && KINDS.contains(&kind)
}
