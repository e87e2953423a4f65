//! Bodies cause no panics; refused ones change nothing.

use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tidewatch_fake_apiserver::{Cluster, Options, Outcome, PatchKind, Query, Request, Target, User, Verb};

/// Plausible JSON in wrong places.
fn anything() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "finalizers",
        "ownerReferences",
        "uid",
        "managedFields",
        "containers",
        "resources",
        "requests",
        "memory",
        "template",
        "data",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "fieldsV1",
        "versions",
        "schema",
        "openAPIV3Schema",
        "names",
        "a",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        Just(json!("delete")),
        Just(json!("1e999Gi")),
        r"[0-9]{1,30}\.[0-9]{0,30}([GE]i|[mE])?".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(words.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_causes_a_panic(bodies in prop::collection::vec((anything(), 0..9_usize, 0..3_usize), 1..6)) {
        let now = Timestamp::UNIX_EPOCH;
        let mut cluster = Cluster::new(Options::default(), now);
        let user = Arc::new(User::admin("admin"));
        for (mut body, how, target) in bodies {
            let (group, version, resource, kind) = [
                ("", "v1", "configmaps", "ConfigMap"),
                ("apps", "v1", "deployments", "Deployment"),
                ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
            ][target];
            let namespace = if target == 2 { "" } else { "default" };
            let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
            if let (Value::Object(map), true) = (&mut body, how % 2 == 0) {
                map.insert("kind".into(), kind.into());
                map.insert("apiVersion".into(), api_version.into());
                map.insert("metadata".into(), json!({"name": "n", "labels": map.get("labels")}));
            }
            let verb = match how {
                0 | 1 => Verb::Create(body),
                2 => Verb::Update(body),
                3 => Verb::Patch(PatchKind::Merge, body),
                4 => Verb::Patch(PatchKind::Apply, body),
                5 => Verb::Patch(PatchKind::Strategic, body),
                6 => Verb::Patch(PatchKind::Json, body),
                7 => Verb::Delete(body),
                _ => Verb::DeleteCollection(body),
            };
            let name = if matches!(how, 0 | 1 | 8) { "" } else { "n" };
            let target = Target {
                group: group.into(), version: version.into(), resource: resource.into(),
                namespace: namespace.into(), name: name.into(), subresource: String::new(),
            };
            let query = Query { field_manager: "m".into(), ..Query::default() };
            let before = cluster.revision();
            let request = Request { user: Arc::clone(&user), agent: "test".into(), verb, target, query };
            if let Outcome::Refused(refusal) = cluster.apply(&request, now) {
                prop_assert!(refusal.code >= 400);
                prop_assert_eq!(cluster.revision(), before);
            }
        }
    }
}
