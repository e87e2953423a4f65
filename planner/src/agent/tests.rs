use serde_json::{Value, json};

use super::*;

fn watcher(name: &str, spec: Value) -> Watcher {
    let mut all = json!({"manager": "lifecycle-manager", "field": "spec",
        "resourceToWatch": {"group": "apps", "version": "v1", "resource": "deployments"}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "kcp-system"}, "spec": all}))
        .unwrap()
}

fn kind(group: &str, version: &str, resource: &str) -> Value {
    json!({"resourceToWatch": {"group": group, "version": version, "resource": resource}})
}

#[test]
fn watchers_become_the_agents_configuration_and_role() {
    let mut old_style = watcher("old", json!({"manager": "", "field": "status"}));
    old_style.labels_mut().insert(labels::MANAGED_BY.into(), "backup-manager".into());
    let watchers = [
        watcher(
            "kyma",
            json!({"labelsToWatch": {"operator.kyma-project.io/watched-by": "kyma"},
                   "resourceToWatch": {"group": "operator.kyma-project.io", "version": "*", "resource": "kymas"}}),
        ),
        old_style,
        watcher("again", kind("apps", "v1", "deployments")),
        watcher("sets", kind("apps", "", "daemonsets")),
        watcher("pods", kind("", "v1", "pods")),
        watcher("secrets", kind("", "v1", "Secrets")),
        watcher("nobody", json!({"manager": ""})),
    ];
    let plan = plan(&watchers);
    insta::assert_yaml_snapshot!(
        "configuration",
        json!({"config": plan.config, "rules": plan.rules,
               "left_out": plan.verdicts.iter().filter_map(|(n, v)| Some((n, v.as_ref().err()?.to_string())))
                   .collect::<BTreeMap<_, _>>()})
    );
    assert!(plan.config.generation.len() <= 64);
}

#[test]
fn the_generation_depends_only_on_the_watches() {
    let (a, b) = (watcher("a", json!({})), watcher("b", kind("", "v1", "pods")));
    let generation = |watchers: &[&Watcher]| plan(watchers.iter().copied()).config.generation;
    assert_eq!(generation(&[&a, &b]), generation(&[&b, &a]));
    let refused = watcher("c", kind("", "v1", "secrets"));
    assert_eq!(generation(&[&a, &b]), generation(&[&a, &refused, &b]));
    let changes = [
        json!({"field": "status"}),
        json!({"manager": "other"}),
        json!({"labelsToWatch": {"x": "y"}}),
        kind("apps", "*", "deployments"),
        kind("apps", "v1", "replicasets"),
    ];
    let mut seen = BTreeSet::from([generation(&[&a]), generation(&[])]);
    for change in changes {
        assert!(seen.insert(generation(&[&watcher("a", change.clone())])), "{change}");
    }
    let mut going = a.clone();
    going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    assert_eq!(generation(&[&going]), generation(&[]));
    assert!(plan([&going]).verdicts.is_empty());
}

#[test]
fn invalid_watchers_are_left_out_and_named() {
    let cases = [
        (kind("", "v1", "secrets"), "never watched"),
        (kind("", "*", "SECRETS"), "never watched"),
        (kind("", "v1", ""), "resource"),
        (kind("", "v1", "*"), "resource"),
        (kind("", "v1", "pods/status"), "resource"),
        (kind("", "v1", "pods?watch=true"), "resource"),
        (kind("*", "v1", "pods"), "group"),
        (kind("Apps", "v1", "deployments"), "group"),
        (kind("apps", "../v1", "deployments"), "version"),
        (json!({"manager": ""}), "no manager"),
        (json!({"manager": "engine"}), "spec.manager"),
        (json!({"manager": "a/b"}), "spec.manager"),
        (json!({"labelsToWatch": {"a": "b,c=d"}}), "not a label"),
        (json!({"labelsToWatch": {"": "b"}}), "not a label"),
    ];
    let good = watcher("good", json!({}));
    for (spec, expected) in cases {
        let plan = plan([&watcher("bad", spec.clone()), &good]);
        let fault = plan.verdicts["bad"].as_ref().unwrap_err().to_string();
        assert!(fault.contains(expected) && fault.len() < 300, "{spec}: {fault}");
        assert_eq!(plan.config.watches.len(), 1, "{spec}: the good one stays");
        assert_eq!(plan.verdicts["good"], Ok("kcp-system.good".into()));
    }
    let many: BTreeMap<String, String> = (0..=MAX_LABELS).map(|n| (format!("l{n}"), "v".into())).collect();
    let plan = plan([&watcher("bad", json!({"labelsToWatch": many}))]);
    assert_eq!(plan.verdicts["bad"], Err(WatcherFault::TooManyLabels));
}

#[test]
fn watches_are_limited_to_the_agents_maximum() {
    let watchers: Vec<Watcher> = (0..=MAX_WATCHES).map(|n| watcher(&format!("w{n:02}"), json!({}))).collect();
    let plan = plan(&watchers);
    assert_eq!(plan.config.watches.len(), MAX_WATCHES);
    assert_eq!(plan.verdicts[&format!("w{MAX_WATCHES}")], Err(WatcherFault::TooMany));
}

#[test]
fn watch_names_are_unique_and_fit() {
    assert_eq!(watch_name("kcp-system", "kyma"), "kcp-system.kyma");
    let long = |end: &str| watch_name("kcp-system", &format!("{}{end}", "w".repeat(100)));
    for name in [long("a"), long("b"), watch_name(&"n".repeat(63), "w")] {
        assert!(name.len() <= MAX_NAME && is_name(&name, MAX_NAME, "-."), "{name}");
    }
    assert_ne!(long("a"), long("b"));
    assert_eq!(watch_name("n", &"w".repeat(61)).len(), MAX_NAME, "as long as can be");
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<Rule> {
    rules(pairs.iter().map(|(g, r)| ((*g).to_owned(), (*r).to_owned())))
}

#[test]
fn permissions_are_added_before_and_removed_after_a_watch() {
    let present = |rules: &[Rule]| serde_json::to_value(rules).unwrap();
    let (pods, both) = (pairs(&[("", "pods")]), pairs(&[("", "pods"), ("apps", "deployments")]));
    let deployments = pairs(&[("apps", "deployments")]);
    let steps = |before: Option<&[Rule]>, after: Option<&[Rule]>| RoleSteps {
        before: before.map(<[Rule]>::to_vec),
        after: after.map(<[Rule]>::to_vec),
    };
    assert_eq!(role_steps(None, &pods), steps(Some(&pods), None), "a new runtime");
    assert_eq!(role_steps(None, &[]), steps(Some(&[]), None), "a role that allows nothing is a role");
    assert_eq!(role_steps(Some(&present(&pods)), &pods), steps(None, None));
    assert_eq!(role_steps(Some(&Value::Null), &[]), steps(None, None));
    assert_eq!(role_steps(Some(&present(&pods)), &both), steps(Some(&both), None));
    assert_eq!(role_steps(Some(&present(&both)), &pods), steps(None, Some(&pods)));
    assert_eq!(role_steps(Some(&present(&pods)), &deployments), steps(Some(&both), Some(&deployments)));
    assert_eq!(role_steps(Some(&present(&pods)), &[]), steps(None, Some(&[])));
}

#[test]
fn foreign_rules_in_the_agents_role_are_replaced() {
    let pods = pairs(&[("", "pods")]);
    let cases = [
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        json!([{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list", "watch"]}]),
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]}]),
        json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]),
        json!("rules"),
    ];
    for present in cases {
        let steps = role_steps(Some(&present), &pods);
        assert_eq!(steps, RoleSteps { before: Some(pods.clone()), after: None }, "{present}");
    }
}

#[test]
fn a_watchers_status_shows_its_verdict() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut bad = watcher("bad", kind("", "v1", "secrets"));
    bad.metadata.generation = Some(4);
    let verdict = plan([&bad]).verdicts.remove("bad").unwrap();
    let status = watcher_status(&bad, &verdict, at(10));
    assert_eq!((status.state, status.observed_generation), (State::Error, Some(4)));
    let [condition] = &status.conditions[..] else { panic!("one condition") };
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("VirtualService", "False"));
    assert!(condition.message.contains("never watched"), "{}", condition.message);
    bad.status = Some(status.clone());
    assert_eq!(watcher_status(&bad, &verdict, at(20)), status, "the same is not written again");
    let good = watcher_status(&bad, &Ok("w".into()), at(20));
    assert_eq!((good.state, good.conditions[0].status.as_str()), (State::Ready, "True"));
    assert_eq!(good.conditions[0].last_transition_time.0, at(20));
}
