//! Values that no built-in kind allows.

use serde_json::{Value, json};

use crate::{
    fixed::{job, merge},
    pair::Call,
};

/// One call for each.
pub(crate) fn calls() -> Vec<Call> {
    let of = |path: &str, body: Value| {
        Call::new("POST", format!("{}?dryRun=All", path.replace("/v1/", "/v1/namespaces/fixed/")), body)
    };
    let template = |pod: Value| {
        let mut spec = json!({"containers": [{"name": "web", "image": "x:1"}]});
        merge(&mut spec, pod);
        json!({"metadata": {"labels": {"a": "b"}}, "spec": spec})
    };
    let workload = |spec: Value, pod: Value| {
        let mut all = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template(pod)});
        merge(&mut all, spec);
        json!({"metadata": {"name": "d"}, "spec": all})
    };
    let deployment = |spec: Value, pod: Value| of("/apis/apps/v1/deployments", workload(spec, pod));
    let container = |rest: Value| {
        let mut container = json!({"name": "web", "image": "x:1"});
        merge(&mut container, rest);
        json!({"containers": [container]})
    };
    let service = |spec: Value| of("/api/v1/services", json!({"metadata": {"name": "x"}, "spec": spec}));
    let cron = |spec: Value| {
        let mut job = job("x", json!({}));
        merge(&mut job["spec"], spec);
        of("/apis/batch/v1/cronjobs", job)
    };
    let batch = |spec: Value, pod: Value| {
        let mut all = json!({"template": template(pod)});
        merge(&mut all, spec);
        of("/apis/batch/v1/jobs", json!({"metadata": {"name": "j"}, "spec": all}))
    };
    let secret = |data: Value| of("/api/v1/secrets", json!({"metadata": {"name": "x"}, "data": data}));
    vec![
        deployment(json!({"replicas": -1}), json!({})),
        deployment(json!({"minReadySeconds": -1, "revisionHistoryLimit": -2}), json!({})),
        deployment(json!({"strategy": {"type": "Sometimes"}}), json!({})),
        deployment(json!({}), json!({"restartPolicy": "OnFailure"})),
        deployment(json!({}), json!({"dnsPolicy": "Sometimes", "terminationGracePeriodSeconds": -1})),
        deployment(json!({}), container(json!({"imagePullPolicy": "Sometimes"}))),
        deployment(json!({}), container(json!({"ports": [{"containerPort": 99999}, {"containerPort": 0}]}))),
        deployment(json!({}), container(json!({"ports": [{"containerPort": 80, "protocol": "ICMP"}]}))),
        of("/apis/apps/v1/statefulsets", workload(json!({"serviceName": "s", "replicas": -1}), json!({}))),
        of("/apis/apps/v1/daemonsets", workload(json!({"minReadySeconds": -1}), json!({}))),
        of(
            "/api/v1/pods",
            json!({"metadata": {"name": "p"}, "spec": {
                "automountServiceAccountToken": false, "restartPolicy": "Sometimes",
                "containers": [{"name": "a", "image": "b"}]}}),
        ),
        service(json!({"ports": [{"port": 0}]})),
        service(json!({"ports": [{"port": 70000, "protocol": "ICMP"}]})),
        service(json!({"type": "Sometimes", "ports": [{"port": 80}]})),
        service(json!({"sessionAffinity": "Sometimes", "ports": [{"port": 80}]})),
        cron(json!({"schedule": "daily"})),
        cron(json!({"concurrencyPolicy": "Sometimes"})),
        cron(json!({"startingDeadlineSeconds": -1, "failedJobsHistoryLimit": -1})),
        batch(
            json!({"parallelism": -1, "completions": -1, "backoffLimit": -1}),
            json!({"restartPolicy": "Never"}),
        ),
        batch(json!({}), json!({"restartPolicy": "Always"})),
        of(
            "/apis/policy/v1/poddisruptionbudgets",
            json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}}),
        ),
        of(
            "/apis/networking.k8s.io/v1/networkpolicies",
            json!({"metadata": {"name": "np"}, "spec": {"podSelector": {}, "policyTypes": ["Sideways"]}}),
        ),
        secret(json!({"a": "b c"})),
        secret(json!({"a": "abc"})),
        of(
            "/apis/autoscaling/v2/horizontalpodautoscalers".replace("/v2/", "/v2/namespaces/fixed/").as_str(),
            json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 0, "minReplicas": 0,
                   "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}),
        ),
    ]
}
