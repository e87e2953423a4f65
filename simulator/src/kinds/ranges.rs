//! What values of built-in kinds may be: numbers in a range, words of a list, and what excludes each other. The rules are those of
//! Kubernetes' validation, by kind and field; `tests/differential` compares them with a real API server.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::Kind;
use crate::schema::validate::Cause;

/// What a value has to be.
#[derive(Clone, Copy)]
enum Rule {
    /// An integer that is not below this one, and how that is said.
    AtLeast(i64, &'static str),
    /// A port.
    Port,
    /// A port that counts as missing if it is 0.
    NeededPort,
    /// When a pod that has an end is restarted.
    RestartOfJob,
    /// One of these words, in this order.
    OneOf(&'static [&'static str]),
    /// Five fields of a cron table, or a name such as `@daily`.
    Schedule,
}

/// Below which field, and what.
type Field = (&'static str, Rule);

const NOT_NEGATIVE: Rule = Rule::AtLeast(0, "must be greater than or equal to 0");
const PROTOCOL: Rule = Rule::OneOf(&["SCTP", "TCP", "UDP"]);

/// Of a pod's spec.
const POD: [Field; 10] = [
    ("restartPolicy", Rule::OneOf(&["Always", "OnFailure", "Never"])),
    ("dnsPolicy", Rule::OneOf(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"])),
    ("activeDeadlineSeconds", Rule::AtLeast(1, "must be between 1 and 2147483647, inclusive")),
    ("containers[].imagePullPolicy", Rule::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("containers[].ports[].containerPort", Rule::NeededPort),
    ("containers[].ports[].protocol", PROTOCOL),
    ("containers[].livenessProbe.initialDelaySeconds", NOT_NEGATIVE),
    ("containers[].readinessProbe.initialDelaySeconds", NOT_NEGATIVE),
    ("initContainers[].imagePullPolicy", Rule::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("initContainers[].ports[].containerPort", Rule::NeededPort),
];

const DEPLOYMENT: [Field; 3] = [
    ("spec.replicas", NOT_NEGATIVE),
    ("spec.minReadySeconds", NOT_NEGATIVE),
    ("spec.revisionHistoryLimit", NOT_NEGATIVE),
];
const STATEFUL_SET: [Field; 3] = [
    ("spec.podManagementPolicy", Rule::OneOf(&["OrderedReady", "Parallel"])),
    ("spec.replicas", NOT_NEGATIVE),
    ("spec.minReadySeconds", NOT_NEGATIVE),
];
const REPLICA_SET: [Field; 2] = [("spec.replicas", NOT_NEGATIVE), ("spec.minReadySeconds", NOT_NEGATIVE)];
const DAEMON_SET: [Field; 2] =
    [("spec.minReadySeconds", NOT_NEGATIVE), ("spec.revisionHistoryLimit", NOT_NEGATIVE)];
const JOB: [Field; 5] = [
    ("spec.parallelism", NOT_NEGATIVE),
    ("spec.completions", NOT_NEGATIVE),
    ("spec.backoffLimit", NOT_NEGATIVE),
    ("spec.activeDeadlineSeconds", NOT_NEGATIVE),
    ("spec.ttlSecondsAfterFinished", NOT_NEGATIVE),
];
const CRON_JOB: [Field; 5] = [
    ("spec.schedule", Rule::Schedule),
    ("spec.concurrencyPolicy", Rule::OneOf(&["Allow", "Forbid", "Replace"])),
    ("spec.startingDeadlineSeconds", NOT_NEGATIVE),
    ("spec.successfulJobsHistoryLimit", NOT_NEGATIVE),
    ("spec.failedJobsHistoryLimit", NOT_NEGATIVE),
];
const SERVICE: [Field; 5] = [
    ("spec.type", Rule::OneOf(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])),
    ("spec.sessionAffinity", Rule::OneOf(&["ClientIP", "None"])),
    ("spec.ports[].port", Rule::Port),
    ("spec.ports[].targetPort", Rule::Port),
    ("spec.ports[].protocol", PROTOCOL),
];
const HPA: [Field; 1] = [("spec.minReplicas", Rule::AtLeast(1, "must be greater than or equal to 1"))];
const NETWORK_POLICY: [Field; 1] = [("spec.policyTypes[]", Rule::OneOf(&["Ingress", "Egress"]))];

/// Where a kind has pods' specs, and what of those is fixed beyond [`POD`].
fn pods(group: &str, kind: &str) -> Option<(&'static str, &'static [Field])> {
    const ALWAYS: [Field; 1] = [("restartPolicy", Rule::OneOf(&["Always"]))];
    const ENDS: [Field; 1] = [("restartPolicy", Rule::RestartOfJob)];
    match (group, kind) {
        ("", "Pod") => Some(("spec", &[])),
        ("apps", _) => Some(("spec.template.spec", &ALWAYS)),
        ("batch", "Job") => Some(("spec.template.spec", &ENDS)),
        ("batch", "CronJob") => Some(("spec.jobTemplate.spec.template.spec", &ENDS)),
        _ => None,
    }
}

fn fields(group: &str, kind: &str) -> &'static [Field] {
    match (group, kind) {
        ("apps", "Deployment") => &DEPLOYMENT,
        ("apps", "StatefulSet") => &STATEFUL_SET,
        ("apps", "ReplicaSet") => &REPLICA_SET,
        ("apps", "DaemonSet") => &DAEMON_SET,
        ("batch", "Job") => &JOB,
        ("batch", "CronJob") => &CRON_JOB,
        ("", "Service") => &SERVICE,
        ("autoscaling", _) => &HPA,
        ("networking.k8s.io", "NetworkPolicy") => &NETWORK_POLICY,
        _ => &[],
    }
}

/// What values of a built-in kind are not allowed.
pub(super) fn check(object: &Value, kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (group, name) = (kind.group.as_str(), kind.kind.as_str());
    for (field, rule) in fields(group, name) {
        each(object, field, "", &mut |value, path| judge(*rule, value, path, &mut causes));
    }
    if let Some((spec, fixed)) = pods(group, name) {
        let general = POD.iter().filter(|(field, _)| !fixed.iter().any(|(other, _)| field == other));
        for (field, rule) in general.chain(fixed) {
            let field = format!("{spec}.{field}");
            each(object, &field, "", &mut |value, path| judge(*rule, value, path, &mut causes));
        }
    }
    several(&object["spec"], (group, name), &mut causes);
    causes
}

/// What concerns several fields together. Messages show structures as the server holds them, which is not as they are written.
fn several(spec: &Value, kind: (&str, &str), causes: &mut Vec<Cause>) {
    match kind {
        ("apps", "Deployment") => {
            let (type_, strategies) = (&spec["strategy"]["type"], ["Recreate", "RollingUpdate"]);
            if type_.as_str().is_some_and(|type_| !type_.is_empty() && !strategies.contains(&type_)) {
                let held =
                    format!("{{\"Type\":{type_},\"RollingUpdate\":{}}}", spec["strategy"]["rollingUpdate"]);
                let message =
                    format!("Unsupported value: {held}: supported values: \"Recreate\", \"RollingUpdate\"");
                causes.push(Cause::new("spec.strategy", "FieldValueNotSupported", message));
            }
        }
        ("policy", "PodDisruptionBudget") => {
            let (least, most) = (&spec["minAvailable"], &spec["maxUnavailable"]);
            if !least.is_null() && !most.is_null() {
                let (selector, evicts) = (&spec["selector"], &spec["unhealthyPodEvictionPolicy"]);
                let held = format!(
                    "{{\"MinAvailable\":{least},\"Selector\":{selector},\"MaxUnavailable\":{most},\"UnhealthyPodEvictionPolicy\":{evicts}}}"
                );
                let message =
                    format!("Invalid value: {held}: minAvailable and maxUnavailable cannot be both set");
                causes.push(Cause::new("spec", "FieldValueInvalid", message));
            }
        }
        ("autoscaling", _) => {
            if spec["maxReplicas"].as_i64().is_some_and(|most| most < 1) {
                causes.push(Cause::required("spec.maxReplicas", "must be set and greater than 0"));
            }
            let counts = |metric: &Value| metric["type"] == "Object" || metric["type"] == "External";
            if spec["minReplicas"] == 0
                && !spec["metrics"].as_array().is_some_and(|all| all.iter().any(counts))
            {
                let why =
                    "must specify at least one Object or External metric to support scaling to zero replicas";
                causes.push(Cause::forbidden("spec.metrics", why));
            }
        }
        _ => {}
    }
}

/// What cannot be read of a built-in kind: bytes that are not base64.
pub(crate) fn undecodable(object: &Value, kind: &Kind) -> Option<String> {
    let field = match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Secret") => "data",
        ("", "ConfigMap") => "binaryData",
        _ => return None,
    };
    let bad = object.get(field)?.as_object()?.values().filter_map(Value::as_str);
    let error = bad.map(|text| BASE64_STANDARD.decode(text)).find_map(Result::err)?;
    let at = match error {
        base64::DecodeError::InvalidByte(at, _)
        | base64::DecodeError::InvalidLastSymbol(at, _)
        | base64::DecodeError::InvalidLength(at) => at,
        base64::DecodeError::InvalidPadding => 0,
    };
    Some(format!("illegal base64 data at input byte {at}"))
}

/// Calls `with` for every value at a field, and its path; `[]` stands for each item of a list.
fn each(value: &Value, field: &str, path: &str, with: &mut dyn FnMut(&Value, &str)) {
    let (name, rest) = field.split_once('.').map_or((field, None), |(name, rest)| (name, Some(rest)));
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let mut next = |value: &Value, path: &str| match rest {
        Some(rest) => each(value, rest, path, with),
        None => with(value, path),
    };
    match name.strip_suffix("[]") {
        Some(name) => {
            for (index, item) in value.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
                next(item, &join(&format!("{name}[{index}]")));
            }
        }
        None => {
            if let Some(value) = value.get(name) {
                next(value, &join(name));
            }
        }
    }
}

fn judge(rule: Rule, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    match rule {
        Rule::AtLeast(least, why) => {
            if value.as_i64().is_some_and(|number| number < least) {
                causes.push(Cause::invalid(path, value, why));
            }
        }
        Rule::Port => {
            if value.as_i64().is_some_and(|port| !(1..=65_535).contains(&port)) {
                causes.push(Cause::invalid(path, value, "must be between 1 and 65535, inclusive"));
            }
        }
        Rule::NeededPort if value == 0 => causes.push(Cause::required(path, "")),
        Rule::NeededPort => judge(Rule::Port, value, path, causes),
        Rule::RestartOfJob => {
            if value.as_str().is_some_and(|word| !["OnFailure", "Never"].contains(&word)) {
                causes.push(Cause::required(path, "valid values: \"OnFailure\", \"Never\""));
            }
        }
        Rule::OneOf(words) => {
            if value.as_str().is_some_and(|word| !word.is_empty() && !words.contains(&word)) {
                causes.push(Cause::unsupported(path, value, words));
            }
        }
        Rule::Schedule => {
            if let Some(why) = value.as_str().and_then(bad_schedule) {
                causes.push(Cause::invalid(path, value, &why));
            }
        }
    }
}

/// Of a schedule only the number of its fields is checked.
fn bad_schedule(text: &str) -> Option<String> {
    if text.starts_with('@') || text.is_empty() {
        return None;
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    (fields.len() != 5)
        .then(|| format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(group: &str, plural: &str, object: &Value) -> Vec<String> {
        let kind = super::super::builtin::find(group, "v1", plural).unwrap();
        check(object, kind).into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn values_out_of_their_range_are_told_with_their_place() {
        let pod = json!({"restartPolicy": "Never", "containers": [
            {"name": "a", "ports": [{"containerPort": 80}, {"containerPort": 99_999, "protocol": "ICMP"}]},
            {"name": "b", "imagePullPolicy": "Sometimes"}]});
        let deployment = json!({"spec": {"replicas": -1, "template": {"spec": pod}}});
        assert_eq!(
            of("apps", "deployments", &deployment),
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.template.spec.containers[1].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \
                 \"Always\", \"IfNotPresent\", \"Never\"",
                "spec.template.spec.containers[0].ports[1].containerPort: Invalid value: 99999: must be between 1 and \
                 65535, inclusive",
                "spec.template.spec.containers[0].ports[1].protocol: Unsupported value: \"ICMP\": supported values: \
                 \"SCTP\", \"TCP\", \"UDP\"",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ]
        );
        let cron =
            json!({"spec": {"schedule": "daily", "jobTemplate": {"spec": {"template": {"spec": pod}}}}});
        assert!(of("batch", "cronjobs", &cron)[0].contains("found 1: [daily]"));
        assert_eq!(of("", "services", &json!({"spec": {"ports": [{"port": 80}]}})), [""; 0]);
    }

    #[test]
    fn data_that_is_no_base64_cannot_be_read() {
        let secrets = super::super::builtin::find("", "v1", "secrets").unwrap();
        assert_eq!(undecodable(&json!({"data": {"a": "YQ=="}}), secrets), None);
        assert_eq!(
            undecodable(&json!({"data": {"a": "YQ==", "b": "a b"}}), secrets).as_deref(),
            Some("illegal base64 data at input byte 1")
        );
    }
}
