//! Resource requests and `qosClass` of pods, not templates.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use super::{defaults::each, validation::quantity::Quantity};
use crate::object::meta::as_object;

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// Limits are the default requests.
pub(super) fn request_limits(spec: &mut Map<String, Value>) {
    for list in CONTAINERS {
        for container in each(spec, list) {
            let Some(Value::Object(resources)) = container.get_mut("resources") else { continue };
            let Some(Value::Object(limits)) = resources.get("limits").cloned() else { continue };
            let requests = as_object(resources.entry("requests").or_insert_with(|| json!({})));
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
}

/// `Guaranteed` if requests equal limits.
pub(super) fn class(spec: &Map<String, Value>) -> &'static str {
    let containers = CONTAINERS.iter().filter_map(|list| spec.get(*list)?.as_array()).flatten();
    let (mut asks, mut is_sure) = (false, true);
    for container in containers {
        let of = |list: &str, name: &str| {
            let quantity = container.pointer(&format!("/resources/{list}/{name}")).and_then(Quantity::of);
            quantity.filter(|quantity| quantity.is_positive())
        };
        for name in ["cpu", "memory"] {
            let (request, limit) = (of("requests", name), of("limits", name));
            asks |= request.or(limit).is_some();
            is_sure &=
                request.zip(limit).is_some_and(|(request, limit)| request.cmp(limit) == Ordering::Equal);
        }
    }
    match (asks, is_sure) {
        (false, _) => "BestEffort",
        (true, false) => "Burstable",
        (true, true) => "Guaranteed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_qos_class_follows_all_containers_resources() {
        let of = |resources: &[Value]| {
            let containers: Vec<Value> = resources.iter().map(|one| json!({"resources": one})).collect();
            class(json!({"containers": containers}).as_object().unwrap())
        };
        let [none, all] = [json!({}), json!({"cpu": "1", "memory": "1Gi"})];
        let sure = json!({"requests": all, "limits": all});
        assert_eq!(of(&[none.clone(), json!({"requests": {"nvidia.com/gpu": "1"}})]), "BestEffort");
        assert_eq!(of(&[json!({"requests": {"cpu": "0"}})]), "BestEffort");
        assert_eq!(of(std::slice::from_ref(&sure)), "Guaranteed");
        assert_eq!(of(&[sure.clone(), none]), "Burstable");
        assert_eq!(of(&[json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": all})]), "Burstable");
        assert_eq!(of(&[json!({"limits": {"cpu": "1"}})]), "Burstable");
    }
}
