//! What the engine brings to every runtime besides modules, and whose work it is to see to it.

use tidewatch_api::names;

use super::{catalog::KINDS, watches::CRD};

/// CRDs that a runtime gets, by name: those of the Kyma, its templates and its release metas.
pub const CRDS: [&str; 3] = [
    "kymas.operator.kyma-project.io",
    "moduletemplates.operator.kyma-project.io",
    "modulereleasemetas.operator.kyma-project.io",
];

/// Whether an object of a runtime, or without a name any of its kind, is brought by the Kyma's reconcile before all else: our CRDs and
/// the namespace.
#[must_use]
pub fn is_prepared(group: &str, kind: &str, name: Option<&str>) -> bool {
    match (group, kind) {
        crd if crd == CRD => name.is_none_or(|name| CRDS.contains(&name)),
        ("", "Namespace") => name.is_none_or(|name| name == names::RUNTIME_NAMESPACE),
        _ => false,
    }
}

/// Whether objects of this kind are of the catalog, as far as the engine has made them.
#[must_use]
pub fn is_of_catalog(group: &str, kind: &str) -> bool {
    group == names::GROUP && KINDS.contains(&kind)
}
