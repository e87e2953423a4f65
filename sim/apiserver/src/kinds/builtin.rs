//! Built-in kinds.

use std::sync::{Arc, LazyLock};

use super::kind::{Kind, Origin, Scale, storage_key};

const NAMESPACED: bool = true;
const CLUSTER: bool = false;

struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    namespaced: bool,
    /// `s`: status; `g`: generation; `c`: scale; `a`: category `all`; `x`: category `api-extensions`.
    traits: &'static str,
    definition: &'static str,
}

macro_rules! row {
    ($group:literal $version:literal $kind:literal $plural:literal $short:literal $namespaced:ident $traits:literal $definition:literal) => {
        Row {
            group: $group,
            version: $version,
            kind: $kind,
            plural: $plural,
            short: $short,
            namespaced: $namespaced,
            traits: $traits,
            definition: $definition,
        }
    };
}

const ROWS: &[Row] = &[
    row!("" "v1" "ConfigMap" "configmaps" "cm" NAMESPACED "" "io.k8s.api.core.v1.ConfigMap"),
    row!("" "v1" "Event" "events" "ev" NAMESPACED "" "io.k8s.api.core.v1.Event"),
    row!("" "v1" "Namespace" "namespaces" "ns" CLUSTER "s" "io.k8s.api.core.v1.Namespace"),
    row!("" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" "pvc" NAMESPACED "s" "io.k8s.api.core.v1.PersistentVolumeClaim"),
    row!("" "v1" "Pod" "pods" "po" NAMESPACED "sga" "io.k8s.api.core.v1.Pod"),
    row!("" "v1" "Secret" "secrets" "" NAMESPACED "" "io.k8s.api.core.v1.Secret"),
    row!("" "v1" "Service" "services" "svc" NAMESPACED "sa" "io.k8s.api.core.v1.Service"),
    row!("" "v1" "ServiceAccount" "serviceaccounts" "sa" NAMESPACED "" "io.k8s.api.core.v1.ServiceAccount"),
    row!("admissionregistration.k8s.io" "v1" "MutatingWebhookConfiguration" "mutatingwebhookconfigurations" "" CLUSTER "gx" "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration"),
    row!("admissionregistration.k8s.io" "v1" "ValidatingWebhookConfiguration" "validatingwebhookconfigurations" "" CLUSTER "gx" "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration"),
    row!("apiextensions.k8s.io" "v1" "CustomResourceDefinition" "customresourcedefinitions" "crd,crds" CLUSTER "sgx" "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"),
    row!("apiregistration.k8s.io" "v1" "APIService" "apiservices" "" CLUSTER "sx" "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService"),
    row!("apps" "v1" "DaemonSet" "daemonsets" "ds" NAMESPACED "sga" "io.k8s.api.apps.v1.DaemonSet"),
    row!("apps" "v1" "Deployment" "deployments" "deploy" NAMESPACED "sgca" "io.k8s.api.apps.v1.Deployment"),
    row!("apps" "v1" "ReplicaSet" "replicasets" "rs" NAMESPACED "sgca" "io.k8s.api.apps.v1.ReplicaSet"),
    row!("apps" "v1" "StatefulSet" "statefulsets" "sts" NAMESPACED "sgca" "io.k8s.api.apps.v1.StatefulSet"),
    row!("autoscaling" "v2" "HorizontalPodAutoscaler" "horizontalpodautoscalers" "hpa" NAMESPACED "sa" "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler"),
    row!("batch" "v1" "CronJob" "cronjobs" "cj" NAMESPACED "sga" "io.k8s.api.batch.v1.CronJob"),
    row!("batch" "v1" "Job" "jobs" "" NAMESPACED "sga" "io.k8s.api.batch.v1.Job"),
    row!("certificates.k8s.io" "v1" "CertificateSigningRequest" "certificatesigningrequests" "csr" CLUSTER "s" "io.k8s.api.certificates.v1.CertificateSigningRequest"),
    row!("coordination.k8s.io" "v1" "Lease" "leases" "" NAMESPACED "" "io.k8s.api.coordination.v1.Lease"),
    row!("events.k8s.io" "v1" "Event" "events" "ev" NAMESPACED "" "io.k8s.api.events.v1.Event"),
    row!("networking.k8s.io" "v1" "NetworkPolicy" "networkpolicies" "netpol" NAMESPACED "g" "io.k8s.api.networking.v1.NetworkPolicy"),
    row!("policy" "v1" "PodDisruptionBudget" "poddisruptionbudgets" "pdb" NAMESPACED "sg" "io.k8s.api.policy.v1.PodDisruptionBudget"),
    row!("rbac.authorization.k8s.io" "v1" "ClusterRole" "clusterroles" "" CLUSTER "" "io.k8s.api.rbac.v1.ClusterRole"),
    row!("rbac.authorization.k8s.io" "v1" "ClusterRoleBinding" "clusterrolebindings" "" CLUSTER "" "io.k8s.api.rbac.v1.ClusterRoleBinding"),
    row!("rbac.authorization.k8s.io" "v1" "Role" "roles" "" NAMESPACED "" "io.k8s.api.rbac.v1.Role"),
    row!("rbac.authorization.k8s.io" "v1" "RoleBinding" "rolebindings" "" NAMESPACED "" "io.k8s.api.rbac.v1.RoleBinding"),
    row!("scheduling.k8s.io" "v1" "PriorityClass" "priorityclasses" "pc" CLUSTER "g" "io.k8s.api.scheduling.v1.PriorityClass"),
    row!("storage.k8s.io" "v1" "StorageClass" "storageclasses" "sc" CLUSTER "" "io.k8s.api.storage.v1.StorageClass"),
];

static KINDS: LazyLock<Vec<Arc<Kind>>> =
    LazyLock::new(|| ROWS.iter().map(|row| Arc::new(row.kind())).collect());

static SCALE: LazyLock<Kind> = LazyLock::new(|| {
    row!("autoscaling" "v1" "Scale" "scales" "" NAMESPACED "" "io.k8s.api.autoscaling.v1.Scale").kind()
});

/// Kind of `/scale` subresources; not served itself.
pub(crate) fn scale() -> &'static Kind {
    &SCALE
}

static TOKEN_REQUEST: LazyLock<Kind> = LazyLock::new(|| {
    row!("authentication.k8s.io" "v1" "TokenRequest" "tokenrequests" "" NAMESPACED "" "io.k8s.api.authentication.v1.TokenRequest").kind()
});

/// Kind of `/token` subresources; not served itself.
pub(crate) fn token_request() -> &'static Kind {
    &TOKEN_REQUEST
}

/// Sorted by group and plural.
pub(crate) fn kinds() -> &'static [Arc<Kind>] {
    &KINDS
}

pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Arc<Kind>> {
    KINDS.iter().find(|kind| kind.is(group, plural) && kind.version == version)
}

pub(crate) fn by_storage(storage: &str) -> Option<&'static Arc<Kind>> {
    KINDS.iter().find(|kind| &*kind.storage == storage)
}

impl Row {
    fn kind(&self) -> Kind {
        let has = |flag: char| self.traits.contains(flag);
        let owned = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let category = if has('a') {
            "all"
        } else if has('x') {
            "api-extensions"
        } else {
            ""
        };
        Kind {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short: owned(self.short),
            categories: owned(category),
            namespaced: self.namespaced,
            has_status: has('s'),
            has_generation: has('g'),
            scale: has('c').then(|| Scale {
                spec: "spec.replicas".to_owned(),
                status: "status.replicas".to_owned(),
                selector: None,
            }),
            storage: storage_key(self.plural, self.group),
            origin: Origin::Builtin(self.definition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_schema() {
        for kind in kinds() {
            assert!(kind.schema().property("metadata").is_some(), "{}", kind.kind);
            assert_eq!(kind.schema().property("status").is_some(), kind.has_status, "{}", kind.kind);
        }
    }
}
