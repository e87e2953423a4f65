//! `tidewatch runtime add` and `tidewatch doctor`: a runtime is registered with a kubeconfig made for the engine, and checked.

use std::{path::PathBuf, process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ConfigMap, Namespace, Secret, ServiceAccount},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{AGENT_NAME, RUNTIME_NAMESPACE},
};
use tidewatch_tests::{
    ControlPlane, binaries,
    cluster::ADMIN,
    env,
    fleet::{self, Agent, Member, RECEIVER_USER, Receiver},
    modules::Version,
    observed,
    runtime_pool::{self, Alone},
    spare, story, wait,
};

const SOON: Duration = Duration::from_mins(1);

/// A receiver that installs agents, and an unregistered runtime.
struct World {
    receiver: Receiver,
    cluster: &'static ControlPlane,
    kcp: Client,
    runtime: Client,
    kyma: &'static str,
    kcp_file: PathBuf,
    runtime_file: PathBuf,
    _alone: Alone,
}

impl World {
    async fn start(namespace: &'static str, kyma: &'static str) -> Result<Self> {
        let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
        let cluster = alone.cluster;
        spare::take_over(cluster).await?;
        let (kcp, runtime) = (env.kcp.client()?, cluster.client()?);
        fleet::prepare_kcp(&kcp, namespace).await?;
        let modules = env.registry.of(namespace);
        let receiver = Receiver::start(&env.harness, &env.kcp, namespace, &modules).await?;
        let write = |name: &str, text: &str| env.harness.write(&format!("{namespace}/{name}.yaml"), text);
        let kcp_file = write("kcp", &env.kcp.kubeconfig_yaml(ADMIN)?)?;
        let runtime_file = write("runtime", &cluster.kubeconfig_yaml(ADMIN)?)?;
        Ok(Self { receiver, cluster, kcp, runtime, kyma, kcp_file, runtime_file, _alone: alone })
    }

    /// Calls `runtime add` for the runtime.
    async fn add(&self, more: &[&str]) -> Result<Output> {
        let files = [
            format!("--kubeconfig={}", self.runtime_file.display()),
            format!("--kcp-kubeconfig={}", self.kcp_file.display()),
            format!("--namespace={}", self.receiver.namespace),
        ];
        let mut args = vec!["runtime", "add", self.kyma];
        args.extend(files.iter().map(String::as_str));
        args.extend(more);
        tidewatch(&args).await
    }

    /// Calls `doctor` for the runtime. Returns success, and each check with its result and remedy.
    async fn doctor(&self) -> Result<(bool, Vec<(String, Value)>)> {
        let args = [
            format!("--kubeconfig={}", self.kcp_file.display()),
            format!("--namespace={}", self.receiver.namespace),
            format!("--receiver-user={RECEIVER_USER}"),
            format!("--registry={}", env::shared().await?.registry.host()),
            format!("--runtime={}", self.kyma),
        ];
        let mut all = vec!["doctor", "-o", "json"];
        all.extend(args.iter().map(String::as_str));
        let output = tidewatch(&all).await?;
        let page: Value = serde_json::from_slice(&output.stdout).with_context(|| text(&output.stderr))?;
        ensure!(page["success"] == output.status.success(), "{page:#}");
        let groups = page["groups"].as_array().context("no groups")?;
        let checks = groups.iter().flat_map(|group| group["checks"].as_array().into_iter().flatten());
        let checks =
            checks.map(|check| (check["check"].as_str().unwrap_or_default().to_owned(), check.clone()));
        Ok((output.status.success(), checks.collect()))
    }

    fn member(&self) -> Member<'static> {
        Member { cluster: self.cluster, kyma: self.kyma, id: self.kyma }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.kcp.clone(), &self.receiver.namespace)
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.kcp.clone(), &self.receiver.namespace)
    }

    /// Returns the kubeconfig that was made for the engine.
    async fn kubeconfig(&self) -> Result<String> {
        let secret = self.secrets().get(&format!("kubeconfig-{}", self.kyma)).await?;
        let config = secret.data.and_then(|mut data| data.remove("config")).context("no kubeconfig")?;
        Ok(String::from_utf8(config.0)?)
    }

    async fn as_engine(&self) -> Result<Client> {
        let config = Kubeconfig::from_yaml(&self.kubeconfig().await?)?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}

async fn tidewatch(args: &[&str]) -> Result<Output> {
    Ok(tokio::process::Command::new(binaries::find("tidewatch")?)
        .args(args)
        .env_remove("KUBECONFIG")
        .output()
        .await?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) -> Result<Value> {
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Objects whose rights the engine's own role lacks, and a kind that the module brings itself.
fn dredger() -> Version {
    let group = "dredger.example.test";
    let mut version = Version::new(
        "dredger",
        "1.0.0",
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dredger"}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "manager", "namespace": "dredger"}}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "dredger"},
                   "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["watch", "update", "deletecollection"]},
                             {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "dredger"},
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dredger"},
                   "subjects": [{"kind": "ServiceAccount", "name": "manager", "namespace": "dredger"}]}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "dredger"},
                   "stringData": {"a": "b"}}),
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                   "metadata": {"name": format!("barges.{group}")},
                   "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Barge", "plural": "barges", "singular": "barge"},
                            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
        ],
    );
    let cr = json!({"apiVersion": format!("{group}/v1"), "kind": "Barge", "metadata": {"name": "one", "namespace": "dredger"}});
    version.template = json!({"data": cr});
    version
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_works_with_the_kubeconfig_made_for_it() -> Result<()> {
    let world = World::start("kcp-registration", "pierhead").await?;
    let env = env::shared().await?;
    // The agent is started by the test, where no kubelet runs pods.
    let member = world.member();
    let (added, agent) = tokio::join!(
        world.add(&["--label=kyma-project.io/region=north", "--wait", "--timeout=60s", "-o=json"]),
        Agent::start(&env.harness, &world.receiver, &member),
    );
    let (added, agent) = (added?, agent?);
    let result = succeeded(&added)?;
    ensure!(result["runtimeId"] == world.kyma, "{result}");
    ensure!(text(&added.stderr).contains("waiting for "), "{}", text(&added.stderr));
    let path = world.receiver.runtime(world.kyma).await?["eventPath"].clone();
    ensure!(path == "proven", "the wait has ended at {path}");

    // A second run changes nothing, and a new label does not remove the first one.
    let again = succeeded(&world.add(&["-o=json"]).await?)?;
    let changes = again["objects"].as_array().context("no objects")?;
    ensure!(changes.len() == 7 && changes.iter().all(|one| one["change"] == "unchanged"), "{again:#}");
    let labelled =
        succeeded(&world.add(&["-o=json", "--label=kyma-project.io/broker-plan-name=free"]).await?)?;
    ensure!(labelled["objects"][6]["change"] == "configured", "{labelled:#}");
    let labels = world.kymas().get(world.kyma).await?.metadata.labels.unwrap_or_default();
    let keys = ["kyma-project.io/region", "kyma-project.io/broker-plan-name", "kyma-project.io/runtime-id"];
    ensure!(keys.iter().all(|key| labels.contains_key(*key)), "{labels:?}");

    dredger()
        .offer(&world.kcp, &world.receiver.namespace, &env.registry.of(&world.receiver.namespace))
        .await?;
    story::set_modules(&world.runtime, &json!([{"name": "dredger"}])).await?;
    fleet::kyma_where(world.kymas(), world.kyma, "the module to be Ready", |kyma| {
        kyma.module_status("dredger").is_some_and(|module| module.state == State::Ready)
    })
    .await?;
    let roles: Api<ClusterRole> = Api::all(world.runtime.clone());
    roles.get("dredger").await.context("a role with rights that the engine lacks")?;

    for (verb, group, resource, allowed) in [
        ("patch", "any.example", "things", true),
        ("delete", "", "secrets", true),
        ("watch", "", "secrets", false),
        ("update", "apps", "deployments", false),
        ("deletecollection", "", "pods", false),
        ("impersonate", "", "users", false),
    ] {
        let attributes = ResourceAttributes {
            verb: Some(verb.into()),
            group: Some(group.into()),
            resource: Some(resource.into()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(world.as_engine().await?);
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await?;
        ensure!(answer.status.is_some_and(|status| status.allowed == allowed), "{verb} {resource}");
    }

    // The engine removes everything with these rights, too. Its own access is the operator's to remove.
    world.kymas().delete(world.kyma, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async {
        Ok(world.kymas().get_opt(world.kyma).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(roles.get_opt("dredger").await?.is_none(), "the module's role has stayed");
    let namespaces: Api<Namespace> = Api::all(world.runtime.clone());
    wait::until("the module's namespace to go", SOON, || async {
        Ok(namespaces.get_opt("dredger").await?.is_none().then_some(()))
    })
    .await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    ensure!(accounts.get_opt(AGENT_NAME).await?.is_none(), "the agent's service account has stayed");
    namespaces.get("tidewatch-system").await.context("the engine's access")?;
    observed::no_panic(&agent.process)?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_the_remedy_of_a_lost_token_and_it_works() -> Result<()> {
    let world = World::start("kcp-doctor", "capstan").await?;
    let env = env::shared().await?;
    let unregistered = world.doctor().await?;
    let check = |checks: &[(String, Value)], name: &str| -> Result<Value> {
        let found = checks.iter().find(|(check, _)| check == name);
        found.map(|(_, value)| value.clone()).with_context(|| format!("no check {name}: {checks:#?}"))
    };
    ensure!(!unregistered.0, "{:#?}", unregistered.1);
    let unknown = check(&unregistered.1, "capstan")?;
    ensure!(unknown["remedy"].as_str().is_some_and(|text| text.contains("runtime add capstan")), "{unknown}");

    succeeded(&world.add(&["-o=json"]).await?)?;
    let agent = Agent::start(&env.harness, &world.receiver, &world.member()).await?;
    let healthy = || async {
        let (healthy, checks) = world.doctor().await?;
        ensure!(healthy && checks.iter().all(|(_, check)| check["result"] == "ok"), "{checks:#?}");
        Ok(Some(checks))
    };
    let checks = wait::until("every check to be good", SOON, healthy).await?;
    let expected = [
        "its API server answers",
        "kymas.operator.kyma-project.io",
        "rights in KCP",
        "rights to keep its certificates",
        "a leader holds the Lease",
        "not paused",
        "Secret tidewatch-ca",
        "Secret tidewatch-server",
        "rotation of the CA",
        "revoked runtimes",
        "the registry of the modules answers",
        "capstan: access",
        "capstan: events",
    ];
    for name in expected {
        check(&checks, name)?;
    }

    // Without its Secret, the token is invalid.
    let tokens: Api<Secret> = Api::namespaced(world.runtime.clone(), "tidewatch-system");
    tokens.delete("tidewatch-engine-token", &DeleteParams::default()).await?;
    // API servers remember a good token for some seconds.
    let access = wait::until("the token to be refused", SOON, || async {
        let (is_healthy, checks) = world.doctor().await?;
        let access = check(&checks, "capstan: access")?;
        Ok((!is_healthy && access["result"] == "failed").then_some(access))
    })
    .await?;
    ensure!(access["message"].as_str().is_some_and(|text| text.contains("(401)")), "{access}");
    ensure!(
        access["remedy"] == "tidewatch runtime add capstan --kubeconfig FILE",
        "the remedy is a command: {access}"
    );
    // The remedy, as it is written.
    succeeded(&world.add(&["-o=json"]).await?)?;
    wait::until("every check to be good again", SOON, healthy).await?;

    // Only another service account makes another token.
    let leaked = world.kubeconfig().await?;
    let namespaces: Api<Namespace> = Api::all(world.runtime.clone());
    namespaces.delete("tidewatch-system", &DeleteParams::default()).await?;
    wait::until("the engine's access to go", SOON, || async {
        Ok(namespaces.get_opt("tidewatch-system").await?.is_none().then_some(()))
    })
    .await?;
    succeeded(&world.add(&["-o=json"]).await?)?;
    ensure!(world.kubeconfig().await? != leaked, "the leaked token is valid again");
    wait::until("every check to be good with another token", SOON, healthy).await?;
    observed::no_panic(&agent.process)?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_without_a_receiver_is_diagnosed() -> Result<()> {
    let env = env::shared().await?;
    let namespace = "kcp-undiagnosed";
    fleet::prepare_kcp(&env.kcp.client()?, namespace).await?;
    let file = env.harness.write("kcp-undiagnosed/kcp.yaml", &env.kcp.kubeconfig_yaml(ADMIN)?)?;
    let kubeconfig = format!("--kubeconfig={}", file.display());
    let of = ["doctor", &kubeconfig, "--namespace=kcp-undiagnosed", "--receiver-user=stranger"];
    let output = tidewatch(&of).await?;
    let page = text(&output.stdout);
    ensure!(output.status.code() == Some(1), "{page}");
    for expected in [
        "[ok] kymas.operator.kyma-project.io",
        "[fail] rights in KCP: stranger may not get kymas.operator.kyma-project.io",
        "-> apply deploy/charts/tidewatch/files/rbac/receiver.yaml",
        "[fail] a leader holds the Lease: there is no Lease",
        "-> start a receiver for the namespace kcp-undiagnosed",
        "[skip] Secret tidewatch-ca",
        "[ok] revoked runtimes: none",
        "-> register a runtime: tidewatch runtime add",
    ] {
        ensure!(page.contains(expected), "{expected} is missing in:\n{page}");
    }

    // A check that needs a right of its user is not made, and fails.
    let limited =
        env.harness.write("kcp-undiagnosed/limited.yaml", &env.kcp.kubeconfig_yaml(RECEIVER_USER)?)?;
    let kubeconfig = format!("--kubeconfig={}", limited.display());
    let named = "--receiver-user=stranger";
    let output = tidewatch(&["doctor", &kubeconfig, "--namespace=kcp-undiagnosed", named]).await?;
    let page = text(&output.stdout);
    ensure!(output.status.code() == Some(1), "{page}");
    ensure!(page.contains("[fail] rights in KCP: not checked: subjectaccessreviews"), "{page}");

    let unused = tidewatch_tests::ports::free()?;
    let nowhere =
        env.kcp.kubeconfig_yaml(ADMIN)?.replace(env.kcp.url(), &format!("https://127.0.0.1:{unused}"));
    let nowhere = env.harness.write("kcp-undiagnosed/nowhere.yaml", &nowhere)?;
    let output = tidewatch(&["doctor", &format!("--kubeconfig={}", nowhere.display())]).await?;
    let page = text(&output.stdout);
    ensure!(page.contains("[fail] its API server answers: KCP does not answer"), "{page}");
    ensure!(output.status.code() == Some(1) && page.contains("1 checks: 1 failed"), "{page}");
    Ok(())
}

const AGENT_OF_ANOTHER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: kyma-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: tidewatch-agent, namespace: kyma-system}
data: {config.yaml: '{"runtimeId": "its-id"}'}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_cannot_succeed_writes_nothing() -> Result<()> {
    const NAMESPACE: &str = "--namespace=kcp-unregistered";
    let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
    let namespace = "kcp-unregistered";
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, namespace).await?;
    let write = |name: &str, text: String| env.harness.write(&format!("{namespace}/{name}.yaml"), &text);
    let runtime =
        format!("--kubeconfig={}", write("runtime", alone.cluster.kubeconfig_yaml(ADMIN)?)?.display());
    let admin = format!("--kcp-kubeconfig={}", write("kcp", env.kcp.kubeconfig_yaml(ADMIN)?)?.display());
    let limited = write("limited", env.kcp.kubeconfig_yaml(RECEIVER_USER)?)?;
    let limited = format!("--kcp-kubeconfig={}", limited.display());
    let unused = format!("https://127.0.0.1:{}", tidewatch_tests::ports::free()?);
    let nowhere = write("nowhere", env.kcp.kubeconfig_yaml(ADMIN)?.replace(env.kcp.url(), &unused))?;
    let nowhere = format!("--kcp-kubeconfig={}", nowhere.display());
    let add = async |kyma: &str, kcp: &str, more: &[&str]| {
        let mut args = vec!["runtime", "add", kyma, &runtime, kcp];
        args.extend(more);
        let output = tidewatch(&args).await?;
        anyhow::Ok((output.status.code(), text(&output.stderr)))
    };
    // A Kyma of this name, with another id.
    let kymas: Api<Kyma> = Api::namespaced(kcp.clone(), namespace);
    let taken = json!({"metadata": {"name": "taken", "labels": {"kyma-project.io/runtime-id": "its-id"}},
                       "spec": {"channel": "regular"}});
    kymas.create(&PostParams::default(), &serde_json::from_value(taken)?).await?;
    for (kyma, kcp, more, code, expected) in [
        ("bollard", nowhere.as_str(), &[NAMESPACE][..], 1, "KCP does not answer"),
        ("bollard", &limited, &[NAMESPACE], 1, "use a --kcp-kubeconfig whose user has this right"),
        (
            "bollard",
            &admin,
            &["--namespace=none"],
            1,
            "create the namespace, or name another one with --namespace",
        ),
        (
            "bollard",
            &admin,
            &[NAMESPACE, "--runtime-id=its-id"],
            1,
            "the Kyma taken has the runtime id 'its-id' already",
        ),
        (
            "taken",
            &admin,
            &[NAMESPACE, "--runtime-id=mine"],
            1,
            "registered with the runtime id 'its-id', not 'mine'",
        ),
        ("Bollard", &admin, &[NAMESPACE], 2, "is no name of a Kyma"),
        ("bollard", &admin, &[NAMESPACE, "--server=http://plain"], 1, "server over plain http"),
    ] {
        let (ended, message) = add(kyma, kcp, more).await?;
        ensure!(ended == Some(code) && message.contains(expected), "{kyma} {more:?}: {ended:?} {message}");
    }
    // The runtime has the agent of another Kyma.
    let installed: Api<ConfigMap> = Api::namespaced(alone.cluster.client()?, RUNTIME_NAMESPACE);
    fleet::apply_yaml(&alone.cluster.client()?, AGENT_OF_ANOTHER).await?;
    let (ended, message) = add("bollard", &admin, &[NAMESPACE]).await?;
    ensure!(ended == Some(1) && message.contains("registered as the Kyma taken already"), "{message}");
    installed.delete("tidewatch-agent", &DeleteParams::default()).await?;

    // KCP itself, at the same address and at another one.
    let moved = env.kcp.kubeconfig_yaml(ADMIN)?.replace("127.0.0.1", "localhost");
    for file in [write("kcp", env.kcp.kubeconfig_yaml(ADMIN)?)?, write("moved", moved)?] {
        let file = format!("--kubeconfig={}", file.display());
        let output = tidewatch(&["runtime", "add", "bollard", &file, &admin, NAMESPACE]).await?;
        let message = text(&output.stderr);
        ensure!(message.contains("KCP and the runtime are the same cluster"), "{message}");
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(kcp.clone(), "tidewatch-system");
    ensure!(accounts.get_opt("tidewatch-engine").await?.is_none(), "the engine got an account in KCP");
    let secrets: Api<Secret> = Api::namespaced(kcp, namespace);
    for name in ["kubeconfig-bollard", "kubeconfig-taken"] {
        ensure!(secrets.get_opt(name).await?.is_none(), "{name} was written");
    }
    ensure!(kymas.get_opt("bollard").await?.is_none(), "the Kyma was written");
    Ok(())
}
