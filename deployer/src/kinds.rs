//! Kinds with rules of their own.

use tidewatch_api::object::Gvk;

/// Group and kind of `CustomResourceDefinition`.
pub(crate) const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

/// Whether a kind has this group and kind.
pub(crate) fn is(gvk: &Gvk, group_kind: (&str, &str)) -> bool {
    (gvk.group.as_str(), gvk.kind.as_str()) == group_kind
}
