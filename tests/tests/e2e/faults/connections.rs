//! The connection of an agent with certificates in files: their rotation during changes, and a restarted HTTP proxy.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tidewatch_demo::files::write_private;
use tidewatch_tests::{
    ControlPlane, Process, env,
    fleet::{Agent, Member},
    mtls::{self, Connection, Http},
    observed::metric,
    wait,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    rig::{NOTICED, Rig, SOON, by_hand},
    runtime,
};

const NAME: &str = "leeward";
const ID: &str = "runtime-leeward";
/// Only the proxy resolves this name.
const HOST: &str = "receiver.leeward.test";
const LONG: SignedDuration = SignedDuration::from_hours(24);
/// A connection is replaced at least half a minute before its certificate expires.
const SHORT: SignedDuration = SignedDuration::from_mins(2);
/// Files are read every half minute.
const LOOKED: Duration = Duration::from_secs(75);

fn agents(ca: &Ca, id: &str, domain: &str, validity: SignedDuration) -> Result<Issued> {
    let dns_names = vec![domain.to_owned()];
    let request = ClientRequest { runtime_id: id.to_owned(), dns_names, organizations: Vec::new(), validity };
    Ok(ca.issue_client(&request, Timestamp::now())?)
}

fn receivers(ca: &Ca) -> Result<Issued> {
    let request = ServerRequest {
        common_name: "tidewatch-receiver".to_owned(),
        dns_names: vec!["localhost".to_owned(), HOST.to_owned()],
        ip_addrs: vec!["127.0.0.1".parse()?],
        validity: LONG,
    };
    Ok(ca.issue_server(&request, Timestamp::now())?)
}

fn put(issued: &Issued, cert: &Path, key: &Path) -> Result<()> {
    write_private(cert, &issued.cert_pem)?;
    write_private(key, issued.key_pem.as_str())
}

/// The file of a program's flag.
fn file(process: &Process, flag: &str) -> Result<PathBuf> {
    let value = process.spec().args.iter().find_map(|argument| argument.strip_prefix(flag));
    Ok(value.with_context(|| format!("it was started without {flag}"))?.into())
}

async fn agent_metric(rig: &Rig, series: &str) -> Result<u64> {
    metric(&rig.agent.admin, &format!("tidewatch_agent_{series}")).await
}

/// Returns whether the receiver accepts the certificate of an unregistered runtime from `rig.receiver.ca`.
async fn takes(rig: &Rig, identity: &Issued) -> bool {
    let asked = async {
        let mut connection = Connection::open(&rig.receiver, Some(identity), Http::H2).await?;
        connection.send("POST", "/v3/events", mtls::sized("{}")).await
    };
    asked.await.is_ok_and(|answer| answer.status() == 403)
}

/// Rotates the CA and certificates on both sides, then removes the old CA.
async fn renewal(rig: &mut Rig, domain: &str) -> Result<()> {
    let (cert, key) = (rig.agent.identity.cert.clone(), rig.agent.identity.key.clone());
    put(&agents(&rig.receiver.ca, ID, domain, SHORT)?, &cert, &key)?;
    rig.agent.process.kill().await?;
    rig.agent.start_again().await?;
    rig.agent.connected().await?;
    let connections = rig.connections().await?;

    let changes = rig.changes();
    let new = Ca::create("tidewatch-event-path", LONG, Timestamp::now())?;
    let (old_probe, new_probe) =
        (agents(&rig.receiver.ca, "nobody", domain, LONG)?, agents(&new, "nobody", domain, LONG)?);
    write_private(&rig.receiver.ca_file, &format!("{}{}", rig.receiver.ca.cert_pem(), new.cert_pem()))?;
    let receiver = &rig.receiver.process;
    put(&receivers(&new)?, &file(receiver, "--tls-cert=")?, &file(receiver, "--tls-key=")?)?;
    put(&agents(&new, ID, domain, LONG)?, &cert, &key)?;
    wait::until("the agent to use its new certificate", LOOKED + Duration::from_mins(1), || async {
        Ok((rig.connections().await? > connections).then_some(()))
    })
    .await?;
    rig.receiver.ca = new;
    ensure!(takes(rig, &new_probe).await, "the receiver shows and takes certificates by the new CA");
    ensure!(takes(rig, &old_probe).await, "and takes those by the old one");
    changes.more(10).await?;

    write_private(&rig.receiver.ca_file, rig.receiver.ca.cert_pem())?;
    wait::until("the old CA to be refused", LOOKED, || async {
        Ok((!takes(rig, &old_probe).await).then_some(()))
    })
    .await?;
    ensure!(takes(rig, &new_probe).await);
    changes.more(10).await?;
    changes.end().await?;
    rig.last_change_is_reconciled(SOON).await?;
    // The smaller bundle can cause one more connection.
    let made = rig.connections().await? - connections;
    let renewed = agent_metric(rig, "connections_ended_total{reason=\"renewed\"}").await?;
    ensure!(
        (1..=2).contains(&made) && made == renewed,
        "{made} connections were made, {renewed} of them as replacements"
    );
    for reason in ["expired", "untrusted", "paused"] {
        let ended = agent_metric(rig, &format!("connections_ended_total{{reason=\"{reason}\"}}")).await?;
        ensure!(ended == 0, "{ended} connections were ended: {reason}");
    }
    rig.healthy()
}

/// A CONNECT proxy to one host. Dropping it closes all tunnels.
struct Tunnels {
    address: SocketAddr,
    opened: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Tunnels {
    async fn open(address: SocketAddr, port: u16) -> Result<Self> {
        // Old connections can hold the port.
        let listener = wait::until("the proxy's port to be free", SOON, || async {
            Ok(Some(TcpListener::bind(address).await?))
        })
        .await?;
        let (address, opened) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let (counter, mut tasks) = (Arc::clone(&opened), JoinSet::new());
        tasks.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                // Both ends observe the end.
                tunnels.spawn(async move { drop(tunnel(near, port, &counter).await) });
            }
        });
        Ok(Self { address, opened, _tasks: tasks })
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

async fn tunnel(mut near: TcpStream, port: u16, opened: &AtomicU64) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < 4096, "the request has no end");
        head.push(near.read_u8().await?);
    }
    let wanted = format!("CONNECT {HOST}:{port} HTTP/1.1\r\n");
    if !head.starts_with(wanted.as_bytes()) {
        near.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await?;
        return Ok(());
    }
    let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    opened.fetch_add(1, Ordering::Relaxed);
    copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

async fn with_environment(agent: &mut Agent, variables: &[(&str, &str)]) -> Result<()> {
    let mut spec = agent.process.spec().clone();
    spec.env.retain(|(name, _)| variables.iter().all(|(new, _)| new != name));
    spec.env.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    agent.process.kill().await?;
    agent.process = Process::start(&spec)?;
    agent.process.ready("to live", SOON, || async { agent.status().await.map(Some) }).await.map(drop)
}

/// The agent uses a proxy that restarts; then `NO_PROXY` bypasses it.
async fn egress(rig: &mut Rig, cluster: &ControlPlane) -> Result<()> {
    let env = env::shared().await?;
    let port: u16 = rig.receiver.url.rsplit(':').next().context("no port")?.parse()?;
    let proxy = Tunnels::open(([127, 0, 0, 1], 0).into(), port).await?;
    let (address, url) = (proxy.address, format!("https://{HOST}:{port}"));
    let member = Member { cluster, kyma: NAME, id: ID };
    rig.agent.process.kill().await?;
    rig.agent = by_hand(&url, &rig.api.url()).start(&env.harness, &rig.receiver, &member).await?;
    let way = format!("http://{address}");
    with_environment(&mut rig.agent, &[("HTTPS_PROXY", &way), ("NO_PROXY", "example.org,10.0.0.0/8")])
        .await?;
    rig.agent.connected().await?;
    rig.last_change_is_reconciled(SOON).await?;
    ensure!(proxy.opened() == 1, "{} tunnels", proxy.opened());

    let changes = rig.changes();
    drop(proxy);
    let refused = "send_failures_total{reason=\"proxy_connect\",what=\"connect\"}";
    wait::until("the agent to miss its proxy", SOON, || async {
        Ok((agent_metric(rig, refused).await? > 0).then_some(()))
    })
    .await?;
    changes.more(5).await?;
    changes.end().await?;
    let (_, before) = rig.last_change().await?;
    let proxy = Tunnels::open(address, port).await?;
    rig.proven(before, NOTICED).await?;
    ensure!(proxy.opened() > 0);

    // Without the proxy the name is unresolvable.
    let opened = proxy.opened();
    with_environment(&mut rig.agent, &[("HTTPS_PROXY", &way), ("NO_PROXY", ".leeward.test")]).await?;
    let direct = "send_failures_total{reason=\"connect\",what=\"connect\"}";
    wait::until("the agent to go past its proxy", SOON, || async {
        Ok((agent_metric(rig, direct).await? > 0).then_some(()))
    })
    .await?;
    ensure!(proxy.opened() == opened, "it went through the proxy");
    rig.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_and_a_dead_proxy_lose_nothing() -> Result<()> {
    let env = env::shared().await?;
    let cluster = runtime(NAME).await?;
    let mut rig = Rig::start_with_files(&env.kcp, &cluster, NAME).await?;
    let domain = Member { cluster: &cluster, kyma: NAME, id: ID }.domain();
    renewal(&mut rig, &domain).await.with_context(|| format!("renewal\n{}", rig.logs()))?;
    egress(&mut rig, &cluster).await.with_context(|| format!("a proxy\n{}", rig.logs()))
}
