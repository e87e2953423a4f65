use tidewatch_api::object::Gvk;

pub(crate) const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

pub(crate) fn is(gvk: &Gvk, group_kind: (&str, &str)) -> bool {
    (gvk.group.as_str(), gvk.kind.as_str()) == group_kind
}
