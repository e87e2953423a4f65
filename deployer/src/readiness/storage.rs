use serde_json::Value;

use super::{Facts, Says, seen::Seen, text};

/// Set when a scheduler has chosen a node for the claim's pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Set when a provisioner has received the request.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Returns why a claim has no volume; `None` if bound, or waiting for its first pod.
#[must_use]
pub fn unbound(claim: &Value, class: &Value) -> Option<String> {
    match self::claim(Seen(claim), &Facts { storage_class: Some(class), ..Facts::default() }) {
        Says::Processing(why) | Says::Blocked(why) | Says::Warning(why) | Says::Error(why) => Some(why),
        Says::Ready | Says::Unknown => None,
    }
}

/// Ready if its class waits for a pod: the pod's workload reports. Unknown if its class was not looked up.
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
        // The default mode binds at once.
        _ => Says::Processing("it waits for a volume".into()),
    }
}
