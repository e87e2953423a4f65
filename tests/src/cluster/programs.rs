//! Command lines of the programs.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::{
    ADMIN, API_SERVER, ControlPlane, Pki,
    pki::{CONTROLLER_MANAGER, SCHEDULER},
    process_name,
};
use crate::{Etcd, Harness, Process};

/// Controllers that module objects need.
///
/// Volumes, autoscaling, cloud, certificates, bootstrap tokens and quotas are excluded: they cost memory and
/// start time.
const CONTROLLERS: [&str; 18] = [
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
];
/// Further controllers for pods.
const POD_CONTROLLERS: [&str; 3] =
    ["node-lifecycle-controller", "pod-garbage-collector-controller", "taint-eviction-controller"];

pub(super) fn apiserver(
    harness: &Harness,
    cluster: &str,
    etcd: &Etcd,
    pki: &Pki,
    port: u16,
) -> Result<Process> {
    let mut args = vec![
        flag("etcd-servers", etcd.url()),
        flag("etcd-prefix", &format!("/{cluster}")),
        flag("bind-address", "127.0.0.1"),
        flag("advertise-address", "127.0.0.1"),
        flag("secure-port", &port.to_string()),
        flag("tls-cert-file", &path(&pki.cert_file)),
        flag("tls-private-key-file", &path(&pki.key_file)),
        flag("client-ca-file", &path(&pki.ca_file)),
        flag("token-auth-file", &path(&pki.token_file)),
        flag("authorization-mode", "RBAC"),
        // Some platforms require extra permission for `blockOwnerDeletion`.
        flag("enable-admission-plugins", "OwnerReferencesPermissionEnforcement"),
        flag("service-account-issuer", "https://kubernetes.default.svc"),
        flag("service-account-key-file", &path(&pki.service_account_public_file)),
        flag("service-account-signing-key-file", &path(&pki.service_account_key_file)),
        flag("service-cluster-ip-range", "10.0.0.0/24"),
        // Node agents of modules run privileged.
        flag("allow-privileged", "true"),
        // Endpoints cannot contain a loopback address, and no client uses it.
        flag("endpoint-reconciler-type", "none"),
        flag("profiling", "false"),
        flag("v", "0"),
    ];
    args.extend(super::audit::flags(harness, cluster)?);
    start(harness, cluster, API_SERVER, args)
}

pub(super) fn controller_manager(harness: &Harness, cluster: &ControlPlane, pods: bool) -> Result<Process> {
    let mut controllers = CONTROLLERS.to_vec();
    if pods {
        controllers.extend(POD_CONTROLLERS);
    }
    let args = vec![
        flag("kubeconfig", &path(&cluster.kubeconfig_file(harness, CONTROLLER_MANAGER)?)),
        flag("use-service-account-credentials", "true"),
        flag("root-ca-file", &path(&cluster.real()?.pki.ca_file)),
        flag("service-account-private-key-file", &path(&cluster.real()?.pki.service_account_key_file)),
        flag("controllers", &controllers.join(",")),
        flag("leader-elect", "false"),
        flag("secure-port", "0"),
        flag("profiling", "false"),
        flag("v", "0"),
    ];
    start(harness, &cluster.name, "kube-controller-manager", args)
}

pub(super) fn scheduler(harness: &Harness, cluster: &ControlPlane) -> Result<Process> {
    let args = vec![
        flag("kubeconfig", &path(&cluster.kubeconfig_file(harness, SCHEDULER)?)),
        flag("leader-elect", "false"),
        flag("secure-port", "0"),
        flag("profiling", "false"),
        flag("v", "0"),
    ];
    start(harness, &cluster.name, "kube-scheduler", args)
}

pub(super) fn kwok(harness: &Harness, cluster: &ControlPlane) -> Result<Process> {
    let mut args = vec![
        flag("kubeconfig", &path(&cluster.kubeconfig_file(harness, ADMIN)?)),
        flag("manage-all-nodes", "true"),
        flag("node-lease-duration-seconds", "40"),
        flag("v", "WARN"),
    ];
    let folder = harness.tools()?.get("kwok-stages")?;
    let stages = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for stage in stages {
        args.push(flag("config", &path(&stage?.path())));
    }
    start(harness, &cluster.name, "kwok", args)
}

fn start(harness: &Harness, cluster: &str, program: &str, args: Vec<String>) -> Result<Process> {
    let mut spec = harness.spec(&process_name(cluster, program), &harness.tools()?.get(program)?, args);
    // kwok reads ~/.kwok, the others read ~/.kube. A user's files must not matter.
    spec.env.push(("HOME".to_owned(), path(&harness.folder().join(cluster))));
    Process::start(&spec)
}

fn flag(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
