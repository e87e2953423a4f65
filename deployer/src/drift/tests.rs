use serde_json::{Value, json};
use tidewatch_api::{IgnoredFields, object::ObjectRef};

use super::*;

const MANAGER: &str = "installer";

fn wanted() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "n", "labels": {"l": "1"}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"l": "1"}},
            "template": {
                "metadata": {"creationTimestamp": null, "labels": {"l": "1"}},
                "spec": {
                    "containers": [
                        {"name": "x", "image": "i:1", "args": ["-v"], "ports": [{"containerPort": 80}], "resources": {}},
                        {"name": "y", "image": "j:1"}
                    ],
                    "volumes": [{"name": "v", "emptyDir": {}}]
                }
            }
        }
    })
}

fn live() -> Value {
    let mut live = wanted();
    live["metadata"]["uid"] = "u".into();
    live["metadata"]["resourceVersion"] = "7".into();
    live["spec"]["strategy"] = json!({"type": "RollingUpdate"});
    let pod = &mut live["spec"]["template"]["spec"];
    pod["dnsPolicy"] = "ClusterFirst".into();
    pod["containers"][0]["imagePullPolicy"] = "IfNotPresent".into();
    pod["containers"][0]["ports"][0]["protocol"] = "TCP".into();
    live["status"] = json!({"replicas": 2});
    live["metadata"]["managedFields"] = json!([
        {"manager": MANAGER, "operation": "Apply", "apiVersion": "apps/v1", "time": "2026-01-01T00:00:00Z", "fieldsV1": {
            "f:metadata": {"f:labels": {"f:l": {}}},
            "f:spec": {
                "f:replicas": {},
                "f:selector": {},
                "f:template": {
                    "f:metadata": {"f:labels": {"f:l": {}}},
                    "f:spec": {
                        "f:containers": {
                            "k:{\"name\":\"x\"}": {
                                ".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:resources": {},
                                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}
                            },
                            "k:{\"name\":\"y\"}": {".": {}, "f:name": {}, "f:image": {}}
                        },
                        "f:volumes": {"k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:emptyDir": {}}}
                    }
                }
            }
        }},
        {"manager": "controller", "operation": "Update", "apiVersion": "apps/v1", "subresource": "status",
         "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:status": {"f:replicas": {}}}}
    ]);
    live
}

fn fields(live: &mut Value) -> &mut Value {
    &mut live["metadata"]["managedFields"][0]["fieldsV1"]
}

fn differs(live: &Value, wanted: &Value) -> Option<(String, Option<String>)> {
    match difference(live, wanted, MANAGER, &Ignored::default())? {
        Difference::NotApplied => Some(("not applied".into(), None)),
        Difference::Field { path, by } => Some((path, by)),
    }
}

/// `by` changes a field of the engine.
fn taken(live: &mut Value, by: &str) {
    live["spec"]["replicas"] = 3.into();
    fields(live)["f:spec"].as_object_mut().unwrap().remove("f:replicas");
    let entry = json!({"manager": by, "operation": "Update", "apiVersion": "apps/v1", "time": "2026-01-03T00:00:00Z",
                       "fieldsV1": {"f:spec": {"f:replicas": {}}}});
    live["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
}

#[test]
fn server_defaults_do_not_count_as_drift() {
    assert_eq!(differs(&live(), &wanted()), None);
    let mut numbers = wanted();
    numbers["spec"]["replicas"] = json!(2.0);
    assert_eq!(differs(&live(), &numbers), None);
}

#[test]
fn list_items_with_complete_keys_are_matched_first() {
    let key = |protocol: &str| format!("k:{{\"port\":53,\"protocol\":\"{protocol}\"}}");
    let owned = json!({".": {}, "f:port": {}, "f:protocol": {}, "f:name": {}});
    let (over_tcp, over_udp) =
        (json!({"port": 53, "name": "dns-tcp"}), json!({"port": 53, "protocol": "UDP", "name": "dns"}));
    for ports in [[over_tcp.clone(), over_udp.clone()], [over_udp, over_tcp]] {
        let wanted = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": ports}});
        let mut live = wanted.clone();
        for port in live["spec"]["ports"].as_array_mut().unwrap() {
            let port = port.as_object_mut().unwrap();
            port.entry("protocol").or_insert_with(|| "TCP".into());
        }
        live["metadata"]["managedFields"] = json!([{"manager": MANAGER, "operation": "Apply", "apiVersion": "v1",
            "fieldsV1": {"f:spec": {"f:ports": {key("TCP"): {".": {}, "f:port": {}, "f:name": {}}, key("UDP"): owned}}}}]);
        assert_eq!(differs(&live, &wanted), None, "{wanted}");
        for port in 0..2 {
            let mut edited = live.clone();
            edited["spec"]["ports"][port]["name"] = "other".into();
            assert!(differs(&edited, &wanted).is_some_and(|(path, _)| path.ends_with("name")), "{port}");
        }
    }
}

#[test]
fn a_minimal_object_is_up_to_date() {
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": null}, "data": {"a": "1000m"}});
    let mut live = wanted.clone();
    live["metadata"]["managedFields"] = json!([{"manager": MANAGER, "operation": "Apply", "apiVersion": "v1",
                                                "fieldsV1": {"f:data": {"f:a": {}}}}]);
    assert_eq!(differs(&live, &wanted), None);
    let mut more = wanted.clone();
    more["metadata"]["labels"] = json!({"l": "1"});
    assert_eq!(differs(&live, &more).map(|(path, _)| path).as_deref(), Some("metadata.labels"));
    live["data"]["a"] = "1".into();
    assert_eq!(differs(&live, &wanted).map(|(path, _)| path).as_deref(), Some("data.a"), "no quantity");
}

#[test]
fn equal_quantities_are_up_to_date() {
    let (mut live, mut wanted) = (live(), wanted());
    let container = |v: &mut Value, cpu: &str| {
        v["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": cpu}});
    };
    container(&mut wanted, "1000m");
    let x = &mut fields(&mut live)["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"x\"}"];
    x["f:resources"] = json!({"f:limits": {"f:cpu": {}}});
    container(&mut live, "1");
    assert_eq!(differs(&live, &wanted), None);
    container(&mut live, "2");
    let path = "spec.template.spec.containers[name=x].resources.limits.cpu";
    assert_eq!(differs(&live, &wanted).map(|(path, _)| path).as_deref(), Some(path));

    let wanted = json!({"apiVersion": "x.dev/v1", "kind": "Reef", "metadata": {"name": "a"}, "spec": {"target": {"version": "1.10"}}});
    let mut live = wanted.clone();
    live["spec"]["target"]["version"] = "1.1".into();
    live["metadata"]["managedFields"] = json!([{"manager": MANAGER, "operation": "Apply", "apiVersion": "x.dev/v1",
                                                "fieldsV1": {"f:spec": {"f:target": {"f:version": {}}}}}]);
    assert!(differs(&live, &wanted).is_some(), "what a module's own kinds call so is none");
}

/// `owned`: whether the last apply has set `spec.x`.
fn field(api_version: &str, wanted: &Value, live: Option<&Value>, owned: bool) -> (Value, Value) {
    let object = json!({"apiVersion": api_version, "kind": "K", "metadata": {"name": "a"}, "spec": {"y": 1}});
    let (mut present, mut requested) = (object.clone(), object);
    requested["spec"]["x"] = wanted.clone();
    if let Some(live) = live {
        present["spec"]["x"] = live.clone();
    }
    let fields = if owned { json!({"f:x": {}, "f:y": {}}) } else { json!({"f:y": {}}) };
    present["metadata"]["managedFields"] = json!([{"manager": MANAGER, "operation": "Apply", "apiVersion": api_version,
                                                  "fieldsV1": {"f:spec": fields}}]);
    (present, requested)
}

#[test]
fn dropped_owned_empty_values_are_no_drift() {
    let empty = [
        json!(null),
        json!(false),
        json!(0),
        json!(0.0),
        json!(""),
        json!([]),
        json!({}),
        json!({"a": {"b": ""}}),
    ];
    for api_version in ["apps/v1", "x.dev/v1"] {
        for wanted in &empty {
            let (live, requested) = field(api_version, wanted, None, true);
            assert_eq!(differs(&live, &requested), None, "{api_version} {wanted}");
        }
        for wanted in [json!(true), json!(1), json!("a"), json!(["a"]), json!({"a": "b"})] {
            let (live, requested) = field(api_version, &wanted, None, true);
            assert!(differs(&live, &requested).is_some(), "{api_version} {wanted}");
        }
        for (wanted, live) in [
            (json!(false), json!(true)),
            (json!(0), json!(1)),
            (json!(""), json!("a")),
            (json!([]), json!(["a"])),
            (json!(null), json!(3)),
            (json!(false), json!(0)),
        ] {
            let (live, requested) = field(api_version, &wanted, Some(&live), true);
            assert!(differs(&live, &requested).is_some(), "{api_version} {wanted} {live}");
        }
    }
}

#[test]
fn unapplied_empty_values_are_drift_unless_lists() {
    for wanted in [json!(false), json!(0), json!(""), json!({})] {
        let (live, requested) = field("apps/v1", &wanted, None, false);
        assert!(differs(&live, &requested).is_some(), "{wanted}");
    }
    for wanted in [json!([]), json!({"items": []}), json!(null)] {
        let (live, requested) = field("apps/v1", &wanted, None, false);
        assert_eq!(differs(&live, &requested), None, "{wanted}");
    }
    let of_module = |live: Option<Value>| {
        let (live, requested) = field("x.dev/v1", &json!([]), live.as_ref(), false);
        differs(&live, &requested).is_some()
    };
    assert!(of_module(None), "an API server keeps an empty list of a module's own kinds");
    assert!(!of_module(Some(json!([]))) && of_module(Some(json!(["a"]))));
}

#[test]
fn an_owned_absent_field_is_up_to_date() {
    let (mut live, requested) = field("apps/v1", &json!(null), None, true);
    let mut without = requested.clone();
    without["spec"].as_object_mut().unwrap().remove("x");
    assert_eq!(differs(&live, &without), None, "a version has dropped a line that said `x: false`");
    let fields = &mut live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    fields["f:list"] = json!({"k:{\"name\":\"gone\"}": {".": {}, "f:name": {}}});
    assert_eq!(differs(&live, &without), None);
    live["spec"]["list"] = json!([{"name": "gone"}]);
    assert!(differs(&live, &without).is_some());
}

#[test]
fn empty_values_in_atomic_lists_are_no_drift() {
    let subject = json!([{"apiGroup": "", "kind": "ServiceAccount", "name": "a", "namespace": null}]);
    let (live, requested) = field(
        "rbac.authorization.k8s.io/v1",
        &subject,
        Some(&json!([{"kind": "ServiceAccount", "name": "a"}])),
        true,
    );
    assert_eq!(differs(&live, &requested), None);
    let (live, requested) =
        field("rbac.authorization.k8s.io/v1", &subject, Some(&json!([{"kind": "ServiceAccount"}])), true);
    assert!(differs(&live, &requested).is_some(), "a name is not empty");
    let (live, requested) = field("batch/v1", &json!([null]), Some(&json!([""])), true);
    assert_eq!(differs(&live, &requested), None);
}

fn stored(noted: &Value, live: &Value) -> Value {
    let mut stored = live.clone();
    stored["metadata"]["annotations"] = noted["metadata"]["annotations"].clone();
    let fields = &mut stored["metadata"]["managedFields"][0]["fieldsV1"];
    let note = annotations::APPLIED;
    fields["f:metadata"]["f:annotations"][format!("f:{note}")] = json!({});
    stored
}

#[test]
fn rewritten_values_are_recognised_by_the_applied_hash() {
    let none = Ignored::default();
    for (wanted, present) in [
        (json!("2026-01-01T01:00:00+01:00"), json!("2026-01-01T00:00:00Z")),
        (json!(0), json!(30080)),
        (json!(""), json!("10.0.0.1")),
        (json!(null), json!(1)),
        (json!([{"port": null}, {"a": "1h"}]), json!([{"port": 1}, {"a": "60m"}])),
    ] {
        let (live, requested) = field("v1", &wanted, Some(&present), true);
        assert!(differs(&live, &requested).is_some(), "{wanted}");
        let noted = with_note(&live, &requested, MANAGER, &none).unwrap();
        let live = stored(&noted, &live);
        assert_eq!(differs(&live, &requested), None, "{wanted}");

        let (_, other) = field("v1", &json!("another"), None, true);
        assert!(differs(&live, &other).is_some(), "an upgrade");
        let mut taken = live.clone();
        taken["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].as_object_mut().unwrap().remove("f:x");
        assert_eq!(differs(&taken, &requested).is_some(), !wanted.is_null(), "another writer's {wanted}");
        let mut back = requested.clone();
        back["spec"]["x"] = present;
        assert_eq!(differs(&live, &back), None, "the note of another version is no difference");
    }
}

#[test]
fn shown_or_lost_fields_record_no_applied_hash() {
    let none = Ignored::default();
    assert_eq!(with_note(&live(), &wanted(), MANAGER, &none), None);
    let (live, requested) = field("v1", &json!("a"), None, true);
    assert_eq!(
        with_note(&live, &requested, MANAGER, &none),
        None,
        "a value that is not kept may be kept the next time"
    );
    let (live, requested) = field("v1", &json!("a"), Some(&json!("b")), false);
    assert_eq!(with_note(&live, &requested, MANAGER, &none), None, "another writer has taken it");
}

#[test]
fn an_applied_hash_excludes_ignored_fields() {
    let (live, mut requested) = field("v1", &json!(0), Some(&json!(30080)), true);
    let rules =
        [IgnoredFields { kind: "K".into(), paths: vec!["/spec/y".into()], ..IgnoredFields::default() }];
    let ignored = Ignored::of(&rules, &ObjectRef::of(&requested).unwrap());
    let live = stored(&with_note(&live, &requested, MANAGER, &ignored).unwrap(), &live);
    requested["spec"]["y"] = 2.into();
    assert_eq!(difference(&live, &requested, MANAGER, &ignored), None);
}

#[test]
fn every_kind_of_difference_is_found_and_named() {
    let path = |change: &dyn Fn(&mut Value, &mut Value)| {
        let (mut live, mut wanted) = (live(), wanted());
        change(&mut live, &mut wanted);
        differs(&live, &wanted).map(|(path, _)| path)
    };
    assert_eq!(path(&|_, w| w["spec"]["replicas"] = 3.into()).as_deref(), Some("spec.replicas"));
    assert_eq!(
        path(&|_, w| w["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into()).as_deref(),
        Some("spec.template.spec.containers[name=x].image")
    );
    assert_eq!(
        path(&|_, w| w["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["-v", "-w"])).as_deref(),
        Some("spec.template.spec.containers[name=x].args"),
        "a list that is one value"
    );
    assert_eq!(
        path(&|_, w| w["spec"]["paused"] = true.into()).as_deref(),
        Some("spec.paused"),
        "a field that is new"
    );
    assert_eq!(
        path(&|_, w| {
            w["metadata"].as_object_mut().unwrap().remove("labels");
        })
        .as_deref(),
        Some("metadata.labels"),
        "a field that is no longer wanted"
    );
    assert_eq!(
        path(&|_, w| {
            w["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
        })
        .as_deref(),
        Some("spec.template.spec.containers[name=y]"),
        "an item that is no longer wanted"
    );
    assert_eq!(
        path(&|_, w| {
            let more = json!({"name": "z", "image": "k:1"});
            w["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(more);
        })
        .as_deref(),
        Some("spec.template.spec.containers"),
        "an item that is new"
    );
    assert_eq!(
        path(&|l, _| {
            l["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
        })
        .as_deref(),
        Some("spec.template.spec.containers[name=y].image"),
        "an item that is gone, though it is still said to be ours"
    );
    assert_eq!(
        path(&|_, w| w["apiVersion"] = "apps/v2".into()).as_deref(),
        Some("not applied"),
        "another version"
    );
    assert_eq!(
        path(&|l, _| l["metadata"]["managedFields"] = Value::Null).as_deref(),
        Some("not applied"),
        "fields that are not shown"
    );
}

#[test]
fn drift_names_the_field_manager_of_a_taken_field() {
    let mut live = live();
    taken(&mut live, "scaler");
    assert_eq!(differs(&live, &wanted()), Some(("spec.replicas".into(), Some("scaler".into()))));
}

#[test]
fn only_ignored_fields_may_differ() {
    let of = |paths: &[&str]| {
        vec![IgnoredFields {
            group: "apps".into(),
            kind: "Deployment".into(),
            paths: paths.iter().map(|p| (*p).to_owned()).collect(),
            ..IgnoredFields::default()
        }]
    };
    let id = ObjectRef::of(&wanted()).unwrap();
    let rules = of(&["/spec/replicas", "/spec/template/spec/containers/1/image"]);
    let ignored = Ignored::of(&rules, &id);
    let mut live = live();
    taken(&mut live, "scaler");
    live["spec"]["template"]["spec"]["containers"][1]["image"] = "their:2".into();
    let kept = ignored.with_live_values(&wanted(), &live);
    assert_eq!(kept["spec"]["replicas"], 3);
    assert_eq!(kept["spec"]["template"]["spec"]["containers"][1]["image"], "their:2");
    assert_eq!(difference(&live, &kept, MANAGER, &ignored), None);
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "their:2".into();
    assert!(difference(&live, &ignored.with_live_values(&wanted(), &live), MANAGER, &ignored).is_some());

    let elsewhere = [("name", "b"), ("namespace", "m"), ("kind", "StatefulSet"), ("group", "")];
    for (field, value) in elsewhere {
        let mut rule = serde_json::to_value(&rules[0]).unwrap();
        rule[field] = value.into();
        let rules = vec![serde_json::from_value(rule).unwrap()];
        assert!(Ignored::of(&rules, &id).is_empty(), "{field}");
    }
}

#[test]
fn an_ignored_field_removed_by_its_user_stays_removed() {
    let rules = vec![IgnoredFields {
        group: "apps".into(),
        kind: "Deployment".into(),
        paths: vec!["/metadata/labels/l".into(), "/metadata/annotations/a~1b".into()],
        ..IgnoredFields::default()
    }];
    let ignored = Ignored::of(&rules, &ObjectRef::of(&wanted()).unwrap());
    let mut live = live();
    live["metadata"]["labels"] = json!({});
    live["metadata"]["annotations"] = json!({"a/b": "theirs"});
    let kept = ignored.with_live_values(&wanted(), &live);
    assert_eq!(kept["metadata"]["labels"], json!({}));
    assert_eq!(kept["metadata"]["annotations"], json!({"a/b": "theirs"}));
}

#[test]
fn content_covers_engine_owned_fields_and_their_values() {
    let of = |live: &Value| content(live, &wanted(), MANAGER);
    let mut after = live();
    after["status"]["replicas"] = 9.into();
    after["metadata"]["annotations"] = json!({"theirs": "1"});
    after["spec"]["strategy"] = json!({"type": "Recreate"});
    assert_eq!(of(&live()), of(&after), "others' fields");
    for change in ["/spec/replicas", "/spec/template/spec/containers/0/image"] {
        let mut after = live();
        *after.pointer_mut(change).unwrap() = "9".into();
        assert_ne!(of(&live()), of(&after), "{change}");
    }
    let mut lost = live();
    fields(&mut lost)["f:spec"].as_object_mut().unwrap().remove("f:replicas");
    assert_ne!(of(&live()), of(&lost), "a field that is no longer ours");
}

#[test]
fn drift_detection_never_panics_on_server_input() {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z:{}\".]{0,6}".prop_map(Value::from)
    ];
    let tree = leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("([fkv]:)?[a-b.]{0,2}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect()))
        ]
    });
    proptest!(|(mut live in tree.clone(), wanted in tree.clone(), fields in tree)| {
        if live.is_object() {
            live["metadata"] = json!({"managedFields": [
                {"manager": MANAGER, "operation": "Apply", "apiVersion": wanted.get("apiVersion"), "fieldsV1": fields}]});
        }
        if let Some(Difference::Field { path, .. }) = difference(&live, &wanted, MANAGER, &Ignored::default()) {
            prop_assert!(path.chars().count() <= MAX_PATH + 1);
        }
    });
}
