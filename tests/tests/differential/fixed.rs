//! Fixed sequences: each feature and its failures.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_tests::wait;

use crate::{
    forms,
    pair::{APPLY, Call, JSON_PATCH, MERGE, Memory, PARTIAL, PARTIAL_LIST, Pair, STRATEGIC},
    prepare::{CRDS, crd, prepare},
};

const SOON: Duration = Duration::from_secs(10);
const NAMESPACE: &str = "fixed";
const MAPS: &str = "/api/v1/namespaces/fixed/configmaps";
const FOOS: &str = "/apis/fixed.example.org/v1/namespaces/fixed/foos";
const JOBS: &str = "/apis/batch/v1/namespaces/fixed/cronjobs";

pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    prepare(pair, NAMESPACE, "fixed.example.org").await?;
    let mut found = Vec::new();
    for (name, calls) in [
        ("objects", objects()),
        ("lists", lists()),
        ("watches", watches()),
        ("applies", applies()),
        ("custom", custom()),
        ("workloads", workloads()),
        ("kinds", kinds()),
        ("forms", forms::calls()),
    ] {
        let mut memories = (Memory::default(), Memory::default());
        let many = calls.len();
        for (number, call) in calls.iter().enumerate() {
            let differences = pair.call(call, &mut memories).await?;
            found.extend(differences.into_iter().map(|line| format!("{name}[{number}] {line}")));
        }
        say!("{name}: {many} calls");
    }
    found.extend(seconds(pair).await?);
    Ok(found)
}

/// Applying an empty map changes only the manager's time, so the server skips the write.
async fn seconds(pair: &Pair) -> Result<Vec<String>> {
    let mut memories = (Memory::default(), Memory::default());
    let path = format!("{MAPS}/second?fieldManager=one");
    let apply = Call::patch(APPLY, path, map("second", json!({"data": {}})));
    let mut found = pair.call(&apply.clone().saved("first"), &mut memories).await?;
    let began = Timestamp::now().as_second();
    wait::until("the second after the next", SOON, || async {
        Ok((Timestamp::now().as_second() > began + 1).then_some(()))
    })
    .await?;
    found.extend(pair.call(&apply, &mut memories).await?);
    let selected = format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=second");
    let watch = Call::get(format!("{selected}&resourceVersion={{first.rv}}"));
    found.extend(pair.call(&watch, &mut memories).await?);
    Ok(found.into_iter().map(|line| format!("seconds: {line}")).collect())
}

fn map(name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}});
    merge(&mut object, rest);
    object["metadata"]["name"] = name.into();
    object
}

fn foo(name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": "fixed.example.org/v1", "kind": "Foo", "metadata": {}});
    merge(&mut object, rest);
    object["metadata"]["name"] = name.into();
    object
}

pub(crate) fn merge(object: &mut Value, rest: Value) {
    if let (Value::Object(map), Value::Object(rest)) = (object, rest) {
        map.extend(rest);
    }
}

fn objects() -> Vec<Call> {
    let a = &format!("{MAPS}/a");
    let post = |body: Value| Call::new("POST", MAPS, body);
    let put = |path: &str, body: Value| Call::new("PUT", path, body);
    let with = |query: &str, body: Value| Call::new("POST", format!("{MAPS}?{query}"), body);
    let delete = |path: &str, body: Value| Call::new("DELETE", path, body);
    let doubled = |number| json!({"op": "copy", "from": "/data", "path": format!("/data/k{number}")});
    let other = "6e94b08b-d0ce-4eb4-82c1-f272f48599da";
    vec![
        Call::get("/api/v1/namespaces/fixed"),
        post(map("a", json!({"data": {"x": "1"}, "metadata": {"labels": {"l": "1"}}}))).saved("a"),
        post(map("a", json!({}))),
        Call::get(a),
        Call::get(format!("{MAPS}/none")),
        put(a, map("a", json!({"data": {"x": "2", "y": "1"}}))),
        put(a, map("a", json!({"data": {"x": "2", "y": "1"}}))),
        put(a, map("a", json!({"metadata": {"resourceVersion": "{a.rv}"}}))),
        put(a, map("b", json!({}))),
        put(a, map("a", json!({"metadata": {"uid": other}}))),
        put(&format!("{MAPS}/none"), map("none", json!({}))),
        Call::patch(MERGE, a, json!({"data": {"x": null, "z": "3"}, "metadata": {"labels": {"q": "r"}}})),
        Call::patch(MERGE, a, json!({"data": {"z": "3"}})),
        Call::patch(JSON_PATCH, a, json!([{"op": "add", "path": "/data/j", "value": "1"}])),
        Call::patch(JSON_PATCH, a, json!([{"op": "test", "path": "/data/j", "value": "2"}])),
        Call::patch(JSON_PATCH, a, json!([{"op": "remove", "path": "/data/none"}])),
        Call::patch(JSON_PATCH, a, json!({"a": 1})),
        Call::patch(JSON_PATCH, a, (0..40).map(doubled).collect()),
        Call::patch(
            JSON_PATCH,
            a,
            json!(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001]),
        ),
        Call::patch(STRATEGIC, a, json!({"data": {"s": "1"}, "metadata": {"finalizers": ["a/b"]}})),
        Call::patch(STRATEGIC, format!("{MAPS}/none"), json!({"data": {"s": "1"}})),
        Call::patch("text/plain", a, json!({"data": {"s": "1"}})),
        Call::patch(MERGE, a, json!({"data": {"s": 1}})),
        Call::patch(MERGE, a, json!({"metadata": {"name": "b"}})),
        Call::patch(MERGE, a, json!({"metadata": {"resourceVersion": "1"}})),
        Call::patch(MERGE, a, json!({"zap": 1})),
        delete(a, Value::Null),
        delete(a, Value::Null),
        Call::get(a),
        put(a, map("a", json!({"data": {"k": "v"}, "metadata": {"finalizers": ["a/b", "c/d"]}}))),
        Call::patch(MERGE, a, json!({"metadata": {"labels": {"while": "deleting"}}})),
        Call::patch(MERGE, a, json!({"metadata": {"finalizers": null}})),
        Call::get(a),
        post(map("b", json!({"metadata": {"resourceVersion": "7"}}))),
        post(map("B", json!({}))),
        post(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})),
        post(json!({"metadata": {}})),
        post(map("q", json!({"metadata": {"namespace": "other"}}))),
        with("dryRun=All", map("dry", json!({"data": {"a": "b"}}))),
        with("dryRun=x", map("dry", json!({}))),
        Call::get(format!("{MAPS}/dry")),
        with("fieldValidation=Strict", map("st", json!({"spec": {"a": 1}}))),
        with("fieldValidation=Bad", map("st", json!({}))),
        post(map("warn", json!({"spec": {"a": 1}}))),
        with("fieldManager=mgr", map("fm", json!({"data": {"a": "1"}, "immutable": true}))),
        put(&format!("{MAPS}/fm"), map("fm", json!({"data": {"a": "2"}, "immutable": true}))),
        delete(&format!("{MAPS}/fm"), json!({"preconditions": {"uid": other}})),
        delete(&format!("{MAPS}/fm"), json!({"preconditions": {"resourceVersion": "1"}})),
        delete(&format!("{MAPS}/fm?dryRun=All"), Value::Null),
        delete(&format!("{MAPS}/fm"), json!({"propagationPolicy": "Bad"})),
        // A delete across all namespaces is refused; default namespaces cannot be deleted.
        delete("/api/v1/configmaps", Value::Null),
        delete("/apis/apps/v1/deployments?labelSelector=a%3Db", Value::Null),
        delete("/api/v1/namespaces/default", Value::Null),
        delete("/api/v1/namespaces/kube-system", Value::Null),
        delete(
            &format!("{MAPS}/fm"),
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}),
        ),
        Call::get(format!("{MAPS}/fm")),
        post(json!({"metadata": {"generateName": "gen-"}})),
    ]
}

fn lists() -> Vec<Call> {
    let list = |query: &str| Call::get(format!("{MAPS}?{query}"));
    let mut calls: Vec<Call> = (0..5)
        .map(|index| {
            let labels = json!({"labels": {"p": (index % 2).to_string()}});
            Call::new(
                "POST",
                MAPS,
                map(&format!("l{index}"), json!({"data": {"i": "1"}, "metadata": labels})),
            )
        })
        .collect();
    calls.extend([
        list("labelSelector=p%3D1"),
        list("labelSelector=p+in+(1),p"),
        list("labelSelector=p+notin+(1),p"),
        list("labelSelector=p%3D%3D%3D1"),
        list("fieldSelector=metadata.name%3Dl1"),
        list("fieldSelector=data.x%3Dl1"),
        list("limit=2&labelSelector=p"),
        list("limit=2&resourceVersion=0&labelSelector=p"),
        list("limit=3").saved("page"),
        Call::new("POST", MAPS, map("l11", json!({}))),
        list("limit=2&continue={page.next}").saved("second"),
        list("limit=50&continue={second.next}"),
        list("continue=xx"),
        list("resourceVersion=999999999"),
        list("resourceVersion=abc"),
        list("resourceVersionMatch=Exact"),
        list("resourceVersionMatch=Exact&resourceVersion=0"),
        list("resourceVersionMatch=Bad&resourceVersion=1"),
        list("resourceVersionMatch=Exact&resourceVersion={page.rv}"),
        list("limit=2&continue={page.next}&resourceVersion=5"),
        list("limit=2&continue={page.next}&resourceVersion=0"),
        list("labelSelector=p%3D1").accepting(PARTIAL_LIST),
        Call::get(format!("{MAPS}/l1")).accepting(PARTIAL),
        Call::get(format!("{MAPS}/l1")).accepting("application/vnd.foo"),
        Call::new("DELETE", format!("{MAPS}?labelSelector=p%3D1"), Value::Null),
        list("labelSelector=p"),
        Call::get("/api/v1/foos"),
        Call::get("/apis/none.io/v1/foos"),
        Call::new("POST", format!("{MAPS}/l2"), map("l2", json!({}))),
        Call::new("PUT", MAPS, map("l2", json!({}))),
        Call::get(format!("{MAPS}/l2/status")),
        Call::new("DELETE", "/api/v1/namespaces", Value::Null),
        Call::new("POST", "/api/v1/namespaces/none/configmaps", map("x", json!({}))),
        Call::get("/api/v1/namespaces/none/configmaps"),
    ]);
    calls
}

fn watches() -> Vec<Call> {
    let w = &format!("{MAPS}/w");
    let watch = |query: &str| Call::get(format!("{MAPS}?watch=1&timeoutSeconds=1&{query}"));
    vec![
        Call::new("POST", MAPS, map("w", json!({"metadata": {"labels": {"w": "1"}}, "data": {"a": "1"}})))
            .saved("w"),
        Call::patch(MERGE, w, json!({"data": {"a": "2"}})),
        Call::patch(MERGE, w, json!({"metadata": {"labels": {"w": "2"}}})),
        Call::patch(MERGE, w, json!({"metadata": {"labels": {"w": "1"}, "finalizers": ["a/b"]}})),
        Call::new("DELETE", w, Value::Null),
        Call::patch(MERGE, w, json!({"metadata": {"finalizers": null}})),
        watch("resourceVersion={w.rv}"),
        watch("resourceVersion={w.rv}&labelSelector=w%3D1"),
        watch("resourceVersion={w.rv}&fieldSelector=metadata.name%3Dw"),
        watch("resourceVersion={w.rv}").accepting(PARTIAL),
        watch("labelSelector=p"),
        watch(
            "labelSelector=p&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        ),
        watch("labelSelector=p&sendInitialEvents=true"),
        watch("resourceVersionMatch=NotOlderThan&resourceVersion=1"),
        watch("resourceVersion=abc"),
    ]
}

fn applies() -> Vec<Call> {
    let apply = |name: &str, who: &str, body: Value| {
        Call::patch(APPLY, format!("{MAPS}/{name}?fieldManager={who}"), body)
    };
    let of = |data: Value| map("s", json!({"data": data}));
    let with = |metadata: Value, data: Value| map("s", json!({"data": data, "metadata": metadata}));
    let path = &format!("{MAPS}/s");
    vec![
        apply("s", "one", of(json!({"a": "1", "b": "1"}))),
        apply("s", "one", of(json!({"a": "1", "b": "1"}))),
        apply("s", "two", of(json!({"a": "2"}))),
        apply("s", "two", of(json!({"a": "2", "b": "3"}))),
        apply("s", "two&force=true", of(json!({"a": "2"}))),
        apply("s", "one", of(json!({"c": "1"}))),
        apply("s", "one", of(json!({}))),
        Call::patch(MERGE, path, json!({"data": {"a": "9", "u": "1"}})),
        apply("s", "two", of(json!({"a": "2"}))),
        apply("s", "two", of(json!({"a": "9"}))),
        apply("s", "two", of(json!({"q": "9"}))),
        Call::patch(APPLY, path, of(json!({}))),
        apply("s", "x", json!({"data": {}})),
        apply("s", "x", map("t", json!({}))),
        apply("s", "x", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})),
        apply("s", "x", with(json!({"managedFields": []}), json!({}))),
        apply("s", "x", with(json!({"resourceVersion": "1"}), json!({}))),
        apply(
            "s",
            "x",
            with(
                json!({"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["z/y"]}),
                json!({"l": "m"}),
            ),
        ),
        apply("s", "x", with(json!({"finalizers": ["z/x"]}), json!({"l": "m"}))),
        apply("s", "x&dryRun=All", of(json!({"l": "dry"}))),
        apply("new", "x&dryRun=All", map("new", json!({"data": {"l": "dry"}}))),
        Call::get(format!("{MAPS}/new")),
        Call::new("PUT", path, with(json!({"managedFields": [{}]}), json!({"a": "1"}))),
        apply("s", "x", of(json!({"l": "m"}))),
        apply("s", "x", of(json!({"zz": 1}))),
        apply("s", "x", map("s", json!({"zap": 1}))),
        Call::get(path),
    ]
}

fn custom() -> Vec<Call> {
    let a = &format!("{FOOS}/a");
    let post = |name: &str, spec: Value| Call::new("POST", FOOS, foo(name, json!({"spec": spec})));
    let apply = |who: &str, spec: Value| {
        Call::patch(APPLY, format!("{FOOS}/a?fieldManager={who}"), foo("a", json!({"spec": spec})))
    };
    let status = |who: &str, name: &str| {
        let body = foo(name, json!({"status": {"state": who}}));
        Call::patch(APPLY, format!("{FOOS}/{name}/status?fieldManager={who}"), body)
    };
    vec![
        Call::get(format!("{CRDS}/foos.fixed.example.org")),
        post("a", json!({"a": "x", "l": [{"name": "q"}], "zz": 1, "free": {"k": 1}})),
        post("b", json!({"n": 0, "e": "q", "p": "b", "l": [{"v": "1"}]})),
        post(
            "b",
            json!({"a": "toolong", "set": ["a", "a"], "al": ["1", "2", "3"], "l": [{"name": "a"}, {"name": "a"}]}),
        ),
        post("b", json!({"a": 1})),
        post("b", json!({"a": "x", "n": "3"})),
        post("b", json!({"a": null})),
        // Field ownership is lost or kept.
        post("m", json!({"a": "x"})),
        Call::patch(MERGE, format!("{FOOS}/m"), json!({"metadata": {"managedFields": []}})),
        Call::patch(
            JSON_PATCH,
            format!("{FOOS}/m"),
            json!([{"op": "replace", "path": "/metadata/managedFields", "value": []}]),
        ),
        Call::patch(MERGE, format!("{FOOS}/m"), json!({"metadata": {"managedFields": [{}]}})),
        Call::patch(MERGE, format!("{FOOS}/m"), json!({"spec": {"a": "y"}})),
        post("c", json!({"a": "x", "nul": null, "e": null})),
        post("d", json!({"a": "x", "nul": null, "n": null, "ios": "5%"})),
        Call::new("POST", FOOS, json!({"metadata": {"name": "q"}})),
        Call::new(
            "POST",
            FOOS,
            json!({"apiVersion": "fixed.example.org/v1", "kind": "Bar", "metadata": {"name": "q"}}),
        ),
        Call::new("POST", FOOS, foo("q", json!({}))),
        Call::new(
            "POST",
            format!("{FOOS}?fieldValidation=Strict"),
            foo("st", json!({"spec": {"a": "x", "zz": 1, "l": [{"name": "q", "no": 1}]}})),
        ),
        Call::new("PUT", a, foo("a", json!({"spec": {"a": "y"}}))),
        Call::get(a).saved("f"),
        Call::new("PUT", a, foo("a", json!({"spec": {"a": "y"}, "metadata": {"resourceVersion": "{f.rv}"}}))),
        Call::patch(MERGE, format!("{a}/status"), json!({"status": {"state": "Ready", "x": 1}})),
        Call::patch(MERGE, a, json!({"status": {"state": "No"}, "metadata": {"labels": {"a": "b"}}})),
        Call::patch(MERGE, a, json!({"spec": {"a": "z"}})),
        Call::patch(STRATEGIC, a, json!({"spec": {"a": "q"}})),
        apply(
            "one",
            json!({"a": "z", "l": [{"name": "1", "v": "1"}, {"name": "2", "v": "2"}], "set": ["a", "b"]}),
        ),
        apply("two", json!({"a": "z", "l": [{"name": "2", "v": "9"}, {"name": "3"}], "set": ["c", "b"]})),
        apply(
            "two&force=true",
            json!({"a": "z", "l": [{"name": "3"}, {"name": "2", "v": "9"}], "set": ["c", "b"]}),
        ),
        apply("one", json!({"a": "z"})),
        apply("two", json!({"a": "z"})),
        apply("two", json!({"a": "z", "zap": {"x": 1}})),
        status("one", "a"),
        status("two", "a"),
        status("two", "new"),
        Call::get(format!("{FOOS}?limit=1")),
        Call::get(a).accepting(PARTIAL),
        Call::get(format!("{a}/scale")),
        Call::get("/apis/fixed.example.org"),
        Call::get("/apis/fixed.example.org/v1"),
        Call::new("DELETE", a, Value::Null),
        Call::new("POST", CRDS, {
            let mut wrong = crd("bar", "fixed.example.org");
            wrong["metadata"]["name"] = "wrong".into();
            wrong
        }),
        Call::new("DELETE", format!("{CRDS}/none"), Value::Null),
    ]
}

/// A suspended job whose pod template has every kind of list.
pub(crate) fn job(name: &str, rest: Value) -> Value {
    let mut pod = json!({
        "restartPolicy": "Never", "serviceAccountName": "sa",
        "containers": [
            {"name": "web", "image": "x:1", "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}},
             "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
             "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}},
            {"name": "two", "image": "r.io/y"},
        ],
        "initContainers": [{"name": "i", "image": "z:latest"}],
        "volumes": [{"name": "s", "secret": {"secretName": "x"}}, {"name": "e"}],
    });
    merge(&mut pod, rest);
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": {
        "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": {"spec": pod}}},
    }})
}

pub(crate) fn workloads() -> Vec<Call> {
    let patch = |pod: Value| {
        let body = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": pod}}}}});
        Call::patch(STRATEGIC, format!("{JOBS}/web"), body)
    };
    let apply = |who: &str, rest: Value| {
        Call::patch(APPLY, format!("{JOBS}/ssa?fieldManager={who}"), job("ssa", rest))
    };
    let deployments = "/apis/apps/v1/namespaces/fixed/deployments?dryRun=All";
    let pod = json!({"containers": [{"name": "web", "image": "x:1"}]});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": pod,
    }}});
    vec![
        Call::new("POST", JOBS, job("web", json!({}))),
        patch(json!({"containers": [{"name": "web", "image": "x:2"}]})),
        patch(json!({
            "$setElementOrder/containers": [{"name": "two"}, {"name": "web"}],
            "containers": [{"name": "two", "env": [{"name": "Z", "value": "1"}]}],
            "volumes": [{"$patch": "delete", "name": "e"}],
        })),
        patch(json!({"volumes": [{"name": "s", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]})),
        patch(json!({"containers": [{"name": "web", "$patch": "delete"}]})),
        Call::patch(MERGE, format!("{JOBS}/web"), json!({"spec": {"suspend": null}})),
        apply("one", json!({})),
        apply("one", json!({"serviceAccountName": "other"})),
        apply(
            "two",
            json!({"containers": [{"name": "web", "image": "x:9"}, {"name": "side", "image": "s:1"}]}),
        ),
        apply(
            "two&force=true",
            json!({"containers": [{"name": "side", "image": "s:1"}, {"name": "web", "image": "x:9"}]}),
        ),
        apply("one&force=true", json!({})),
        Call::get(format!("{JOBS}/ssa")),
        Call::new("POST", deployments, deployment),
        Call::new("POST", deployments, json!({"metadata": {"name": "bad"}, "spec": {}})),
        Call::new("POST", deployments, json!({"metadata": {"name": "bad"}, "spec": {"replicas": "x"}})),
    ]
}

pub(crate) fn kinds() -> Vec<Call> {
    let of = |path: &str, body: Value| {
        let path = if path.starts_with("/apis/admission") || path.starts_with("/apis/scheduling") {
            path.to_owned()
        } else {
            path.replace("/v1/", "/v1/namespaces/fixed/")
        };
        Call::new("POST", path, body)
    };
    let services = "/api/v1/namespaces/fixed/services/s";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/fixed/leases/l";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    vec![
        of(
            "/api/v1/services",
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}),
        ),
        of("/api/v1/services", json!({"metadata": {"name": "S"}, "spec": {}})),
        Call::patch(
            STRATEGIC,
            services,
            json!({"spec": {"ports": [{"port": 81, "name": "x"}, {"port": 80, "name": "y"}]}}),
        ),
        of("/api/v1/secrets", json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})),
        Call::patch(MERGE, "/api/v1/namespaces/fixed/secrets/s", json!({"type": "x"})),
        of("/api/v1/serviceaccounts", json!({"metadata": {"name": "sa1"}})),
        of(
            &format!("{rbac}/rolebindings"),
            json!({
                "metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "x", "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}],
            }),
        ),
        of(
            &format!("{rbac}/roles"),
            json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        of(
            "/apis/coordination.k8s.io/v1/leases",
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}),
        ),
        Call::new("PUT", leases, json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "y"}})),
        of(
            "/apis/networking.k8s.io/v1/networkpolicies",
            json!({"metadata": {"name": "np"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}}),
        ),
        of(
            "/apis/policy/v1/poddisruptionbudgets",
            json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
        ),
        of("/apis/scheduling.k8s.io/v1/priorityclasses", json!({"metadata": {"name": "pc"}, "value": 5})),
        of(
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            json!({"metadata": {"name": "w"}, "webhooks": [{
                "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": "x", "namespace": "y"}},
                "rules": [{"apiGroups": ["zz.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["zz"]}],
            }]}),
        ),
        of(
            "/api/v1/events",
            json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "x", "namespace": "fixed"}, "reason": "R", "message": "m", "type": "Normal"}),
        ),
        of(
            "/api/v1/pods",
            json!({"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "a", "image": "b"}]}}),
        )
        .saved("p"),
        // The deletion mark is visible before the deletion.
        Call::new("DELETE", "/api/v1/namespaces/fixed/pods/p", Value::Null),
        Call::get("/api/v1/namespaces/fixed/pods?watch=1&timeoutSeconds=1&resourceVersion={p.rv}"),
    ]
}
