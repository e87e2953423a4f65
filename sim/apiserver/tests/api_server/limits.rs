//! Excessive stack, memory or time is refused; the cluster continues.

#![expect(clippy::panic, reason = "helpers of a test")]

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_fake_apiserver::{Cluster, Options, Outcome, PatchKind, Query, Request, Target, User, Verb};

const CRDS: [&str; 3] = ["apiextensions.k8s.io", "v1", "customresourcedefinitions"];
const FOOS: [&str; 3] = ["limits.example.org", "v1", "foos"];
const MAPS: [&str; 3] = ["", "v1", "configmaps"];

fn cluster() -> Cluster {
    Cluster::new(Options::default(), Timestamp::UNIX_EPOCH)
}

/// Returns the code, and object or message.
fn call(
    cluster: &mut Cluster,
    [group, version, resource]: [&str; 3],
    name: &str,
    verb: Verb,
) -> (u16, Value) {
    let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
    let target = Target {
        group: group.into(),
        version: version.into(),
        resource: resource.into(),
        namespace: if group == CRDS[0] { "" } else { "default" }.into(),
        name: name.into(),
        subresource: subresource.into(),
    };
    let user = Arc::new(User::admin("admin"));
    let request = Request { user, agent: "test".into(), verb, target, query: Query::default() };
    match cluster.apply(&request, Timestamp::UNIX_EPOCH) {
        Outcome::Object(answer) => (answer.code, answer.object),
        Outcome::Refused(refusal) => (refusal.code, refusal.message.into()),
        other => panic!("{other:?}"),
    }
}

fn create(cluster: &mut Cluster, path: [&str; 3], object: Value) -> (u16, Value) {
    call(cluster, path, "", Verb::Create(object))
}

fn patch(cluster: &mut Cluster, path: [&str; 3], operations: Value) -> (u16, Value) {
    call(cluster, path, "a", Verb::Patch(PatchKind::Json, operations))
}

fn definition(spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.limits.example.org"},
        "spec": {
            "group": "limits.example.org", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    })
}

fn foo(spec: &Value) -> Value {
    json!({"apiVersion": "limits.example.org/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": spec})
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({"n": inner}))
}

fn with_map() -> Cluster {
    let mut cluster = cluster();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "x"}});
    assert_eq!(create(&mut cluster, MAPS, map).0, 201);
    cluster
}

#[test]
fn copies_in_a_json_patch_are_limited() {
    let copy = |number| json!({"op": "copy", "from": "/data", "path": format!("/data/k{number}")});
    let (code, message) = patch(&mut with_map(), MAPS, (0..40).map(copy).collect());
    assert_eq!(
        (code, message),
        (422, "the server rejected our request due to an error in our request".into())
    );
}

#[test]
fn the_depth_after_a_json_patch_is_limited() {
    let copies = vec![json!({"op": "copy", "from": "/data", "path": "/data/n"}); 10_000];
    let moves = [
        json!({"op": "add", "path": "/b", "value": {}}),
        json!({"op": "move", "from": "/data", "path": "/b/n"}),
        json!({"op": "move", "from": "/b", "path": "/data"}),
    ];
    let moves = (0..3_333).flat_map(|_| moves.clone()).collect();
    let adds =
        (0..10).map(|round| json!({"op": "add", "path": "/n".repeat(60 * round + 1), "value": nested(60)}));
    for operations in [copies, moves, adds.collect()] {
        let (code, message) = patch(&mut with_map(), MAPS, operations.into());
        assert_eq!((code, message), (501, "not simulated: objects of more than 100 levels".into()));
    }
}

#[test]
fn an_object_nested_too_deeply_is_refused() {
    let mut cluster = cluster();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(create(&mut cluster, CRDS, definition(&open)).0, 201);
    assert_eq!(create(&mut cluster, FOOS, foo(&json!({}))).0, 201);
    let first = json!([{"op": "add", "path": "/spec", "value": nested(70)}]);
    assert_eq!(patch(&mut cluster, FOOS, first).0, 200);
    let second = json!([{"op": "add", "path": format!("/spec{}", "/n".repeat(70)), "value": nested(70)}]);
    assert_eq!(patch(&mut cluster, FOOS, second).0, 501);
    assert_eq!(call(&mut cluster, FOOS, "a", Verb::Get).1["spec"], nested(70));
    // The maximum, with `managedFields`.
    let deepest = json!([{"op": "add", "path": "/spec", "value": nested(98)}]);
    assert_eq!(patch(&mut cluster, FOOS, deepest).0, 200);
    let whole = call(&mut cluster, FOOS, "a", Verb::Get).1;
    assert_eq!(whole["spec"], nested(98));
    assert!(whole["metadata"]["managedFields"][0]["fieldsV1"].is_object());
    assert_eq!(create(&mut cluster, FOOS, foo(&nested(99))).0, 501);
}

#[test]
fn schemas_are_validated_at_every_depth() {
    let lists = |innermost| (0..70).fold(innermost, |items, _| json!({"type": "array", "items": items}));
    let plain = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let mut ruled = plain.clone();
    ruled["x-kubernetes-validations"] = json!([{"rule": "self.a != 'none'"}]);
    let (code, message) = create(&mut cluster(), CRDS, definition(&lists(ruled)));
    assert_eq!(code, 501, "{message}");
    let (code, message) = create(&mut cluster(), CRDS, definition(&lists(json!({"type": "strong"}))));
    assert_eq!(code, 422, "{message}");
    assert_eq!(create(&mut cluster(), CRDS, definition(&lists(plain))).0, 201);
}

#[test]
fn the_depth_of_scale_paths_is_limited() {
    let mut deep = definition(&json!({"type": "object", "properties": {"r": {"type": "integer"}}}));
    deep["spec"]["versions"][0]["subresources"] = json!({"scale": {
        "specReplicasPath": format!(".spec{}", ".r".repeat(100_000)), "statusReplicasPath": ".status.r",
    }});
    assert_eq!(create(&mut cluster(), CRDS, deep).0, 501);
}

#[test]
fn long_lists_are_checked_in_little_time() {
    const MANY: usize = 200_000;
    let mut cluster = cluster();
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let schema = json!({"type": "object", "properties": {"set": set}});
    assert_eq!(create(&mut cluster, CRDS, definition(&schema)).0, 201);
    let (code, message) = create(&mut cluster, FOOS, foo(&json!({"set": vec!["a"; MANY]})));
    assert_eq!(code, 422);
    assert_eq!(message, r#"Foo.limits.example.org "a" is invalid: spec.set[1]: Duplicate value: "a""#);
    let volumes = vec![json!({"name": "v", "emptyDir": {}}); MANY / 10];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "a", "image": "b"}], "volumes": volumes},
    });
    assert_eq!(create(&mut cluster, ["", "v1", "pods"], pod).0, 422);
}

#[test]
fn schema_patterns_match_as_in_go() {
    let mut cluster = cluster();
    let word = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let schema =
        json!({"type": "object", "properties": {"braces": word("^{.*}$"), "bare": word(r"^[^[\]]+$")}});
    assert_eq!(create(&mut cluster, CRDS, definition(&schema)).0, 201);
    assert_eq!(create(&mut cluster, FOOS, foo(&json!({"braces": "{x}", "bare": "x"}))).0, 201);
    let wrong = json!([{"op": "add", "path": "/spec", "value": {"braces": "x", "bare": "[x]"}}]);
    let (_, message) = patch(&mut cluster, FOOS, wrong);
    let message = message.as_str().unwrap_or_default();
    assert!(message.contains("spec.braces in body should match") && message.contains("spec.bare in body"));
}

#[test]
fn a_full_cluster_refuses_creations_until_a_deletion() {
    let max_objects = cluster().len() + 1;
    let mut cluster = Cluster::new(Options { max_objects, ..Options::default() }, Timestamp::UNIX_EPOCH);
    let map = |name: &str| json!({"metadata": {"name": name}});
    assert_eq!(create(&mut cluster, MAPS, map("a")).0, 201);
    assert_eq!(create(&mut cluster, MAPS, map("b")).0, 507);
    assert_eq!(call(&mut cluster, MAPS, "a", Verb::Delete(Value::Null)).0, 200);
    assert_eq!(create(&mut cluster, MAPS, map("b")).0, 201);
}
