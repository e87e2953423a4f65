//! Known differences, each as the calls that show it. One that is gone fails, too: then its row in `docs/simulator.md` goes.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidewatch_tests::wait;
use tokio::time::Instant;

use crate::{
    pair::{APPLY, Call, MERGE, Memory, Pair, YAML, one},
    prepare::{CRDS, crd, prepare},
};

const NAMESPACE: &str = "known";
const SOON: Duration = Duration::from_secs(10);
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Of two codes the bodies differ as a whole: a refusal and an object. That is in each line.
const WHOLE_BODY: &str = ".";

/// A row of the table of known differences.
struct Known {
    /// What it is about.
    about: &'static str,
    /// Calls that both sides have to answer alike, before.
    before: Vec<Call>,
    /// The call that is answered differently.
    call: Call,
    /// What is said of each difference; all that is said has one of these words, and each is said.
    differences: &'static [&'static str],
}

/// Shows all of them, and returns what is not as it is told.
pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    prepare(pair, NAMESPACE, "known.example.org").await?;
    let all = all();
    let (mut found, many) = (Vec::new(), all.len());
    for Known { about, before, call, differences } in all {
        let mut memories = (Memory::default(), Memory::default());
        for call in &before {
            let lines = pair.call(call, &mut memories).await?;
            found.extend(lines.into_iter().map(|line| format!("known ({about}), before it: {line}")));
        }
        let is_told =
            |lines: &[String]| differences.iter().all(|words| lines.iter().any(|line| line.contains(words)));
        let mut lines = pair.call(&call, &mut memories).await?;
        // What the real one was told before may have effect a moment later.
        let began = Instant::now();
        while !before.is_empty() && !is_told(&lines) && began.elapsed() < SOON {
            wait::pause().await;
            lines = pair.call(&call, &mut memories).await?;
        }
        let strange = lines.iter().filter(|line| !differences.iter().any(|words| line.contains(words)));
        found.extend(strange.map(|line| format!("known ({about}), and more: {line}")));
        let gone = differences.iter().filter(|words| !lines.iter().any(|line| line.contains(*words)));
        found.extend(gone.map(|words| format!("known ({about}), is alike by now: {words}")));
    }
    let refused = refused();
    let many = many + refused.len();
    for (about, call, [real, simulated]) in refused {
        let mut memory = Memory::default();
        let codes = [
            one(&pair.real, &call, &mut memory).await?.code,
            one(&pair.simulated, &call, &mut memory).await?.code,
        ];
        let as_told = codes == [real, simulated];
        found.extend(
            (!as_told).then(|| format!("known ({about}): {codes:?}, and not {real} and {simulated}")),
        );
    }
    say!("known: {many} differences");
    Ok(found)
}

fn all() -> Vec<Known> {
    let core = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
    let of = |group: &str, plural: &str| format!("/apis/{group}/v1/namespaces/{NAMESPACE}/{plural}");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let post = |path: String, body: Value| Call::new("POST", path, body);
    let known = |about, call, differences| Known { about, before: Vec::new(), call, differences };
    let deployment = |container: Value| {
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}}})
    };
    let hook = json!({"metadata": {"name": "known"}, "webhooks": [{
        "name": "known.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "timeoutSeconds": 1, "clientConfig": {"service": {"name": "none", "namespace": NAMESPACE}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "objectSelector": {"matchLabels": {"known": "hooked"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}]});
    let foos = of("known.example.org", "foos");
    let hooked = json!({"metadata": {"name": "hooked", "labels": {"known": "hooked"}}});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    vec![
        Known {
            before: vec![post(hooks.to_owned(), hook)],
            ..known(
                "webhooks",
                post(core("configmaps?dryRun=All"), hooked),
                &["code: 500 and simulated 201", WHOLE_BODY],
            )
        },
        known(
            "quotas",
            post(core("resourcequotas"), json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})),
            &["code: 201 and simulated 404", WHOLE_BODY],
        ),
        known(
            "RBAC: roles from the start",
            Call::get(format!("{rbac}/clusterroles/view")),
            &["code: 200 and simulated 404", WHOLE_BODY],
        ),
        known(
            "PersistentVolumeClaims get a finalizer",
            post(
                core("persistentvolumeclaims?dryRun=All"),
                json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
            ),
            &[".metadata.finalizers: simulated lacks"],
        ),
        known(
            "DaemonSets get an annotation",
            post(of("apps", "daemonsets?dryRun=All"), deployment(json!({"name": "web", "image": "x:1"}))),
            &[".metadata.annotations: simulated lacks", "deprecated.daemonset.template.generation"],
        ),
        Known {
            before: vec![post(
                core("events"),
                json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "x", "namespace": NAMESPACE},
                       "reason": "R", "message": "m", "type": "Normal"}),
            )],
            ..known(
                "Events of two groups",
                Call::get(of("events.k8s.io", "events/e")),
                &["code: 200 and simulated 404", WHOLE_BODY],
            )
        },
        Known {
            before: vec![
                post(
                    foos.clone(),
                    json!({"apiVersion": "known.example.org/v1", "kind": "Foo", "metadata": {"name": "scaled"}, "spec": {"a": "x", "r": 5}}),
                ),
                Call::patch(MERGE, format!("{foos}/scaled/scale"), json!({"spec": {"replicas": 5}})),
            ],
            ..known(
                "a write through /scale that changes nothing",
                Call::get(format!("{foos}/scaled")),
                &[".metadata.managedFields"],
            )
        },
        known(
            "SelfSubjectAccessReview has managedFields",
            post(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
                json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            ),
            &[".metadata.managedFields: simulated lacks"],
        ),
    ]
}

/// What the simulated one refuses and the real one does not, or refuses for another reason: with these codes.
fn refused() -> Vec<(&'static str, Call, [u16; 2])> {
    let core = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
    let post = |path: String, body: Value| Call::new("POST", path, body);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}});
    let definition = |change: &dyn Fn(&mut Value)| {
        let mut definition = crd("bar", "known.example.org");
        change(&mut definition);
        post(format!("{CRDS}?dryRun=All"), definition)
    };
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let rule = json!([{"rule": "self.a != 'none'"}]);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "none"}, "spec": {"replicas": 1}});
    let scales = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/none/scale?fieldManager=one");
    vec![
        ("log", Call::get(core("pods/none/log")), [404, 501]),
        ("eviction", post(core("pods/none/eviction"), eviction), [404, 501]),
        (
            "token",
            post(core("serviceaccounts/default/token"), json!({"spec": {"audiences": ["a"]}})),
            [201, 501],
        ),
        (
            "CEL rules",
            definition(&|crd| {
                crd.pointer_mut(spec).unwrap_or(&mut Value::Null)["x-kubernetes-validations"] = rule.clone();
            }),
            [201, 501],
        ),
        (
            "conversion by a webhook",
            definition(&|crd| {
                crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://none.example.org"}}});
            }),
            [201, 501],
        ),
        (
            "objects of more than 100 levels",
            definition(&|crd| {
                let list = |items, _| json!({"type": "array", "items": items});
                *crd.pointer_mut(spec).unwrap_or(&mut Value::Null) =
                    (0..100).fold(json!({"type": "string"}), list);
            }),
            [201, 501],
        ),
        ("apply of /scale", Call::patch(APPLY, scales, scale), [404, 501]),
        (
            "other reviews",
            post(
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews".to_owned(),
                json!({"spec": {"namespace": NAMESPACE}}),
            ),
            [201, 501],
        ),
        (
            "HorizontalPodAutoscalers v1",
            Call::get(format!("/apis/autoscaling/v1/namespaces/{NAMESPACE}/horizontalpodautoscalers")),
            [200, 404],
        ),
        ("kinds that are not served", Call::get(core("endpoints")), [200, 404]),
        ("/version as YAML", Call::get("/version").accepting(YAML), [406, 200]),
        ("answers in nothing but protobuf", Call::get(core("configmaps")).accepting(PROTOBUF), [200, 406]),
    ]
}
