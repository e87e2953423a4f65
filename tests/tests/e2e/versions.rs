//! Version selection: channel, number, legacy template or the runtime's template; and the user's messages.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, ModuleReleaseMeta, ModuleStatus, ModuleTemplate, State,
    names::{API_VERSION, GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION, annotations, labels},
};
use tidewatch_tests::{
    ControlPlane,
    env::{self, Environment},
    fleet::{self, Member, Receiver},
    kcp,
    modules::Version,
    observed,
    spare::{self, Spare},
    story::set_modules,
    wait,
};
use tokio::sync::MutexGuard;

const SOON: Duration = Duration::from_mins(1);
const MANAGER: &str = "tidewatch-tests";

/// A receiver in its own namespace with two runtimes.
struct World {
    env: &'static Environment,
    spare: &'static Spare,
    kcp: Client,
    receiver: Receiver,
    namespace: &'static str,
    // Last field: the receiver ends before another test gets the runtimes.
    _alone: MutexGuard<'static, ()>,
}

impl World {
    async fn start(namespace: &'static str) -> Result<Self> {
        let env = env::shared().await?;
        let spare = spare::shared().await?;
        let alone = spare.register_alone().await;
        spare::take_over(&spare.runtime3).await?;
        spare::take_over(&spare.runtime4).await?;
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let receiver = Receiver::start_without_agents(
            &env.harness,
            &env.kcp,
            namespace,
            &env.registry.of(namespace),
            Vec::new(),
        )
        .await?;
        let world = Self { env, spare, kcp, receiver, namespace, _alone: alone };
        for member in [world.pier(), world.mole()] {
            fleet::register(&world.kcp, namespace, &member).await?;
            fleet::kyma_in_state(&world.kcp, namespace, member.kyma, State::Ready).await?;
        }
        Ok(world)
    }

    fn pier(&self) -> Member<'_> {
        Member { cluster: &self.spare.runtime3, kyma: "pier", id: "runtime-pier" }
    }

    fn mole(&self) -> Member<'_> {
        Member { cluster: &self.spare.runtime4, kyma: "mole", id: "runtime-mole" }
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.kcp.clone(), self.namespace)
    }

    /// Pushes a version and releases the module in channels.
    async fn offer(&self, module: &str, version: &str, channels: &[(&str, &str)]) -> Result<()> {
        packed(module, version, channels)
            .offer(&self.kcp, self.namespace, &self.env.registry.of(self.namespace))
            .await
    }

    /// Replaces fields of a release meta.
    async fn release(&self, module: &str, spec: Value) -> Result<()> {
        let api: Api<ModuleReleaseMeta> = Api::namespaced(self.kcp.clone(), self.namespace);
        api.patch(module, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    /// Edits a runtime's Kyma and reports the change.
    async fn ask(&self, member: &Member<'_>, modules: Value) -> Result<()> {
        set_modules(&member.cluster.client()?, &modules).await?;
        self.tell(member, "Kyma", RUNTIME_KYMA_NAME).await
    }

    async fn tell(&self, member: &Member<'_>, kind: &str, name: &str) -> Result<()> {
        let gvk = (GROUP, VERSION, kind);
        self.receiver.tell(&self.env.harness, member, gvk, RUNTIME_NAMESPACE, name).await
    }

    /// Waits for a module state and returns it.
    async fn module(
        &self,
        member: &Member<'_>,
        module: &str,
        what: &str,
        is: impl Fn(&ModuleStatus) -> bool,
    ) -> Result<ModuleStatus> {
        let what = format!("module {module} of Kyma {}: {what}", member.kyma);
        let found =
            fleet::kyma_where(self.kymas(), member.kyma, &what, |k| k.module_status(module).is_some_and(&is));
        found.await?.module_status(module).cloned().context("it was there")
    }

    /// Waits until a version is Ready and verifies the runtime.
    async fn ready(&self, member: &Member<'_>, module: &str, version: &str) -> Result<ModuleStatus> {
        let status = self
            .module(member, module, &format!("Ready in {version}"), |m| {
                m.state == State::Ready && m.version == version
            })
            .await?;
        has(member.cluster, module, version).await?;
        Ok(status)
    }

    async fn manifest(&self, member: &Member<'_>, module: &str) -> Result<Manifest> {
        let api: Api<Manifest> = Api::namespaced(self.kcp.clone(), self.namespace);
        let of = format!("{}={},{}={module}", labels::KYMA_NAME, member.kyma, labels::MODULE_NAME);
        let mut found = api.list(&ListParams::default().labels(&of)).await?.items;
        found.pop().with_context(|| format!("no Manifest of {module}"))
    }

    /// Reconciles of a Kyma caused by releases.
    async fn releases_heard(&self, member: &Member<'_>) -> Result<usize> {
        let page = self.receiver.runtime(member.id).await?;
        let records = page["reconciles"].as_array().context("the page has no reconciles")?;
        // The catalog reports changes independently of the Kyma.
        let own = records.iter().filter(|r| r["key"].as_str().is_some_and(|key| key.starts_with("Kyma/")));
        let causes = own.flat_map(|r| r["causes"].as_array().into_iter().flatten());
        Ok(causes.filter(|cause| cause["change"] == "module release changed").count())
    }

    fn healthy(&self) -> Result<()> {
        fleet::alive(&self.receiver.process)?;
        observed::no_panic(&self.receiver.process)
    }
}

fn packed(module: &str, version: &str, channels: &[(&str, &str)]) -> Version {
    let channels: Vec<Value> = channels.iter().map(|(c, v)| json!({"channel": c, "version": v})).collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"version": version},
                        "metadata": {"name": module, "namespace": RUNTIME_NAMESPACE}});
    Version { release: json!({"channels": channels}), ..Version::new(module, version, vec![object]) }
}

async fn has(cluster: &ControlPlane, module: &str, version: &str) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client()?, RUNTIME_NAMESPACE);
    let map = api.get(module).await.with_context(|| format!("the ConfigMap of {module}"))?;
    let is = map.data.unwrap_or_default().remove("version").unwrap_or_default();
    ensure!(is == version, "{module} is installed in {is}, not {version}");
    Ok(())
}

/// A legacy or runtime template, with channel and descriptor.
async fn template(
    client: &Client,
    namespace: &str,
    module: &str,
    channel: &str,
    version: &str,
) -> Result<()> {
    let api: Api<ModuleTemplate> = Api::namespaced(client.clone(), namespace);
    let name = format!("{module}-{channel}");
    let body = json!({
        "apiVersion": API_VERSION, "kind": "ModuleTemplate",
        "metadata": {"name": name, "labels": {labels::MODULE_NAME: module}},
        "spec": {"channel": channel, "descriptor": {"component": {"name": kcp::component(module), "version": version}}}
    });
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_can_be_pinned_and_unpinned() -> Result<()> {
    let world = World::start("kcp-pins").await?;
    let pier = world.pier();
    world.offer("buoy", "1.0.0", &[("regular", "1.0.0")]).await?;
    world.offer("buoy", "1.1.0", &[("regular", "1.0.0"), ("fast", "1.1.0")]).await?;

    world.ask(&pier, json!([{"name": "buoy", "version": "1.0.0"}])).await?;
    let pinned = world.ready(&pier, "buoy", "1.0.0").await?;
    ensure!(pinned.channel.is_empty(), "a version that is asked for has no channel: {pinned:?}");

    // A channel change updates its followers. A Kyma with a fixed version is not reconciled.
    world.ask(&world.mole(), json!([{"name": "buoy"}])).await?;
    world.ready(&world.mole(), "buoy", "1.0.0").await?;
    fleet::settled(&world.receiver).await?;
    let before = world.releases_heard(&pier).await?;
    let moved = json!([{"channel": "regular", "version": "1.1.0"}]);
    world.release("buoy", json!({"channels": moved, "versions": [{"version": "1.0.0"}]})).await?;
    world.ready(&world.mole(), "buoy", "1.1.0").await?;
    fleet::settled(&world.receiver).await?;
    let after = world.releases_heard(&pier).await?;
    ensure!(before == after, "a Kyma that pins a version was reconciled for a release");
    ensure!(world.releases_heard(&world.mole()).await? > 0, "the page would have told");
    has(pier.cluster, "buoy", "1.0.0").await?;

    // An unavailable version: the status lists the available ones, and the installed version stays.
    world.ask(&pier, json!([{"name": "buoy", "version": "7.0.0"}])).await?;
    let odd = world.module(&pier, "buoy", "Warning", |m| m.state == State::Warning).await?;
    ensure!(odd.message.contains("has no version 7.0.0 (it has: 1.1.0, 1.0.0)"), "{odd:?}");
    has(pier.cluster, "buoy", "1.0.0").await?;

    world.ask(&pier, json!([{"name": "buoy"}])).await?;
    let free = world.ready(&pier, "buoy", "1.1.0").await?;
    ensure!(free.channel == "regular", "{free:?}");
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phased_release_reaches_only_affected_kymas() -> Result<()> {
    let world = World::start("kcp-phases").await?;
    let (pier, mole) = (world.pier(), world.mole());
    let both = |regular: &str, fast: &str| {
        json!({"channels": [{"channel": "regular", "version": regular}, {"channel": "fast", "version": fast}],
               "versions": [{"version": "1.1.0"}]})
    };
    world.offer("skiff", "1.0.0", &[("regular", "1.0.0"), ("fast", "1.0.0")]).await?;
    for member in [&pier, &mole] {
        world.ask(member, json!([{"name": "skiff"}])).await?;
        world.ready(member, "skiff", "1.0.0").await?;
    }

    // One runtime tests a version outside all channels.
    world.offer("skiff", "1.1.0", &[("regular", "1.0.0"), ("fast", "1.0.0")]).await?;
    world.release("skiff", both("1.0.0", "1.0.0")).await?;
    world.ask(&pier, json!([{"name": "skiff", "version": "1.1.0"}])).await?;
    world.ready(&pier, "skiff", "1.1.0").await?;

    // The fast channel gets it next. The tester returns to a channel without reinstallation.
    fleet::settled(&world.receiver).await?;
    let before = world.releases_heard(&mole).await?;
    world.release("skiff", both("1.0.0", "1.1.0")).await?;
    world.ask(&pier, json!([{"name": "skiff", "channel": "fast"}])).await?;
    let early = world.module(&pier, "skiff", "in the channel", |m| m.channel == "fast").await?;
    ensure!(early.version == "1.1.0" && early.state == State::Ready, "{early:?}");
    fleet::settled(&world.receiver).await?;
    ensure!(world.releases_heard(&mole).await? == before, "its channel has not changed");
    world.ready(&mole, "skiff", "1.0.0").await?;

    // All channels get it; up-to-date Kymas are not reconciled.
    let before = world.releases_heard(&pier).await?;
    world.release("skiff", both("1.1.0", "1.1.0")).await?;
    world.ready(&mole, "skiff", "1.1.0").await?;
    fleet::settled(&world.receiver).await?;
    ensure!(world.releases_heard(&pier).await? == before, "its channel has not changed");
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_is_refused_and_reported() -> Result<()> {
    let world = World::start("kcp-downgrade").await?;
    let pier = world.pier();
    world.offer("gull", "1.0.0", &[("regular", "1.0.0")]).await?;
    world.offer("gull", "1.2.0", &[("regular", "1.2.0")]).await?;
    world.ask(&pier, json!([{"name": "gull"}])).await?;
    world.ready(&pier, "gull", "1.2.0").await?;

    world.release("gull", json!({"channels": [{"channel": "regular", "version": "1.0.0"}]})).await?;
    let kept = world.module(&pier, "gull", "Warning", |m| m.state == State::Warning).await?;
    ensure!(kept.version == "1.2.0", "the old version stays: {kept:?}");
    ensure!(kept.message.contains("version 1.0.0 is lower than the installed 1.2.0"), "{kept:?}");
    has(pier.cluster, "gull", "1.2.0").await?;
    event(&pier.cluster.client()?, RUNTIME_NAMESPACE, "VersionRefused", &["module 'gull'", "is lower than"])
        .await?;
    let remote: Api<Kyma> = Api::namespaced(pier.cluster.client()?, RUNTIME_NAMESPACE);
    fleet::kyma_where(remote, RUNTIME_KYMA_NAME, "the runtime's user to be told", |k| {
        k.module_status("gull").is_some_and(|m| m.message == kept.message)
    })
    .await?;

    world.release("gull", json!({"allowDowngrade": true})).await?;
    world.ready(&pier, "gull", "1.0.0").await?;

    // A changed template of an installed version is reported, not reinstalled.
    let templates: Api<ModuleTemplate> = Api::namespaced(world.kcp.clone(), world.namespace);
    let change = json!({"spec": {"progressDeadlineSeconds": 77}});
    templates.patch("gull-1.0.0", &PatchParams::default(), &Patch::Merge(change)).await?;
    event(&world.kcp, world.namespace, "ModuleTemplateChanged", &["gull-1.0.0", "stays as it is"]).await?;
    world.ready(&pier, "gull", "1.0.0").await?;

    // A recreated template also has generation 1.
    let before = world.manifest(&pier, "gull").await?;
    let mut anew = templates.get("gull-1.0.0").await?;
    templates.delete("gull-1.0.0", &DeleteParams::default()).await?;
    world.module(&pier, "gull", "Warning", |m| m.state == State::Warning).await?;
    anew.metadata =
        ObjectMeta { name: anew.metadata.name, labels: anew.metadata.labels, ..ObjectMeta::default() };
    anew.spec.progress_deadline_seconds = Some(99);
    let anew = templates.create(&PostParams::default(), &anew).await?;
    ensure!(
        anew.metadata.generation == Some(1) && before.annotations().contains_key(annotations::TEMPLATE_UID)
    );
    world.ready(&pier, "gull", "1.0.0").await?;
    fleet::settled(&world.receiver).await?;
    let after = world.manifest(&pier, "gull").await?;
    ensure!((&after.spec, after.annotations()) == (&before.spec, before.annotations()), "{after:?}");
    world.healthy()
}

async fn event(client: &Client, namespace: &str, reason: &str, parts: &[&str]) -> Result<()> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("reason={reason}"));
    let found = wait::until(&format!("an Event {reason}"), SOON, || async {
        Ok(events.list(&params).await?.items.pop())
    })
    .await?;
    let message = found.message.clone().unwrap_or_default();
    ensure!(parts.iter().all(|part| message.contains(part)), "{message}");
    ensure!(found.type_.as_deref() == Some("Warning"), "{found:?}");
    ensure!(found.involved_object.kind.as_deref() == Some("Kyma"), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deprecated_version_warns_its_user() -> Result<()> {
    let world = World::start("kcp-deprecated").await?;
    let pier = world.pier();
    world.offer("crane", "1.0.0", &[("regular", "1.0.0")]).await?;
    world.ask(&pier, json!([{"name": "crane"}])).await?;
    let fresh = world.ready(&pier, "crane", "1.0.0").await?;
    ensure!(fresh.message.is_empty(), "{fresh:?}");

    let ends = |days: i64| {
        let date =
            Timestamp::from_second(Timestamp::now().as_second())? + SignedDuration::from_hours(24 * days);
        anyhow::Ok(json!({"versions": [{"version": "1.0.0", "deprecationDate": date,
                                        "deprecationMessage": "go to 2.0"}]}))
    };
    world.release("crane", ends(100)?).await?;
    let told = world.module(&pier, "crane", "told of its end", |m| !m.message.is_empty()).await?;
    ensure!(
        told.state == State::Ready && told.message.contains("version 1.0.0 is deprecated and ends on"),
        "{told:?}"
    );
    let runtime = pier.cluster.client()?;
    let events: Api<Event> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    let of = ListParams::default().fields("reason=VersionDeprecated");
    ensure!(events.list(&of).await?.items.is_empty(), "it is far away");

    world.release("crane", ends(10)?).await?;
    event(&runtime, RUNTIME_NAMESPACE, "VersionDeprecated", &["module 'crane'", "go to 2.0"]).await?;
    world.release("crane", ends(-1)?).await?;
    let over = world.module(&pier, "crane", "Warning", |m| m.state == State::Warning).await?;
    ensure!(over.message.contains("has ended on") && over.version == "1.0.0", "{over:?}");
    fleet::kyma_in_state(&world.kcp, world.namespace, pier.kyma, State::Warning).await?;
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_style_template_still_resolves() -> Result<()> {
    let world = World::start("kcp-old-kind").await?;
    let pier = world.pier();
    for version in ["1.0.0", "1.1.0"] {
        packed("winch", version, &[]).push(&world.env.registry.of(world.namespace)).await?;
    }
    world.ask(&pier, json!([{"name": "winch"}])).await?;
    let missing = world.module(&pier, "winch", "Error", |m| m.state == State::Error).await?;
    ensure!(missing.message.contains("there is no module 'winch'"), "{missing:?}");
    template(&world.kcp, world.namespace, "winch", "regular", "1.0.0").await?;
    world.ready(&pier, "winch", "1.0.0").await?;
    template(&world.kcp, world.namespace, "winch", "regular", "1.1.0").await?;
    world.ready(&pier, "winch", "1.1.0").await?;

    // A release meta takes precedence. The installation outlives both.
    world.offer("winch", "1.2.0", &[("regular", "1.2.0")]).await?;
    world.ready(&pier, "winch", "1.2.0").await?;
    let releases: Api<ModuleReleaseMeta> = Api::namespaced(world.kcp.clone(), world.namespace);
    let templates: Api<ModuleTemplate> = Api::namespaced(world.kcp.clone(), world.namespace);
    templates.delete("winch-regular", &DeleteParams::default()).await?;
    releases.delete("winch", &DeleteParams::default()).await?;
    let gone = world.module(&pier, "winch", "Warning", |m| m.state == State::Warning).await?;
    ensure!(
        gone.message.contains("no ModuleReleaseMeta of that name") && gone.version == "1.2.0",
        "{gone:?}"
    );
    has(pier.cluster, "winch", "1.2.0").await?;
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_templates_count_only_where_kcp_allows() -> Result<()> {
    let world = World::start("kcp-own-templates").await?;
    let (pier, mole) = (world.pier(), world.mole());
    for version in ["0.1.0", "0.2.0"] {
        packed("raft", version, &[]).push(&world.env.registry.of(world.namespace)).await?;
    }
    for member in [&pier, &mole] {
        template(&member.cluster.client()?, RUNTIME_NAMESPACE, "raft", "regular", "0.1.0").await?;
        world.ask(member, json!([{"name": "raft"}])).await?;
        let missing = world.module(member, "raft", "Error", |m| m.state == State::Error).await?;
        ensure!(missing.message.contains("there is no module 'raft'"), "{missing:?}");
    }

    let allow = |value: Value| {
        let label = json!({"metadata": {"labels": {labels::RUNTIME_TEMPLATES: value}}});
        let kymas = world.kymas();
        async move { kymas.patch("pier", &PatchParams::default(), &Patch::Merge(label)).await.map(drop) }
    };
    allow(json!("true")).await?;
    world.ready(&pier, "raft", "0.1.0").await?;
    allow(Value::Null).await?;
    let kept = world.module(&pier, "raft", "Warning", |m| m.state == State::Warning).await?;
    ensure!(kept.message.contains("there is no module 'raft'") && kept.version == "0.1.0", "{kept:?}");
    allow(json!("true")).await?;
    world.ready(&pier, "raft", "0.1.0").await?;
    template(&pier.cluster.client()?, RUNTIME_NAMESPACE, "raft", "regular", "0.2.0").await?;
    world.tell(&pier, "ModuleTemplate", "raft-regular").await?;
    world.ready(&pier, "raft", "0.2.0").await?;
    world.tell(&mole, "ModuleTemplate", "raft-regular").await?;
    fleet::settled(&world.receiver).await?;
    let refused = world.module(&mole, "raft", "Error", |m| m.state == State::Error).await?;
    ensure!(refused.message.contains("there is no module 'raft'"), "{refused:?}");

    // KCP's own version wins as soon as it exists, even if lower.
    world.offer("raft", "0.1.0", &[("regular", "0.1.0")]).await?;
    world.ready(&pier, "raft", "0.1.0").await?;
    world.ready(&mole, "raft", "0.1.0").await?;

    // A fixed version that KCP does not offer remains the runtime's own.
    for member in [&pier, &mole] {
        world.ask(member, json!([{"name": "raft", "version": "0.2.0"}])).await?;
    }
    world.ready(&pier, "raft", "0.2.0").await?;
    let own = world.manifest(&pier, "raft").await?;
    ensure!(own.is_of_runtime_template(), "{:?}", own.metadata.annotations);
    let kept = world.module(&mole, "raft", "Warning", |m| m.state == State::Warning).await?;
    ensure!(
        kept.message.contains("has no version 0.2.0 (it has: 0.1.0)") && kept.version == "0.1.0",
        "{kept:?}"
    );
    has(mole.cluster, "raft", "0.1.0").await?;
    world.ask(&pier, json!([{"name": "raft"}])).await?;
    world.ready(&pier, "raft", "0.1.0").await?;
    let central = world.manifest(&pier, "raft").await?;
    ensure!(!central.is_of_runtime_template(), "{:?}", central.metadata.annotations);

    // KCP's release of this number replaces the runtime's template.
    world.ask(&pier, json!([{"name": "raft", "version": "0.2.0"}])).await?;
    world.ready(&pier, "raft", "0.2.0").await?;
    let own = world.manifest(&pier, "raft").await?;
    ensure!(own.is_of_runtime_template(), "{:?}", own.metadata.annotations);
    world.offer("raft", "0.2.0", &[("regular", "0.1.0"), ("fast", "0.2.0")]).await?;
    world
        .module(&pier, "raft", "KCP's template", |m| {
            let of = m.template.as_ref().and_then(|template| template.metadata.as_ref());
            m.state == State::Ready && of.is_some_and(|of| of.name == "raft-0.2.0")
        })
        .await?;
    let central = world.manifest(&pier, "raft").await?;
    ensure!(!central.is_of_runtime_template(), "{:?}", central.metadata.annotations);

    for member in [&pier, &mole] {
        let api: Api<ModuleTemplate> = Api::namespaced(member.cluster.client()?, RUNTIME_NAMESPACE);
        api.delete("raft-regular", &DeleteParams::default()).await?;
    }
    world.healthy()
}
