use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::versions::fixtures::{FakeCatalog, catalog as base};

fn catalog() -> FakeCatalog {
    let mut catalog = base();
    let mut put = |name: &str, labels: &Value, annotations: &Value, spec: &Value| {
        let object = json!({"metadata": {"name": name, "namespace": "kcp-system", "labels": labels, "annotations": annotations,
            "uid": "u", "resourceVersion": "7"}, "spec": spec});
        catalog.put(Arc::new(serde_json::from_value(object).unwrap()));
    };
    let none = json!({});
    put(
        "lighthouse-1.1.0",
        &json!({labels::BETA: "true"}),
        &json!({"kubectl.kubernetes.io/last-applied-configuration": "{}",
        "operator.kyma-project.io/is-cluster-scoped": "true"}),
        &json!({"moduleName": "lighthouse", "version": "1.1.0", "descriptor": {}}),
    );
    put(
        "lighthouse-0.9.0",
        &none,
        &none,
        &json!({"moduleName": "lighthouse", "version": "0.9.0", "descriptor": {}}),
    );
    put("guard-2.0.0", &none, &none, &json!({"moduleName": "guard", "version": "2.0.0", "descriptor": {}}));
    put(
        "crane-regular",
        &none,
        &none,
        &json!({"moduleName": "crane", "channel": "regular", "version": "1.0.0", "descriptor": {}}),
    );
    put(
        "watch-old",
        &none,
        &none,
        &json!({"moduleName": "watch", "mandatory": true, "version": "1.0.0", "descriptor": {}}),
    );
    // Mandatory by the other template.
    put(
        "watch-regular",
        &none,
        &none,
        &json!({"moduleName": "watch", "channel": "regular", "version": "1.1.0", "descriptor": {}}),
    );
    put("rope-1.0.0", &none, &none, &json!({"moduleName": "rope", "version": "1.0.0", "descriptor": {}}));
    let rope = json!({"metadata": {"name": "rope"}, "spec": {"moduleName": "rope", "ocmComponentName": "tidewatch.dev/module/rope",
        "channels": [{"channel": "regular", "version": "1.0.0"}], "kymaSelector": {"matchLabels": {"plan": "trial"}}}});
    catalog.releases.insert("rope".into(), Arc::new(serde_json::from_value(rope).unwrap()));
    catalog
}

fn seen(catalog: &FakeCatalog, labels: &Value) -> BTreeMap<Id, Value> {
    let labels = serde_json::from_value(labels.clone()).unwrap();
    let restricted = ["rope".to_owned()];
    let modules = ["lighthouse", "guard", "crane", "watch", "rope", "nothing"].into();
    view(&modules, catalog, Reader { labels: &labels, restricted: &restricted }, &mut PartCache::default())
}

fn names(view: &BTreeMap<Id, Value>) -> Vec<&str> {
    view.keys().map(|(_, name)| name.as_str()).collect()
}

#[test]
fn a_catalog_shows_only_modules_its_kyma_may_use() {
    let all = seen(&catalog(), &json!({labels::BETA: "true", "plan": "trial"}));
    insta::assert_yaml_snapshot!("all", all.values().collect::<Vec<_>>());
    let plain = seen(&catalog(), &json!({}));
    assert_eq!(names(&plain), ["lighthouse", "crane-regular", "lighthouse-1.0.0"]);
    let channels = &plain[&("ModuleReleaseMeta", "lighthouse".into())]["spec"]["channels"];
    assert_eq!(
        channels,
        &json!([{"channel": "regular", "version": "1.0.0"}]),
        "without the beta, and without what has no template"
    );
}

#[test]
fn a_release_without_any_visible_version_is_hidden() {
    let mut catalog = catalog();
    catalog.templates.remove("lighthouse-1.0.0");
    assert_eq!(names(&seen(&catalog, &json!({}))), ["crane-regular"]);
    assert!(names(&seen(&catalog, &json!({labels::BETA: "true"}))).contains(&"lighthouse"));
}

/// As stored after an apply.
fn applied(body: &Value, manager: &str) -> Value {
    fn fields(value: &Value) -> Value {
        match value {
            Value::Object(members) => members.iter().map(|(k, v)| (format!("f:{k}"), fields(v))).collect(),
            _ => json!({}),
        }
    }
    let mut owned = fields(body);
    for key in ["f:apiVersion", "f:kind"] {
        owned.as_object_mut().unwrap().remove(key);
    }
    for key in ["f:name", "f:namespace"] {
        owned["f:metadata"].as_object_mut().unwrap().remove(key);
    }
    let mut live = body.clone();
    live["metadata"]["uid"] = "uid".into();
    live["metadata"]["managedFields"] = json!([{"manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"], "fieldsV1": owned}]);
    live
}

fn is_applied(live: &Value, wanted: &Value) -> bool {
    let mut content = live.clone();
    let metadata = content["metadata"].as_object_mut().unwrap();
    metadata.remove("uid");
    metadata.remove("managedFields");
    is_synced(live) && content == *wanted
}

#[test]
fn only_differences_are_applied_and_only_own_objects_deleted() {
    let wanted = seen(&catalog(), &json!({}));
    let mut present: BTreeMap<Id, Value> =
        wanted.iter().map(|(id, body)| (id.clone(), applied(body, field_managers::CATALOG_SYNC))).collect();
    assert_eq!(changes(&wanted, &present, is_applied), Changes::default());
    let crane: Id = (TEMPLATE, "crane-regular".into());
    present.get_mut(&crane).unwrap()["spec"]["version"] = "6.6.6".into();
    let user_owned = applied(&wanted[&crane], "kubectl");
    present.insert((TEMPLATE, "raft-mine".into()), user_owned);
    let old = applied(&wanted[&crane], field_managers::CATALOG_SYNC);
    present.insert((TEMPLATE, "crane-fast".into()), old);
    let todo = changes(&wanted, &present, is_applied);
    assert_eq!(todo.apply, [crane]);
    assert_eq!(todo.delete, [((TEMPLATE, "crane-fast".to_owned()), "uid".to_owned())]);
    let all = changes(&wanted, &BTreeMap::new(), is_applied);
    assert_eq!(all.apply.last().unwrap().0, RELEASE, "templates first");
}

#[test]
fn a_go_manager_catalog_is_left_unchanged() {
    let wanted = seen(&catalog(), &json!({labels::BETA: "true"}));
    let left = |(id, body): (&Id, &Value)| {
        let mut body = body.clone();
        body["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}".into();
        if id.0 == TEMPLATE {
            for (field, empty) in [("mandatory", json!(false)), ("requiresDowntime", json!(false))] {
                body["spec"][field] = empty;
            }
            if body["spec"]["channel"].is_null() {
                body["spec"]["channel"] = "".into();
            }
        }
        (id.clone(), applied(&body, field_managers::CATALOG_SYNC))
    };
    let present: BTreeMap<Id, Value> = wanted.iter().map(left).collect();
    assert_eq!(changes(&wanted, &present, is_applied), Changes::default());
    let template: Id = (TEMPLATE, "lighthouse-1.0.0".into());
    for (pointer, other) in [
        ("/spec/version", json!("6.6.6")),
        ("/spec/requiresDowntime", json!(true)),
        ("/metadata/labels", json!({"a": "b"})),
        ("/metadata/managedFields/0/manager", json!("kubectl")),
    ] {
        let mut present = present.clone();
        *present.get_mut(&template).unwrap().pointer_mut(pointer).unwrap() = other;
        assert_eq!(
            changes(&wanted, &present, is_applied).apply,
            std::slice::from_ref(&template),
            "{pointer}"
        );
    }
}

#[test]
fn only_changed_hashes_are_compared() {
    let catalog = catalog();
    let (plain, beta) =
        (View::new(seen(&catalog, &json!({}))), View::new(seen(&catalog, &json!({labels::BETA: "true"}))));
    assert_eq!(changes_since(&plain.hashes, &plain.hashes), (vec![], vec![]));
    let (apply, gone) = changes_since(&plain.hashes, &beta.hashes);
    assert_eq!(apply, [(TEMPLATE, "lighthouse-1.1.0".into()), (RELEASE, "lighthouse".into())]);
    assert!(gone.is_empty());
    assert_eq!(changes_since(&beta.hashes, &plain.hashes).1, [(TEMPLATE, "lighthouse-1.1.0".into())]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn users_see_only_allowed_modules(beta: bool, internal: bool, trial: bool, removed in 0usize..8) {
        let mut catalog = catalog();
        if let Some(name) = catalog.templates.keys().cloned().collect::<BTreeSet<_>>().into_iter().nth(removed) {
            catalog.templates.remove(&name);
        }
        let labels = json!({labels::BETA: beta.to_string(), labels::INTERNAL: internal.to_string(),
                            "plan": if trial { "trial" } else { "paid" }});
        let wanted = seen(&catalog, &labels);
        for ((kind, name), body) in &wanted {
            prop_assert!(!name.starts_with("guard"));
            prop_assert!(!name.starts_with("watch") || !catalog.templates.contains_key("watch-old"));
            prop_assert!(trial || !name.starts_with("rope"));
            prop_assert!(body["spec"]["kymaSelector"].is_null());
            if *kind == TEMPLATE {
                prop_assert!(beta || body["metadata"]["labels"][labels::BETA].is_null());
            }
            for channel in body["spec"]["channels"].as_array().into_iter().flatten() {
                let template = format!("{name}-{}", channel["version"].as_str().unwrap());
                prop_assert!(wanted.contains_key(&(TEMPLATE, template)));
            }
        }
        let present = wanted.iter().map(|(id, body)| (id.clone(), applied(body, field_managers::CATALOG_SYNC))).collect();
        prop_assert_eq!(changes(&wanted, &present, is_applied), Changes::default());
    }
}
