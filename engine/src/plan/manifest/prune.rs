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

/// The order of removal: custom resources first, while their operator still runs; then what makes API servers ask the module's
/// own servers, or its end would be refused with theirs; then the operator; what others need, last.
pub(crate) fn removal_rank(gvk: &Gvk) -> u8 {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => 1,
        ("apps" | "batch", _) | ("", "Pod") => 2,
        (
            "" | "networking.k8s.io" | "autoscaling" | "policy" | "discovery.k8s.io" | "scheduling.k8s.io",
            kind,
        ) if kind != "Namespace" => 3,
        ("rbac.authorization.k8s.io", _) => 4,
        CRD => 5,
        ("", "Namespace") => 6,
        _ => 0,
    }
}
