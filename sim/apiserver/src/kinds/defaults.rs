//! Defaults of built-in kinds.

use serde_json::{Map, Value, json};

use super::{kind::Kind, pods, services, validation::quantity};
use crate::{
    object::meta::{as_object, child_mut},
    schema::shape,
};

/// Skips per-object values such as cluster IPs and uids.
pub(crate) fn set(object: &mut Value, kind: &Kind) {
    shape::default(object, kind.schema());
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Namespace") => namespace(object),
        ("", "Secret") => secret(object),
        ("", "Service") => services::set(object),
        ("", "PersistentVolumeClaim") => {
            absent(child_mut(object, "spec"), "volumeMode", json!("Filesystem"));
            absent(child_mut(object, "status"), "phase", json!("Pending"));
        }
        ("", "Pod") => {
            let spec = child_mut(object, "spec");
            pod_spec(spec);
            pods::request_limits(spec);
            absent(spec, "enableServiceLinks", json!(true));
            let class = pods::class(spec);
            absent(child_mut(object, "status"), "phase", json!("Pending"));
            absent(child_mut(object, "status"), "qosClass", json!(class));
        }
        ("apps", _) => workload(object, &kind.kind),
        ("batch", "Job") => job(child_mut(object, "spec")),
        ("batch", "CronJob") => cron_job(child_mut(object, "spec")),
        ("autoscaling", _) => autoscaler(child_mut(object, "spec")),
        ("networking.k8s.io", _) => network_policy(child_mut(object, "spec")),
        ("rbac.authorization.k8s.io", _) => binding(object),
        ("scheduling.k8s.io", _) => {
            absent(as_object(object), "preemptionPolicy", json!("PreemptLowerPriority"));
        }
        ("storage.k8s.io", _) => {
            absent(as_object(object), "reclaimPolicy", json!("Delete"));
            absent(as_object(object), "volumeBindingMode", json!("Immediate"));
        }
        ("admissionregistration.k8s.io", _) => webhooks(object, kind.kind.starts_with("Mutating")),
        ("apiregistration.k8s.io", _) => {
            if let Some(service) = object.pointer_mut("/spec/service") {
                absent(as_object(service), "port", json!(443));
            }
        }
        ("apiextensions.k8s.io", _) => definition(object),
        _ => {}
    }
}

/// Sets admission values, without owners.
pub(crate) fn admit(object: &mut Value, kind: &Kind) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Namespace") => {
            let finalizers = child_mut(object, "spec").entry("finalizers").or_insert_with(|| json!([]));
            if let Some(finalizers) =
                finalizers.as_array_mut().filter(|all| !all.contains(&json!("kubernetes")))
            {
                finalizers.push(json!("kubernetes"));
            }
        }
        ("", "Event") => {
            for field in ["eventTime", "firstTimestamp", "lastTimestamp"] {
                as_object(object).entry(field).or_insert(Value::Null);
            }
        }
        ("events.k8s.io", "Event") => {
            for field in ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
                as_object(object).entry(field).or_insert(Value::Null);
            }
        }
        ("", "Pod") => {
            let spec = child_mut(object, "spec");
            absent(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
            absent(spec, "priority", json!(0));
            absent(spec, "serviceAccount", json!("default"));
            absent(spec, "serviceAccountName", json!("default"));
            tolerate(spec);
        }
        _ => {}
    }
}

/// Pods tolerate unavailable nodes for 300 seconds.
fn tolerate(spec: &mut Map<String, Value>) {
    let slot = spec.entry("tolerations").or_insert(Value::Null);
    if slot.is_null() {
        *slot = json!([]);
    }
    let Some(tolerations) = slot.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let bears = |one: &Value| {
            [("key", key), ("effect", "NoExecute")].iter().all(|(field, wanted)| {
                one[*field].as_str().is_none_or(|have| have.is_empty() || have == *wanted)
            })
        };
        if !tolerations.iter().any(bears) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

/// Sets fields that are always present, without owners.
pub(crate) fn always(object: &mut Value, kind: &Kind) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            as_object(object).entry("rules").or_insert(Value::Null);
        }
        ("autoscaling", _) => {
            child_mut(object, "status").entry("currentMetrics").or_insert(Value::Null);
        }
        ("events.k8s.io", _) => {
            for field in ["deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
                as_object(object).entry(field).or_insert(Value::Null);
            }
        }
        _ => {}
    }
}

/// Updates dependent fields.
pub(crate) fn follow(object: &mut Value, live: &Value, kind: &Kind) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => {
            tolerate(child_mut(object, "spec"));
            // The class is fixed at creation.
            if let Some(class) = live["status"].get("qosClass") {
                absent(child_mut(object, "status"), "qosClass", class.clone());
            }
        }
        ("", "Service") => services::follow(object, live),
        _ => {}
    }
}

/// Empty text counts as missing.
pub(super) fn absent(map: &mut Map<String, Value>, field: &str, value: Value) {
    let slot = map.entry(field).or_insert(Value::Null);
    if slot.is_null() || *slot == "" {
        *slot = value;
    }
}

pub(super) fn each<'a>(
    map: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn namespace(object: &mut Value) {
    let name = Value::from(crate::object::meta::name(object));
    let metadata = child_mut(object, "metadata");
    as_object(metadata.entry("labels").or_insert_with(|| json!({})))
        .insert("kubernetes.io/metadata.name".into(), name);
    absent(child_mut(object, "status"), "phase", json!("Active"));
}

fn secret(object: &mut Value) {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let map = as_object(object);
    absent(map, "type", json!("Opaque"));
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = as_object(map.entry("data").or_insert_with(|| json!({})));
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            data.insert(key, BASE64_STANDARD.encode(text).into());
        }
    }
}

fn workload(object: &mut Value, kind: &str) {
    let spec = child_mut(object, "spec");
    if kind != "DaemonSet" {
        absent(spec, "replicas", json!(1));
    }
    if kind != "ReplicaSet" {
        absent(spec, "revisionHistoryLimit", json!(10));
    }
    match kind {
        "Deployment" => {
            absent(spec, "progressDeadlineSeconds", json!(600));
            rolling(spec, "strategy", &json!({"maxUnavailable": "25%", "maxSurge": "25%"}));
        }
        "StatefulSet" => {
            absent(spec, "podManagementPolicy", json!("OrderedReady"));
            for claim in each(spec, "volumeClaimTemplates") {
                claim.insert("apiVersion".into(), json!("v1"));
                claim.insert("kind".into(), json!("PersistentVolumeClaim"));
                absent(
                    as_object(claim.entry("spec").or_insert_with(|| json!({}))),
                    "volumeMode",
                    json!("Filesystem"),
                );
                absent(
                    as_object(claim.entry("status").or_insert_with(|| json!({}))),
                    "phase",
                    json!("Pending"),
                );
            }

            rolling(spec, "updateStrategy", &json!({"partition": 0}));
            let policy = as_object(spec.entry("persistentVolumeClaimRetentionPolicy").or_insert(json!({})));
            absent(policy, "whenDeleted", json!("Retain"));
            absent(policy, "whenScaled", json!("Retain"));
        }
        "DaemonSet" => rolling(spec, "updateStrategy", &json!({"maxUnavailable": 1, "maxSurge": 0})),
        _ => {}
    }
    template(spec);
}

fn rolling(spec: &mut Map<String, Value>, field: &str, defaults: &Value) {
    let strategy = as_object(spec.entry(field).or_insert_with(|| json!({})));
    absent(strategy, "type", json!("RollingUpdate"));
    if strategy.get("type") == Some(&json!("RollingUpdate")) {
        let rolling = as_object(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
        for (name, value) in defaults.as_object().into_iter().flatten() {
            absent(rolling, name, value.clone());
        }
    }
}

fn template(spec: &mut Map<String, Value>) {
    let template = as_object(spec.entry("template").or_insert_with(|| json!({})));
    pod_spec(as_object(template.entry("spec").or_insert_with(|| json!({}))));
}

fn job(spec: &mut Map<String, Value>) {
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        absent(spec, "completions", json!(1));
    }
    absent(spec, "parallelism", json!(1));
    absent(spec, "backoffLimit", json!(6));
    absent(spec, "completionMode", json!("NonIndexed"));
    absent(spec, "suspend", json!(false));
    absent(spec, "podReplacementPolicy", json!("TerminatingOrFailed"));
    template(spec);
}

fn cron_job(spec: &mut Map<String, Value>) {
    absent(spec, "concurrencyPolicy", json!("Allow"));
    absent(spec, "suspend", json!(false));
    absent(spec, "successfulJobsHistoryLimit", json!(3));
    absent(spec, "failedJobsHistoryLimit", json!(1));
    let job = as_object(spec.entry("jobTemplate").or_insert_with(|| json!({})));
    template(as_object(job.entry("spec").or_insert_with(|| json!({}))));
}

fn autoscaler(spec: &mut Map<String, Value>) {
    absent(spec, "minReplicas", json!(1));
    if spec.get("metrics").is_none_or(|metrics| metrics.as_array().is_some_and(Vec::is_empty)) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.insert(
            "metrics".into(),
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]),
        );
    }
    let Some(Value::Object(behavior)) = spec.get_mut("behavior") else { return };
    let all = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let four = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    for (field, policies) in [("scaleUp", json!([four, all])), ("scaleDown", json!([all]))] {
        let rules = as_object(behavior.entry(field).or_insert_with(|| json!({})));
        if field == "scaleUp" {
            absent(rules, "stabilizationWindowSeconds", json!(0));
        }
        absent(rules, "selectPolicy", json!("Max"));
        absent(rules, "policies", policies);
    }
}

fn network_policy(spec: &mut Map<String, Value>) {
    let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
    absent(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    for list in ["ingress", "egress"] {
        for rule in each(spec, list) {
            for port in each(rule, "ports") {
                absent(port, "protocol", json!("TCP"));
            }
        }
    }
}

fn binding(object: &mut Value) {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let map = as_object(object);
    if let Some(role) = map.get_mut("roleRef") {
        let role = as_object(role);
        if role.get("apiGroup").and_then(Value::as_str).unwrap_or_default().is_empty() {
            role.insert("apiGroup".into(), json!(RBAC));
        }
    }
    for subject in each(map, "subjects") {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            absent(subject, "apiGroup", json!(RBAC));
        }
    }
}

fn webhooks(object: &mut Value, mutating: bool) {
    for webhook in each(as_object(object), "webhooks") {
        absent(webhook, "failurePolicy", json!("Fail"));
        absent(webhook, "matchPolicy", json!("Equivalent"));
        absent(webhook, "timeoutSeconds", json!(10));
        absent(webhook, "namespaceSelector", json!({}));
        absent(webhook, "objectSelector", json!({}));
        if mutating {
            absent(webhook, "reinvocationPolicy", json!("Never"));
        }
        for rule in each(webhook, "rules") {
            absent(rule, "scope", json!("*"));
        }
        if let Some(service) = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service")) {
            absent(as_object(service), "port", json!(443));
        }
    }
}

fn definition(object: &mut Value) {
    let spec = child_mut(object, "spec");
    absent(spec, "conversion", json!({"strategy": "None"}));
    if spec.get("preserveUnknownFields") == Some(&json!(false)) {
        spec.remove("preserveUnknownFields");
    }
    let names = as_object(spec.entry("names").or_insert_with(|| json!({})));
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    absent(names, "singular", json!(kind.to_lowercase()));
    absent(names, "listKind", json!(format!("{kind}List")));
    for version in each(spec, "versions") {
        for column in each(version, "additionalPrinterColumns") {
            column.retain(|name, value| name != "priority" || *value != json!(0));
        }
    }
}

fn pod_spec(spec: &mut Map<String, Value>) {
    absent(spec, "restartPolicy", json!("Always"));
    absent(spec, "terminationGracePeriodSeconds", json!(30));
    absent(spec, "dnsPolicy", json!("ClusterFirst"));
    absent(spec, "securityContext", json!({}));
    absent(spec, "schedulerName", json!("default-scheduler"));
    // The deprecated alias is also written.
    let account = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned();
    if let Some(account) = account.filter(|account| account != "") {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    for list in ["containers", "initContainers"] {
        each(spec, list).for_each(container);
    }
    for volume in each(spec, "volumes") {
        if volume.len() == 1 {
            volume.insert("emptyDir".into(), json!({}));
        }
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            if let Some(Value::Object(source)) = volume.get_mut(source) {
                absent(source, "defaultMode", json!(420));
            }
        }
        let fields = volume.get_mut("downwardAPI").and_then(Value::as_object_mut);
        fields.into_iter().flat_map(|api| each(api, "items")).for_each(field_reference);
        if let Some(Value::Object(path)) = volume.get_mut("hostPath") {
            absent(path, "type", json!(""));
        }
        let projected = volume.get_mut("projected").and_then(Value::as_object_mut);
        for source in projected.into_iter().flat_map(|projected| each(projected, "sources")) {
            if let Some(Value::Object(token)) = source.get_mut("serviceAccountToken") {
                absent(token, "expirationSeconds", json!(3600));
            }
            for item in source
                .get_mut("downwardAPI")
                .and_then(Value::as_object_mut)
                .into_iter()
                .flat_map(|api| each(api, "items"))
            {
                field_reference(item);
            }
        }
    }
}

fn container(container: &mut Map<String, Value>) {
    absent(container, "terminationMessagePath", json!("/dev/termination-log"));
    absent(container, "terminationMessagePolicy", json!("File"));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let (_, last) = image.rsplit_once('/').unwrap_or(("", image));
    let moving = !image.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    let policy = if moving { "Always" } else { "IfNotPresent" };
    absent(container, "imagePullPolicy", json!(policy));
    for port in each(container, "ports") {
        absent(port, "protocol", json!("TCP"));
    }
    for variable in each(container, "env") {
        if let Some(Value::Object(from)) = variable.get_mut("valueFrom") {
            field_reference(from);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(Value::Object(probe)) = container.get_mut(probe) else { continue };
        for (field, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            if probe.get(field) == Some(&json!(0)) {
                probe.remove(field);
            }
            absent(probe, field, json!(value));
        }
        if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
            absent(grpc, "service", json!(""));
        }
        request(probe);
    }
    for hook in ["postStart", "preStop"] {
        let hook = container.get_mut("lifecycle").and_then(|all| all.get_mut(hook));
        if let Some(hook) = hook.and_then(Value::as_object_mut) {
            request(hook);
        }
    }
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        for list in ["limits", "requests"] {
            for quantity in resources.get_mut(list).and_then(Value::as_object_mut).into_iter().flatten() {
                quantity::canonical_of_pod(quantity.1);
            }
        }
    }
}

fn request(handler: &mut Map<String, Value>) {
    if let Some(Value::Object(get)) = handler.get_mut("httpGet") {
        absent(get, "path", json!("/"));
        absent(get, "scheme", json!("HTTP"));
    }
}

fn field_reference(from: &mut Map<String, Value>) {
    if let Some(Value::Object(field)) = from.get_mut("fieldRef") {
        absent(field, "apiVersion", json!("v1"));
    }
    if let Some(Value::Object(resource)) = from.get_mut("resourceFieldRef") {
        absent(resource, "divisor", json!("0"));
    }
}
