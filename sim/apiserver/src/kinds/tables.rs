//! Columns of built-in kinds.

use serde_json::Value;

use super::{
    cells::{
        CONTAINERS_OF_TEMPLATE, Column, JOB_CONTAINERS, at, completions, count, external, job_status, labels,
        lasting, list, number, of_containers, or_none, or_words, ports, request_status, seen, selector,
        since, subjects, targets, text, word,
    },
    kind::Kind,
};
use crate::object::meta;

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

const CONFIG_MAP: &[Column] =
    &[("Data", "string", 0, |object, _| count(object, &["data", "binaryData"]).into()), AGE];

const SECRET: &[Column] = &[
    ("Type", "string", 0, |object, _| at(object, "/type")),
    ("Data", "string", 0, |object, _| count(object, &["data"]).into()),
    AGE,
];

const NAMESPACE: &[Column] = &[("Status", "string", 0, |object, _| at(object, "/status/phase")), AGE];

const CUSTOM_RESOURCE_DEFINITION: &[Column] =
    &[("Created At", "date", 0, |object, _| at(object, "/metadata/creationTimestamp"))];

const SERVICE: &[Column] = &[
    ("Type", "string", 0, |object, _| at(object, "/spec/type")),
    ("Cluster-IP", "string", 0, |object, _| or_none(object, "/spec/clusterIP")),
    ("External-IP", "string", 0, |object, _| external(object)),
    ("Port(s)", "string", 0, |object, _| ports(object)),
    AGE,
    ("Selector", "string", 1, |object, _| labels(object, "/spec/selector")),
];

const DEPLOYMENT: &[Column] = &[
    READY,
    ("Up-to-date", "string", 0, |object, _| number(object, "/status/updatedReplicas").into()),
    ("Available", "string", 0, |object, _| number(object, "/status/availableReplicas").into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const STATEFUL_SET: &[Column] = &[READY, AGE, CONTAINERS, IMAGES];

const REPLICA_SET: &[Column] = &[
    ("Desired", "integer", 0, |object, _| number(object, "/spec/replicas").into()),
    ("Current", "integer", 0, |object, _| number(object, "/status/replicas").into()),
    ("Ready", "integer", 0, |object, _| number(object, "/status/readyReplicas").into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const DAEMON_SET: &[Column] = &[
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
];

const POD: &[Column] = &[
    ("Ready", "string", 0, |object, _| {
        let ready = list(object, "/status/containerStatuses").iter().filter(|one| one["ready"] == true);
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
];

const PERSISTENT_VOLUME_CLAIM: &[Column] = &[
    ("Status", "string", 0, |object, _| at(object, "/status/phase")),
    ("Volume", "string", 0, |object, _| text(object, "/spec/volumeName")),
    ("Capacity", "string", 0, |object, _| text(object, "/status/capacity/storage")),
    ("Access Modes", "string", 0, |_, _| "".into()),
    ("StorageClass", "string", 0, |object, _| text(object, "/spec/storageClassName")),
    ("VolumeAttributesClass", "string", 0, |_, _| "<unset>".into()),
    AGE,
    ("VolumeMode", "string", 1, |object, _| at(object, "/spec/volumeMode")),
];

const NETWORK_POLICY: &[Column] =
    &[("Pod-Selector", "string", 0, |object, _| selector(object, "/spec/podSelector")), AGE];

const POD_DISRUPTION_BUDGET: &[Column] = &[
    ("Min Available", "string", 0, |object, _| or_words(object, "/spec/minAvailable", "N/A")),
    ("Max Unavailable", "string", 0, |object, _| or_words(object, "/spec/maxUnavailable", "N/A")),
    ("Allowed Disruptions", "integer", 0, |object, _| number(object, "/status/disruptionsAllowed").into()),
    AGE,
];

const HORIZONTAL_POD_AUTOSCALER: &[Column] = &[
    ("Reference", "string", 0, |object, _| {
        let target = at(object, "/spec/scaleTargetRef");
        format!("{}/{}", word(&target["kind"]), word(&target["name"])).into()
    }),
    ("Targets", "string", 0, |object, _| targets(object)),
    ("MinPods", "string", 0, |object, _| or_words(object, "/spec/minReplicas", "<unset>")),
    ("MaxPods", "string", 0, |object, _| at(object, "/spec/maxReplicas")),
    ("Replicas", "string", 0, |object, _| number(object, "/status/currentReplicas").into()),
    AGE,
];

const PRIORITY_CLASS: &[Column] = &[
    ("Value", "integer", 0, |object, _| number(object, "/value").into()),
    ("Global-Default", "boolean", 0, |object, _| (at(object, "/globalDefault") == true).into()),
    AGE,
    ("PreemptionPolicy", "string", 0, |object, _| at(object, "/preemptionPolicy")),
];

const STORAGE_CLASS: &[Column] = &[
    ("Provisioner", "string", 0, |object, _| at(object, "/provisioner")),
    ("ReclaimPolicy", "string", 0, |object, _| at(object, "/reclaimPolicy")),
    ("VolumeBindingMode", "string", 0, |object, _| at(object, "/volumeBindingMode")),
    ("AllowVolumeExpansion", "string", 0, |object, _| (at(object, "/allowVolumeExpansion") == true).into()),
    AGE,
];

const CRON_JOB: &[Column] = &[
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
];

const JOB: &[Column] = &[
    ("Status", "string", 0, |object, _| job_status(object)),
    ("Completions", "string", 0, |object, _| completions(object)),
    ("Duration", "string", 0, |_, _| "".into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const CERTIFICATE_SIGNING_REQUEST: &[Column] = &[
    AGE,
    ("SignerName", "string", 0, |object, _| or_none(object, "/spec/signerName")),
    ("Requestor", "string", 0, |object, _| text(object, "/spec/username")),
    ("RequestedDuration", "string", 0, |object, _| lasting(object, "/spec/expirationSeconds")),
    ("Condition", "string", 0, |object, _| request_status(object)),
];

const LEASE: &[Column] = &[("Holder", "string", 0, |object, _| at(object, "/spec/holderIdentity")), AGE];

const ROLE: &[Column] = &[("Created At", "date", 0, |object, _| at(object, "/metadata/creationTimestamp"))];

const ROLE_BINDING: &[Column] = &[
    ("Role", "string", 0, |object, _| {
        let role = at(object, "/roleRef");
        format!("{}/{}", word(&role["kind"]), word(&role["name"])).into()
    }),
    AGE,
    ("Users", "string", 1, |object, _| subjects(object, "User")),
    ("Groups", "string", 1, |object, _| subjects(object, "Group")),
    ("ServiceAccounts", "string", 1, |object, _| subjects(object, "ServiceAccount")),
];

const EVENT: &[Column] = &[
    ("Last Seen", "string", 0, |object, now| {
        seen(object, ["/lastTimestamp", "/deprecatedLastTimestamp"], now)
    }),
    ("Type", "string", 0, |object, _| at(object, "/type")),
    ("Reason", "string", 0, |object, _| at(object, "/reason")),
    ("Object", "string", 0, |object, _| {
        let about =
            object.get("involvedObject").or_else(|| object.get("regarding")).cloned().unwrap_or_default();
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
        let message = object.get("message").or_else(|| object.get("note")).cloned().unwrap_or_default();
        word(&message).trim().into()
    }),
    ("First Seen", "string", 1, |object, now| {
        seen(object, ["/firstTimestamp", "/deprecatedFirstTimestamp"], now)
    }),
    ("Count", "string", 1, |object, _| number(object, "/count").max(1).into()),
    ("Name", "string", 1, |object, _| meta::name(object).into()),
];

const WEBHOOK_CONFIGURATION: &[Column] =
    &[("Webhooks", "integer", 0, |object, _| count(object, &["webhooks"]).into()), AGE];

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
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" => NAMESPACE,
        "CustomResourceDefinition" => CUSTOM_RESOURCE_DEFINITION,
        "Service" => SERVICE,
        "Deployment" => DEPLOYMENT,
        "StatefulSet" => STATEFUL_SET,
        "ReplicaSet" => REPLICA_SET,
        "DaemonSet" => DAEMON_SET,
        "Pod" => POD,
        "PersistentVolumeClaim" => PERSISTENT_VOLUME_CLAIM,
        "NetworkPolicy" => NETWORK_POLICY,
        "PodDisruptionBudget" => POD_DISRUPTION_BUDGET,
        "HorizontalPodAutoscaler" => HORIZONTAL_POD_AUTOSCALER,
        "PriorityClass" => PRIORITY_CLASS,
        "StorageClass" => STORAGE_CLASS,
        "CronJob" => CRON_JOB,
        "Job" => JOB,
        "CertificateSigningRequest" => CERTIFICATE_SIGNING_REQUEST,
        "Lease" => LEASE,
        "ClusterRole" | "Role" => ROLE,
        "ClusterRoleBinding" | "RoleBinding" => ROLE_BINDING,
        "Event" => EVENT,
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => WEBHOOK_CONFIGURATION,
        _ => &[AGE],
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn certificate_requests_show_signer_duration_and_state() {
        let cells = |object: &Value| -> Vec<Value> {
            CERTIFICATE_SIGNING_REQUEST
                .iter()
                .skip(1)
                .map(|(.., cell)| cell(object, Timestamp::UNIX_EPOCH))
                .collect()
        };
        let mut object = json!({"spec": {"signerName": "a.b/c", "username": "u"}, "status": {}});
        assert_eq!(cells(&object), ["a.b/c", "u", "<none>", "Pending"]);
        object["spec"]["expirationSeconds"] = 86_400.into();
        object["status"] = json!({"conditions": [{"type": "Approved"}], "certificate": "eA=="});
        assert_eq!(cells(&object), ["a.b/c", "u", "24h", "Approved,Issued"]);
        object["status"] = json!({"conditions": [{"type": "Failed"}, {"type": "Denied"}]});
        assert_eq!(cells(&object), ["a.b/c", "u", "24h", "Denied,Failed"]);
    }
}
