use serde_json::Value;

use super::{Facts, Judgement, text, view::ObjectView};

/// Set when a scheduler has chosen a node for the claim's pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Set when a provisioner has received the request.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Returns why a claim has no volume; `None` if bound, or waiting for its first pod.
#[must_use]
pub fn unbound(claim: &Value, class: &Value) -> Option<String> {
    match self::claim(ObjectView(claim), &Facts { storage_class: Some(class), ..Facts::default() }) {
        Judgement::Processing(why)
        | Judgement::Blocked(why)
        | Judgement::Warning(why)
        | Judgement::Error(why) => Some(why),
        Judgement::Ready | Judgement::Unknown => None,
    }
}

/// Ready if its class waits for a pod: the pod's workload reports. Unknown if its class was not looked up.
pub(super) fn claim(claim: ObjectView<'_>, facts: &Facts<'_>) -> Judgement {
    match claim.status()["phase"].as_str() {
        Some("Bound") => return Judgement::Ready,
        Some("Lost") => return Judgement::Error("its volume is lost".into()),
        _ => {}
    }
    let annotation = |name: &str| claim.0["metadata"]["annotations"][name].is_string();
    if annotation(SELECTED_NODE) || PROVISIONER.into_iter().any(annotation) {
        return Judgement::Processing("its volume is being made".into());
    }
    let Some(class) = facts.storage_class else { return Judgement::Unknown };
    match (class["volumeBindingMode"].as_str(), claim.spec()["storageClassName"].as_str()) {
        (Some("WaitForFirstConsumer"), _) => Judgement::Ready,
        (_, Some(name)) if class.is_null() && !name.is_empty() => {
            Judgement::Processing(format!("its storage class '{}' does not exist", text::name(name)))
        }
        (_, None) if class.is_null() => {
            Judgement::Processing("it names no storage class, and none is the default".into())
        }
        // The default mode binds at once.
        _ => Judgement::Processing("it waits for a volume".into()),
    }
}
