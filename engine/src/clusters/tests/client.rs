use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::Request;
use kube::core::GroupVersionKind;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::net::TcpListener;

use super::{server::ApiServer, *};
use crate::clusters::{
    client::{Connector, Limits, RuntimeClient, USER_AGENT},
    error::{ErrorClass, RuntimeError},
    kubeconfig::RuntimeAccess,
    mapper::{MapError, Missing, Scope},
    policy::AddressPolicy,
};

struct Bed {
    ca: Ca,
    server: ApiServer,
}

impl Bed {
    async fn new() -> Self {
        Self::named("127.0.0.1").await
    }

    async fn named(name: &str) -> Self {
        let ca = Ca::new();
        let server = ApiServer::start(&ca, &ca.issue(&[name])).await;
        Self { ca, server }
    }

    fn client(&self, limits: Limits) -> RuntimeClient {
        self.client_with(&[], &[("token", "a-token")], limits)
    }

    fn client_with(&self, cluster: &[(&str, &str)], user: &[(&str, &str)], limits: Limits) -> RuntimeClient {
        let server = format!("https://127.0.0.1:{}", self.server.port);
        let authority = base64(&self.ca.pem);
        let base = [("server", server.as_str()), ("certificate-authority-data", authority.as_str())];
        build(&kubeconfig(&[&base, cluster].concat(), user), &[], limits)
    }
}

fn build(kubeconfig: &str, denied: &[&str], limits: Limits) -> RuntimeClient {
    let connector = Connector::new(Arc::new(AddressPolicy::new(denied).unwrap()));
    let access = RuntimeAccess::parse(kubeconfig, connector.policy()).unwrap();
    connector.client(&access, limits).unwrap()
}

async fn get(client: &RuntimeClient, path: &str) -> Result<String, RuntimeError> {
    let request = Request::get(path).body(Vec::new()).unwrap();
    let kube = client.kube();
    client.call(&format!("get {path}"), kube.request_text(request)).await
}

#[tokio::test]
async fn many_requests_share_one_http2_connection() {
    let bed = Bed::new().await;
    let client = bed.client(Limits::default());
    for _ in 0..50 {
        assert_eq!(get(&client, "/version").await.unwrap(), "{}");
    }
    let seen = &bed.server.seen;
    assert_eq!(seen.requests.load(Ordering::SeqCst), 50);
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
    assert_eq!(*seen.protocols.lock(), [b"h2".to_vec()]);
    assert!(seen.tokens.lock().iter().all(|token| token == "Bearer a-token"));
    assert_eq!(seen.tokens.lock().len(), 50);
    assert_eq!(*seen.program.lock(), USER_AGENT);
}

#[tokio::test]
async fn answers_over_the_cap_are_errors() {
    let bed = Bed::new().await;
    let limits = Limits { response: 1024, ..Limits::default() };
    let client = bed.client(limits);
    assert_eq!(get(&client, "/kib").await.unwrap().len(), 1024);
    assert_eq!(get(&client, "/endless").await.unwrap_err().class, ErrorClass::TooLarge);
    let tight = bed.client(Limits { response: 1023, ..limits });
    assert_eq!(get(&tight, "/kib").await.unwrap_err().class, ErrorClass::TooLarge);
}

#[tokio::test]
async fn a_hanging_server_hits_the_deadline() {
    let bed = Bed::new().await;
    let limits = Limits { deadline: Duration::from_millis(100), ..Limits::default() };
    let error = get(&bed.client(limits), "/hang").await.unwrap_err();
    assert_eq!((error.class, error.call.as_str()), (ErrorClass::Timeout, "get /hang"));

    // Not even a handshake: the listener is bound, but does not accept.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("https://{}", silent.local_addr().unwrap());
    let authority = base64(&bed.ca.pem);
    let config =
        kubeconfig(&[("server", &server), ("certificate-authority-data", &authority)], &[("token", "a")]);
    let error = get(&build(&config, &[], limits), "/version").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Timeout);
}

#[tokio::test]
async fn throttling_is_reported_and_not_retried() {
    let bed = Bed::new().await;
    let error = get(&bed.client(Limits::default()), "/busy").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Throttled { retry_after: Some(Duration::from_secs(3)) });
    assert_eq!(bed.server.seen.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn only_the_given_ca_is_trusted() {
    let bed = Bed::new().await;
    let server = format!("https://127.0.0.1:{}", bed.server.port);
    let other = base64(&Ca::new().pem);
    let config =
        kubeconfig(&[("server", &server), ("certificate-authority-data", &other)], &[("token", "a")]);
    let error = get(&build(&config, &[], Limits::default()), "/version").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable);
    assert!(error.discredits_client());
    assert_eq!(bed.server.seen.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn without_a_ca_in_the_kubeconfig_the_systems_roots_are_trusted() {
    let (bed, other) = (Bed::new().await, Bed::new().await);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(bed.ca.pem.as_bytes()).unwrap()).unwrap();
    let connector = Connector::new(Arc::new(AddressPolicy::default())).trusting(roots);
    let client = |port: u16| {
        let server = format!("https://127.0.0.1:{port}");
        let access =
            RuntimeAccess::parse(&kubeconfig(&[("server", &server)], &[("token", "a")]), connector.policy())
                .unwrap();
        connector.client(&access, Limits::default()).unwrap()
    };
    get(&client(bed.server.port), "/version").await.unwrap();
    let error = get(&client(other.server.port), "/version").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "the system does not trust its issuer");
    assert_eq!(other.server.seen.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_tls_server_name_is_verified_instead_of_the_host() {
    let bed = Bed::named("inner.example").await;
    let token = [("token", "a")];
    let client = bed.client_with(&[("tls-server-name", "inner.example")], &token, Limits::default());
    get(&client, "/version").await.unwrap();
    let without = bed.client_with(&[], &token, Limits::default());
    assert_eq!(get(&without, "/version").await.unwrap_err().class, ErrorClass::Unreachable);
}

#[tokio::test]
async fn client_certificates_are_presented() {
    let bed = Bed::new().await;
    let leaf = bed.ca.issue(&["admin"]);
    let (chain, key) = (base64(&leaf.chain), base64(&leaf.key));
    let user = [("client-certificate-data", chain.as_str()), ("client-key-data", key.as_str())];
    get(&bed.client_with(&[], &user, Limits::default()), "/version").await.unwrap();
    assert_eq!(bed.server.seen.client_certificates.load(Ordering::SeqCst), 1);
    assert!(bed.server.seen.tokens.lock().is_empty());
}

#[tokio::test]
async fn host_names_do_not_bypass_the_address_deny_list() {
    let bed = Bed::named("localhost").await;
    let server = format!("https://localhost:{}", bed.server.port);
    let authority = base64(&bed.ca.pem);
    let config =
        kubeconfig(&[("server", &server), ("certificate-authority-data", &authority)], &[("token", "a")]);
    get(&build(&config, &[], Limits::default()), "/version").await.unwrap();
    let denied = build(&config, &["127.0.0.0/8", "::1"], Limits::default());
    assert_eq!(get(&denied, "/version").await.unwrap_err().class, ErrorClass::Unreachable);
    assert_eq!(bed.server.seen.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn caches_found_kinds_and_rediscovers_missing_ones() {
    let bed = Bed::new().await;
    let client = bed.client(Limits::default());
    let requests = || bed.server.seen.requests.load(Ordering::SeqCst);
    let deployment = GroupVersionKind::gvk("apps", "v1", "Deployment");
    for _ in 0..3 {
        let mapped = client.mapper().resolve(&client, &deployment).await.unwrap();
        assert_eq!((mapped.resource.plural.as_str(), mapped.scope), ("deployments", Scope::Namespaced));
    }
    assert_eq!(requests(), 1);
    let namespace = GroupVersionKind::gvk("", "v1", "Namespace");
    assert_eq!(client.mapper().resolve(&client, &namespace).await.unwrap().scope, Scope::Cluster);

    let before = requests();
    for (group, kind) in [("apps", "Tide"), ("example.org", "Tide")] {
        let gvk = GroupVersionKind::gvk(group, "v1", kind);
        for _ in 0..2 {
            let error = client.mapper().resolve(&client, &gvk).await.unwrap_err();
            assert!(matches!(error, MapError::KindMissing { .. }), "{error}");
        }
    }
    assert_eq!(requests(), before + 4);

    let broken = GroupVersionKind::gvk("broken.example", "v1", "Tide");
    let error = client.mapper().resolve(&client, &broken).await.unwrap_err();
    assert!(matches!(error, MapError::Discovery(error) if error.class == ErrorClass::Unreachable));
    let bent = GroupVersionKind::gvk("../../api", "v1", "Tide");
    let error = client.mapper().resolve(&client, &bent).await.unwrap_err();
    assert!(matches!(error, MapError::Discovery(error) if error.class == ErrorClass::Invalid));
}

#[tokio::test]
async fn distinguishes_a_missing_object_from_a_missing_kind() {
    let bed = Bed::new().await;
    let client = bed.client(Limits::default());
    let deployment = GroupVersionKind::gvk("apps", "v1", "Deployment");
    let mapped = client.mapper().resolve(&client, &deployment).await.unwrap();
    let api = mapped.api(&client, "work");
    let error = client.call("get Deployment work/tide", api.get("tide")).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::NotFound);
    assert_eq!(client.mapper().missing(&client, &deployment).await.unwrap(), Missing::Object);
    *bed.server.seen.apps_gone.lock() = true;
    assert_eq!(client.mapper().missing(&client, &deployment).await.unwrap(), Missing::Kind);
}
