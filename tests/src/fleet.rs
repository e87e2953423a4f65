//! A fleet for demo and tests: KCP's objects, the receiver, and one agent per runtime.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_certs::{Ca, Issued, PrivateKeyPem, is_issued_for, validity};
use tidewatch_demo::{
    files::write_private,
    fleet::{configured, connected, domain, kept_ca},
    pki,
    pod::Pod,
};
pub use tidewatch_demo::{
    fleet::{
        COMPONENT, apply_yaml, kyma_in_state, kyma_where, offer_template, push_lighthouse, put_kubeconfig,
        release,
    },
    pki::Identity,
};
use tokio::time::Instant;

use crate::{
    ControlPlane, Harness, Process, binaries,
    cluster::ADMIN,
    http,
    mtls::{Connection, Http, sized},
    observed, ports, wait,
};

/// The agent's service account in its runtime, limited to the shipped role.
pub const AGENT_USER: &str = "system:serviceaccount:kyma-system:tidewatch-agent";
/// The receiver's service account in KCP, limited to the shipped role.
pub const RECEIVER_USER: &str = "system:serviceaccount:kcp-system:tidewatch-receiver";
/// The receiver's shipped role.
const RECEIVER_ROLE: &str = include_str!("../../deploy/charts/tidewatch/files/rbac/receiver.yaml");
/// Image of installed agents; no kubelet pulls it here.
const AGENT_IMAGE: &str = "tidewatch-agent";
/// Timeout for operations of one or two seconds.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// Silence that proves inactivity.
const STILL: Duration = Duration::from_secs(1);

/// A runtime to register.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The control plane.
    pub cluster: &'a ControlPlane,
    /// The name of the Kyma in KCP.
    pub kyma: &'a str,
    /// The runtime id.
    pub id: &'a str,
}

impl Member<'_> {
    /// Returns the registered domain.
    pub fn domain(&self) -> String {
        domain(self.kyma)
    }
}

/// A receiver of one KCP namespace.
pub struct Receiver {
    /// The CA of its event path.
    pub ca: Ca,
    /// The CA's certificate file.
    pub ca_file: PathBuf,
    /// `https://127.0.0.1:port`
    pub url: String,
    /// `http://127.0.0.1:port`
    pub admin: String,
    /// The process.
    pub process: Process,
    /// The namespace in KCP.
    pub namespace: String,
}

/// One agent.
pub struct Agent {
    /// `http://127.0.0.1:port`
    pub admin: String,
    /// The certificate.
    pub identity: Identity,
    /// The process.
    pub process: Process,
}

/// Installs the CRDs in KCP and creates a namespace for a receiver. Use one namespace per test: two receivers
/// would reconcile each other's runtimes.
pub async fn prepare_kcp(client: &Client, namespace: &str) -> Result<()> {
    static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    ensure!(TAKEN.lock().insert(namespace.to_owned()), "another test has the namespace {namespace} already");
    tidewatch_demo::fleet::prepare_kcp(client, namespace).await?;
    admit_receiver(client, namespace).await
}

/// Grants a receiver the shipped role in a KCP namespace.
pub async fn admit_receiver(client: &Client, namespace: &str) -> Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(RECEIVER_ROLE)?;
    for mut object in objects {
        object["metadata"]["namespace"] = namespace.into();
        apply_yaml(client, &object.to_string()).await?;
    }
    Ok(())
}

/// Registers a runtime with a kubeconfig Secret and a Kyma.
pub async fn register(client: &Client, namespace: &str, member: &Member<'_>) -> Result<()> {
    let kubeconfig = member.cluster.kubeconfig_yaml(ADMIN)?;
    tidewatch_demo::fleet::register(client, namespace, member.kyma, member.id, &kubeconfig).await
}

/// Starts a receiver's process with the common arguments of tests, and `more`.
pub(crate) fn run(
    harness: &Harness,
    kcp: &ControlPlane,
    namespace: &str,
    modules: &str,
    folder: &str,
    (events, admin): (u16, u16),
    more: Vec<String>,
) -> Result<Process> {
    // Control planes that a test restarts lack the receiver's user.
    let may = kcp.kubeconfig_yaml(RECEIVER_USER).or_else(|_| kcp.kubeconfig_yaml(ADMIN))?;
    let kubeconfig = harness.write(&format!("{folder}/kcp.yaml"), &may)?;
    let mut args = vec![
        format!("--listen=127.0.0.1:{events}"),
        format!("--admin=127.0.0.1:{admin}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={namespace}"),
        format!("--modules={modules}"),
        "--log-format=text".to_owned(),
        "--log-level=info,tidewatch_engine=trace,tidewatch_receiver=debug,tidewatch_listener=debug"
            .to_owned(),
    ];
    // Polling hides lost events, so it is off by default.
    if !more.iter().any(|arg| arg.starts_with("--fallback-poll")) {
        args.extend(["--fallback-poll=0", "--safety-resync=0"].map(str::to_owned));
    }
    // The rollout spread delays releases, so it is off by default.
    if !more.iter().any(|arg| arg.starts_with("--rollout-window")) {
        args.push("--rollout-window=0".to_owned());
    }
    args.extend(more);
    let mut spec = harness.spec(&format!("{folder}/receiver"), &binaries::find("tidewatch-receiver")?, args);
    spec.grace = Duration::from_secs(10);
    Process::start(&spec)
}

/// Whether a receiver leads.
pub async fn leads(admin: &str) -> Result<bool> {
    Ok(observed::metric(admin, "tidewatch_receiver_leader").await? == 1)
}

impl Receiver {
    /// Starts a receiver that installs agents, and waits until it is ready.
    pub async fn start(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
    ) -> Result<Self> {
        Self::start_with(harness, kcp, namespace, modules, Vec::new()).await
    }

    /// Like [`Receiver::start`], with further arguments.
    pub async fn start_with(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
        mut more: Vec<String>,
    ) -> Result<Self> {
        more.push(format!("--agent-image={AGENT_IMAGE}"));
        let receiver = Self::begin(harness, kcp, namespace, modules, "", more).await?;
        receiver.ready().await?;
        Ok(receiver)
    }

    /// Starts a receiver that installs no agents, for runtimes where none is started: the engine would look for the
    /// certificate request of an installed agent again and again, and not come to rest.
    pub async fn start_without_agents(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
        more: Vec<String>,
    ) -> Result<Self> {
        let receiver = Self::begin(harness, kcp, namespace, modules, "", more).await?;
        receiver.ready().await?;
        Ok(receiver)
    }

    /// Starts a receiver that installs no agents unless its arguments name their image. Waits only for its CA. `name`
    /// distinguishes receivers in one namespace.
    pub async fn begin(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
        name: &str,
        more: Vec<String>,
    ) -> Result<Self> {
        let folder = format!("receiver-{namespace}{name}");
        let (events, admin) = (ports::free()?, ports::free()?);
        let url = format!("https://127.0.0.1:{events}");
        let mut args = vec![format!("--agent-url={url}"), "--server-name=localhost".to_owned()];
        args.extend(more);
        let process = run(harness, kcp, namespace, modules, &folder, (events, admin), args)?;
        let client = kcp.client()?;
        let ca = process
            .ready("to have its CA in KCP", SOON, || async { kept_ca(&client, namespace).await.map(Some) })
            .await?;
        let ca_file = harness.write(&format!("{folder}/ca.crt"), ca.cert_pem())?;
        let admin = format!("http://127.0.0.1:{admin}");
        Ok(Self { ca, ca_file, url, admin, process, namespace: namespace.to_owned() })
    }

    /// Waits until it is ready and leads.
    pub async fn ready(&self) -> Result<()> {
        let url = format!("{}/readyz", self.admin);
        let probe = || async {
            let is_ready = http::status(&url).await? == hyper::StatusCode::OK;
            Ok((is_ready && leads(&self.admin).await?).then_some(()))
        };
        self.process.ready("to answer /readyz and to lead", SOON, probe).await
    }

    /// Restarts with the same addresses and certificates; waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.begin_end();
        wait::until("the receiver to end", SOON, || async { Ok(self.process.ended()) }).await?;
        self.start_again().await
    }

    /// Restarts with changed arguments.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut Vec<String>)) -> Result<()> {
        self.process.begin_end();
        wait::until("the receiver to end", SOON, || async { Ok(self.process.ended()) }).await?;
        let mut spec = self.process.spec().clone();
        change(&mut spec.args);
        self.process = Process::start(&spec)?;
        self.ready().await
    }

    /// Starts an ended receiver and waits until it is ready. Truncates the log.
    pub async fn start_again(&mut self) -> Result<()> {
        self.start_again_unready()?;
        self.ready().await
    }

    /// Starts an ended receiver without waiting.
    pub fn start_again_unready(&mut self) -> Result<()> {
        self.process = Process::start(self.process.spec())?;
        Ok(())
    }

    /// Issues an agent's certificate.
    pub fn identity(&self, harness: &Harness, runtime_id: &str, domain: &str) -> Result<Identity> {
        let folder = harness.folder().join(format!("receiver-{}", self.namespace));
        pki::issue(&self.ca, &folder, runtime_id, domain)
    }

    /// Reports a changed object with the v2 contract.
    pub async fn tell(
        &self,
        harness: &Harness,
        member: &Member<'_>,
        (group, version, kind): (&str, &str, &str),
        namespace: &str,
        name: &str,
    ) -> Result<()> {
        let identity = self.identity(harness, member.id, &member.domain())?;
        let mut connection = Connection::open(self, Some(&identity.issued), Http::H2).await?;
        let event = json!({"watched": {"Namespace": namespace, "Name": name},
                           "watchedGvk": {"group": group, "version": version, "kind": kind}});
        let answer = connection.send("POST", "/v2/lifecycle-manager/event", sized(event.to_string())).await?;
        ensure!(answer.status() == 200, "the event was answered with {answer:?}");
        Ok(())
    }

    /// Returns a runtime's reconciles and their causes.
    pub async fn runtime(&self, id: &str) -> Result<Value> {
        http::json(&format!("{}/runtimes/{id}", self.admin)).await
    }
}

/// Runs a dry run; returns the exit code, the JSON list and the whole output.
pub async fn dry_run(
    harness: &Harness,
    kcp: &ControlPlane,
    namespace: &str,
    modules: &str,
    more: &[&str],
) -> Result<(Option<i32>, Value, String)> {
    let kubeconfig =
        harness.write(&format!("dry-run-{namespace}/kcp.yaml"), &kcp.kubeconfig_yaml(RECEIVER_USER)?)?;
    let output = tokio::process::Command::new(binaries::find("tidewatch-receiver")?)
        .args(["--dry-run", "-o=json", "--dry-run-limit=60", "--log-format=text"])
        .args([format!("--namespace={namespace}"), format!("--modules={modules}")])
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(more)
        .output()
        .await?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let list = serde_json::from_str(&out).with_context(|| format!("no list: {out}\n{err}"))?;
    Ok((output.status.code(), list, format!("{out}{err}")))
}

impl Agent {
    /// Starts the agent that the engine has installed in a runtime. Waits until it is enrolled and connected, has the engine's
    /// configuration, and all its watches run.
    pub async fn start(harness: &Harness, receiver: &Receiver, member: &Member<'_>) -> Result<Self> {
        Self::start_through(&receiver.url, member.cluster.url(), harness, receiver, member).await
    }

    /// Like [`Agent::start`], with other addresses of receiver and API server, such as those of proxies.
    pub async fn start_through(
        to_receiver: &str,
        to_api: &str,
        harness: &Harness,
        receiver: &Receiver,
        member: &Member<'_>,
    ) -> Result<Self> {
        let runtime = member.cluster.client()?;
        let admin = format!("127.0.0.1:{}", ports::free()?);
        let name = format!("agent-{}-{}", receiver.namespace, member.kyma);
        let kubeconfig = |token: &str| Ok(member.cluster.kubeconfig_with(token, to_api));
        let (of, folder) = ((member.id, receiver.url.as_str()), harness.folder().join(&name));
        let pod = Pod::prepare(&runtime, of, &folder, &admin, kubeconfig).await?;
        if to_receiver != receiver.url {
            let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&pod.config)?)?;
            config["receiver"]["url"] = to_receiver.into();
            write_private(&pod.config, &config.to_string())?;
        }
        let process = agent_process(harness, &name, &pod.config)?;
        let admin = format!("http://{admin}");
        let status = || async {
            let page = http::json(&format!("{admin}/status")).await?;
            Ok((configured(&page) && connected(&page)).then_some(()))
        };
        process.ready("to be enrolled, configured and connected", SOON, status).await?;
        let identity = identity(&pod, &runtime, receiver, member.id).await?;
        Ok(Self { admin, identity, process })
    }

    /// Waits until it answers its probe.
    pub(crate) async fn lives(&self) -> Result<()> {
        let url = format!("{}/healthz", self.admin);
        self.process
            .ready("to answer /healthz", SOON, || async {
                Ok((http::status(&url).await? == hyper::StatusCode::OK).then_some(()))
            })
            .await
    }

    /// Starts an ended agent without waiting. Truncates the log.
    pub async fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(self.process.spec())?;
        self.lives().await
    }

    /// Returns the status page.
    pub async fn status(&self) -> Result<Value> {
        http::json(&format!("{}/status", self.admin)).await
    }

    /// Waits until all events are acknowledged and all watches run, including those of KCP's Watchers.
    pub async fn connected(&self) -> Result<()> {
        self.process
            .ready("to be connected, with all watches watching and nothing unacknowledged", SOON, || async {
                Ok(connected(&self.status().await?).then_some(()))
            })
            .await
    }
}

/// Starts an agent's process with a configuration file.
pub(crate) fn agent_process(harness: &Harness, folder: &str, config: &Path) -> Result<Process> {
    let args = vec![
        format!("--config={}", config.display()),
        "--log-format=text".to_owned(),
        "--log-level=info,tidewatch_agent=debug".to_owned(),
    ];
    let mut spec = harness.spec(&format!("{folder}/agent"), &binaries::find("tidewatch-agent")?, args);
    spec.grace = Duration::from_secs(12);
    Process::start(&spec)
}

/// Returns the certificate that an agent has got from this receiver. It stores the certificate after it has connected, and the
/// runtime may still have one of another receiver.
async fn identity(pod: &Pod, runtime: &Client, receiver: &Receiver, id: &str) -> Result<Identity> {
    let bundle = receiver.ca.cert_pem().as_bytes();
    wait::until("the agent to store its certificate", SOON, || async {
        let (cert, key) = pod.identity(runtime).await?;
        let (cert_pem, key_pem) = (std::fs::read_to_string(&cert)?, std::fs::read_to_string(&key)?);
        if !is_issued_for(cert_pem.as_bytes(), id, bundle)? {
            return Ok(None);
        }
        let not_after = validity(cert_pem.as_bytes())?.not_after;
        let issued = Issued { cert_pem, key_pem: PrivateKeyPem::new(key_pem), not_after };
        Ok(Some(Identity { issued, cert, key }))
    })
    .await
}

/// Waits until no reconcile is running or due. Scheduled reconciles do not count.
pub async fn settled(receiver: &Receiver) -> Result<()> {
    quiet(receiver, "the receiver's queue to be empty", &["tidewatch_receiver_queue_later"]).await
}

/// Like [`settled`], but ignores retries, such as looks for the certificate request of an installed agent that is not started.
pub async fn settled_but_for_retries(receiver: &Receiver) -> Result<()> {
    let besides = ["tidewatch_receiver_queue_later", "tidewatch_receiver_queue_retrying"];
    quiet(receiver, "the receiver's queue to be empty, but for retries", &besides).await
}

/// Waits until settled for one second.
///
/// Watch echoes from KCP and the agent's configuration arrive late.
pub async fn at_rest(receiver: &Receiver) -> Result<()> {
    still(receiver, "the receiver to be at rest", &["tidewatch_receiver_queue_later"]).await
}

/// Waits for one second without running, due or scheduled reconciles.
pub async fn has_nothing_to_do(receiver: &Receiver) -> Result<()> {
    still(receiver, "the receiver to have nothing to do, not even later", &[]).await
}

/// Waits for one second without running or due reconciles. Ignores readiness retries, which continue until
/// the event path is proven.
pub async fn at_rest_but_for_retries(receiver: &Receiver) -> Result<()> {
    let besides = ["tidewatch_receiver_queue_later", "tidewatch_receiver_queue_retrying"];
    still(receiver, "the receiver to be at rest, but for retries", &besides).await
}

async fn still(receiver: &Receiver, what: &str, besides: &[&str]) -> Result<()> {
    let began = Instant::now();
    let mut still = (None, began);
    while began.elapsed() < SOON {
        quiet(receiver, what, besides).await?;
        let metrics = http::text(&format!("{}/metrics", receiver.admin)).await?;
        let reconciles: Vec<&str> =
            metrics.lines().filter(|line| line.starts_with("tidewatch_receiver_reconciles_total")).collect();
        // Ignores canary reconciles.
        let now =
            Some(reconciles.into_iter().filter(|line| !line.contains("\"EventPath\"")).collect::<String>());
        if now != still.0 {
            still = (now, Instant::now());
        } else if still.1.elapsed() >= STILL {
            return Ok(());
        }
        wait::pause().await;
    }
    bail!("the receiver goes on reconciling for {SOON:?}")
}

async fn quiet(receiver: &Receiver, what: &str, besides: &[&str]) -> Result<()> {
    wait::until(what, SOON, || async {
        let metrics = http::text(&format!("{}/metrics", receiver.admin)).await?;
        let counts = ["tidewatch_receiver_queue_", "tidewatch_receiver_events_held"];
        let is_busy = |line: &&str| line.rsplit(' ').next().is_some_and(|count| count != "0");
        let busy: Vec<&str> = metrics
            .lines()
            .filter(|line| counts.iter().any(|name| line.starts_with(name)))
            .filter(|line| !besides.iter().any(|name| line.starts_with(name)))
            .filter(is_busy)
            .collect();
        ensure!(busy.is_empty(), "{}", busy.join(", "));
        Ok(Some(()))
    })
    .await
}

/// Fails if the process has ended.
pub fn alive(process: &Process) -> Result<()> {
    ensure!(
        process.ended().is_none(),
        "{} has ended; its last lines:\n{}",
        process.name(),
        process.log_tail(30)
    );
    Ok(())
}
