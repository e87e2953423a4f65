//! Tokens of `ServiceAccounts`.

#![expect(clippy::panic, reason = "helpers of a test")]

use std::{error::Error, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{SelfSubjectReview, TokenRequest, UserInfo},
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Cluster, Hosted, Options, Outcome, Query, Request, Server, ServerOptions, Target, Token, User, Verb,
};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

const AUDIENCE: &str = "https://kubernetes.default.svc";

/// Makes a call to a cluster of tokens. Returns the code, and message or object.
fn ask(cluster: &mut Cluster, user: &User, verb: Verb, path: [&str; 4]) -> (u16, Value) {
    let [resource, namespace, name, subresource] = path.map(str::to_owned);
    let target =
        Target { group: String::new(), version: "v1".into(), resource, namespace, name, subresource };
    let query = Query { field_manager: "test".into(), ..Query::default() };
    let request = Request { user: Arc::new(user.clone()), agent: "test".into(), verb, target, query };
    match cluster.apply(&request, Timestamp::UNIX_EPOCH) {
        Outcome::Object(answer) => (answer.code, answer.object),
        Outcome::Refused(refusal) => (refusal.code, refusal.message.clone().into()),
        other => panic!("{other:?}"),
    }
}

fn requested(cluster: &mut Cluster, body: Value) -> (u16, Value) {
    let path = ["serviceaccounts", "default", "default", "token"];
    ask(cluster, &User::admin("admin"), Verb::Create(body), path)
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Options::default(), Timestamp::UNIX_EPOCH);
    cluster.sign_tokens_with([7; 32]);
    cluster
}

fn claims(token: &Value) -> Value {
    let claims = token.as_str().and_then(|token| token.split('.').nth(1)).unwrap_or_default();
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

#[test]
fn a_token_request_is_answered_with_its_defaults_and_claims() {
    let mut cluster = cluster();
    let (_, account) =
        ask(&mut cluster, &User::admin("admin"), Verb::Get, ["serviceaccounts", "default", "default", ""]);
    let (code, mut answer) = requested(&mut cluster, json!({}));
    assert_eq!(code, 201, "{answer}");
    let claims = claims(&answer["status"]["token"].take());
    let owners = answer["metadata"]["managedFields"].take();
    let uid = &account["metadata"]["uid"];
    assert_eq!(
        answer,
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"name": "default", "namespace": "default", "uid": uid,
                "creationTimestamp": "1970-01-01T00:00:00Z", "managedFields": null},
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": null},
            "status": {"token": null, "expirationTimestamp": "1970-01-01T01:00:00Z"}})
    );
    assert_eq!(owners[0]["fieldsV1"], json!({"f:spec": {"f:expirationSeconds": {}}}));
    assert_eq!(
        claims,
        json!({"aud": [AUDIENCE], "iss": AUDIENCE, "iat": 0, "nbf": 0, "exp": 3600, "jti": claims["jti"],
            "sub": "system:serviceaccount:default:default",
            "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "default", "uid": uid}}})
    );
    let before = (cluster.len(), cluster.revision());
    let (_, other) = requested(&mut cluster, json!({"spec": {"audiences": ["a"], "expirationSeconds": 600}}));
    assert_eq!(other["status"]["expirationTimestamp"], "1970-01-01T00:10:00Z");
    assert_eq!(other["spec"]["audiences"], json!(["a"]));
    assert_eq!((cluster.len(), cluster.revision()), before);
}

#[test]
fn a_token_of_a_pod_names_it_and_outlives_the_promise() {
    let mut cluster = cluster();
    let admin = User::admin("admin");
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let (_, pod) = ask(&mut cluster, &admin, Verb::Create(pod), ["pods", "default", "", ""]);
    for (seconds, audience, life) in
        [(3607, AUDIENCE, 31_536_000), (3607, "others", 3607), (3600, AUDIENCE, 3600)]
    {
        let reference =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]});
        let spec =
            json!({"audiences": [audience], "expirationSeconds": seconds, "boundObjectRef": reference});
        let (code, answer) = requested(&mut cluster, json!({"spec": spec}));
        assert_eq!(code, 201, "{answer}");
        let promised: Result<Timestamp, _> =
            answer["status"]["expirationTimestamp"].as_str().unwrap_or_default().parse();
        assert_eq!(promised.map(Timestamp::as_second).ok(), Some(seconds));
        let claims = claims(&answer["status"]["token"]);
        assert_eq!(claims["exp"], life);
        let about = &claims["kubernetes.io"];
        assert_eq!(about["pod"], json!({"name": "p", "uid": pod["metadata"]["uid"]}));
        assert_eq!(about["node"], json!({"name": "n"}));
        assert_eq!(about.get("warnafter").is_some(), life != seconds);
    }
}

#[test]
fn invalid_token_requests_are_refused() {
    let mut cluster = cluster();
    let admin = User::admin("admin");
    let secret = json!({"metadata": {"name": "s"}});
    ask(&mut cluster, &admin, Verb::Create(secret), ["secrets", "default", "", ""]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "serviceAccountName": "other", "containers": [{"name": "c", "image": "i"}]}});
    let (code, pod) = ask(&mut cluster, &admin, Verb::Create(pod), ["pods", "default", "", ""]);
    assert_eq!(code, 201, "{pod}");
    let life = |seconds: i64| json!({"spec": {"expirationSeconds": seconds}});
    let bound = |version: &str, kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"apiVersion": version, "kind": kind, "name": name, "uid": uid}}});
    for (body, code, found) in [
        (
            life(599),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: \
                          may not specify a duration less than 10 minutes",
        ),
        (life(0), 422, "less than 10 minutes"),
        (life(1 << 33), 422, "may not specify a duration larger than 2^32 seconds"),
        (json!({"metadata": {"name": "x"}}), 422, "must match the service account name if specified"),
        (json!({"metadata": {"namespace": "x"}}), 400, "does not match the namespace sent on the request"),
        (
            json!({"metadata": {"uid": "x"}}),
            409,
            "the UID in the token request (x) does not match the UID of the",
        ),
        (json!({"kind": "ServiceAccount", "apiVersion": "v1"}), 400, "cannot be handled as a TokenRequest"),
        (bound("v1", "Secret", "none", ""), 404, "secrets \"none\" not found"),
        (bound("v1", "Secret", "s", "x"), 409, "the UID in the bound object reference (x) does not match"),
        (bound("v1", "Pod", "p", ""), 400, "pod running with different serviceaccount name"),
        (bound("v1", "Node", "n", ""), 501, "tokens that are bound to nodes"),
        (bound("apps/v1", "Deployment", "d", ""), 400, "object of type apps/v1, Kind=Deployment"),
    ] {
        let (is, message) = requested(&mut cluster, body);
        assert_eq!(is, code, "{message}");
        assert!(message.as_str().is_some_and(|text| text.contains(found)), "{message} is not about {found}");
    }
    let mut at = |verb: Verb, path: [&str; 4]| ask(&mut cluster, &admin, verb, path).0;
    assert_eq!(at(Verb::Create(json!({})), ["serviceaccounts", "default", "none", "token"]), 404);
    assert_eq!(at(Verb::Create(json!({})), ["serviceaccounts", "none", "default", "token"]), 404);
    assert_eq!(at(Verb::Create(json!({})), ["configmaps", "default", "kube-root-ca.crt", "token"]), 404);
    for verb in [Verb::Get, Verb::Update(json!({})), Verb::Delete(Value::Null)] {
        assert_eq!(at(verb, ["serviceaccounts", "default", "default", "token"]), 405);
    }
    let mut keyless = Cluster::new(Options::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(requested(&mut keyless, json!({})).0, 501);
}

#[test]
fn a_token_request_needs_its_own_right() {
    let mut cluster = cluster();
    let admin = User::admin("admin");
    let rule = json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"], "resourceNames": ["default"]});
    for (plural, body) in [
        ("roles", json!({"metadata": {"name": "r"}, "rules": [rule]})),
        (
            "rolebindings",
            json!({"metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "User", "name": "issuer"}]}),
        ),
    ] {
        let target = Target {
            group: "rbac.authorization.k8s.io".into(),
            version: "v1".into(),
            resource: plural.into(),
            namespace: "default".into(),
            ..Target::default()
        };
        let verb = Verb::Create(body);
        let (user, query) = (Arc::new(admin.clone()), Query::default());
        let request = Request { user, agent: "test".into(), verb, target, query };
        assert!(matches!(cluster.apply(&request, Timestamp::UNIX_EPOCH), Outcome::Object(_)));
    }
    let account = json!({"metadata": {"name": "other"}});
    ask(&mut cluster, &admin, Verb::Create(account), ["serviceaccounts", "default", "", ""]);
    for (user, name, code) in
        [("issuer", "default", 201), ("issuer", "other", 403), ("stranger", "default", 403)]
    {
        let path = ["serviceaccounts", "default", name, "token"];
        let (is, answer) = ask(&mut cluster, &User::by_rbac(user, &[]), Verb::Create(json!({})), path);
        assert_eq!(is, code, "{user} {name}: {answer}");
    }
}

struct World {
    server: Server,
    hosted: Arc<Hosted>,
    accounts: Api<ServiceAccount>,
    secrets: Api<Secret>,
    _drain: Drain,
}

impl World {
    async fn start() -> Result<Self> {
        let drain = Drain::new();
        let server = Server::start(ServerOptions::default(), &drain).await?;
        let hosted = server.add("one", Options::default())?;
        hosted.allow_token(Token("good".into()), User::admin("admin"));
        let client = client(&server, "good").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let secrets: Api<Secret> = Api::namespaced(client, "default");
        let world = Self { server, hosted, accounts, secrets, _drain: drain };
        world.create().await?;
        Ok(world)
    }

    async fn create(&self) -> Result {
        let account = serde_json::from_value(json!({"metadata": {"name": "robot"}}))?;
        self.accounts.create(&PostParams::default(), &account).await?;
        Ok(())
    }

    async fn token(&self, spec: Value) -> Result<String> {
        let request: TokenRequest = serde_json::from_value(json!({"spec": spec}))?;
        let answer = self.accounts.create_token_request("robot", &PostParams::default(), &request).await?;
        Ok(answer.status.and_then(|status| status.token).unwrap_or_default())
    }

    /// User of a token; `None`: 401.
    async fn user(&self, token: &str) -> Result<Option<UserInfo>> {
        let reviews: Api<SelfSubjectReview> = Api::all(client(&self.server, token).await?);
        match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => Ok(review.status.and_then(|status| status.user_info)),
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(None),
            Err(other) => Err(other.into()),
        }
    }

    async fn is_valid(&self, token: &str) -> Result<bool> {
        Ok(self.user(token).await?.is_some())
    }
}

async fn client(server: &Server, token: &str) -> Result<Client> {
    let config = Kubeconfig::from_yaml(&server.kubeconfig("one", token))?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

#[tokio::test]
async fn a_token_authenticates_as_its_service_account() -> Result {
    let world = World::start().await?;
    let token = world.token(json!({"audiences": []})).await?;
    let user = world.user(&token).await?.ok_or("no user")?;
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:robot"));
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(user.groups.unwrap_or_default(), groups);
    assert_eq!(user.uid, world.accounts.get("robot").await?.metadata.uid);
    let credential = format!("JTI={}", claims(&json!(token))["jti"].as_str().unwrap_or_default());
    let extra = user.extra.unwrap_or_default();
    assert_eq!(extra.get("authentication.kubernetes.io/credential-id"), Some(&vec![credential]));
    let secrets: Api<Secret> = Api::namespaced(client(&world.server, &token).await?, "default");
    let refused = secrets.get("none").await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    Ok(())
}

#[tokio::test]
async fn a_token_ends_with_its_time() -> Result {
    let world = World::start().await?;
    let token = world.token(json!({"audiences": [], "expirationSeconds": 600})).await?;
    // Clocks may differ by a minute.
    for (seconds, is_valid) in [(0, true), (630, true), (690, false), (-30, true), (-120, false)] {
        world.hosted.set_skew(SignedDuration::from_secs(seconds));
        assert_eq!(world.is_valid(&token).await?, is_valid, "{seconds}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_ends_with_its_service_account() -> Result {
    let world = World::start().await?;
    let token = world.token(json!({"audiences": []})).await?;
    world.accounts.delete("robot", &DeleteParams::default()).await?;
    assert!(!world.is_valid(&token).await?);
    // Another account of the same name.
    world.create().await?;
    assert!(!world.is_valid(&token).await?);
    assert!(world.is_valid(&world.token(json!({"audiences": []})).await?).await?);
    Ok(())
}

#[tokio::test]
async fn a_token_ends_with_the_object_that_it_is_bound_to() -> Result {
    let world = World::start().await?;
    let secret = serde_json::from_value(json!({"metadata": {"name": "s"}}))?;
    world.secrets.create(&PostParams::default(), &secret).await?;
    let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": "s"});
    let token = world.token(json!({"audiences": [], "boundObjectRef": reference})).await?;
    assert!(world.is_valid(&token).await?);
    world.secrets.delete("s", &DeleteParams::default()).await?;
    assert!(!world.is_valid(&token).await?);
    Ok(())
}

#[tokio::test]
async fn tokens_of_others_and_changed_tokens_are_refused() -> Result {
    let world = World::start().await?;
    let token = world.token(json!({"audiences": []})).await?;
    let parts: Vec<&str> = token.split('.').collect();
    let mut changed = claims(&json!(token));
    changed["kubernetes.io"]["serviceaccount"]["name"] = "default".into();
    let changed = BASE64_URL_SAFE_NO_PAD.encode(changed.to_string());
    let unsigned = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let for_others = world.token(json!({"audiences": ["others"]})).await?;
    for wrong in [
        for_others,
        format!("{}.{changed}.{}", parts[0], parts[2]),
        format!("{unsigned}.{}.", parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        "..".to_owned(),
    ] {
        assert!(!world.is_valid(&wrong).await?, "{wrong}");
    }
    // Each cluster has its own key.
    world.server.add("two", Options::default())?;
    let config = Kubeconfig::from_yaml(&world.server.kubeconfig("two", &token))?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let refused = Client::try_from(config)?.apiserver_version().await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 401));
    Ok(())
}

#[test]
fn a_secret_of_a_service_account_gets_a_token_that_ends_with_it() {
    let mut cluster = cluster();
    let admin = User::admin("admin");
    let secret = json!({"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "default"}},
                        "type": "kubernetes.io/service-account-token"});
    let path = ["secrets", "default", "", ""];
    assert_eq!(ask(&mut cluster, &admin, Verb::Create(secret), path).0, 201);
    let (_, stored) = ask(&mut cluster, &admin, Verb::Get, ["secrets", "default", "s", ""]);
    let decode = |value: &Value| {
        let bytes = base64::prelude::BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
        String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
    };
    let token = Value::from(decode(&stored["data"]["token"]));
    assert_eq!(decode(&stored["data"]["namespace"]), "default");
    assert_eq!(claims(&token)["sub"], "system:serviceaccount:default:default", "{stored}");
    let (_, account) = ask(&mut cluster, &admin, Verb::Get, ["serviceaccounts", "default", "default", ""]);
    assert_eq!(
        stored["metadata"]["annotations"]["kubernetes.io/service-account.uid"],
        account["metadata"]["uid"]
    );

    let nobody = json!({"metadata": {"name": "n", "annotations": {"kubernetes.io/service-account.name": "none"}},
                        "type": "kubernetes.io/service-account-token"});
    assert_eq!(ask(&mut cluster, &admin, Verb::Create(nobody), path).0, 201);
    assert_eq!(ask(&mut cluster, &admin, Verb::Get, ["secrets", "default", "n", ""]).0, 404);
}

#[tokio::test]
async fn the_token_of_a_secret_authenticates_until_the_secret_is_deleted() -> Result {
    let world = World::start().await?;
    let secret = json!({"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "robot"}},
                        "type": "kubernetes.io/service-account-token"});
    world.secrets.create(&PostParams::default(), &serde_json::from_value(secret.clone())?).await?;
    let data = world.secrets.get("s").await?.data.unwrap_or_default();
    let token = String::from_utf8(data.get("token").map(|token| token.0.clone()).unwrap_or_default())?;
    let user = world.user(&token).await?.ok_or("no user")?;
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:robot"));
    // It has no end of its own.
    world.hosted.set_skew(SignedDuration::from_hours(24 * 365 * 10));
    assert!(world.is_valid(&token).await?);
    world.secrets.delete("s", &DeleteParams::default()).await?;
    assert!(!world.is_valid(&token).await?);
    // The token names Secret and account, and nothing else: it becomes valid again.
    world.secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    assert!(world.is_valid(&token).await?);
    world.accounts.delete("robot", &DeleteParams::default()).await?;
    assert!(!world.is_valid(&token).await?);
    assert!(world.secrets.get_opt("s").await?.is_none());
    Ok(())
}
