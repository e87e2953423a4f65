//! One idle agent with many watched objects: memory, CPU and bytes against a bare watch.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;
use tidewatch_certs::{Ca, ClientRequest, ServerRequest};
use tokio::time::Instant;

use super::{
    Figure, Goal, Spec, build,
    counting::{Record, Wire},
    folder,
    idle::program,
    intake::{Child, Server},
    load::{Kind, agents},
    proc::{fine_cpu_seconds, peak_mib, rss_mib},
};
use crate::{
    Process, binaries,
    cluster::ADMIN,
    env::Environment,
    fleet, http, ports,
    report::{Reporter, Terminal},
    wait,
};

const GROUP: &str = "bench.tidewatch.dev";
const VERSION: &str = "v1";
const KIND: &str = "Thing";
const RESOURCE: &str = "things";
const VALIDITY: SignedDuration = SignedDuration::from_hours(24);
/// Concurrent API requests.
const AT_ONCE: usize = 32;
const LIMIT: Duration = Duration::from_mins(2);
/// Time until buffers, connections and the first canary have settled.
const SETTLING: Duration = Duration::from_secs(70);
const SECONDS_PER_DAY: f64 = 86_400.0;

/// Object count, and number and length of the idle windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    pub(super) count: usize,
    pub(super) window: Duration,
    pub(super) windows: u32,
}

pub(super) fn specs(objects: Objects) -> Vec<Spec> {
    let Objects { count, window, windows } = objects;
    let spec = |what: &str, unit, goal, yardstick: &str| Spec {
        name: format!("agent, {count} watched objects, {what}, {}", build()),
        unit,
        goal,
        yardstick: yardstick.into(),
    };
    let bare = "measured here: kube's watcher of the same objects and a map of their generations";
    let none = "none: the goal is a figure";
    let idle_cpu = format!("idle CPU, over {} s", (window * windows).as_secs());
    let bytes =
        format!("idle bytes to and from the receiver a day, by {windows} windows of {} s", window.as_secs());
    vec![
        spec("steady RSS", "MiB", Goal::AtMost(16.0), bare),
        spec("peak RSS", "MiB", Goal::None, bare),
        spec(&idle_cpu, "mCPU", Goal::AtMost(0.5), bare),
        spec(&format!("{bytes}: the median"), "MB", Goal::AtMost(1.0), none),
        spec(&format!("{bytes}: the most"), "MB", Goal::None, none),
    ]
}

/// Runs in the second runtime before it has another agent.
pub(super) async fn run(env: &Environment, objects: Objects, terminal: &Terminal) -> Result<Vec<Figure>> {
    let Objects { count, window, windows } = objects;
    let cluster = &env.runtime2;
    // The namespace of the canary. Without a canary, the agent would be unrealistically idle.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}});
    fleet::apply_yaml(&cluster.client()?, &namespace.to_string()).await?;
    terminal.working(&format!("making {count} objects"));
    make(&cluster.client()?, count).await?;

    let folder = folder().join("objects");
    let own = identities(&folder)?;
    let kubeconfig = folder.join("runtime.yaml");
    fs::write(&kubeconfig, cluster.kubeconfig_yaml(ADMIN)?)?;
    let server = Server::start(Kind::Listener, &folder).await?;
    let wire = Wire::start(server.port).await?;
    let admin = ports::free()?;
    let config = json!({
        "runtimeId": agents::runtime_id(0),
        "receiver": {"url": format!("https://localhost:{}", wire.port), "caFile": folder.join(agents::CA),
                     "certFile": own.0, "keyFile": own.1, "proxy": "direct"},
        "adminAddress": format!("127.0.0.1:{admin}"),
        "kubeconfig": kubeconfig,
        "watches": [{"name": "things", "group": GROUP, "resource": RESOURCE, "field": "spec"}],
    });
    let file = folder.join("agent.yaml");
    fs::write(&file, config.to_string())?;
    let args = vec![format!("--config={}", file.display())];
    let agent =
        Process::start(&env.harness.spec("objects/agent", &binaries::find("tidewatch-agent")?, args))?;
    let admin = format!("http://127.0.0.1:{admin}");
    agent
        .ready("to have sent everything", LIMIT, || async {
            let status: Value = http::json(&format!("{admin}/status")).await?;
            let watching = status["watches"][0]["reason"] == "Watching";
            let sent = status["lastObservedSeq"].as_u64().is_some_and(|seq| seq >= count as u64);
            Ok((watching && sent && status["dirtyKeys"] == 0).then_some(()))
        })
        .await?;
    let agent_pid = program(&agent)?;

    let args = [
        "watch".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--group={GROUP}"),
        format!("--version={VERSION}"),
        format!("--kind={KIND}"),
        format!("--resource={RESOURCE}"),
    ];
    let mut bare = Child::start(&args, &folder.join("watch.log"))?;
    let seen: usize = bare.said().await?;
    anyhow::ensure!(seen == count, "the bare watch sees {seen} objects");

    terminal.working(&format!("leaving everything alone for {} s", (SETTLING + window * windows).as_secs()));
    tokio::time::sleep(SETTLING).await;
    // Puts the heartbeat in the middle of each window.
    wire.quiet(window / 2).await;
    let pids = [agent_pid, bare.pid];
    let before = [fine_cpu_seconds(pids[0])?, fine_cpu_seconds(pids[1])?];
    let started = Instant::now();
    let mut per_day = Vec::new();
    for n in 1..=windows {
        wire.take();
        tokio::time::sleep_until(started + window * n).await;
        let records = wire.take();
        #[allow(clippy::cast_precision_loss, reason = "a few kilobytes")]
        let bytes = records.iter().map(|record| record.bytes).sum::<usize>() as f64;
        per_day.push(bytes / window.as_secs_f64() * SECONDS_PER_DAY / 1e6);
        terminal.say(&format!("window {n}: {bytes} bytes, TLS records: {}", list(&records)));
    }
    let seconds = Instant::now().duration_since(started).as_secs_f64();
    let mcpu = |n: usize| -> Result<f64> { Ok((fine_cpu_seconds(pids[n])? - before[n]) / seconds * 1e3) };
    per_day.sort_by(f64::total_cmp);
    let median = per_day.get(per_day.len() / 2).copied().context("no window was measured")?;
    let figures = vec![
        Figure { value: rss_mib(pids[0])?, against: Some(rss_mib(pids[1])?) },
        Figure { value: peak_mib(pids[0])?, against: Some(peak_mib(pids[1])?) },
        Figure { value: mcpu(0)?, against: Some(mcpu(1)?) },
        Figure { value: median, against: None },
        Figure { value: per_day.last().copied().unwrap_or(median), against: None },
    ];
    bare.end().await?;
    server.end().await?;
    Ok(figures)
}

/// The records of a window, such as `->233 <-96`.
fn list(records: &[Record]) -> String {
    let all = records.iter().map(|record| format!("{}{}", if record.up { "->" } else { "<-" }, record.bytes));
    all.collect::<Vec<_>>().join(" ")
}

/// Issues a CA and certificates; returns the files of the last two.
fn identities(folder: &Path) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let now = Timestamp::now();
    let ca = Ca::create("objects", VALIDITY, now)?;
    let server = ServerRequest {
        common_name: "objects".to_owned(),
        dns_names: vec!["localhost".to_owned()],
        ip_addrs: Vec::new(),
        validity: VALIDITY,
    };
    let server = ca.issue_server(&server, now)?;
    let client = ClientRequest {
        runtime_id: agents::runtime_id(0),
        dns_names: vec![agents::domain(0)],
        organizations: Vec::new(),
        validity: VALIDITY,
    };
    let client = ca.issue_client(&client, now)?;
    let own = (folder.join("agent.crt"), folder.join("agent.key"));
    fs::write(folder.join(agents::CA), ca.cert_pem())?;
    fs::write(folder.join(agents::CERT), &server.cert_pem)?;
    fs::write(folder.join(agents::KEY), server.key_pem.as_str())?;
    fs::write(&own.0, &client.cert_pem)?;
    fs::write(&own.1, client.key_pem.as_str())?;
    Ok(own)
}

/// Objects with a generation in one namespace. Their spec watch needs no bodies.
async fn make(client: &Client, count: usize) -> Result<()> {
    let name = format!("{RESOURCE}.{GROUP}");
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": RESOURCE, "singular": "thing", "kind": KIND, "listKind": "ThingList"},
            "versions": [{"name": VERSION, "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "properties": {"spec": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}}}]
        }
    });
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.patch(&name, &PatchParams::apply("tidewatch-bench").force(), &Patch::Apply(crd)).await?;
    let established = await_condition(crds, &name, conditions::is_crd_established());
    tokio::time::timeout(LIMIT, established).await.context("the CRD was not established")??;
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.to_owned(),
        plural: RESOURCE.to_owned(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let params = PostParams::default();
    // The API server serves an established CRD with a short delay.
    let first = object(&resource, 0);
    wait::until("the new kind to be served", LIMIT, || async {
        match api.create(&params, &first).await {
            Ok(_) => Ok(Some(())),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(())),
            Err(_) => Ok(None),
        }
    })
    .await?;
    stream::iter(1..count)
        .map(|n| {
            let (api, params, object) = (&api, &params, object(&resource, n));
            async move { api.create(params, &object).await.map(drop) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(())
}

fn object(resource: &ApiResource, n: usize) -> DynamicObject {
    DynamicObject::new(&format!("thing-{n:05}"), resource)
        .data(json!({"spec": {"text": "x".repeat(200), "number": n}}))
}
