use serde_json::json;

use super::*;
use crate::store::target::{Query, Target};

const AGENT: &str = "system:serviceaccount:kyma-system:agent";

fn grants(user: &User, namespace: &str, subject: Value, rules: Value) -> UserGrants {
    let binding = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [subject]});
    let binding = Binding::of(&binding, namespace, "b");
    UserGrants::of(user, [binding], |_, _| Ok(rules_of(&json!({"rules": rules}))))
}

fn ask(verb: &str, [group, resource, namespace, name, subresource]: [&str; 5]) -> Ask {
    let target = Target {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
        subresource: subresource.into(),
    };
    Ask::of(verb, &target, &Query::default())
}

fn user() -> User {
    User::by_rbac("u", &["team"])
}

fn me() -> Value {
    json!({"kind": "User", "name": "u"})
}

#[test]
fn a_subject_is_a_user_a_group_or_a_service_account() {
    let agent = User::service_account("kyma-system", "agent");
    assert_eq!(agent.name, AGENT);
    for (user, subject, is) in [
        (user(), me(), true),
        (user(), json!({"kind": "User", "name": "team"}), false),
        (user(), json!({"kind": "Group", "name": "team"}), true),
        (user(), json!({"kind": "Group", "name": "system:authenticated"}), true),
        (user(), json!({"kind": "Group", "name": "u"}), false),
        (user(), json!({"kind": "Group", "name": "system:serviceaccounts"}), false),
        (agent.clone(), json!({"kind": "ServiceAccount", "name": "agent", "namespace": "kyma-system"}), true),
        (agent.clone(), json!({"kind": "ServiceAccount", "name": "agent", "namespace": "n"}), false),
        // Kubernetes defaults to the binding's namespace.
        (agent.clone(), json!({"kind": "ServiceAccount", "name": "agent"}), false),
        (agent.clone(), json!({"kind": "User", "name": AGENT}), true),
        (agent.clone(), json!({"kind": "Group", "name": "system:serviceaccounts:kyma-system"}), true),
        (agent, json!({"kind": "Group", "name": "system:serviceaccounts:n"}), false),
        (User::anonymous(), json!({"kind": "Group", "name": "system:unauthenticated"}), true),
        (User::anonymous(), json!({"kind": "Group", "name": "system:authenticated"}), false),
    ] {
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        let grants = grants(&user, "n", subject.clone(), rules);
        let verdict = grants.verdict(&ask("get", ["", "pods", "n", "p", ""]));
        assert_eq!(verdict.allowed, is, "{} {subject}", user.name);
    }
}

#[test]
fn a_rule_matches_verbs_groups_resources_and_names() {
    let pods = ["", "pods", "n", "p", ""];
    for (rule, verb, path, allowed) in [
        (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}), "get", pods, true),
        (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}), "list", pods, false),
        (json!({"apiGroups": ["apps"], "resources": ["pods"], "verbs": ["get"]}), "get", pods, false),
        (json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}), "patch", pods, true),
        (json!({"resources": ["pods"], "verbs": ["get"]}), "get", pods, false),
        (
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
            "get",
            ["", "pods", "n", "p", "log"],
            false,
        ),
        (
            json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}),
            "get",
            ["", "pods", "n", "p", "log"],
            true,
        ),
        (json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}), "get", pods, false),
        (
            json!({"apiGroups": [""], "resources": ["*/log"], "verbs": ["get"]}),
            "get",
            ["", "pods", "n", "p", "log/more"],
            true,
        ),
        (json!({"apiGroups": [""], "resources": ["*/log"], "verbs": ["get"]}), "get", pods, false),
        (
            json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"], "verbs": ["get"]}),
            "get",
            pods,
            true,
        ),
        (
            json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["*", "q"], "verbs": ["get"]}),
            "get",
            pods,
            false,
        ),
        (
            json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"], "verbs": ["list"]}),
            "list",
            ["", "pods", "n", "", ""],
            false,
        ),
    ] {
        let grants = grants(&user(), "n", me(), json!([rule]));
        assert_eq!(grants.verdict(&ask(verb, path)).allowed, allowed, "{verb} {path:?} by {rule}");
    }
}

#[test]
fn role_bindings_are_namespaced_cluster_role_bindings_global() {
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/metrics", "/logs/*"], "verbs": ["get"]},
    ]);
    let within = grants(&user(), "n", me(), rules.clone());
    let everywhere = grants(&user(), "", me(), rules);
    let both = |ask: &Ask| (within.verdict(ask).allowed, everywhere.verdict(ask).allowed);
    assert_eq!(both(&ask("list", ["", "pods", "n", "", ""])), (true, true));
    assert_eq!(both(&ask("list", ["", "pods", "m", "", ""])), (false, true));
    assert_eq!(both(&ask("list", ["", "pods", "", "", ""])), (false, true));
    assert_eq!(both(&ask("get", ["", "namespaces", "", "n", ""])), (true, true));
    assert_eq!(both(&ask("get", ["", "namespaces", "", "m", ""])), (false, true));
    assert_eq!(both(&Ask::path("get", "/metrics")), (false, true));
    assert_eq!(both(&Ask::path("get", "/logs/a/b")), (false, true));
    assert_eq!(both(&Ask::path("get", "/log")), (false, false));
    assert_eq!(both(&Ask::path("post", "/metrics")), (false, false));
}

#[test]
fn authenticated_users_may_discover_and_review_themselves() {
    let nothing = |user: &User| UserGrants::of(user, [], |_, _| Ok(Vec::new()));
    let (user, anonymous) = (nothing(&user()), nothing(&User::anonymous()));
    for (ask, by_user, by_nobody) in [
        (Ask::path("get", "/version"), true, true),
        (Ask::path("get", "/healthz"), true, true),
        (Ask::path("get", "/apis/apps/v1"), true, false),
        (Ask::path("get", "/openapi/v3"), true, false),
        (Ask::path("get", "/"), false, false),
        (ask("create", ["authorization.k8s.io", "selfsubjectaccessreviews", "", "", ""]), true, false),
        (ask("create", ["authentication.k8s.io", "selfsubjectreviews", "", "", ""]), true, false),
        (ask("get", ["", "pods", "n", "p", ""]), false, false),
    ] {
        assert_eq!(
            (user.verdict(&ask).allowed, anonymous.verdict(&ask).allowed),
            (by_user, by_nobody),
            "{ask:?}"
        );
    }
}

#[test]
fn a_verdict_names_the_allowing_binding_or_missing_role() {
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let get = ask("get", ["", "pods", "n", "p", ""]);
    let reason = |subject: Value, namespace: &str, user: &User| {
        grants(user, namespace, subject, rules.clone()).verdict(&get).reason
    };
    assert_eq!(
        reason(me(), "", &user()),
        r#"RBAC: allowed by ClusterRoleBinding "b" of Role "r" to User "u""#
    );
    assert_eq!(reason(me(), "n", &user()), r#"RBAC: allowed by RoleBinding "b/n" of Role "r" to User "u""#);
    let agent = User::service_account("n", "agent");
    assert_eq!(
        reason(json!({"kind": "ServiceAccount", "name": "agent"}), "n", &agent),
        r#"RBAC: allowed by RoleBinding "b/n" of Role "r" to ServiceAccount "agent/n""#
    );

    let verdict = |names: &[&str]| {
        let binding = |name: &&str| {
            Binding::of(&json!({"roleRef": {"kind": "Role", "name": name}, "subjects": [me()]}), "n", "b")
        };
        let found =
            |role: &RoleRef, _: &str| Err(MissingRole { singular: "role".into(), name: role.name.clone() });
        UserGrants::of(&user(), names.iter().map(binding), found).verdict(&get)
    };
    let refused = |reason: &str| Authorization { allowed: false, reason: reason.to_owned() };
    let missing = |name: &str| format!("role.rbac.authorization.k8s.io \"{name}\" not found");
    assert_eq!(verdict(&["x"]), refused(&format!("RBAC: {}", missing("x"))));
    let both = format!("RBAC: [{}, {}]", missing("x"), missing("y"));
    assert_eq!(verdict(&["x", "x", "y"]), refused(&both));
    assert_eq!(verdict(&[]), refused(""));
}

#[test]
fn system_masters_may_do_everything() {
    let master = User::by_rbac("m", &["system:masters"]);
    assert!(master.may_all() && !user().may_all());
    let verdict =
        UserGrants::of(&master, [], |_, _| Ok(Vec::new())).verdict(&ask("get", ["x", "y", "", "", ""]));
    assert_eq!(verdict, Authorization { allowed: true, reason: String::new() });
}
