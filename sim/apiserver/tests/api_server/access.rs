//! RBAC objects apply at once.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

use std::{collections::BTreeMap, error::Error, sync::Arc};

use base64::Engine;
use jiff::Timestamp;
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::ConfigMap};
use kube::{Api, Client, Config, api::PostParams};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Cluster, Options, Outcome, PatchKind, Query, Request, Server, ServerOptions, Target, User, Verb,
};

const RBAC: &str = "rbac.authorization.k8s.io";

struct World {
    cluster: Cluster,
    admin: User,
}

impl World {
    fn new() -> Self {
        Self { cluster: Cluster::new(Options::default(), Timestamp::UNIX_EPOCH), admin: User::admin("admin") }
    }

    /// Returns the code, and message or object.
    fn ask(
        &mut self,
        user: &User,
        verb: Verb,
        [group, resource, namespace, name]: [&str; 4],
    ) -> (u16, Value) {
        let target = Target {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: String::new(),
        };
        let query = Query { field_manager: "test".into(), ..Query::default() };
        let user = Arc::new(user.clone());
        let request = Request { user, agent: "test".into(), verb, target, query };
        match self.cluster.apply(&request, Timestamp::UNIX_EPOCH) {
            Outcome::Object(answer) => (answer.code, answer.object),
            Outcome::Refused(refusal) => (refusal.code, refusal.message.clone().into()),
            Outcome::List(list) => (200, list.items.into()),
            Outcome::Watch(_) => (200, Value::Null),
        }
    }

    fn grant(
        &mut self,
        user: &User,
        resource: &str,
        namespace: &str,
        name: &str,
        rest: Value,
    ) -> (u16, Value) {
        let kind = match resource {
            "roles" => "Role",
            "rolebindings" => "RoleBinding",
            "clusterroles" => "ClusterRole",
            "clusterrolebindings" => "ClusterRoleBinding",
            other => panic!("{other}"),
        };
        let mut body = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.ask(user, Verb::Patch(PatchKind::Apply, body), [RBAC, resource, namespace, name])
    }

    fn granted(&mut self, resource: &str, namespace: &str, name: &str, rest: Value) {
        let admin = self.admin.clone();
        let (code, message) = self.grant(&admin, resource, namespace, name, rest);
        assert!(code < 300, "{message}");
    }
}

fn binding(kind: &str, role: &str, user: &str) -> Value {
    json!({"roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
           "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}]})
}

fn rules(verbs: &[&str], resources: &[&str], names: &[&str]) -> Value {
    json!({"rules": [{"apiGroups": [""], "verbs": verbs, "resources": resources, "resourceNames": names}]})
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[test]
fn an_aggregated_role_is_filled_by_the_control_plane() {
    let mut world = World::new();
    let rule = |verb: &str| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
    let part = |verb: &str| json!({"metadata": {"labels": {"part": "1"}}, "rules": [rule(verb)]});
    let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"part": "1"}}]});
    world.granted("clusterroles", "", "whole", json!({"aggregationRule": selectors}));
    let post = |world: &mut World, name: &str, verb: &str| {
        let (admin, mut body) = (world.admin.clone(), part(verb));
        body["apiVersion"] = format!("{RBAC}/v1").into();
        body["kind"] = "ClusterRole".into();
        body["metadata"]["name"] = name.into();
        let (code, message) = world.ask(&admin, Verb::Create(body), [RBAC, "clusterroles", "", ""]);
        assert_eq!(code, 201, "{message}");
    };
    let whole = |world: &mut World| {
        let admin = world.admin.clone();
        world.ask(&admin, Verb::Get, [RBAC, "clusterroles", "", "whole"]).1
    };
    post(&mut world, "a", "get");
    post(&mut world, "b", "list");
    assert_eq!(whole(&mut world)["rules"], json!([rule("get"), rule("list")]));
    let managers = &whole(&mut world)["metadata"]["managedFields"];
    let owner =
        managers.as_array().unwrap().iter().find(|one| one["fieldsV1"]["f:rules"].is_object()).unwrap();
    assert_eq!(
        (&owner["manager"], &owner["operation"]),
        (&json!("clusterrole-aggregation-controller"), &json!("Apply"))
    );
    let admin = world.admin.clone();
    world.ask(&admin, Verb::Delete(Value::Null), [RBAC, "clusterroles", "", "b"]);
    assert_eq!(whole(&mut world)["rules"], json!([rule("get")]));
}

#[test]
fn permissions_follow_changed_role_objects_at_once() {
    let mut world = World::new();
    let user = User::by_rbac("u", &[]);
    let maps = ["", "configmaps", "default", ""];
    let (code, message) = world.ask(&user, Verb::List, maps);
    assert_eq!(
        (code, message.as_str().unwrap()),
        (
            403,
            "configmaps is forbidden: User \"u\" cannot list resource \"configmaps\" in API group \"\" in the namespace \
             \"default\""
        )
    );
    world.granted("rolebindings", "default", "b", binding("Role", "reader", "u"));
    let (_, message) = world.ask(&user, Verb::List, maps);
    let suffix = ": RBAC: role.rbac.authorization.k8s.io \"reader\" not found";
    assert!(message.as_str().unwrap().ends_with(suffix), "{message}");
    world.granted("roles", "default", "reader", rules(&["list"], &["configmaps"], &[]));
    assert_eq!(world.ask(&user, Verb::List, maps).0, 200);
    assert_eq!(world.ask(&user, Verb::List, ["", "configmaps", "kube-system", ""]).0, 403);
    assert_eq!(world.ask(&User::by_rbac("v", &[]), Verb::List, maps).0, 403);
    world.granted(
        "clusterrolebindings",
        "",
        "b",
        json!({
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "owners"}]}),
    );
    let all = ["", "secrets", "", ""];
    assert_eq!(world.ask(&User::by_rbac("u", &["owners"]), Verb::List, all).0, 200);
    assert_eq!(world.ask(&user, Verb::List, all).0, 403);

    world.granted("roles", "default", "reader", rules(&["list"], &["secrets"], &[]));
    assert_eq!(world.ask(&user, Verb::List, maps).0, 403);
    world.granted("roles", "default", "reader", rules(&["list"], &["configmaps"], &[]));
    assert_eq!(world.ask(&user, Verb::List, maps).0, 200);
    let admin = world.admin.clone();
    let gone = world.ask(&admin, Verb::Delete(Value::Null), [RBAC, "rolebindings", "default", "b"]);
    assert_eq!(gone.0, 200);
    assert_eq!(world.ask(&user, Verb::List, maps).0, 403);
}

#[test]
fn applying_a_missing_object_needs_create_permission() {
    let mut world = World::new();
    let user = User::by_rbac("u", &[]);
    world.granted("rolebindings", "default", "b", binding("Role", "r", "u"));
    let apply = || Verb::Patch(PatchKind::Apply, config_map("mine"));
    let path = ["", "configmaps", "default", "mine"];
    world.granted("roles", "default", "r", rules(&["patch"], &["configmaps"], &["mine"]));
    let (code, message) = world.ask(&user, apply(), path);
    assert!(code == 403 && message.as_str().unwrap().contains("cannot create"), "{message}");
    world.granted("roles", "default", "r", rules(&["patch", "create"], &["configmaps"], &["mine"]));
    assert_eq!(world.ask(&user, apply(), path).0, 201);
    // No rule sees the name in a create's body.
    assert_eq!(world.ask(&user, Verb::Create(config_map("mine")), ["", "configmaps", "default", ""]).0, 403);
}

#[test]
fn a_user_cannot_grant_permissions_beyond_its_own() {
    let mut world = World::new();
    let user = User::by_rbac("u", &["team"]);
    let manage = json!({"rules": [
        {"apiGroups": [RBAC], "verbs": ["create", "patch"], "resources": ["roles", "rolebindings"]},
        {"apiGroups": [""], "verbs": ["get", "list"], "resources": ["configmaps"]},
    ]});
    world.granted("roles", "default", "manage", manage);
    world.granted("rolebindings", "default", "manage", binding("Role", "manage", "u"));
    world.granted("clusterroles", "", "secrets", rules(&["get"], &["secrets"], &[]));

    let had = rules(&["list"], &["configmaps"], &[]);
    let more = rules(&["list", "watch"], &["configmaps"], &[]);
    assert_eq!(world.grant(&user, "roles", "default", "mine", had.clone()).0, 201);
    let (code, message) = world.grant(&user, "roles", "default", "mine", more.clone());
    assert_eq!(
        (code, message.as_str().unwrap()),
        (
            403,
            "roles.rbac.authorization.k8s.io \"mine\" is forbidden: user \"u\" (groups=[\"team\" \
             \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"watch\"]}"
        )
    );
    assert_eq!(world.grant(&user, "rolebindings", "default", "x", binding("Role", "mine", "v")).0, 201);
    let secrets = binding("ClusterRole", "secrets", "v");
    assert_eq!(world.grant(&user, "rolebindings", "default", "y", secrets.clone()).0, 403);
    assert_eq!(world.grant(&user, "rolebindings", "default", "z", binding("Role", "none", "v")).0, 404);

    world.granted("roles", "default", "more", json!({"rules": [
        {"apiGroups": [RBAC], "verbs": ["bind"], "resources": ["clusterroles"], "resourceNames": ["secrets"]},
        {"apiGroups": [RBAC], "verbs": ["escalate"], "resources": ["roles"]},
    ]}));
    world.granted("rolebindings", "default", "more", binding("Role", "more", "u"));
    assert_eq!(world.grant(&user, "rolebindings", "default", "y", secrets).0, 201);
    assert_eq!(world.grant(&user, "roles", "default", "mine", more).0, 200);
}

#[test]
fn a_review_answers_as_the_call_would() {
    let mut world = World::new();
    let user = User::service_account("default", "robot");
    world.granted("clusterroles", "", "reader", rules(&["get"], &["configmaps"], &["a"]));
    let robot = json!({"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]});
    world.granted("clusterrolebindings", "", "b", robot);
    let mut review = |attributes: Value| {
        let path = ["authorization.k8s.io", "selfsubjectaccessreviews", "", ""];
        let (code, answer) = world.ask(&user, Verb::Create(json!({"spec": attributes})), path);
        assert_eq!(code, 201, "{answer}");
        answer["status"].clone()
    };
    let of = |name: &str| json!({"resourceAttributes": {"verb": "get", "resource": "configmaps", "namespace": "n", "name": name}});
    let reason = r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to ServiceAccount "robot/default""#;
    assert_eq!(review(of("a")), json!({"allowed": true, "reason": reason}));
    assert_eq!(review(of("b")), json!({"allowed": false}));
    let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}});
    assert_eq!(review(path), json!({"allowed": false}));
}

#[test]
fn a_review_of_another_user_answers_as_its_call_would() {
    let mut world = World::new();
    world.granted("clusterroles", "", "reader", rules(&["get"], &["configmaps"], &["a"]));
    world.granted("rolebindings", "default", "b", binding("ClusterRole", "reader", "u"));
    let path = ["authorization.k8s.io", "subjectaccessreviews", "", ""];
    let get =
        |name: &str| json!({"verb": "get", "resource": "configmaps", "namespace": "default", "name": name});
    let mut review = |user: &User, spec: Value| world.ask(user, Verb::Create(json!({"spec": spec})), path);
    let admin = User::admin("admin");
    for (name, is_allowed) in [("a", true), ("b", false)] {
        let (code, answer) = review(&admin, json!({"user": "u", "resourceAttributes": get(name)}));
        assert_eq!((code, &answer["status"]["allowed"]), (201, &is_allowed.into()), "{answer}");
        assert_eq!(answer["kind"], "SubjectAccessReview");
    }
    assert_eq!(review(&admin, json!({"resourceAttributes": get("a")})).0, 422);
    let masters = json!({"user": "x", "groups": ["system:masters"], "resourceAttributes": get("b")});
    assert_eq!(review(&admin, masters).1["status"]["allowed"], true);
    let stranger = User::by_rbac("stranger", &[]);
    assert_eq!(review(&stranger, json!({"user": "u", "resourceAttributes": get("a")})).0, 403);
}

#[test]
fn a_self_review_has_all_attributes_of_the_user() {
    let mut world = World::new();
    let path = ["authentication.k8s.io", "selfsubjectreviews", "", ""];
    let plain = User::by_rbac("plain", &["team"]);
    let extra = BTreeMap::from([("key".to_owned(), vec!["v".to_owned()])]);
    let full = User { uid: "7".into(), extra, ..plain.clone() };
    let groups = ["team", "system:authenticated"];
    for (user, about) in [
        (plain, json!({"username": "plain", "groups": groups})),
        (full, json!({"username": "plain", "uid": "7", "groups": groups, "extra": {"key": ["v"]}})),
    ] {
        let (code, answer) = world.ask(&user, Verb::Create(json!({})), path);
        assert_eq!((code, &answer["status"]["userInfo"]), (201, &about));
    }
}

#[tokio::test]
async fn a_client_certificate_gives_user_and_groups() -> Result<(), Box<dyn Error>> {
    let drain = Drain::new();
    let server = Server::start(ServerOptions::default(), &drain).await?;
    let hosted = server.add("one", Options::default())?;
    let issued = server.issue("somebody", &["readers"])?;
    let mut config = Config::new(server.url("one").parse()?);
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(server.ca_pem().as_bytes())?.to_vec()]);
    let encoded = |pem: &str| base64::prelude::BASE64_STANDARD.encode(pem);
    config.auth_info.client_certificate_data = Some(encoded(&issued.cert_pem));
    config.auth_info.client_key_data = Some(encoded(issued.key_pem.as_str()).into());
    let client = Client::try_from(config)?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let code = |result: Result<ConfigMap, kube::Error>| match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(code(maps.get("kube-root-ca.crt").await), 401);
    hosted.allow_certificates();
    assert_eq!(code(maps.get("kube-root-ca.crt").await), 403);
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let extra = review.status.and_then(|status| status.user_info?.extra).unwrap_or_default();
    let fingerprint = Sha256::digest(CertificateDer::from_pem_slice(issued.cert_pem.as_bytes())?);
    let credential = ["authentication.kubernetes.io/credential-id".to_owned()];
    assert!(extra.keys().eq(&credential), "{extra:?}");
    assert_eq!(extra[&credential[0]], [format!("X509SHA256={}", hex::encode(fingerprint))]);
    // Discovery is public; the index is not.
    client.list_core_api_versions().await?;
    let index = client.request_text(http::Request::get("/").body(Vec::new())?).await.unwrap_err();
    assert!(matches!(index, kube::Error::Api(status) if status.code == 403));

    let mut world = World::new();
    hosted.with(|cluster| std::mem::swap(cluster, &mut world.cluster));
    world.granted("roles", "default", "r", rules(&["get"], &["configmaps"], &[]));
    world.granted(
        "rolebindings",
        "default",
        "b",
        json!({
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "readers"}]}),
    );
    hosted.with(|cluster| std::mem::swap(cluster, &mut world.cluster));
    assert_eq!(code(maps.get("kube-root-ca.crt").await), 200);
    Ok(())
}
