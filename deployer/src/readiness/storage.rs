//! Claims for storage.

use serde_json::Value;

use super::{Facts, Says, seen::Seen, text};

/// Written when a scheduler has chosen a node for the pod that uses the claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Written when a provisioner was asked for the volume.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Why there is no volume for a claim that a pod waits for, and its class as it was looked for; `None` if there is, or one is on its way.
#[must_use]
pub fn unbound(claim: &Value, class: &Value) -> Option<String> {
    match self::claim(Seen(claim), &Facts { storage_class: Some(class), ..Facts::default() }) {
        Says::Processing(why) | Says::Blocked(why) | Says::Warning(why) | Says::Error(why) => Some(why),
        Says::Ready | Says::Unknown => None,
    }
}

/// Ready: bound; or it waits, as its class wants, for a pod that uses it: then the pod's workload tells. Unknown: it is
/// pending, no volume is being made, and its class was not looked for. Error: its volume is lost.
pub(super) fn claim(claim: Seen<'_>, facts: &Facts<'_>) -> Says {
    match claim.status()["phase"].as_str() {
        Some("Bound") => return Says::Ready,
        Some("Lost") => return Says::Error("its volume is lost".into()),
        _ => {}
    }
    let annotation = |name: &str| claim.0["metadata"]["annotations"][name].is_string();
    if annotation(SELECTED_NODE) || PROVISIONER.into_iter().any(annotation) {
        return Says::Processing("its volume is being made".into());
    }
    let Some(class) = facts.storage_class else { return Says::Unknown };
    match (class["volumeBindingMode"].as_str(), claim.spec()["storageClassName"].as_str()) {
        (Some("WaitForFirstConsumer"), _) => Says::Ready,
        (_, Some(name)) if class.is_null() && !name.is_empty() => {
            Says::Processing(format!("its storage class '{}' does not exist", text::name(name)))
        }
        (_, None) if class.is_null() => {
            Says::Processing("it names no storage class, and none is the default".into())
        }
        // A class without a mode binds at once.
        _ => Says::Processing("it waits for a volume".into()),
    }
}
