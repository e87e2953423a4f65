//! RBAC: identical objects on both sides, then allowed and forbidden calls.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tidewatch_tests::wait;

use crate::{
    pair::{APPLY, Call, MERGE, Memory, Pair, one},
    random::Dice,
};

const LONG: Duration = Duration::from_secs(30);
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const CERTIFICATES: &str = "certificates.k8s.io";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// A certificate request in PEM, base64.
const REQUEST: &str = "\
    LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIZU1JR0dBZ0VBTUNReEVEQU9CZ05WQkFvTUIyVjRZVzF3YkdV\
    eEVEQU9CZ05WQkFNTUIzTnZiV1Z2Ym1VdwpXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBVGRqNzhhblpUdlJlMnpx\
    RE5qK1UvTWJTS2YrcW1SCmcwNUdVR2lTelVGZ3lqaHRIWHg1Ukw0UTJJeitFd1VzamdRejdmMlJDNk1sRGNLeHBOS1NGTTYrb0FB\
    d0NnWUkKS29aSXpqMEVBd0lEUndBd1JBSWdKY25mR3pxeUo0RjBsOXVWdmJ5cVkzY0tydVdyZWJuQlY4UllHcUZTSjZjQwpJRmtv\
    MVp6Z2Z2RTNTUVdlb1d6cUdxbWtWTDRpYThDT3JNYWlsVXAzMHZ0RQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K";
/// Reviews per random sequence.
const ASKS: usize = 12;
/// Has several rights.
const MEMBER: &str = "member";
/// Has no rights.
pub(crate) const STRANGER: &str = "stranger";
/// Manages roles.
const GRANTER: &str = "granter";
const ROBOT: &str = "system:serviceaccount:access:robot";

/// Users and their groups besides `system:authenticated`, in display order.
pub(crate) const USERS: [(&str, &[&str]); 4] = [
    (MEMBER, &["team", "others"]),
    (STRANGER, &[]),
    (GRANTER, &["team"]),
    (ROBOT, &["system:serviceaccounts", "system:serviceaccounts:access"]),
];

/// Runs a fixed table, then reviews with random objects.
pub(crate) async fn run(pair: &Pair, seed: u64, sequences: u64) -> Result<Vec<String>> {
    let mut found = fixed(pair).await?;
    let mut asked = 0;
    for seed in seed..seed + sequences {
        found.extend(random(pair, seed).await?);
        asked += ASKS;
    }
    say!("access: {asked} random reviews");
    Ok(found)
}

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn rule(verbs: &[&str], group: &str, resources: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs, "resourceNames": names})
}

fn binding(name: &str, kind: &str, role: &str, subjects: Value) -> Value {
    json!({"metadata": {"name": name}, "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": subjects})
}

fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

fn team() -> Value {
    json!({"apiGroup": GROUP, "kind": "Group", "name": "team"})
}

fn certificate_request(name: &str, signer: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"a": "b"}},
        "spec": {"signerName": signer, "usages": ["client auth"], "request": REQUEST}})
}

fn post(plural: &str, namespace: &str, body: Value) -> Call {
    let folder = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    Call::new("POST", format!("{RBAC}{folder}/{plural}"), body)
}

/// Stores objects as administrator on both sides; returns the differences.
async fn store(pair: &Pair, calls: Vec<Call>) -> Result<Vec<String>> {
    let mut memories = (Memory::default(), Memory::default());
    let mut found = Vec::new();
    for call in calls {
        found.extend(pair.call(&call, &mut memories).await?);
    }
    Ok(found)
}

fn review(attributes: &Value) -> Call {
    Call::new("POST", REVIEWS, json!({"spec": {"resourceAttributes": attributes}}))
}

/// Returns both sides' `status` of a review.
async fn reviewed(pair: &Pair, user: &str, attributes: &Value) -> Result<(Value, Value)> {
    let (call, (real, simulated)) = (review(attributes), pair.clients(user)?);
    let real = one(real, &call, &mut Memory::default()).await?;
    let simulated = one(simulated, &call, &mut Memory::default()).await?;
    ensure!((real.code, simulated.code) == (201, 201), "{} and simulated {}", real.body, simulated.body);
    Ok((real.body["status"].clone(), simulated.body["status"].clone()))
}

/// Waits until the last grant is effective. The real server reads each RBAC kind by an ordered watch.
async fn in_force(pair: &Pair, user: &str, attributes: &Value) -> Result<()> {
    wait::until("RBAC objects to be in force", LONG, || async {
        let (real, simulated) = reviewed(pair, user, attributes).await?;
        Ok((real["allowed"] == true && simulated["allowed"] == true).then_some(()))
    })
    .await
}

async fn fixed(pair: &Pair) -> Result<Vec<String>> {
    let namespace = |name: &str| Call::new("POST", "/api/v1/namespaces", json!({"metadata": {"name": name}}));
    let robot = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "access"});
    let urls = json!({"nonResourceURLs": ["/nowhere/*"], "verbs": ["get"]});
    let found = store(
        pair,
        vec![
            namespace("access"),
            namespace("elsewhere"),
            post(
                "clusterroles",
                "",
                role(
                    "access-reader",
                    json!([
                        rule(&["get", "list", "watch"], "", &["configmaps", "namespaces"], &[]),
                        rule(&["get", "patch"], "apps", &["*/scale", "deployments/status"], &[]),
                    ]),
                ),
            ),
            post("clusterroles", "", role("access-urls", json!([urls]))),
            post(
                "clusterroles",
                "",
                role(
                    "access-signers",
                    json!([
                        rule(
                            &["create", "get", "patch"],
                            CERTIFICATES,
                            &[
                                "certificatesigningrequests",
                                "certificatesigningrequests/approval",
                                "certificatesigningrequests/status",
                            ],
                            &[],
                        ),
                        rule(&["approve"], CERTIFICATES, &["signers"], &["example.com/*"]),
                        rule(&["sign"], CERTIFICATES, &["signers"], &["example.org/a"]),
                    ]),
                ),
            ),
            post(
                "clusterrolebindings",
                "",
                binding("access-signers", "ClusterRole", "access-signers", json!([user(MEMBER)])),
            ),
            Call::new("POST", REQUESTS, certificate_request("access-com", "example.com/a")),
            Call::new("POST", REQUESTS, certificate_request("access-org", "example.org/a")),
            post(
                "roles",
                "access",
                role(
                    "own",
                    json!([
                        rule(
                            &["get", "list", "watch", "update", "patch", "delete"],
                            "",
                            &["secrets"],
                            &["own"]
                        ),
                        rule(&["patch"], "", &["configmaps"], &["patched", "made"]),
                        rule(&["create"], "", &["configmaps"], &["made"]),
                    ]),
                ),
            ),
            post(
                "roles",
                "access",
                role(
                    "granter",
                    json!([
                        rule(&["get", "create", "update", "patch"], GROUP, &["roles", "rolebindings"], &[]),
                        rule(&["get", "list"], "", &["pods", "pods/log"], &[]),
                        rule(&["bind"], GROUP, &["clusterroles"], &["access-urls"]),
                    ]),
                ),
            ),
            post(
                "clusterrolebindings",
                "",
                binding("access-urls", "ClusterRole", "access-urls", json!([user(MEMBER)])),
            ),
            post(
                "rolebindings",
                "access",
                binding("readers", "ClusterRole", "access-reader", json!([team()])),
            ),
            post("rolebindings", "access", binding("own", "Role", "own", json!([user(MEMBER)]))),
            post("rolebindings", "access", binding("robots", "ClusterRole", "access-reader", json!([robot]))),
            post("rolebindings", "elsewhere", binding("lost", "Role", "none", json!([user(MEMBER)]))),
            post("rolebindings", "access", binding("granter", "Role", "granter", json!([user(GRANTER)]))),
            Call::new(
                "POST",
                "/api/v1/namespaces/access/configmaps",
                json!({"metadata": {"name": "patched"}}),
            ),
            Call::new("POST", "/api/v1/namespaces/access/secrets", json!({"metadata": {"name": "own"}})),
        ],
    )
    .await?;
    let last = json!({"verb": "create", "group": GROUP, "resource": "roles", "namespace": "access"});
    in_force(pair, GRANTER, &last).await?;
    let mut found: Vec<String> = found.into_iter().map(|line| format!("access, at first: {line}")).collect();
    let calls = table().into_iter().chain(grants());
    let many = calls.clone().count();
    for (number, (user, call)) in calls.enumerate() {
        let differences = pair.call_as(user, &call).await?;
        found.extend(differences.into_iter().map(|line| format!("access[{number}] {user}: {line}")));
    }
    for (user, attributes) in reviews() {
        let (real, simulated) = reviewed(pair, user, &attributes).await?;
        if real != simulated {
            found.push(format!("access, {user}, {attributes}: {real} and simulated {simulated}"));
        }
    }
    say!("access: {many} calls");
    Ok(found)
}

fn table() -> Vec<(&'static str, Call)> {
    const MAPS: &str = "/api/v1/namespaces/access/configmaps";
    const SECRETS: &str = "/api/v1/namespaces/access/secrets";
    let get = |path: &str| Call::get(path);
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let apply = |name: &str| Call::patch(APPLY, format!("{MAPS}/{name}?fieldManager=m"), map(name));
    let decide = |path: &str, kind: &str| {
        let conditions = json!([{"type": kind, "status": "True", "reason": "R"}]);
        Call::patch(MERGE, format!("{REQUESTS}/{path}"), json!({"status": {"conditions": conditions}}))
    };
    let mut calls = Vec::new();
    for user in [MEMBER, STRANGER, ROBOT] {
        calls.extend(
            [
                get(MAPS),
                get(&format!("{MAPS}/patched")),
                get(&format!("{MAPS}/none")),
                get("/api/v1/configmaps"),
                get("/api/v1/namespaces/elsewhere/configmaps"),
                get("/api/v1/namespaces/access"),
                get("/api/v1/namespaces/elsewhere"),
                get("/api/v1/namespaces"),
                get("/apis/apps/v1/namespaces/access/deployments"),
                get("/apis/apps/v1/namespaces/access/deployments/d/status"),
                get("/apis/apps/v1/namespaces/access/deployments/d/scale"),
                get("/apis/apps/v1/namespaces/access/statefulsets/d/scale"),
                get("/apis/apps/v1/namespaces/access/statefulsets/d/status"),
                get("/apis/none.example.org/v1/namespaces/access/foos"),
                get("/api/v1/nodes"),
                get(&format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dnone")),
                get("/api/v1/namespaces/elsewhere/configmaps?watch=1"),
                get("/apis/rbac.authorization.k8s.io"),
                get("/"),
                get("/nowhere"),
                get("/nowhere/at/all"),
                get("/healthz"),
                get("/healthz/ping"),
                Call::new("POST", "/apis", Value::Null),
                Call::new("POST", MAPS, map("made")),
                Call::new("PUT", format!("{MAPS}/patched"), map("patched")),
                Call::new("DELETE", format!("{MAPS}/patched"), Value::Null),
                Call::new("DELETE", MAPS, Value::Null),
                Call::new("POST", "/api/v1/namespaces/access/serviceaccounts/default/token", json!({})),
                get(&format!("{REQUESTS}/access-com/approval")),
                // Unauthorised users get no validation errors.
                Call::new("POST", SECRETS, json!({"apiVersion": "v1", "kind": "None"})),
            ]
            .map(|call| (user, call)),
        );
    }
    calls.extend(
        [
            get(SECRETS),
            get(&format!("{SECRETS}/own")),
            get(&format!("{SECRETS}/other")),
            get(&format!("{SECRETS}?fieldSelector=metadata.name%3Down")),
            get(&format!("{SECRETS}?fieldSelector=metadata.name%3Dother")),
            get(&format!("{SECRETS}?fieldSelector=metadata.name!%3Down")),
            Call::patch(MERGE, format!("{SECRETS}/own"), json!({"stringData": {"a": "b"}})),
            Call::patch(MERGE, format!("{MAPS}/patched"), json!({"data": {"a": "b"}})),
            Call::new(
                "POST",
                format!("{REQUESTS}?dryRun=All"),
                certificate_request("access-own", "example.com/a"),
            ),
            decide("access-com/approval", "Approved"),
            decide("access-org/approval", "Approved"),
            decide("access-com/status", "Failed"),
            decide("access-org/status", "Failed"),
            Call::patch(
                MERGE,
                format!("{REQUESTS}/access-com/status"),
                json!({"metadata": {"labels": {"a": "c"}}}),
            ),
            apply("patched"),
            apply("new"),
            apply("made"),
            Call::new("DELETE", format!("{SECRETS}?fieldSelector=metadata.name%3Down"), Value::Null),
            Call::new("DELETE", format!("{SECRETS}/own"), Value::Null),
        ]
        .map(|call| (MEMBER, call)),
    );
    calls
}

fn grants() -> Vec<(&'static str, Call)> {
    let roles = format!("{RBAC}/namespaces/access/roles");
    let bindings = format!("{RBAC}/namespaces/access/rolebindings");
    let mine = |verbs: &[&str]| role("mine", json!([rule(verbs, "", &["pods"], &[])]));
    let mut marked = mine(&["get", "watch"]);
    marked["metadata"]["labels"] = json!({"a": "b"});
    [
        post("roles", "access", mine(&["get"])),
        Call::new("PUT", format!("{roles}/mine"), mine(&["get", "watch"])),
        Call::patch(MERGE, format!("{roles}/mine"), json!({"metadata": {"labels": {"a": "b"}}})),
        Call::patch(
            MERGE,
            format!("{roles}/mine"),
            json!({"rules": [rule(&["get", "delete", "watch"], "", &["pods", "secrets"], &[])]}),
        ),
        Call::patch(APPLY, format!("{roles}/applied?fieldManager=m"), {
            let mut role = role("applied", json!([rule(&["get"], "apps", &["pods/log"], &["a", "b"])]));
            role["apiVersion"] = format!("{GROUP}/v1").into();
            role["kind"] = "Role".into();
            role
        }),
        post("roles", "access", role("all", json!([rule(&["*"], "*", &["*"], &[])]))),
        post("roles", "access", role("log", json!([rule(&["get"], "", &["pods/log"], &[])]))),
        post("roles", "access", role("named", json!([rule(&["list"], "", &["pods"], &["p"])]))),
        post("roles", "elsewhere", mine(&["get"])),
        post("rolebindings", "access", binding("mine", "Role", "mine", json!([user(STRANGER)]))),
        post(
            "rolebindings",
            "access",
            binding("urls", "ClusterRole", "access-urls", json!([user(STRANGER)])),
        ),
        post(
            "rolebindings",
            "access",
            binding("read", "ClusterRole", "access-reader", json!([user(STRANGER)])),
        ),
        post("rolebindings", "access", binding("own", "Role", "own", json!([user(GRANTER)]))),
        post("rolebindings", "access", binding("more", "Role", "own", json!([user(GRANTER)]))),
        post("rolebindings", "access", binding("gone", "Role", "nobody", json!([user(GRANTER)]))),
        post("rolebindings", "access", binding("gone", "ClusterRole", "nobody", json!([user(GRANTER)]))),
        post(
            "rolebindings",
            "access",
            binding("admin", "ClusterRole", "cluster-admin", json!([user(GRANTER)])),
        ),
        Call::patch(MERGE, format!("{bindings}/own"), json!({"metadata": {"labels": {"a": "b"}}})),
        Call::patch(MERGE, format!("{bindings}/mine"), json!({"subjects": [user("nobody")]})),
        Call::patch(MERGE, format!("{bindings}/own"), json!({"metadata": {"finalizers": ["a/b"]}})),
        Call::patch(MERGE, format!("{bindings}/own"), json!({"metadata": {"finalizers": null}})),
        post("clusterroles", "", role("wide", json!([]))),
    ]
    .map(|call| (GRANTER, call))
    .to_vec()
}

fn reviews() -> Vec<(&'static str, Value)> {
    let maps = json!({"verb": "get", "resource": "configmaps", "namespace": "access"});
    let secret = json!({"verb": "get", "resource": "secrets", "namespace": "access", "name": "own"});
    let none = json!({"verb": "get", "resource": "secrets", "namespace": "elsewhere"});
    let scale = json!({"verb": "patch", "group": "apps", "resource": "deployments", "subresource": "scale", "namespace": "access"});
    let oneself =
        json!({"verb": "create", "group": "authorization.k8s.io", "resource": "selfsubjectaccessreviews"});
    let all = json!({"verb": "*", "group": "*", "resource": "*"});
    let asked = [maps, secret, none, scale, oneself, all];
    let users = [MEMBER, STRANGER, ROBOT].into_iter();
    users.flat_map(|user| asked.clone().map(|attributes| (user, attributes))).collect()
}

/// Creates random roles and bindings and reviews them.
async fn random(pair: &Pair, seed: u64) -> Result<Vec<String>> {
    let mut dice = Dice::new(seed);
    let namespace = format!("access-{seed}");
    let verbs = ["get", "list", "patch", "*"];
    let groups = ["", "apps", "*"];
    let resources = ["pods", "deployments", "pods/status", "*/status", "*"];
    let names = ["a", "b"];
    let mut objects = vec![Call::new("POST", "/api/v1/namespaces", json!({"metadata": {"name": namespace}}))];
    for number in 0..3 {
        let mut rules = Vec::new();
        for _ in 0..=dice.below(2) {
            let (verb, group, resource) = (*dice.pick(&verbs), *dice.pick(&groups), *dice.pick(&resources));
            let mut of = rule(&[verb], group, &[resource], &[]);
            if dice.below(3) == 0 {
                of["resourceNames"] = json!([dice.pick(&names)]);
            }
            rules.push(of);
        }
        objects.push(post("roles", &namespace, role(&format!("r{number}"), rules.into())));
    }
    let marker = json!([rule(&["get"], "example.org", &["markers"], &[])]);
    objects.push(post("roles", &namespace, role("marker", marker)));
    let account = |of: &str| json!({"kind": "ServiceAccount", "name": "robot", "namespace": of});
    for number in 0..3 {
        let subject = match dice.below(5) {
            0 => user(MEMBER),
            1 => team(),
            2 => json!({"apiGroup": GROUP, "kind": "Group", "name": "system:serviceaccounts"}),
            3 => account("access"),
            _ => account(&namespace),
        };
        // One role in four is missing.
        let role = format!("r{}", dice.below(4));
        let name = format!("b{number}");
        objects.push(post("rolebindings", &namespace, binding(&name, "Role", &role, json!([subject]))));
    }
    objects.push(post(
        "rolebindings",
        &namespace,
        binding("marker", "Role", "marker", json!([user(STRANGER)])),
    ));
    let mut found = store(pair, objects).await?;
    let marker =
        json!({"verb": "get", "group": "example.org", "resource": "markers", "namespace": namespace});
    in_force(pair, STRANGER, &marker).await?;
    for _ in 0..ASKS {
        let (resource, subresource) =
            *dice.pick(&[("pods", ""), ("pods", "status"), ("deployments", ""), ("deployments", "status")]);
        let attributes = json!({
            "verb": dice.pick(&["get", "list", "patch", "delete"]), "group": dice.pick(&["", "apps"]),
            "resource": resource, "subresource": subresource, "namespace": namespace, "name": dice.pick(&["", "a", "c"]),
        });
        let user = *dice.pick(&[MEMBER, ROBOT, GRANTER]);
        let (real, simulated) = reviewed(pair, user, &attributes).await?;
        if real["allowed"] != simulated["allowed"] {
            found.push(format!("{user}, {attributes}: {real} and simulated {simulated}"));
        }
    }
    Ok(found.into_iter().map(|line| format!("access, seed {seed}: {line}")).collect())
}
