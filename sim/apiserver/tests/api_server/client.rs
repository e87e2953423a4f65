//! Kubernetes client over HTTPS.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::Engine;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{ConfigMap, Namespace, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{
        DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
    runtime::{WatchStreamExt, watcher},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Access, Call, Fault, Faults, Options, Refusal, Rule, Server, ServerOptions, Token, User,
};
use tokio::time::timeout;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

const SOON: Duration = Duration::from_secs(20);

struct Fleet {
    server: Server,
    _drain: Drain,
}

impl Fleet {
    async fn start() -> Result<Self> {
        let drain = Drain::new();
        let server = Server::start(ServerOptions::default(), &drain).await?;
        for name in ["one", "two"] {
            let cluster = server.add(name, Options::default())?;
            cluster.allow_token(Token("good".into()), User::admin("admin"));
        }
        Ok(Self { server, _drain: drain })
    }

    async fn client(&self, name: &str) -> Result<Client> {
        self.client_of(name, "good").await
    }

    async fn client_of(&self, name: &str, token: &str) -> Result<Client> {
        let config = Kubeconfig::from_yaml(&self.server.kubeconfig(name, token))?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut map =
        ConfigMap { data: Some(BTreeMap::from([("a".into(), value.into())])), ..ConfigMap::default() };
    map.metadata.name = Some(name.into());
    map
}

#[tokio::test]
async fn a_watch_reports_creation_change_and_deletion() -> Result {
    let fleet = Fleet::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client("one").await?, "default");
    let list = maps.list(&ListParams::default()).await?;
    let revision = list.metadata.resource_version.unwrap_or_default();
    let mut events = maps.watch(&WatchParams::default(), &revision).await?.boxed();

    let created = maps.create(&PostParams::default(), &config_map("c", "1")).await?;
    assert!(created.uid().is_some());
    let patch = Patch::Merge(json!({"data": {"a": "2"}}));
    let patched = maps.patch("c", &PatchParams::default(), &patch).await?;
    assert_ne!(patched.resource_version(), created.resource_version());
    maps.delete("c", &DeleteParams::default()).await?;
    assert!(maps.get_opt("c").await?.is_none());

    let mut seen = Vec::new();
    while seen.len() < 3 {
        match timeout(SOON, events.try_next()).await?? {
            Some(WatchEvent::Added(map)) => {
                seen.push(format!("added {:?}", map.data.unwrap_or_default().get("a")));
            }
            Some(WatchEvent::Modified(map)) => {
                seen.push(format!("modified {:?}", map.data.unwrap_or_default().get("a")));
            }
            Some(WatchEvent::Deleted(map)) => seen.push(format!("deleted {}", map.name_any())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [r#"added Some("1")"#, r#"modified Some("2")"#, "deleted c"]);
    let others: Api<ConfigMap> = Api::namespaced(fleet.client("two").await?, "default");
    assert_eq!(others.list(&ListParams::default()).await?.items.len(), 1);
    Ok(())
}

#[tokio::test]
async fn list_and_streaming_watchers_receive_existing_objects() -> Result {
    let fleet = Fleet::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client("one").await?, "default");
    for index in 0..7 {
        maps.create(&PostParams::default(), &config_map(&format!("c{index}"), "x")).await?;
    }
    for config in [watcher::Config::default().page_size(3), watcher::Config::default().streaming_lists()] {
        let mut objects = watcher(maps.clone(), config).applied_objects().boxed();
        let mut names = Vec::new();
        while names.len() < 8 {
            names.extend(timeout(SOON, objects.try_next()).await??.map(|map| map.name_any()));
        }
        assert_eq!(names, ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "kube-root-ca.crt"]);
    }
    Ok(())
}

#[tokio::test]
async fn custom_objects_are_validated_and_applied_by_their_crd() -> Result {
    let fleet = Fleet::start().await?;
    let client = fleet.client("one").await?;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    });
    let crds: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    let apply = PatchParams::apply("test");
    crds.patch("foos.example.org", &apply, &Patch::Apply(&crd)).await?;
    let foo = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Foo"));
    let foos: Api<DynamicObject> = Api::namespaced_with(client, "default", &foo);
    let object =
        json!({"apiVersion": "example.org/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {}});
    let applied = foos.patch("f", &apply, &Patch::Apply(&object)).await?;
    assert_eq!(applied.data["spec"], json!({"n": 3}));
    let status = json!({"apiVersion": "example.org/v1", "kind": "Foo", "status": {"state": "Ready"}});
    let applied = foos.patch_status("f", &apply, &Patch::Apply(&status)).await?;
    assert_eq!(applied.data["status"], json!({"state": "Ready"}));
    assert_eq!(applied.metadata.generation, Some(1));
    let wrong = json!({"spec": {"n": "x"}});
    let refused = foos.patch("f", &PatchParams::default(), &Patch::Merge(&wrong)).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 422));
    Ok(())
}

#[tokio::test]
async fn a_stored_object_is_read_through_a_changed_schema() -> Result {
    let fleet = Fleet::start().await?;
    let client = fleet.client("one").await?;
    let version = |name: &str, storage: bool, spec: serde_json::Value| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}})
    };
    // The older version lacks `late` and is served first.
    let crd = |stored: serde_json::Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.org"},
            "spec": {
                "group": "example.org", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
                "versions": [version("v1", false, json!({"a": {"type": "string"}})), version("v2", true, stored)],
            },
        })
    };
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (text, apply) = (json!({"type": "string"}), PatchParams::apply("test").force());
    let before = crd(json!({"a": text, "late": text, "gone": text}));
    crds.patch("foos.example.org", &apply, &Patch::Apply(&before)).await?;
    let foo = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v2", "Foo"));
    let foos: Api<DynamicObject> = Api::namespaced_with(client, "default", &foo);
    let object = json!({"apiVersion": "example.org/v2", "kind": "Foo", "metadata": {"name": "f"},
                        "spec": {"a": "1", "late": "2", "gone": "3"}});
    let made = foos.patch("f", &apply, &Patch::Apply(&object)).await?;

    let after = crd(json!({"a": text, "late": text, "new": {"type": "string", "default": "4"}}));
    crds.patch("foos.example.org", &apply, &Patch::Apply(&after)).await?;
    let read = foos.get("f").await?;
    assert_eq!(read.data["spec"], json!({"a": "1", "late": "2", "new": "4"}));
    assert_eq!(read.resource_version(), made.resource_version(), "nobody has written it");
    Ok(())
}

#[tokio::test]
async fn a_deployment_becomes_ready_and_a_namespace_is_deleted() -> Result {
    let fleet = Fleet::start().await?;
    let client = fleet.client("one").await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let deployments: Api<Deployment> = Api::namespaced(client, "n");
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web", "finalizers": ["example.org/wait"]},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "x:1"}]},
        }},
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    let ready = deployments.get("web").await?.status.unwrap_or_default();
    assert_eq!((ready.available_replicas, ready.observed_generation), (Some(1), Some(1)));

    namespaces.delete("n", &DeleteParams::default()).await?;
    let status = namespaces.get("n").await?.status.unwrap_or_default();
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    assert!(
        status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "NamespaceFinalizersRemaining")
    );
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    deployments.patch("web", &PatchParams::default(), &patch).await?;
    assert!(namespaces.get_opt("n").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_namespaces_content_goes_with_every_deletion_policy() -> Result {
    let fleet = Fleet::start().await?;
    let client = fleet.client("one").await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for (name, params) in [("f", DeleteParams::foreground()), ("o", DeleteParams::orphan())] {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), name);
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "left"}}))?;
        maps.create(&PostParams::default(), &map).await?;
        namespaces.delete(name, &params).await?;
        assert!(namespaces.get_opt(name).await?.is_none(), "{name}");
        assert!(maps.get_opt("left").await?.is_none(), "{name}");
    }
    // Kept by its own finalizer, without content.
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "own", "finalizers": ["example.org/wait"]}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "own");
    namespaces.delete("own", &DeleteParams::foreground()).await?;
    assert!(maps.get_opt("kube-root-ca.crt").await?.is_none());
    let status = namespaces.get("own").await?.status.unwrap_or_default();
    let found = |kind: &str, reason: &str| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        conditions.iter().any(|one| one.type_ == kind && one.reason.as_deref() == Some(reason))
    };
    assert!(found("NamespaceContentRemaining", "ContentRemoved"), "{status:?}");
    assert!(found("NamespaceFinalizersRemaining", "ContentHasNoFinalizers"), "{status:?}");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    namespaces.patch("own", &PatchParams::default(), &patch).await?;
    assert!(namespaces.get_opt("own").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_deleted_owner_is_removed_while_another_one_exists() -> Result {
    let fleet = Fleet::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client("one").await?, "default");
    let mut owners = Vec::new();
    for name in ["a", "b"] {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let uid = maps.create(&PostParams::default(), &map).await?.metadata.uid;
        owners.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}));
    }
    let owned: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "owned", "ownerReferences": owners}}))?;
    maps.create(&PostParams::default(), &owned).await?;
    maps.delete("a", &DeleteParams::default()).await?;
    let left = maps.get("owned").await?.metadata.owner_references.unwrap_or_default();
    assert_eq!(left.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["b"]);
    maps.delete("b", &DeleteParams::default()).await?;
    assert!(maps.get_opt("owned").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn an_annotation_raises_the_generation_only_of_a_deployment() -> Result {
    let fleet = Fleet::start().await?;
    let client = fleet.client("one").await?;
    let body = json!({"metadata": {"name": "web"}, "spec": {"serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "x:1"}]}}}});
    let annotated = Patch::Merge(json!({"metadata": {"annotations": {"x": "1"}}}));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let mut deployment = body.clone();
    deployment["spec"]["serviceName"].take();
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    let patched = deployments.patch("web", &PatchParams::default(), &annotated).await?;
    assert_eq!(patched.metadata.generation, Some(2));
    let sets: Api<StatefulSet> = Api::namespaced(client, "default");
    sets.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
    let patched = sets.patch("web", &PatchParams::default(), &annotated).await?;
    assert_eq!(patched.metadata.generation, Some(1));
    Ok(())
}

#[tokio::test]
async fn unauthorized_requests_are_refused() -> Result {
    let fleet = Fleet::start().await?;
    let cluster = fleet.server.cluster("one").ok_or("no cluster")?;
    let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    let rule = Rule {
        verbs: list(&["get"]),
        groups: list(&[""]),
        resources: list(&["configmaps"]),
        ..Rule::default()
    };
    let one = Rule {
        verbs: list(&["list", "watch"]),
        groups: list(&[""]),
        resources: list(&["configmaps"]),
        names: list(&["kube-root-ca.crt"]),
        ..Rule::default()
    };
    let reader =
        User { groups: Vec::new(), access: Access::Rules(vec![rule, one]), ..User::by_rbac("reader", &[]) };
    cluster.allow_token(Token("reader".into()), reader);
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client_of("one", "reader").await?, "default");
    maps.get("kube-root-ca.crt").await?;
    let other = ListParams::default().fields("metadata.name=other");
    for params in [ListParams::default(), other] {
        let refused = maps.list(&params).await.unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
    }
    let named = ListParams::default().fields("metadata.name=kube-root-ca.crt");
    assert_eq!(maps.list(&named).await?.items.len(), 1);
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client_of("one", "bad").await?, "default");
    let refused = maps.get("kube-root-ca.crt").await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 401));
    Ok(())
}

/// Refuses the first call.
#[derive(Debug, Default)]
struct BusyOnce(AtomicBool);

impl Faults for BusyOnce {
    fn fault(&self, call: &Call<'_>) -> Fault {
        if call.is_watch {
            return Fault::Expire(Duration::from_millis(1));
        }
        if self.0.swap(true, Ordering::Relaxed) {
            Fault::None
        } else {
            Fault::Refuse(Refusal::too_many_requests(1))
        }
    }
}

#[tokio::test]
async fn faults_apply_before_the_cluster() -> Result {
    let drain = Drain::new();
    let options = ServerOptions { faults: Arc::new(BusyOnce::default()), ..ServerOptions::default() };
    let server = Server::start(options, &drain).await?;
    server.add("one", Options::default())?.allow_token(Token("good".into()), User::admin("admin"));
    let fleet = Fleet { server, _drain: drain };
    let config = Kubeconfig::from_yaml(&fleet.server.kubeconfig("one", "good"))?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config)?, "default");
    let refused = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 429));
    let revision = maps.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let mut events = maps.watch(&WatchParams::default(), &revision).await?.boxed();
    let event = timeout(SOON, events.try_next()).await??;
    assert!(matches!(event, Some(WatchEvent::Error(status)) if status.code == 410));
    Ok(())
}

#[tokio::test]
async fn an_expired_watch_or_page_gets_410() -> Result {
    let fleet = Fleet::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client("one").await?, "default");
    for index in 0..3 {
        maps.create(&PostParams::default(), &config_map(&format!("c{index}"), "x")).await?;
    }
    let page = maps.list(&ListParams::default().limit(1)).await?;
    let next = page.metadata.continue_.unwrap_or_default();
    maps.delete("c1", &DeleteParams::default()).await?;
    let cluster = fleet.server.cluster("one").ok_or("no cluster")?;
    // The old page still has the deleted object.
    let rest = maps.list(&ListParams::default().continue_token(&next)).await?;
    assert_eq!(
        rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
        ["c1", "c2", "kube-root-ca.crt"]
    );
    cluster.with(|cluster| cluster.forget(u64::MAX));
    let refused = maps.list(&ListParams::default().continue_token(&next)).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 410 && status.reason == "Expired"));
    let mut events = maps.watch(&WatchParams::default(), "1").await?.boxed();
    let event = timeout(SOON, events.try_next()).await??;
    assert!(matches!(event, Some(WatchEvent::Error(status)) if status.code == 410));
    Ok(())
}

#[tokio::test]
async fn certificates_and_own_ports_work_like_tokens_and_paths() -> Result {
    let fleet = Fleet::start().await?;
    let cluster = fleet.server.cluster("two").ok_or("no cluster")?;
    cluster.allow_certificate("robot", User::admin("robot"));
    let issued = fleet.server.issue("robot", &[])?;
    let address = fleet.server.listen("two").await?;
    let mut config = Config::new(format!("https://{address}").parse()?);
    let ca = CertificateDer::from_pem_slice(fleet.server.ca_pem().as_bytes())?;
    config.root_cert = Some(vec![ca.to_vec()]);
    let encoded = |pem: &str| base64::prelude::BASE64_STANDARD.encode(pem);
    config.auth_info.client_certificate_data = Some(encoded(&issued.cert_pem));
    config.auth_info.client_key_data = Some(encoded(issued.key_pem.as_str()).into());
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config)?, "default");
    maps.get("kube-root-ca.crt").await?;
    Ok(())
}

#[tokio::test]
async fn dependents_follow_the_deletion_policy() -> Result {
    let fleet = Fleet::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client("one").await?, "default");
    for (policy, left) in [
        (DeleteParams::background(), false),
        (DeleteParams::foreground(), false),
        (DeleteParams::orphan(), true),
    ] {
        let above = maps.create(&PostParams::default(), &config_map("owner", "x")).await?;
        let mut below = config_map("owned", "x");
        below.metadata.owner_references = Some(vec![serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": above.uid(), "blockOwnerDeletion": true,
        }))?]);
        maps.create(&PostParams::default(), &below).await?;
        maps.delete("owner", &policy).await?;
        assert!(maps.get_opt("owner").await?.is_none());
        let left_over = maps.get_opt("owned").await?;
        assert_eq!(left_over.is_some(), left);
        assert!(left_over.is_none_or(|map| map.owner_references().is_empty()));
    }
    Ok(())
}

#[tokio::test]
async fn unsimulated_requests_are_refused() -> Result {
    let fleet = Fleet::start().await?;
    let server = &fleet.server;
    let options = Options { ignore_cel: true, ..Options::default() };
    server.add("lenient", options)?.allow_token(Token("good".into()), User::admin("admin"));
    let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": "true"}]});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    let crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    let crds: Api<CustomResourceDefinition> = Api::all(fleet.client("one").await?);
    let refused = crds.create(&PostParams::default(), &crd).await.unwrap_err();
    let found =
        matches!(&refused, kube::Error::Api(status) if status.code == 501 && status.message.contains("CEL"));
    assert!(found, "{refused}");
    let crds: Api<CustomResourceDefinition> = Api::all(fleet.client("lenient").await?);
    crds.create(&PostParams::default(), &crd).await?;
    let pods: Api<Pod> = Api::namespaced(fleet.client("one").await?, "default");
    let refused = pods.logs("p", &LogParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 501));
    let one = fleet.client("one").await?;
    for (method, path, code) in [
        ("HEAD", "/api/v1/namespaces/default/pods", 405),
        ("DELETE", "/api/v1/secrets", 405),
        ("DELETE", "/api/v1/namespaces/kube-system", 403),
    ] {
        let request = http::Request::builder().method(method).uri(path).body(kube::client::Body::empty())?;
        let status = one.send(request).await?.status();
        assert_eq!(status, code, "{method} {path}");
    }
    // Like kubectl: without a body.
    let exec = http::Request::post("/api/v1/namespaces/default/pods/p/exec?command=ls").body(Vec::new())?;
    let refused = fleet.client("one").await?.request::<serde_json::Value>(exec).await.unwrap_err();
    let found =
        matches!(&refused, kube::Error::Api(s) if s.code == 501 && s.message == "not simulated: pods/exec");
    assert!(found, "{refused}");
    Ok(())
}
