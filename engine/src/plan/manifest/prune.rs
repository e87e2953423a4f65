//! What goes, and in which order.

use std::collections::HashSet;

use tidewatch_api::names;

use super::{CRD, is};
use crate::plan::object::{Gvk, ObjectRef};

/// What is in the inventory and not wanted any more, in the order in which it should go. The namespace
/// `kyma-system` is never pruned (contract, section 5.3).
#[must_use]
pub fn prune(inventory: &[ObjectRef], wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    let wanted: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    let mut gone: Vec<ObjectRef> = inventory
        .iter()
        .filter(|o| !wanted.contains(&o.identity()))
        .filter(|o| !(is(&o.gvk, ("", "Namespace")) && o.name == names::RUNTIME_NAMESPACE))
        .cloned()
        .collect();
    gone.sort_by_key(|o| removal_rank(&o.gvk));
    gone
}

/// The order of removal: custom resources first, while their operator still runs; then the operator; what others need, last.
pub(crate) fn removal_rank(gvk: &Gvk) -> u8 {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps" | "batch", _) | ("", "Pod") => 1,
        ("" | "networking.k8s.io" | "autoscaling" | "policy" | "discovery.k8s.io", kind)
            if kind != "Namespace" =>
        {
            2
        }
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io" | "scheduling.k8s.io", _) => 2,
        ("rbac.authorization.k8s.io", _) => 3,
        CRD => 4,
        ("", "Namespace") => 5,
        _ => 0,
    }
}
