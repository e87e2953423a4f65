use super::*;

#[test]
fn every_kind_reports_readiness_and_its_cause() {
    let cases: Vec<Value> = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for case in &cases {
        let (name, mut object) = (&case["case"], case["object"].clone());
        if object["metadata"].is_null() {
            object["metadata"] = json!({"name": "x"});
        } else if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = "x".into();
        }
        let pods = case["pods"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let claims: Vec<_> = case["claims"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| {
                Some((text(&one["claim"]["metadata"]["name"]), unbound(&one["claim"], &one["class"])?))
            })
            .collect();
        let facts = Facts {
            pods: &pods,
            claims: &claims,
            refused: case["refused"].as_str(),
            storage_class: case.get("storageClass"),
            not_ready_since: Some(at(0)),
            ..Facts::default()
        };
        let message = match readiness(&object, &facts, at(1)) {
            ObjectReadiness::Ready => "Ready".to_owned(),
            ObjectReadiness::Unknown => "Unknown".to_owned(),
            ObjectReadiness::Processing { cause } => format!("Processing, {}", cause.text),
            ObjectReadiness::Warning { cause } => format!("Warning, {}", cause.text),
            ObjectReadiness::Error { cause } => format!("Error, {}", cause.text),
        };
        assert_eq!(message, case["says"].as_str().unwrap(), "{name}");
        let word = message.split(',').next().unwrap().to_owned();
        let kind = object["kind"].as_str().unwrap().to_owned();
        match kinds.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, parts)) => parts.push(word),
            None => kinds.push((kind, vec![word])),
        }
    }
    assert!(cases.len() >= 60, "{} cases", cases.len());
    for kind in [
        "Deployment",
        "StatefulSet",
        "DaemonSet",
        "Job",
        "Pod",
        "PersistentVolumeClaim",
        "Service",
        "CustomResourceDefinition",
        "APIService",
        "Buoy",
    ] {
        let parts =
            kinds.iter().find(|(k, _)| k == kind).map(|(_, parts)| parts.as_slice()).unwrap_or_default();
        for word in ["Ready", "Processing"] {
            assert!(parts.iter().any(|w| w == word), "{kind} is never {word}");
        }
    }
}
