//! Defaults and fields that only the real server sets.

use serde_json::{Value, json};

use super::{
    GROUP, Known, NAMESPACE,
    Shown::{Both, Words},
    WHOLE_BODY, core, known, of, pod, post, workload,
};
use crate::pair::{Answer, Call, MERGE, TABLE};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

pub(super) fn all() -> Vec<Known> {
    [not_there(), access(), given(), forms()].into_iter().flatten().collect()
}

/// Missing areas.
fn not_there() -> Vec<Known> {
    let hook = json!({"metadata": {"name": "known"}, "webhooks": [{
        "name": GROUP, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "timeoutSeconds": 1, "clientConfig": {"service": {"name": "none", "namespace": NAMESPACE}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "objectSelector": {"matchLabels": {"known": "hooked"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}]});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hooked = json!({"metadata": {"name": "hooked", "labels": {"known": "hooked"}}});
    let local = json!({"metadata": {"name": "v1.local.example.org"}, "spec": {
        "group": "local.example.org", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}});
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "x", "namespace": NAMESPACE},
        "reason": "R", "message": "m", "type": "Normal"});
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let there = Words(&["code: 200 and simulated 404", WHOLE_BODY]);
    let lacking = Words(&["code: 200 and simulated 501", WHOLE_BODY]);
    vec![
        // A controller creates it later.
        known(
            "children of a Deployment",
            Call::get(of("apps", "replicasets")),
            Both(|real, simulated| {
                let many = |answer: &Answer| answer.body["items"].as_array().map(Vec::len);
                many(real) > Some(0) && many(simulated) == Some(0)
            }),
        )
        .after(vec![post(of("apps", "deployments"), workload("comes"))]),
        known(
            "webhooks",
            post(core("configmaps?dryRun=All"), hooked),
            Words(&["code: 500 and simulated 201", WHOLE_BODY]),
        )
        .after(vec![post(hooks, hook)]),
        known(
            "quotas",
            post(
                core("resourcequotas"),
                json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/leases": "9"}}}),
            ),
            Words(&["code: 201 and simulated 501", WHOLE_BODY]),
        ),
        known("limits", Call::get(core("limitranges")), lacking),
        known("admission policies", Call::get(policies), lacking),
        known("Events of two groups", Call::get(of("events.k8s.io", "events/e")), there)
            .after(vec![post(core("events"), event)]),
        known("APIServices of what is served", Call::get(format!("{SERVICES}/v1.apps")), there),
        known(
            "groups of APIServices without a Service",
            Call::get("/apis/local.example.org"),
            Words(&["code: 200 and simulated 404", "content-type", WHOLE_BODY]),
        )
        .after(vec![post(SERVICES, local)]),
    ]
}

fn access() -> Vec<Known> {
    let roles = format!("{RBAC}/clusterroles");
    vec![
        known(
            "RBAC: roles from the start",
            Call::get(format!("{roles}/view")),
            Words(&["code: 200 and simulated 404", WHOLE_BODY]),
        ),
        known(
            "SelfSubjectAccessReview has managedFields",
            post(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            ),
            Words(&[".metadata.managedFields: simulated lacks"]),
        ),
        known(
            "SubjectAccessReview has managedFields",
            post(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                json!({"spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            ),
            Words(&[".metadata.managedFields: simulated lacks"]),
        ),
    ]
}

/// Allocation and protection of objects.
fn given() -> Vec<Known> {
    let claims = core("persistentvolumeclaims");
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"volumeName": "none", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let reached = |name: &str| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 31_999}]}});
    let foos = of(GROUP, "foos");
    let scaled = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Foo", "metadata": {"name": "scaled"}, "spec": {"a": "x", "r": 5}});
    let pods = core("pods?dryRun=All");
    vec![
        known(
            "PersistentVolumeClaims get a finalizer",
            post(format!("{claims}?dryRun=All"), claim("c")),
            Words(&[".metadata.finalizers: simulated lacks"]),
        ),
        known(
            "bound PersistentVolumeClaims grow",
            Call::patch(
                MERGE,
                format!("{claims}/bound?dryRun=All"),
                json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
            ),
            Words(&["code: 403 and simulated 200", WHOLE_BODY]),
        )
        .after(vec![
            post(&*claims, claim("bound")),
            Call::patch(
                MERGE,
                format!("{claims}/bound/status"),
                json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
            ),
        ]),
        known(
            "DaemonSets get an annotation",
            post(of("apps", "daemonsets?dryRun=All"), workload("d")),
            Words(&[".metadata.annotations: simulated lacks", "deprecated.daemonset.template.generation"]),
        ),
        known(
            "pods get a token",
            post(&*pods, pod("p", json!({"automountServiceAccountToken": null}))),
            Words(&[".spec.volumes: simulated lacks", ".volumeMounts: simulated lacks"]),
        ),
        known(
            "pods that are gated say so",
            post(&*pods, pod("p", json!({"schedulingGates": [{"name": "known.example.org/gate"}]}))),
            Words(&[".status.conditions: simulated lacks"]),
        ),
        known(
            "ports of nodes that are in use",
            post(core("services?dryRun=All"), reached("other")),
            Words(&["code: 422 and simulated 201", WHOLE_BODY]),
        )
        .after(vec![post(core("services"), reached("reached"))]),
        known(
            "a write through /scale that changes nothing",
            Call::get(format!("{foos}/scaled")),
            Words(&[".metadata.managedFields"]),
        )
        .after(vec![
            post(&*foos, scaled),
            Call::patch(MERGE, format!("{foos}/scaled/scale"), json!({"spec": {"replicas": 5}})),
        ]),
    ]
}

/// Omissions in discovery.
fn forms() -> Vec<Known> {
    vec![
        known(
            "columns are described",
            Call::get(core("configmaps")).accepting(TABLE),
            Both(|real, simulated| {
                let described = |body: &Value| {
                    let columns = body["columnDefinitions"].as_array().into_iter().flatten();
                    columns.filter(|column| column["description"] != "").count()
                };
                described(&real.body) > described(&simulated.body)
            }),
        ),
        known(
            "watches that ask for lists of metadata",
            Call::get(core("configmaps?watch=1&timeoutSeconds=1"))
                .accepting("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Both(|real, simulated| {
                let events = |answer: &Answer| answer.body.as_array().map_or(0, Vec::len);
                events(real) == 0 && events(simulated) > 0
            }),
        ),
        known(
            "OpenAPI v3 tells values that are allowed",
            Call::get("/openapi/v3/apis/apps/v1"),
            Both(|real, simulated| {
                let told = |body: &Value| body.to_string().contains("\"enum\"");
                told(&real.body) && !told(&simulated.body)
            }),
        ),
        known(
            "kinds have hashes of how they are stored",
            Call::get("/api/v1"),
            Both(|real, simulated| {
                let hash = |body: &Value| {
                    let all = body["resources"].as_array().into_iter().flatten();
                    all.filter_map(|kind| kind["storageVersionHash"].as_str()).any(|hash| !hash.is_empty())
                };
                let is_alike = real.body["apiVersion"] == simulated.body["apiVersion"];
                is_alike && hash(&real.body) && !hash(&simulated.body)
            }),
        ),
    ]
}
