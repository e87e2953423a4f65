//! `CertificateSigningRequests`: who asks, decides and signs, and the fields that each path may change.

#![expect(clippy::panic, reason = "helpers of a test")]

use std::{collections::BTreeMap, error::Error, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Access, Cluster, EventType, ListOptions, Options, Outcome, PatchKind, Query, Request, Rule, Server,
    ServerOptions, Target, Token, User, Verb,
};

const GROUP: &str = "certificates.k8s.io";
const SIGNER: &str = "example.com/agents";
const NOW: &str = "1970-01-01T00:00:00Z";
const BEFORE: &str = "1969-12-31T23:00:00Z";
/// Organization `example`.
const REQUEST: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIHeMIGGAgEAMCQxEDAOBgNVBAoMB2V4YW1wbGUxEDAOBgNVBAMMB3NvbWVvbmUw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATdj78anZTvRe2zqDNj+U/MbSKf+qmR
g05GUGiSzUFgyjhtHXx5RL4Q2Iz+EwUsjgQz7f2RC6MlDcKxpNKSFM6+oAAwCgYI
KoZIzj0EAwIDRwAwRAIgJcnfGzqyJ4F0l9uVvbyqY3cKruWrebnBV8RYGqFSJ6cC
IFko1ZzgfvE3SQWeoWzqGqmkVL4ia8COrMailUp30vtE
-----END CERTIFICATE REQUEST-----
";
/// Organization `system:masters`.
const MASTERS: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIHmMIGNAgEAMCsxFzAVBgNVBAoMDnN5c3RlbTptYXN0ZXJzMRAwDgYDVQQDDAdz
b21lb25lMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE3Y+/Gp2U70Xts6gzY/lP
zG0in/qpkYNORlBoks1BYMo4bR18eUS+ENiM/hMFLI4EM+39kQujJQ3CsaTSkhTO
vqAAMAoGCCqGSM49BAMCA0gAMEUCIQC7AcmuPPLsBOlrrVS4fYF1OjB+zRKl4yaY
iiz3cKRH5gIgLpqpLVbSmE4H3F8ns3sPnReRzvcLjVJ1iw5EuS7dR48=
-----END CERTIFICATE REQUEST-----
";
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfDCCASGgAwIBAgIUcVmp9zee8fmueeoiuSn/3FZ7WoYwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHc29tZW9uZTAgFw0yNjExMjkxNTIxMTBaGA8yMTI2MTEwNTE1
MjExMFowEjEQMA4GA1UEAwwHc29tZW9uZTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABN2PvxqdlO9F7bOoM2P5T8xtIp/6qZGDTkZQaJLNQWDKOG0dfHlEvhDYjP4T
BSyOBDPt/ZELoyUNwrGk0pIUzr6jUzBRMB0GA1UdDgQWBBRkG8FzUxk1U8DSzuTz
z/xKuNZW0zAfBgNVHSMEGDAWgBRkG8FzUxk1U8DSzuTzz/xKuNZW0zAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQCXYf+cjgVEAnVXAAMQyFXwhk9R
/fXKyFzvyeoJHKTlqwIhAICJBfJLHHGFsDPBQgw1BRA4/cGw5ixj1MHlmWiVfcEA
-----END CERTIFICATE-----
";

struct World(Cluster);

impl World {
    fn new() -> Self {
        Self(Cluster::new(Options::default(), Timestamp::UNIX_EPOCH))
    }

    fn apply(&mut self, user: &User, verb: Verb, path: &str, list: ListOptions) -> Outcome {
        let (name, subresource) = path.split_once('/').unwrap_or((path, ""));
        let target = Target {
            group: GROUP.into(),
            version: "v1".into(),
            resource: "certificatesigningrequests".into(),
            name: name.into(),
            subresource: subresource.into(),
            ..Target::default()
        };
        let query = Query { list, field_manager: "test".into(), ..Query::default() };
        let request = Request { user: Arc::new(user.clone()), agent: "test".into(), verb, target, query };
        self.0.apply(&request, Timestamp::UNIX_EPOCH)
    }

    /// Returns the code, and message or object. `path`: name and subresource.
    fn ask(&mut self, user: &User, verb: Verb, path: &str) -> (u16, Value) {
        match self.apply(user, verb, path, ListOptions::default()) {
            Outcome::Object(answer) => (answer.code, answer.object),
            Outcome::Refused(refusal) => (refusal.code, refusal.message.clone().into()),
            other => panic!("{other:?}"),
        }
    }

    fn created(&mut self, name: &str, signer: &str) -> Value {
        let (code, object) = self.ask(&admin(), Verb::Create(request(name, signer)), "");
        assert_eq!(code, 201, "{object}");
        object
    }

    fn get(&mut self, name: &str) -> Value {
        self.ask(&admin(), Verb::Get, name).1
    }

    fn merged(&mut self, user: &User, path: &str, change: Value) -> (u16, Value) {
        self.ask(user, Verb::Patch(PatchKind::Merge, change), path)
    }
}

fn admin() -> User {
    User::admin("admin")
}

/// May do everything to requests; `verb` names its right on the signer.
fn holder(verb: &str, signer: &str) -> User {
    let rule = |verb: &str, resource: &str, names: &[&str]| {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        Rule {
            verbs: list(&[verb]),
            groups: list(&[GROUP]),
            resources: list(&[resource]),
            names: list(names),
            ..Rule::default()
        }
    };
    let mut rules = vec![rule(verb, "signers", &[signer])];
    for path in ["", "/approval", "/status"] {
        rules.push(rule("*", &format!("certificatesigningrequests{path}"), &[]));
    }
    User { access: Access::Rules(rules), ..User::by_rbac("holder", &[]) }
}

fn encoded(pem: &str) -> Value {
    BASE64_STANDARD.encode(pem).into()
}

fn request(name: &str, signer: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"test": "1"}}, "spec": {
        "request": encoded(REQUEST), "signerName": signer, "usages": ["digital signature", "client auth"]}})
}

/// The owner of fields that a path changed.
fn owner<'a>(object: &'a Value, subresource: &str) -> &'a Value {
    let owners = object["metadata"]["managedFields"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["subresource"] == subresource);
    owner.unwrap_or(&Value::Null)
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Test"})
}

fn conditions(all: &[&str]) -> Value {
    json!({"status": {"conditions": all.iter().map(|kind| condition(kind)).collect::<Vec<_>>()}})
}

#[test]
fn a_request_names_its_creator_whatever_it_says() {
    let mut world = World::new();
    let mut body = request("a", SIGNER);
    body["spec"]["username"] = "other".into();
    body["spec"]["uid"] = "other".into();
    body["spec"]["groups"] = json!(["system:masters"]);
    body["spec"]["extra"] = json!({"other": ["x"]});
    body["status"] = json!({"conditions": [condition("Approved")], "certificate": encoded(CERTIFICATE)});
    let extra = BTreeMap::from([("key".to_owned(), vec!["v".to_owned()])]);
    let creator =
        User { uid: "7".into(), extra, access: Access::Admin, ..User::by_rbac("creator", &["team"]) };
    let (code, object) = world.ask(&creator, Verb::Create(body.clone()), "");
    assert_eq!(code, 201, "{object}");
    assert_eq!(
        object["spec"],
        json!({"request": encoded(REQUEST), "signerName": SIGNER, "usages": ["digital signature", "client auth"],
            "username": "creator", "uid": "7", "groups": ["team", "system:authenticated"], "extra": {"key": ["v"]}})
    );
    assert_eq!(object["status"], json!({}));
    body["metadata"]["name"] = "b".into();
    let plain = User { access: Access::Admin, groups: Vec::new(), ..User::by_rbac("plain", &[]) };
    let (_, object) = world.ask(&plain, Verb::Create(body), "");
    assert_eq!(object["spec"]["username"], "plain");
    for field in ["uid", "groups", "extra"] {
        assert_eq!(object["spec"].get(field), None, "{field}");
    }
}

#[test]
fn updates_of_the_request_change_only_its_metadata() {
    let mut world = World::new();
    let before = world.created("a", SIGNER);
    let mut body = request("a", "example.com/others");
    body["metadata"]["labels"]["test"] = "2".into();
    body["spec"]["usages"] = json!(["any"]);
    body["status"] = json!({"conditions": [condition("Approved")], "certificate": encoded(CERTIFICATE)});
    let (code, after) = world.ask(&admin(), Verb::Update(body.clone()), "a");
    assert_eq!((code, &after["spec"], &after["status"]), (200, &before["spec"], &before["status"]));
    assert_eq!(after["metadata"]["labels"]["test"], "2");
    // Neither spec nor status has an owner.
    let fields = &after["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(*fields, json!({"f:metadata": {"f:labels": {".": {}, "f:test": {}}}}));
    body["apiVersion"] = format!("{GROUP}/v1").into();
    body["kind"] = "CertificateSigningRequest".into();
    body["metadata"]["labels"]["test"] = "3".into();
    for how in [PatchKind::Merge, PatchKind::Strategic] {
        let (code, after) = world.ask(&admin(), Verb::Patch(how, body.clone()), "a");
        assert_eq!((code, &after["spec"], &after["status"]), (200, &before["spec"], &before["status"]));
        assert_eq!(after["metadata"]["labels"]["test"], "3");
    }
}

#[test]
fn invalid_requests_are_refused_by_field() {
    let mut world = World::new();
    for (field, value, found) in [
        (
            "request",
            Value::Null,
            "spec.request: Invalid value: null: PEM block type must be CERTIFICATE REQUEST",
        ),
        ("request", encoded(CERTIFICATE), "PEM block type must be CERTIFICATE REQUEST"),
        (
            "request",
            encoded(&REQUEST.replace("2V4YW1wbGUx", "2V4YW1wbGUy")),
            "x509: ECDSA verification failure",
        ),
        ("usages", json!([]), "spec.usages: Required value"),
        (
            "usages",
            json!(["any", "x"]),
            "spec.usages[1]: Unsupported value: \"x\": supported values: \"any\", \"cert sign\"",
        ),
        ("usages", json!(["any", "any"]), "spec.usages[1]: Duplicate value: \"any\""),
        ("signerName", Value::Null, "spec.signerName: Required value"),
        ("signerName", json!("example.com"), "must be a fully qualified domain and path of the form"),
        ("signerName", json!("kubernetes.io/legacy-unknown"), "the legacy signerName is not allowed"),
        (
            "expirationSeconds",
            json!(599),
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600",
        ),
    ] {
        let mut body = request("a", SIGNER);
        body["spec"][field] = value;
        let (code, message) = world.ask(&admin(), Verb::Create(body), "");
        assert_eq!(code, 422, "{message}");
        assert!(message.to_string().replace("\\\"", "\"").contains(found), "{message} is not about {found}");
    }
    let mut body = request("a", SIGNER);
    body["spec"]["request"] = "no base64".into();
    assert_eq!(world.ask(&admin(), Verb::Create(body.clone()), "").0, 400);
    body["spec"]["request"] = encoded(REQUEST);
    body["spec"]["expirationSeconds"] = 600.into();
    body["metadata"]["name"] = "Any:name".into();
    assert_eq!(world.ask(&admin(), Verb::Create(body), "").0, 201);
}

#[test]
fn certificates_for_administrators_of_the_cluster_are_not_requested() {
    let mut world = World::new();
    let mut body = request("a", "kubernetes.io/kube-apiserver-client");
    body["spec"]["request"] = encoded(MASTERS);
    let (code, message) = world.ask(&admin(), Verb::Create(body.clone()), "");
    let why = "certificatesigningrequests.certificates.k8s.io \"a\" is forbidden: use of \
               kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    assert_eq!((code, message), (403, why.into()));
    body["spec"]["signerName"] = SIGNER.into();
    assert_eq!(world.ask(&admin(), Verb::Create(body), "").0, 201);
}

#[test]
fn a_decision_needs_the_right_to_approve_for_the_signer() {
    let mut world = World::new();
    for (number, (verb, signer, code)) in [
        ("approve", SIGNER, 200),
        ("approve", "example.com/*", 200),
        ("*", SIGNER, 200),
        ("approve", "example.com/other", 403),
        ("approve", "*/*", 403),
        ("sign", SIGNER, 403),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("a{number}");
        world.created(&name, SIGNER);
        let path = format!("{name}/approval");
        let (found, answer) = world.merged(&holder(verb, signer), &path, conditions(&["Approved"]));
        assert_eq!(found, code, "{verb} {signer}: {answer}");
        if code == 403 {
            let why = format!(
                "certificatesigningrequests.certificates.k8s.io \"{name}\" is forbidden: user not permitted to approve \
                 requests with signerName \"{SIGNER}\""
            );
            assert_eq!(answer, why);
        }
    }
}

#[test]
fn a_decision_is_stored_with_its_times_and_owner() {
    let mut world = World::new();
    let before = world.created("a", SIGNER);
    let mut body = before.clone();
    let mut approved = condition("Approved");
    approved["lastUpdateTime"] = BEFORE.into();
    body["status"] = json!({"conditions": [approved.clone()], "certificate": encoded(CERTIFICATE)});
    body["spec"]["signerName"] = "example.com/others".into();
    let (code, after) = world.ask(&admin(), Verb::Update(body), "a/approval");
    assert_eq!((code, &after["spec"]), (200, &before["spec"]));
    approved["lastTransitionTime"] = NOW.into();
    assert_eq!(after["status"], json!({"conditions": [approved]}));
    let owner = owner(&after, "approval");
    assert_eq!(owner["manager"], "test");
    let times = json!({".": {}, "f:lastTransitionTime": {}, "f:lastUpdateTime": {}, "f:reason": {}, "f:status": {}, "f:type": {}});
    let fields = json!({"f:status": {"f:conditions": {".": {}, "k:{\"type\":\"Approved\"}": times}}});
    assert_eq!(owner["fieldsV1"], fields);
    assert_eq!(world.ask(&admin(), Verb::Get, "a/approval"), (200, world.get("a")));
}

#[test]
fn a_decision_can_be_applied() {
    let mut world = World::new();
    world.created("a", SIGNER);
    let mut config = conditions(&["Denied"]);
    config["apiVersion"] = format!("{GROUP}/v1").into();
    config["kind"] = "CertificateSigningRequest".into();
    let apply = |config: &Value| Verb::Patch(PatchKind::Apply, config.clone());
    assert_eq!(world.ask(&holder("sign", SIGNER), apply(&config), "a/approval").0, 403);
    let (code, after) = world.ask(&holder("approve", SIGNER), apply(&config), "a/approval");
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["status"]["conditions"][0]["lastTransitionTime"], NOW);
    assert_eq!(owner(&after, "approval")["operation"], "Apply");
    let (_, again) = world.ask(&admin(), apply(&config), "a/approval");
    assert_eq!(again["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    assert_eq!(world.ask(&admin(), apply(&config), "none/approval").0, 404);
}

#[test]
fn a_decision_is_final() {
    let mut world = World::new();
    for (first, other) in [("Approved", "Denied"), ("Denied", "Approved")] {
        let (name, path) = (first.to_lowercase(), format!("{}/approval", first.to_lowercase()));
        world.created(&name, SIGNER);
        let (code, _) = world.merged(&admin(), &path, conditions(&[first, "Other"]));
        assert_eq!(code, 200);
        for (all, found) in [
            (conditions(&[]), format!("updates may not remove a condition of type \"{first}\"")),
            (conditions(&[other]), format!("updates may not remove a condition of type \"{first}\"")),
            (conditions(&[first, other]), "Approved and Denied conditions are mutually exclusive".to_owned()),
            (conditions(&[first, first]), "Duplicate value".to_owned()),
        ] {
            let (code, message) = world.merged(&admin(), &path, all);
            assert_eq!(code, 422, "{message}");
            assert!(
                message.as_str().is_some_and(|text| text.contains(&found)),
                "{message} is not about {found}"
            );
        }
        let (code, after) = world.merged(&admin(), &path, conditions(&[first]));
        assert_eq!((code, after["status"]["conditions"].as_array().map(Vec::len)), (200, Some(1)));
    }
}

#[test]
fn a_certificate_needs_the_right_to_sign_and_is_set_once() {
    let mut world = World::new();
    world.created("a", SIGNER);
    let (_, approved) = world.merged(&admin(), "a/approval", conditions(&["Approved"]));
    let issued = |certificate: Value| json!({"status": {"certificate": certificate}});
    for (user, certificate, code) in [
        (holder("approve", SIGNER), encoded(CERTIFICATE), 403),
        (holder("sign", "example.com/other"), encoded(CERTIFICATE), 403),
        (holder("sign", SIGNER), encoded("text"), 422),
        (holder("sign", SIGNER), encoded(REQUEST), 422),
        (holder("sign", "example.com/*"), encoded(CERTIFICATE), 200),
        (holder("sign", SIGNER), encoded(&format!("{CERTIFICATE}{CERTIFICATE}")), 422),
        (holder("sign", SIGNER), Value::Null, 422),
        // A change of metadata alone needs no right on the signer.
        (holder("approve", SIGNER), encoded(CERTIFICATE), 200),
    ] {
        let (found, answer) = world.merged(&user, "a/status", issued(certificate.clone()));
        assert_eq!(found, code, "{certificate}: {answer}");
    }
    let after = world.get("a");
    assert_eq!(after["status"]["certificate"], encoded(CERTIFICATE));
    assert_eq!(after["status"]["conditions"], approved["status"]["conditions"]);
    assert_eq!(owner(&after, "status")["fieldsV1"], json!({"f:status": {"f:certificate": {}}}));
    assert_eq!(world.ask(&admin(), Verb::Get, "a/status"), (200, after));
}

#[test]
fn the_status_path_sets_failures_but_no_decisions() {
    let mut world = World::new();
    world.created("a", SIGNER);
    let signer = holder("sign", SIGNER);
    let (code, message) = world.merged(&signer, "a/status", conditions(&["Approved"]));
    assert_eq!(code, 422);
    assert!(
        message
            .as_str()
            .is_some_and(|text| text.contains("updates may not add a condition of type \"Approved\""))
    );
    world.merged(&admin(), "a/approval", conditions(&["Approved"]));
    let approved = world.get("a")["status"]["conditions"][0].clone();
    let mut failed = conditions(&["Failed", "Approved"]);
    failed["status"]["conditions"][1]["reason"] = "Changed".into();
    assert_eq!(world.merged(&holder("approve", SIGNER), "a/status", failed.clone()).0, 403);
    let (code, after) = world.merged(&signer, "a/status", failed);
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["status"]["conditions"][1], approved);
    assert_eq!(after["status"]["conditions"][0]["lastUpdateTime"], NOW);
    for all in [conditions(&["Failed"]), conditions(&["Approved"])] {
        let (code, message) = world.merged(&signer, "a/status", all);
        assert_eq!(code, 422);
        assert!(message.as_str().is_some_and(|text| text.contains("updates may not remove a condition")));
    }
}

#[test]
fn requests_are_listed_and_watched_by_signer() {
    let mut world = World::new();
    let selected = |selector: &str| ListOptions { field_selector: selector.into(), ..ListOptions::default() };
    let Outcome::Watch(mut watch) =
        world.apply(&admin(), Verb::Watch, "", selected(&format!("spec.signerName={SIGNER}")))
    else {
        panic!("no watch")
    };
    world.created("a", SIGNER);
    world.created("b", "example.com/others");
    world.merged(&admin(), "a/approval", conditions(&["Approved"]));
    let events = world.0.poll(&mut watch, 9);
    let seen: Vec<_> =
        events.iter().map(|event| (event.event_type, &event.object["metadata"]["name"])).collect();
    assert_eq!(seen, [(EventType::Added, &json!("a")), (EventType::Modified, &json!("a"))]);
    for (selector, names) in [
        ("spec.signerName=example.com/others", vec!["b"]),
        ("spec.signerName!=example.com/others", vec!["a"]),
        ("metadata.name=b,spec.signerName=example.com/agents", vec![]),
        ("metadata.name=b", vec!["b"]),
    ] {
        let Outcome::List(list) = world.apply(&admin(), Verb::List, "", selected(selector)) else {
            panic!("{selector}")
        };
        let found: Vec<_> = list.items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        assert_eq!(found, names, "{selector}");
    }
    let Outcome::Refused(refusal) = world.apply(&admin(), Verb::List, "", selected("metadata.namespace=a"))
    else {
        panic!("no refusal")
    };
    assert_eq!((refusal.code, &*refusal.message), (400, "field label not supported: metadata.namespace"));
}

#[test]
fn the_paths_of_a_request_allow_their_verbs_alone() {
    let mut world = World::new();
    world.created("a", SIGNER);
    for path in ["a/approval", "a/status"] {
        for verb in [Verb::Create(request("a", SIGNER)), Verb::Delete(Value::Null)] {
            assert_eq!(world.ask(&admin(), verb, path).0, 405);
        }
    }
    assert_eq!(world.ask(&admin(), Verb::Get, "a/scale").0, 404);
    assert_eq!(world.ask(&admin(), Verb::Update(request("none", SIGNER)), "none/approval").0, 404);
    assert_eq!(world.ask(&admin(), Verb::Update(request("none", SIGNER)), "none").0, 404);
    assert_eq!(world.ask(&admin(), Verb::Delete(Value::Null), "a").0, 200);
}

#[tokio::test]
async fn a_kubernetes_client_requests_and_approves() -> Result<(), Box<dyn Error>> {
    let drain = Drain::new();
    let server = Server::start(ServerOptions::default(), &drain).await?;
    server.add("one", Options::default())?.allow_token(Token("good".into()), admin());
    let config = Kubeconfig::from_yaml(&server.kubeconfig("one", "good"))?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let body = serde_json::from_value(request("a", SIGNER))?;
    requests.create(&PostParams::default(), &body).await?;
    let patch = Patch::Merge(conditions(&["Approved"]));
    let approved = requests.patch_approval("a", &PatchParams::default(), &patch).await?;
    let conditions = approved.status.and_then(|status| status.conditions).unwrap_or_default();
    assert_eq!(conditions.iter().map(|one| &*one.type_).collect::<Vec<_>>(), ["Approved"]);
    let known = client.list_api_group_resources("certificates.k8s.io/v1").await?;
    let names: Vec<_> = known.resources.iter().map(|resource| &*resource.name).collect();
    let plural = "certificatesigningrequests";
    assert_eq!(names, [plural.to_owned(), format!("{plural}/approval"), format!("{plural}/status")]);
    Ok(())
}
