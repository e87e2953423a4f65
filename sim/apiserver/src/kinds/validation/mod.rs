//! Validation of built-in kinds, from Kubernetes. `tests/differential/cases` compares it with a real API
//! server.

mod access;
mod certificates;
mod containers;
mod core;
pub(crate) mod metadata;
pub(crate) mod names;
mod network;
mod pods;
mod policies;
pub(crate) mod quantity;
mod rule;
mod schedule;
mod scheduling;
pub(crate) mod selectors;
mod values;
mod volumes;
mod webhooks;
mod workloads;

use serde_json::Value;

pub(crate) use self::{
    certificates::change as change_of_request,
    core::change_of_claim,
    pods::{change as change_of_pod, status as status_of_pod},
};
use self::{
    rule::{Field, fields},
    values::{is_empty, present},
};
use super::kind::Kind;
use crate::{json::list, schema::cause::Cause};

pub(crate) fn check(object: &Value, kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::known_finalizers(&object["metadata"], "metadata", &mut causes);
    let tables: &[&[Field]] = match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => &[&pods::POD],
        ("", "Service") => &[&network::SERVICE],
        ("", "Secret") => &[&core::SECRET],
        ("", "ConfigMap") => &[&core::CONFIG_MAP],
        ("", "Namespace") => &[&core::NAMESPACE],
        ("", "PersistentVolumeClaim") => &[&core::CLAIM],
        ("", "Event") => &[&core::EVENT],
        ("events.k8s.io", "Event") => &[&core::NEW_EVENT],
        ("apps", "Deployment") => &[&workloads::WORKLOAD, &workloads::DEPLOYMENT],
        ("apps", "ReplicaSet") => &[&workloads::WORKLOAD, &workloads::REPLICA_SET],
        ("apps", "StatefulSet") => &[&workloads::WORKLOAD, &workloads::STATEFUL_SET],
        ("apps", "DaemonSet") => &[&workloads::WORKLOAD, &workloads::DAEMON_SET],
        ("batch", "Job") => &[&workloads::JOB],
        ("batch", "CronJob") => &[&workloads::CRON_JOB],
        ("certificates.k8s.io", _) => &[&certificates::REQUEST],
        ("coordination.k8s.io", _) => &[&core::LEASE],
        ("networking.k8s.io", "NetworkPolicy") => &[&network::POLICY],
        ("policy", _) => &[&policies::DISRUPTION],
        ("autoscaling", _) => &[&policies::AUTOSCALER],
        ("scheduling.k8s.io", _) => &[&policies::PRIORITY],
        ("storage.k8s.io", _) => &[&policies::STORAGE],
        ("apiregistration.k8s.io", _) => &[&policies::API_SERVICE],
        ("admissionregistration.k8s.io", _) => &[&webhooks::CONFIGURATION],
        ("rbac.authorization.k8s.io", "Role") => &[&access::ROLE],
        ("rbac.authorization.k8s.io", "ClusterRole") => &[&access::CLUSTER_ROLE],
        ("rbac.authorization.k8s.io", "RoleBinding") => &[&access::BINDING, &access::ANY_ROLE],
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => {
            &[&access::BINDING, &access::CLUSTER_ROLE_ONLY]
        }
        _ => &[],
    };
    for table in tables {
        fields(object, table, "", &mut causes);
    }
    causes
}

/// Names a feature without validation.
pub(crate) fn unsupported(object: &Value, kind: &Kind) -> Option<String> {
    let (spec, template) = match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => ("/spec", ""),
        ("apps", _) | ("batch", "Job") => ("/spec", "/template/spec"),
        ("batch", "CronJob") => ("/spec/jobTemplate/spec", "/template/spec"),
        ("admissionregistration.k8s.io", _) => {
            let with = list(&object["webhooks"]).iter().any(|webhook| !is_empty(&webhook["matchConditions"]));
            return with.then(|| "validation of match conditions of webhooks".to_owned());
        }
        _ => return None,
    };
    let spec = object.pointer(spec)?;
    if let Some(field) = present(spec, &["podFailurePolicy", "successPolicy"]).first() {
        return Some(format!("validation of {field}"));
    }
    volumes::unsupported(spec.pointer(template)?)
}
