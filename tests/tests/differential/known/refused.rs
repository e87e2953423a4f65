//! Requests that the simulator refuses and the real server accepts or refuses for another reason.

use serde_json::{Value, json};

use super::{GROUP, Known, NAMESPACE, Shown::Codes, core, known, of, pod, post};
use crate::{
    pair::{APPLY, Call, YAML},
    prepare::{CRDS, crd},
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

pub(super) fn all() -> Vec<Known> {
    [definitions(), unchecked(), subresources(), others()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Known> {
    let definition = |change: &dyn Fn(&mut Value)| {
        let mut definition = crd("bar", GROUP);
        // Its names are unique.
        definition["spec"]["names"] = json!({"plural": "bars", "kind": "Bar"});
        change(&mut definition);
        post(format!("{CRDS}?dryRun=All"), definition)
    };
    let spec = |crd: &mut Value, field: &str, value: Value| {
        let version = &mut crd["spec"]["versions"][0];
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        match field {
            "" => *spec = value,
            field => spec[field] = value,
        }
    };
    let patterned = |pattern: &str| {
        let patterned = json!({"r": {"type": "integer"}, "p": {"type": "string", "pattern": pattern}});
        definition(&|crd| spec(crd, "properties", patterned.clone()))
    };
    let hooked = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://none.example.org"}}});
    let nested =
        (0..100).fold(json!({"type": "string"}), |items, _| json!({"type": "array", "items": items}));
    let deep = format!(".spec{}", ".a".repeat(101));
    let taken = Codes([201, 501]);
    vec![
        known(
            "CEL rules",
            definition(&|crd| spec(crd, "x-kubernetes-validations", json!([{"rule": "self.a != 'none'"}]))),
            taken,
        ),
        known(
            "conversion by a webhook",
            definition(&|crd| crd["spec"]["conversion"] = hooked.clone()),
            taken,
        ),
        known("objects of more than 100 levels", definition(&|crd| spec(crd, "", nested.clone())), taken),
        known(
            "scale paths of more than 100 levels",
            definition(&|crd| {
                crd["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] = deep.clone().into();
            }),
            taken,
        ),
        known("long patterns", patterned(&"a".repeat(16 * 1024 + 1)), Codes([201, 422])),
        known("patterns that are large when compiled", patterned(r"(\pL{500}){2}"), Codes([201, 422])),
    ]
}

/// Requests that the simulator cannot validate.
fn unchecked() -> Vec<Known> {
    let hook = json!({"metadata": {"name": "unchecked"}, "webhooks": [{
        "name": GROUP, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "a", "expression": "true"}],
        "clientConfig": {"service": {"name": "none", "namespace": NAMESPACE}}}]});
    let job = |policy: Value| {
        let mut job = json!({"metadata": {"name": "j"}, "spec": {"completionMode": "Indexed", "completions": 1,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
        crate::fixed::merge(&mut job["spec"], policy);
        post(of("batch", "jobs?dryRun=All"), job)
    };
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All";
    let volumes = json!({"volumes": [{"name": "v", "nfs": {"path": "/x", "server": "s"}}]});
    let taken = Codes([201, 501]);
    vec![
        known("other volumes of pods", post(core("pods?dryRun=All"), pod("p", volumes)), taken),
        known("failure policies of Jobs", job(json!({"podFailurePolicy": {"rules": []}})), taken),
        known(
            "success policies of Jobs",
            job(json!({"successPolicy": {"rules": [{"succeededCount": 1}]}})),
            taken,
        ),
        known("match conditions of webhooks", post(hooks, hook), taken),
    ]
}

fn subresources() -> Vec<Known> {
    let pod = |subresource: &str| core(&format!("pods/none/{subresource}"));
    let named = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "none"}});
    let mut bound = named("Binding", "v1");
    bound["target"] = json!({"kind": "Node", "name": "none"});
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    namespace["spec"] = json!({"finalizers": ["kubernetes"]});
    let mut scale = named("Scale", "autoscaling/v1");
    scale["spec"] = json!({"replicas": 1});
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "none"});
    let scales = of("apps", "deployments/none/scale?fieldManager=one");
    let nothing = Codes([404, 501]);
    vec![
        known("log", Call::get(pod("log")), nothing),
        known("exec", Call::get(pod("exec")), nothing),
        known("attach", Call::get(pod("attach")), nothing),
        known("port-forward", Call::get(pod("portforward")), nothing),
        known("proxy", Call::get(pod("proxy")), nothing),
        known("paths behind a proxy", Call::get(core("services/none/proxy/a/b")), nothing),
        known("eviction", post(pod("eviction"), named("Eviction", "policy/v1")), nothing),
        known("binding", post(pod("binding"), bound), nothing),
        known("ephemeral containers", Call::get(pod("ephemeralcontainers")), nothing),
        known("resize", Call::get(pod("resize")), nothing),
        known("apply of /scale", Call::patch(APPLY, scales, scale), nothing),
        known(
            "finalize",
            Call::new("PUT", format!("/api/v1/namespaces/{NAMESPACE}/finalize"), namespace),
            Codes([200, 501]),
        ),
        known(
            "tokens that are bound to nodes",
            post(core("serviceaccounts/default/token"), json!({"spec": {"boundObjectRef": node}})),
            nothing,
        ),
    ]
}

fn others() -> Vec<Known> {
    let get = json!({"verb": "get", "resource": "pods", "namespace": NAMESPACE});
    let of_user =
        json!({"metadata": {"namespace": NAMESPACE}, "spec": {"user": "x", "resourceAttributes": get}});
    let autoscalers = "horizontalpodautoscalers";
    vec![
        known(
            "reviews of rules",
            post(format!("{REVIEWS}/selfsubjectrulesreviews"), json!({"spec": {"namespace": NAMESPACE}})),
            Codes([201, 501]),
        ),
        known(
            "reviews of others in a namespace",
            post(format!("{REVIEWS}/namespaces/{NAMESPACE}/localsubjectaccessreviews"), of_user),
            Codes([201, 501]),
        ),
        known(
            "reviews of tokens",
            post("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": "x"}})),
            Codes([201, 501]),
        ),
        known(
            "impersonation",
            Call::get(core("configmaps")).with(("impersonate-user", "x")),
            Codes([403, 501]),
        ),
        known(
            "impersonation of a group alone",
            Call::get(core("configmaps")).with(("impersonate-group", "x")),
            Codes([400, 501]),
        ),
        known(
            "HorizontalPodAutoscalers v1",
            Call::get(format!("/apis/autoscaling/v1/namespaces/{NAMESPACE}/{autoscalers}")),
            Codes([200, 404]),
        ),
        known("kinds that are not served", Call::get(core("endpoints")), Codes([200, 501])),
        known("/version as YAML", Call::get("/version").accepting(YAML), Codes([406, 200])),
        known(
            "answers in nothing but protobuf",
            Call::get(core("configmaps")).accepting(PROTOBUF),
            Codes([200, 406]),
        ),
        known(
            "protobuf of custom resources",
            Call::raw("POST", of(GROUP, "foos"), PROTOBUF, b"k8s\0".to_vec()),
            Codes([0, 415]),
        ),
    ]
}
