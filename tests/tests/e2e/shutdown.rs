//! How the programs end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, State};
use tidewatch_tests::{
    cluster::ADMIN,
    env,
    fleet::{self, Receiver},
    kcp,
    mtls::{Connection, Http, sized},
    observed::{self, metric},
    spare,
    story::set_modules,
    wait,
};
use tidewatch_wire::{Epoch, Seq, limits, v3};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

const NAMESPACE: &str = "kcp-shutdown";
const BUSY: &str = "kcp-shutdown-busy";
const SOON: Duration = Duration::from_mins(1);
const KYMA: &str = "ebb";
const ID: &str = "runtime-ebb";
const DOMAIN: &str = "ebb.runtimes.example";

async fn start(namespace: &str) -> Result<Receiver> {
    let env = env::shared().await?;
    let modules = env.registry.of(namespace);
    Receiver::start_without_agents(&env.harness, &env.kcp, namespace, &modules, Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_receiver_ends_cleanly() -> Result<()> {
    let env = env::shared().await?;
    fleet::prepare_kcp(&env.kcp.client()?, NAMESPACE).await?;
    let mut receiver = start(NAMESPACE).await?;
    receiver.process.begin_end();
    ended(&receiver).await
}

/// SIGTERM, and SIGKILL only after ten seconds: an exit code of 0 means that it went by itself.
async fn ended(receiver: &Receiver) -> Result<()> {
    let status = wait::until("the receiver to end", Duration::from_secs(15), || async {
        Ok(receiver.process.ended())
    })
    .await?;
    ensure!(status.success(), "{status}: {}", receiver.process.log_tail(20));
    Ok(())
}

/// On the way from the receiver to a runtime's API server: holds what comes while it is closed.
struct Gate {
    port: u16,
    open: watch::Sender<bool>,
    held: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Gate {
    async fn before(url: &str) -> Result<Self> {
        let target = url.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (open, is_open) = watch::channel(true);
        let held = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        let counter = Arc::clone(&held);
        tasks.spawn(async move {
            let mut pumps = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                while pumps.try_join_next().is_some() {}
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                pumps.spawn(pump(from_near, to_far, is_open.clone(), Arc::clone(&counter)));
                pumps.spawn(pump(from_far, to_near, is_open.clone(), Arc::default()));
            }
        });
        Ok(Self { port, open, held, _tasks: tasks })
    }

    fn set(&self, open: bool) {
        self.open.send_replace(open);
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut open: watch::Receiver<bool>,
    held: Arc<AtomicUsize>,
) {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = match from.read(&mut piece).await {
            Ok(length) if length > 0 => length,
            _ => return,
        };
        if !*open.borrow() {
            held.fetch_add(1, Ordering::Relaxed);
        }
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// An agent's request: about the runtime's Kyma, event 1, and a poll for what comes of it.
fn event_and_poll(epoch: Epoch) -> Value {
    json!({"epoch": epoch, "awaiting": [[1, 1]], "poll": true, "events": [{
        "seq": 1, "watch": "kyma", "group": "operator.kyma-project.io", "version": "v1beta2", "kind": "Kyma",
        "namespace": "kyma-system", "name": "default", "change": "changed", "observedAt": "2026-01-01T00:00:00Z"
    }]})
}

async fn post(connection: &mut Connection, body: &Value) -> Result<v3::Response> {
    let answer = connection.send("POST", v3::PATH, sized(body.to_string())).await?;
    ensure!(answer.status() == 200, "{answer:?}");
    Ok(serde_json::from_slice(answer.body())?)
}

fn acknowledged(answer: &v3::Response) -> bool {
    answer.acks.iter().any(|ack| ack.done.contains(Seq(1)))
}

async fn connect(receiver: &Receiver) -> Result<Connection> {
    let identity = receiver.identity(&env::shared().await?.harness, ID, DOMAIN)?;
    Connection::open(receiver, Some(&identity.issued), Http::H2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_event_is_reconciled_by_the_next_receiver() -> Result<()> {
    let env = env::shared().await?;
    let spare = spare::shared().await?;
    let _alone = spare.register_alone().await;
    let (runtime, kcp) = (&spare.runtime3, env.kcp.client()?);
    spare::take_over(runtime).await?;
    fleet::prepare_kcp(&kcp, BUSY).await?;
    let gate = Gate::before(runtime.url()).await?;
    let kubeconfig =
        runtime.kubeconfig_yaml(ADMIN)?.replace(runtime.url(), &format!("https://127.0.0.1:{}", gate.port));
    fleet::put_kubeconfig(&kcp, BUSY, KYMA, &kubeconfig).await?;
    kcp::put_kyma(&kcp, BUSY, KYMA, ID, Some(DOMAIN)).await?;
    let mut first = start(BUSY).await?;
    fleet::kyma_in_state(&kcp, BUSY, KYMA, State::Ready).await?;
    fleet::settled(&first).await?;

    // The user changes something, the agent says so and polls, and the reconcile gets no answer from the runtime.
    gate.set(false);
    set_modules(&runtime.client()?, &json!([{"name": "nosuch"}])).await?;
    let epoch = Epoch::random();
    let mut connection = connect(&first).await?;
    let began = tokio::time::Instant::now();
    let poll = tokio::spawn(async move { post(&mut connection, &event_and_poll(epoch)).await });
    wait::until("the reconcile to be under way", SOON, || async {
        let working = metric(&first.admin, "tidewatch_receiver_queue_working").await?;
        let held = metric(&first.admin, "tidewatch_receiver_events_held").await?;
        Ok((working >= 1 && held == 1 && gate.held.load(Ordering::Relaxed) > 0).then_some(()))
    })
    .await?;
    ensure!(!poll.is_finished(), "the poll was answered before there was anything to tell");

    first.process.begin_end();
    let told = poll.await?.context("the open poll")?;
    let open_for = tokio::time::Instant::now().duration_since(began);
    ensure!(open_for < Duration::from_secs(limits::POLL_SECONDS - 5), "the poll was open for {open_for:?}");
    ensure!(!acknowledged(&told), "acknowledged before the reconcile has finished: {told:?}");
    fleet::alive(&first.process).context("it waits for the reconcile in hand")?;
    gate.set(true);
    ended(&first).await?;
    observed::no_panic(&first.process)?;
    let kymas: Api<Kyma> = Api::namespaced(kcp, BUSY);
    let kyma = kymas.get(KYMA).await?;
    ensure!(kyma.module_status("nosuch").is_some(), "the reconcile was cut off: {:#?}", kyma.status);

    // The next one does not know of the event; the agent sends it again, and now it is handled.
    let next = start(BUSY).await?;
    let mut connection = connect(&next).await?;
    let reminder = json!({"epoch": epoch, "session": told.session, "awaiting": [[1, 1]]});
    let answer = post(&mut connection, &reminder).await?;
    ensure!(answer.unknown.contains(Seq(1)) && !acknowledged(&answer), "{answer:?}");
    let answer = post(&mut connection, &event_and_poll(epoch)).await?;
    ensure!(acknowledged(&answer), "{answer:?}");
    let page = next.runtime(ID).await?;
    let causes = page["reconciles"].as_array().into_iter().flatten().filter_map(|r| r["causes"].as_array());
    let found = causes.flatten().any(|cause| cause["type"] == "event" && cause["seq"] == 1);
    ensure!(found, "no reconcile was caused by the event: {page:#}");
    observed::no_panic(&next.process)?;

    kymas.delete(KYMA, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async { Ok(kymas.get_opt(KYMA).await?.is_none().then_some(())) })
        .await
}
