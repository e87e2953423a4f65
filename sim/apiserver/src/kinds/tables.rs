//! Columns of built-in kinds.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Kind,
    columns::{Column, since},
};
use crate::object::meta;

fn at(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).cloned().unwrap_or(Value::Null)
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn count(object: &Value, fields: &[&str]) -> usize {
    let size = |field: &&str| match object.get(*field) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(list)) => list.len(),
        _ => 0,
    };
    fields.iter().map(size).sum()
}

const CONTAINERS_OF_TEMPLATE: &str = "/spec/template/spec/containers";
const JOB_CONTAINERS: &str = "/spec/jobTemplate/spec/template/spec/containers";

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn text(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().into()
}

fn or_words(object: &Value, pointer: &str, otherwise: &str) -> Value {
    match object.pointer(pointer) {
        Some(Value::String(text)) if !text.is_empty() => text.as_str().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ => otherwise.into(),
    }
}

fn or_none(object: &Value, pointer: &str) -> Value {
    or_words(object, pointer, "<none>")
}

fn of_containers(object: &Value, pointer: &str, field: &str) -> Value {
    let all: Vec<&str> = list(object, pointer).iter().filter_map(|one| one.get(field)?.as_str()).collect();
    Value::from(all.join(","))
}

fn external(object: &Value) -> Value {
    let own: Vec<&str> = list(object, "/spec/externalIPs").iter().map(word).collect();
    match word(&at(object, "/spec/type")) {
        "ExternalName" => text(object, "/spec/externalName"),
        "LoadBalancer" if own.is_empty() => {
            let given: Vec<&str> = list(object, "/status/loadBalancer/ingress")
                .iter()
                .filter_map(|one| one.get("ip").or_else(|| one.get("hostname"))?.as_str())
                .collect();
            if given.is_empty() { "<pending>".into() } else { given.join(",").into() }
        }
        _ if own.is_empty() => "<none>".into(),
        _ => own.join(",").into(),
    }
}

fn subjects(object: &Value, kind: &str) -> Value {
    let of_kind = list(object, "/subjects").iter().filter(|subject| subject["kind"] == kind);
    let name = |subject: &Value| match subject["namespace"].as_str().filter(|_| kind == "ServiceAccount") {
        Some(namespace) => format!("{namespace}/{}", word(&subject["name"])),
        None => word(&subject["name"]).to_owned(),
    };
    of_kind.map(name).collect::<Vec<_>>().join(", ").into()
}

/// Current values are unknown: nothing measures them.
fn targets(object: &Value) -> Value {
    let shown: Vec<String> = list(object, "/spec/metrics")
        .iter()
        .map(|metric| {
            let kind = word(&metric["type"]);
            let field = format!(
                "{}{}",
                kind.get(..1).unwrap_or_default().to_lowercase(),
                kind.get(1..).unwrap_or_default()
            );
            let (source, target) = (&metric[&field], &metric[&field]["target"]);
            let (wanted, average) =
                match (&target["averageUtilization"], &target["averageValue"], &target["value"]) {
                    (Value::Number(share), ..) => (format!("{share}%"), false),
                    (_, Value::String(value), _) => {
                        (value.clone(), field != "resource" && field != "containerResource")
                    }
                    (_, _, value) => (word(value).to_owned(), false),
                };
            let named = if field.to_lowercase().ends_with("resource") {
                format!("{}: ", word(&source["name"]))
            } else {
                String::new()
            };
            let average = if average && field != "pods" { " (avg)" } else { "" };
            format!("{named}<unknown>/{wanted}{average}")
        })
        .collect();
    match shown.as_slice() {
        [] => "<none>".into(),
        [one, two, three, ..] if shown.len() > 3 => {
            format!("{one}, {two}, {three} + {} more...", shown.len() - 3).into()
        }
        _ => shown.join(", ").into(),
    }
}

fn job_status(object: &Value) -> Value {
    let holds = |kind: &str| {
        list(object, "/status/conditions").iter().any(|one| one["type"] == kind && one["status"] == "True")
    };
    let shown = [
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
    ];
    let known = shown.iter().find(|(kind, _)| holds(kind)).map_or("Running", |(_, word)| word);
    known.into()
}

fn completions(object: &Value) -> Value {
    let done = number(object, "/status/succeeded");
    match (object.pointer("/spec/completions").and_then(Value::as_i64), number(object, "/spec/parallelism")) {
        (Some(all), _) => format!("{done}/{all}").into(),
        (None, many) if many > 1 => format!("{done}/1 of {many}").into(),
        (None, _) => format!("{done}/1").into(),
    }
}

fn labels(object: &Value, pointer: &str) -> Value {
    let map = object.pointer(pointer).and_then(Value::as_object);
    let pairs: Vec<String> =
        map.into_iter().flatten().map(|(name, value)| format!("{name}={}", word(value))).collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",").into() }
}

/// Kubectl's label selector format.
fn selector(object: &Value, pointer: &str) -> Value {
    let selector = at(object, pointer);
    let wanted = selector["matchLabels"].as_object();
    let mut all: Vec<(String, String)> = wanted
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), format!("{name}={}", word(value))))
        .collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = word(&expression["key"]);
        let mut values: Vec<&str> = expression["values"].as_array().into_iter().flatten().map(word).collect();
        values.sort_unstable();
        let values = values.join(",");
        let shown = match word(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        all.push((key.to_owned(), shown));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let shown: Vec<String> = all.into_iter().map(|(_, shown)| shown).collect();
    if shown.is_empty() { "<none>".into() } else { shown.join(",").into() }
}

fn ports(object: &Value) -> Value {
    let ports = object.pointer("/spec/ports").and_then(Value::as_array);
    let shown: Vec<String> = ports
        .into_iter()
        .flatten()
        .map(|port| {
            let node = match number(port, "/nodePort") {
                0 => String::new(),
                node => format!(":{node}"),
            };
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            format!("{}{node}/{protocol}", number(port, "/port"))
        })
        .collect();
    if shown.is_empty() { "<none>".into() } else { shown.join(",").into() }
}

const AGE: Column =
    ("Age", "string", 0, |object, now| since(object.pointer("/metadata/creationTimestamp"), now));
const READY: Column = ("Ready", "string", 0, |object, _| {
    Value::from(format!("{}/{}", number(object, "/status/readyReplicas"), number(object, "/spec/replicas")))
});
const CONTAINERS: Column =
    ("Containers", "string", 1, |object, _| of_containers(object, CONTAINERS_OF_TEMPLATE, "name"));
const IMAGES: Column =
    ("Images", "string", 1, |object, _| of_containers(object, CONTAINERS_OF_TEMPLATE, "image"));
const SELECTOR: Column = ("Selector", "string", 1, |object, _| selector(object, "/spec/selector"));

/// Whether other columns include the name.
pub(super) fn has_name(kind: &Kind) -> bool {
    kind.is_builtin() && kind.kind == "Event"
}

/// Marks the default class.
pub(super) fn name(object: &Value, kind: &Kind) -> Value {
    let name = meta::name(object);
    let default = at(object, "/metadata/annotations/storageclass.kubernetes.io~1is-default-class") == "true";
    if kind.is("storage.k8s.io", "storageclasses") && default {
        format!("{name} (default)").into()
    } else {
        name.into()
    }
}

/// Excludes the name.
pub(super) fn of(kind: &Kind) -> &'static [Column] {
    match kind.kind.as_str() {
        "ConfigMap" => {
            &[("Data", "string", 0, |object, _| count(object, &["data", "binaryData"]).into()), AGE]
        }
        "Secret" => &[
            ("Type", "string", 0, |object, _| at(object, "/type")),
            ("Data", "string", 0, |object, _| count(object, &["data"]).into()),
            AGE,
        ],
        "Namespace" => &[("Status", "string", 0, |object, _| at(object, "/status/phase")), AGE],
        "CustomResourceDefinition" => {
            &[("Created At", "date", 0, |object, _| at(object, "/metadata/creationTimestamp"))]
        }
        "Service" => &[
            ("Type", "string", 0, |object, _| at(object, "/spec/type")),
            ("Cluster-IP", "string", 0, |object, _| or_none(object, "/spec/clusterIP")),
            ("External-IP", "string", 0, |object, _| external(object)),
            ("Port(s)", "string", 0, |object, _| ports(object)),
            AGE,
            ("Selector", "string", 1, |object, _| labels(object, "/spec/selector")),
        ],
        "Deployment" => &[
            READY,
            ("Up-to-date", "string", 0, |object, _| number(object, "/status/updatedReplicas").into()),
            ("Available", "string", 0, |object, _| number(object, "/status/availableReplicas").into()),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        "StatefulSet" => &[READY, AGE, CONTAINERS, IMAGES],
        "ReplicaSet" => &[
            ("Desired", "integer", 0, |object, _| number(object, "/spec/replicas").into()),
            ("Current", "integer", 0, |object, _| number(object, "/status/replicas").into()),
            ("Ready", "integer", 0, |object, _| number(object, "/status/readyReplicas").into()),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        "DaemonSet" => &[
            ("Desired", "integer", 0, |object, _| number(object, "/status/desiredNumberScheduled").into()),
            ("Current", "integer", 0, |object, _| number(object, "/status/currentNumberScheduled").into()),
            ("Ready", "integer", 0, |object, _| number(object, "/status/numberReady").into()),
            ("Up-to-date", "integer", 0, |object, _| number(object, "/status/updatedNumberScheduled").into()),
            ("Available", "integer", 0, |object, _| number(object, "/status/numberAvailable").into()),
            ("Node Selector", "string", 0, |object, _| labels(object, "/spec/template/spec/nodeSelector")),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        "Pod" => &[
            ("Ready", "string", 0, |object, _| {
                let ready =
                    list(object, "/status/containerStatuses").iter().filter(|one| one["ready"] == true);
                format!("{}/{}", ready.count(), list(object, "/spec/containers").len()).into()
            }),
            ("Status", "string", 0, |object, _| at(object, "/status/phase")),
            ("Restarts", "string", 0, |object, _| {
                let counts = list(object, "/status/containerStatuses").iter();
                counts.map(|one| number(one, "/restartCount")).sum::<i64>().to_string().into()
            }),
            AGE,
            ("IP", "string", 1, |object, _| or_none(object, "/status/podIP")),
            ("Node", "string", 1, |object, _| or_none(object, "/spec/nodeName")),
            ("Nominated Node", "string", 1, |object, _| or_none(object, "/status/nominatedNodeName")),
            ("Readiness Gates", "string", 1, |_, _| "<none>".into()),
        ],
        "PersistentVolumeClaim" => &[
            ("Status", "string", 0, |object, _| at(object, "/status/phase")),
            ("Volume", "string", 0, |object, _| text(object, "/spec/volumeName")),
            ("Capacity", "string", 0, |object, _| text(object, "/status/capacity/storage")),
            ("Access Modes", "string", 0, |_, _| "".into()),
            ("StorageClass", "string", 0, |object, _| text(object, "/spec/storageClassName")),
            ("VolumeAttributesClass", "string", 0, |_, _| "<unset>".into()),
            AGE,
            ("VolumeMode", "string", 1, |object, _| at(object, "/spec/volumeMode")),
        ],
        "NetworkPolicy" => {
            &[("Pod-Selector", "string", 0, |object, _| selector(object, "/spec/podSelector")), AGE]
        }
        "PodDisruptionBudget" => &[
            ("Min Available", "string", 0, |object, _| or_words(object, "/spec/minAvailable", "N/A")),
            ("Max Unavailable", "string", 0, |object, _| or_words(object, "/spec/maxUnavailable", "N/A")),
            ("Allowed Disruptions", "integer", 0, |object, _| {
                number(object, "/status/disruptionsAllowed").into()
            }),
            AGE,
        ],
        "HorizontalPodAutoscaler" => &[
            ("Reference", "string", 0, |object, _| {
                let target = at(object, "/spec/scaleTargetRef");
                format!("{}/{}", word(&target["kind"]), word(&target["name"])).into()
            }),
            ("Targets", "string", 0, |object, _| targets(object)),
            ("MinPods", "string", 0, |object, _| or_words(object, "/spec/minReplicas", "<unset>")),
            ("MaxPods", "string", 0, |object, _| at(object, "/spec/maxReplicas")),
            ("Replicas", "string", 0, |object, _| number(object, "/status/currentReplicas").into()),
            AGE,
        ],
        "PriorityClass" => &[
            ("Value", "integer", 0, |object, _| number(object, "/value").into()),
            ("Global-Default", "boolean", 0, |object, _| (at(object, "/globalDefault") == true).into()),
            AGE,
            ("PreemptionPolicy", "string", 0, |object, _| at(object, "/preemptionPolicy")),
        ],
        "StorageClass" => &[
            ("Provisioner", "string", 0, |object, _| at(object, "/provisioner")),
            ("ReclaimPolicy", "string", 0, |object, _| at(object, "/reclaimPolicy")),
            ("VolumeBindingMode", "string", 0, |object, _| at(object, "/volumeBindingMode")),
            ("AllowVolumeExpansion", "string", 0, |object, _| {
                (at(object, "/allowVolumeExpansion") == true).into()
            }),
            AGE,
        ],
        "CronJob" => &[
            ("Schedule", "string", 0, |object, _| at(object, "/spec/schedule")),
            ("Timezone", "string", 0, |object, _| or_none(object, "/spec/timeZone")),
            ("Suspend", "boolean", 0, |object, _| {
                if at(object, "/spec/suspend") == true { "True".into() } else { "False".into() }
            }),
            ("Active", "integer", 0, |object, _| list(object, "/status/active").len().into()),
            ("Last Schedule", "string", 0, |object, now| {
                let last = object.pointer("/status/lastScheduleTime");
                last.map_or_else(|| "<none>".into(), |last| since(Some(last), now))
            }),
            AGE,
            ("Containers", "string", 1, |object, _| of_containers(object, JOB_CONTAINERS, "name")),
            ("Images", "string", 1, |object, _| of_containers(object, JOB_CONTAINERS, "image")),
            ("Selector", "string", 1, |object, _| selector(object, "/spec/jobTemplate/spec/selector")),
        ],
        "Job" => &[
            ("Status", "string", 0, |object, _| job_status(object)),
            ("Completions", "string", 0, |object, _| completions(object)),
            ("Duration", "string", 0, |_, _| "".into()),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        "Lease" => &[("Holder", "string", 0, |object, _| at(object, "/spec/holderIdentity")), AGE],
        "ClusterRole" | "Role" => {
            &[("Created At", "date", 0, |object, _| at(object, "/metadata/creationTimestamp"))]
        }
        "ClusterRoleBinding" | "RoleBinding" => &[
            ("Role", "string", 0, |object, _| {
                let role = at(object, "/roleRef");
                format!("{}/{}", word(&role["kind"]), word(&role["name"])).into()
            }),
            AGE,
            ("Users", "string", 1, |object, _| subjects(object, "User")),
            ("Groups", "string", 1, |object, _| subjects(object, "Group")),
            ("ServiceAccounts", "string", 1, |object, _| subjects(object, "ServiceAccount")),
        ],
        "Event" => &[
            ("Last Seen", "string", 0, |object, now| {
                seen(object, ["/lastTimestamp", "/deprecatedLastTimestamp"], now)
            }),
            ("Type", "string", 0, |object, _| at(object, "/type")),
            ("Reason", "string", 0, |object, _| at(object, "/reason")),
            ("Object", "string", 0, |object, _| {
                let about = object
                    .get("involvedObject")
                    .or_else(|| object.get("regarding"))
                    .cloned()
                    .unwrap_or_default();
                let (kind, name) = (word(&about["kind"]).to_lowercase(), word(&about["name"]));
                if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
            }),
            ("Subobject", "string", 1, |object, _| text(object, "/involvedObject/fieldPath")),
            ("Source", "string", 1, |object, _| {
                let source = at(object, "/source");
                let all = ["component", "host"].map(|field| word(&source[field]).to_owned());
                all.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ").into()
            }),
            ("Message", "string", 0, |object, _| {
                let message =
                    object.get("message").or_else(|| object.get("note")).cloned().unwrap_or_default();
                word(&message).trim().into()
            }),
            ("First Seen", "string", 1, |object, now| {
                seen(object, ["/firstTimestamp", "/deprecatedFirstTimestamp"], now)
            }),
            ("Count", "string", 1, |object, _| number(object, "/count").max(1).into()),
            ("Name", "string", 1, |object, _| meta::name(object).into()),
        ],
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            &[("Webhooks", "integer", 0, |object, _| count(object, &["webhooks"]).into()), AGE]
        }
        _ => &[AGE],
    }
}

/// An Event's first set time, by either API, or its creation.
fn seen(object: &Value, own: [&str; 2], now: Timestamp) -> Value {
    let times = own.into_iter().chain(["/eventTime", "/metadata/creationTimestamp"]);
    since(times.filter_map(|time| object.pointer(time)).find(|time| !time.is_null()), now)
}
