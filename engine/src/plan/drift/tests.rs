use serde_json::{Value, json};
use tidewatch_api::IgnoredFields;

use super::*;
use crate::plan::object::ObjectRef;

const OURS: &str = "installer";

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

/// What an API server makes of it: defaults, and the fields by owner.
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
        {"manager": OURS, "operation": "Apply", "apiVersion": "apps/v1", "time": "2026-01-01T00:00:00Z", "fieldsV1": {
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
    match difference(live, wanted, OURS, &Ignored::default())? {
        Difference::NotApplied => Some(("not applied".into(), None)),
        Difference::Field { path, by } => Some((path, by)),
    }
}

/// What happens when somebody else writes a field of ours with another value.
fn taken(live: &mut Value, by: &str) {
    live["spec"]["replicas"] = 3.into();
    fields(live)["f:spec"].as_object_mut().unwrap().remove("f:replicas");
    let entry = json!({"manager": by, "operation": "Update", "apiVersion": "apps/v1", "time": "2026-01-03T00:00:00Z",
                       "fieldsV1": {"f:spec": {"f:replicas": {}}}});
    live["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
}

#[test]
fn what_was_applied_stands_whatever_the_server_adds() {
    assert_eq!(differs(&live(), &wanted()), None);
    let mut numbers = wanted();
    numbers["spec"]["replicas"] = json!(2.0);
    assert_eq!(differs(&live(), &numbers), None);
}

#[test]
fn an_item_that_has_all_of_its_name_comes_before_one_that_leaves_some_to_the_server() {
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
        live["metadata"]["managedFields"] = json!([{"manager": OURS, "operation": "Apply", "apiVersion": "v1",
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
fn an_object_that_only_has_a_name_stands() {
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": null}, "data": {"a": "1000m"}});
    let mut live = wanted.clone();
    live["metadata"]["managedFields"] = json!([{"manager": OURS, "operation": "Apply", "apiVersion": "v1",
                                                "fieldsV1": {"f:data": {"f:a": {}}}}]);
    assert_eq!(differs(&live, &wanted), None);
    let mut more = wanted.clone();
    more["metadata"]["labels"] = json!({"l": "1"});
    assert_eq!(differs(&live, &more).map(|(path, _)| path).as_deref(), Some("metadata.labels"));
    live["data"]["a"] = "1".into();
    assert_eq!(differs(&live, &wanted).map(|(path, _)| path).as_deref(), Some("data.a"), "no quantity");
}

#[test]
fn a_quantity_stands_however_it_is_written() {
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
    live["metadata"]["managedFields"] = json!([{"manager": OURS, "operation": "Apply", "apiVersion": "x.dev/v1",
                                                "fieldsV1": {"f:spec": {"f:target": {"f:version": {}}}}}]);
    assert!(differs(&live, &wanted).is_some(), "what a module's own kinds call so is none");
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
fn whoever_has_taken_a_field_is_named() {
    let mut live = live();
    taken(&mut live, "scaler");
    assert_eq!(differs(&live, &wanted()), Some(("spec.replicas".into(), Some("scaler".into()))));
}

#[test]
fn an_ignored_field_is_its_users_and_all_others_are_not() {
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
    let kept = ignored.kept(&wanted(), &live);
    assert_eq!(kept["spec"]["replicas"], 3);
    assert_eq!(kept["spec"]["template"]["spec"]["containers"][1]["image"], "their:2");
    assert_eq!(difference(&live, &kept, OURS, &ignored), None);
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "their:2".into();
    assert!(difference(&live, &ignored.kept(&wanted(), &live), OURS, &ignored).is_some());

    let elsewhere = [("name", "b"), ("namespace", "m"), ("kind", "StatefulSet"), ("group", "")];
    for (field, value) in elsewhere {
        let mut rule = serde_json::to_value(&rules[0]).unwrap();
        rule[field] = value.into();
        let rules = vec![serde_json::from_value(rule).unwrap()];
        assert!(Ignored::of(&rules, &id).is_empty(), "{field}");
    }
}

#[test]
fn an_ignored_field_that_its_user_has_removed_stays_removed() {
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
    let kept = ignored.kept(&wanted(), &live);
    assert_eq!(kept["metadata"]["labels"], json!({}));
    assert_eq!(kept["metadata"]["annotations"], json!({"a/b": "theirs"}));
}

#[test]
fn content_is_what_is_ours_and_its_values() {
    let of = |live: &Value| content(live, &wanted(), OURS);
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
fn nothing_that_a_server_could_send_breaks_it() {
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
                {"manager": OURS, "operation": "Apply", "apiVersion": wanted.get("apiVersion"), "fieldsV1": fields}]});
        }
        if let Some(Difference::Field { path, .. }) = difference(&live, &wanted, OURS, &Ignored::default()) {
            prop_assert!(path.chars().count() <= MAX_PATH + 1);
        }
    });
}
