use super::{
    Judgement, text,
    view::{Condition, ObjectView},
};

/// Ready, unless a `LoadBalancer` has no address.
pub(super) fn service(service: ObjectView<'_>) -> Judgement {
    if service.spec()["type"].as_str() != Some("LoadBalancer") {
        return Judgement::Ready;
    }
    let addresses = service.status()["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let is_set = |field: &serde_json::Value| field.as_str().is_some_and(|s| !s.is_empty());
    if addresses.clone().any(|a| is_set(&a["ip"]) || is_set(&a["hostname"])) {
        Judgement::Ready
    } else {
        Judgement::Processing("its load balancer has no address yet".into())
    }
}

/// Error: another CRD has its names.
pub(super) fn crd(crd: ObjectView<'_>) -> Judgement {
    if let Some(names) = crd.condition("NamesAccepted").filter(Condition::fails) {
        let why = text::masked(names.message);
        return Judgement::Error(format!("its names are not accepted ({}): {why}", text::name(names.reason)));
    }
    if crd.holds("Established") && crd.holds("NamesAccepted") {
        Judgement::Ready
    } else {
        Judgement::Processing("its kind is not served yet".into())
    }
}

pub(super) fn api_service(service: ObjectView<'_>) -> Judgement {
    match service.condition("Available") {
        Some(available) if available.holds() => Judgement::Ready,
        // The message differs from try to try.
        Some(available) if available.fails() && !available.reason.is_empty() => {
            Judgement::Processing(format!("its API is not available ({})", text::name(available.reason)))
        }
        _ => Judgement::Processing("its API is not available yet".into()),
    }
}
