use super::{
    Says,
    seen::{Condition, Seen},
    text,
};

/// Ready, unless a `LoadBalancer` has no address.
pub(super) fn service(service: Seen<'_>) -> Says {
    if service.spec()["type"].as_str() != Some("LoadBalancer") {
        return Says::Ready;
    }
    let addresses = service.status()["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let told = |field: &serde_json::Value| field.as_str().is_some_and(|s| !s.is_empty());
    if addresses.clone().any(|a| told(&a["ip"]) || told(&a["hostname"])) {
        Says::Ready
    } else {
        Says::Processing("its load balancer has no address yet".into())
    }
}

/// Error: another CRD has its names.
pub(super) fn crd(crd: Seen<'_>) -> Says {
    if let Some(names) = crd.condition("NamesAccepted").filter(Condition::fails) {
        let why = text::tame(names.message);
        return Says::Error(format!("its names are not accepted ({}): {why}", text::name(names.reason)));
    }
    if crd.holds("Established") && crd.holds("NamesAccepted") {
        Says::Ready
    } else {
        Says::Processing("its kind is not served yet".into())
    }
}

pub(super) fn api_service(service: Seen<'_>) -> Says {
    match service.condition("Available") {
        Some(available) if available.holds() => Says::Ready,
        // The message differs from try to try.
        Some(available) if available.fails() && !available.reason.is_empty() => {
            Says::Processing(format!("its API is not available ({})", text::name(available.reason)))
        }
        _ => Says::Processing("its API is not available yet".into()),
    }
}
