//! Forwarders against scripted services on plain sockets.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use tidewatch_api::{
    WatcherSpec,
    object::{Gvk, ObjectRef},
    watcher::{Service, WatchableGvr},
};
use tidewatch_certs::{Ca, ClientRequest};
use tidewatch_delivery::backoff::Backoff;
use tidewatch_drain::Drain;
use tidewatch_telemetry::BuildInfo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use super::{lane::Key, *};

const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Fake(Arc<(AtomicU64, Mutex<Vec<Arc<Watcher>>>)>);

impl Fake {
    fn set(&self, managers: &[&str]) {
        let watcher = |manager: &&str| {
            let mut watcher = Watcher::new(
                manager,
                WatcherSpec {
                    manager: (*manager).to_owned(),
                    service_info: Service { name: "svc".into(), namespace: "ops".into(), port: 80 },
                    resource_to_watch: WatchableGvr { group: "g".into(), ..WatchableGvr::default() },
                    ..WatcherSpec::default()
                },
            );
            watcher.metadata.namespace = Some("kcp".into());
            Arc::new(watcher)
        };
        *self.0.1.lock() = managers.iter().map(watcher).collect();
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Watchers for Fake {
    fn version(&self) -> u64 {
        self.0.0.load(Ordering::SeqCst)
    }
    fn all(&self) -> (u64, Vec<Arc<Watcher>>) {
        (self.version(), self.0.1.lock().clone())
    }
    fn watch_name(&self, namespace: &str, name: &str) -> String {
        format!("{namespace}.{name}")
    }
}

/// Reports its end.
struct Notify(String, mpsc::Sender<String>, bool);

impl Notify {
    fn end(&mut self, how: &str) {
        self.2 = true;
        self.1.try_send(format!("{} {how}", self.0)).unwrap();
    }
}

impl Settle for Notify {
    fn done(mut self) {
        self.end("done");
    }
    fn refused(mut self) {
        self.end("refused");
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        if !self.2 {
            let _ = self.1.try_send(format!("{} dropped", self.0));
        }
    }
}

struct World {
    fake: Fake,
    forwarders: Forwarders<Notify>,
    registry: Registry,
    certificate: Arc<[u8]>,
    sender: mpsc::Sender<String>,
    settled: mpsc::Receiver<String>,
    drain: Drain,
}

impl World {
    fn new(addresses: &[(&str, SocketAddr)]) -> Self {
        let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
        let fake = Fake::default();
        fake.set(&addresses.iter().map(|(manager, _)| *manager).collect::<Vec<_>>());
        let overrides = addresses.iter().map(|(m, a)| ((*m).to_owned(), a.to_string())).collect();
        let limits = Limits {
            deadline: Duration::from_millis(400),
            backoff: Backoff { base: Duration::from_millis(20), max: Duration::from_millis(200) },
            ..Limits::default()
        };
        let forwarders = Forwarders::new("ours", fake.clone(), overrides, limits, &registry).unwrap();
        let (sender, settled) = mpsc::channel(1000);
        let drain = Drain::new();
        drain.spawn("forward", forwarders.clone().run(drain.watch()));
        let ca = Ca::create("test", SignedDuration::from_hours(1), Timestamp::now()).unwrap();
        let request = ClientRequest {
            runtime_id: "r1".into(),
            dns_names: vec![],
            organizations: vec![],
            validity: SignedDuration::from_hours(1),
        };
        let pem = ca.issue_client(&request, Timestamp::now()).unwrap().cert_pem;
        let der =
            <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(
                pem.as_bytes(),
            );
        let certificate = Arc::from(der.unwrap().as_ref());
        // The host does this before each offer.
        drop(forwarders.table());
        Self { fake, forwarders, registry, certificate, sender, settled, drain }
    }

    fn take(&self, manager: &str, name: &str) -> Taken {
        let gvk = Gvk { group: "g".into(), version: "v1".into(), kind: "Thing".into() };
        let object = ObjectRef { gvk, namespace: "n".into(), name: name.into() };
        let guard = Notify(format!("{manager}/{name}"), self.sender.clone(), false);
        let change = Change {
            key: Key { runtime: "r1".into(), object },
            certificate: Arc::clone(&self.certificate),
            guard: Some((format!("kcp.{manager}"), guard)),
            again: None,
        };
        self.forwarders.take(manager, change, None)
    }

    async fn settled(&mut self) -> String {
        tokio::time::timeout(SOON, self.settled.recv()).await.expect("a guard's end in time").unwrap()
    }

    fn metrics(&self) -> String {
        self.registry.encode().unwrap()
    }

    async fn metric(&self, line: &str) {
        let found = async {
            while !self.metrics().lines().any(|l| l.starts_with(line)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let text = || self.metrics();
        assert!(tokio::time::timeout(SOON, found).await.is_ok(), "{line} in:\n{}", text());
    }
}

async fn service<F>(script: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, script));
    address
}

async fn serve<F>(listener: TcpListener, script: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(script(stream));
    }
}

async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: "))?.parse().ok()?;
            if body.len() >= length {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn the_service_gets_requests_like_the_go_agents() {
    let (sender, mut settled) = mpsc::channel(10);
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let address = service(move |mut stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        let sender = sender.clone();
        async move {
            while let Some(request) = request(&mut stream).await {
                sender.send(request).await.unwrap();
                stream.write_all(OK).await.unwrap();
            }
        }
    })
    .await;
    let mut world = World::new(&[("keeper", address)]);
    for name in ["a", "b", "c"] {
        assert_eq!(world.take("keeper", name), Taken::Held);
        let (head, body) = settled.recv().await.unwrap();
        assert!(head.starts_with("POST /v2/keeper/event HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nhost: svc.ops.svc:80\r\n"), "{head}");
        assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
        let xfcc = head.lines().find_map(|l| l.strip_prefix("x-forwarded-client-cert: ")).unwrap();
        assert_eq!(*xfcc::parse(xfcc.as_bytes()).unwrap(), *world.certificate);
        let expected = format!(
            r#"{{"watched":{{"Namespace":"n","Name":"{name}"}},"watchedGvk":{{"group":"g","version":"v1","kind":"Thing"}}}}"#
        );
        assert_eq!(body, expected);
        assert_eq!(world.settled().await, format!("keeper/{name} done"));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1, "one connection is kept");
    world.metric("t_forwards_total{manager=\"keeper\",result=\"taken\"} 3").await;
    world.metric("t_forward_pending{manager=\"keeper\"} 0").await;
}

#[tokio::test]
async fn a_service_closing_after_each_answer_loses_no_event() {
    let address = service(|mut stream| async move {
        let _ = request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    })
    .await;
    let mut world = World::new(&[("keeper", address)]);
    for name in ["a", "b", "c", "d"] {
        world.take("keeper", name);
        assert_eq!(world.settled().await, format!("keeper/{name} done"));
    }
}

#[tokio::test]
async fn hostile_services_acknowledge_nothing_and_delay_no_other() {
    let elsewhere = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&elsewhere);
    let other = service(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    })
    .await;
    let silent = service(|stream| async move {
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let drip = service(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(b"x: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let garbage = service(|mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9\r\n\r\n").await;
        let _ = request(&mut stream).await;
    })
    .await;
    let long_head = service(|mut stream| async move {
        let _ = request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await;
        while stream.write_all(&[b'y'; 4096]).await.is_ok() {}
    })
    .await;
    let redirect = service(move |mut stream| async move {
        while request(&mut stream).await.is_some() {
            let answer = format!(
                "HTTP/1.1 307 No\r\nlocation: http://{other}/v2/x/event\r\ncontent-length: 0\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let continues = service(|mut stream| async move {
        let _ = request(&mut stream).await;
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let created = service(|mut stream| async move {
        while request(&mut stream).await.is_some() {
            stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let good = service(|mut stream| async move {
        while request(&mut stream).await.is_some() {
            stream.write_all(OK).await.unwrap();
        }
    })
    .await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let all = [
        ("silent", silent, "timeout"),
        ("drip", drip, "timeout"),
        ("continues", continues, "timeout"),
        ("garbage", garbage, "broken"),
        ("long-head", long_head, "broken"),
        ("redirect", redirect, "status"),
        ("created", created, "status"),
        ("dead", unused, "unreachable"),
    ];
    let mut addresses: Vec<_> = all.iter().map(|(name, address, _)| (*name, *address)).collect();
    addresses.push(("good", good));
    let mut world = World::new(&addresses);
    for (manager, ..) in all {
        for n in 0..50 {
            assert_eq!(world.take(manager, &format!("o{n}")), Taken::Held);
        }
    }
    for n in 0..20 {
        world.take("good", &format!("o{n}"));
    }
    for _ in 0..20 {
        let settled = world.settled().await;
        assert!(settled.starts_with("good/") && settled.ends_with(" done"), "{settled}");
    }
    for (manager, _, result) in all {
        let line = format!("t_forwards_total{{manager=\"{manager}\",result=\"{result}\"}} ");
        world.metric(&line).await;
        world.metric(&format!("t_forward_pending{{manager=\"{manager}\"}} 50")).await;
    }
    assert!(!world.metrics().contains("result=\"taken\"} 0"));
    assert_eq!(world.metrics().matches("result=\"taken\"").count(), 1, "{}", world.metrics());
    assert_eq!(elsewhere.load(Ordering::SeqCst), 0, "no redirect is followed");
    assert!(world.settled.try_recv().is_err(), "nothing else was acknowledged");
}

#[tokio::test]
async fn an_endless_response_body_is_abandoned() {
    let (sender, mut settled) = mpsc::channel(10);
    let address = service(move |mut stream| {
        let sender = sender.clone();
        async move {
            let _ = request(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n").await;
            while stream.write_all(&[b'y'; 4096]).await.is_ok() {}
            sender.send(()).await.unwrap();
        }
    })
    .await;
    let mut world = World::new(&[("keeper", address)]);
    world.take("keeper", "a");
    assert_eq!(world.settled().await, "keeper/a done");
    let closed = tokio::time::timeout(SOON, settled.recv()).await;
    assert_eq!(closed.expect("the connection is closed"), Some(()));
}

#[tokio::test]
async fn requests_to_one_service_are_bounded() {
    let open = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (counter, highest) = (Arc::clone(&open), Arc::clone(&most));
    let address = service(move |mut stream| {
        let (counter, highest) = (Arc::clone(&counter), Arc::clone(&highest));
        highest.fetch_max(counter.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        async move {
            let _ = request(&mut stream).await;
            let _ = stream.read_buf(&mut Vec::with_capacity(1)).await;
            counter.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let world = World::new(&[("keeper", address)]);
    for n in 0..100 {
        world.take("keeper", &format!("o{n}"));
    }
    world.metric("t_forwards_total{manager=\"keeper\",result=\"timeout\"} 24").await;
    // A closing connection may overlap with the next one.
    let most = most.load(Ordering::SeqCst);
    assert!((8..=16).contains(&most), "{most}");
}

#[tokio::test]
async fn a_late_service_gets_held_events() {
    let parked = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = parked.local_addr().unwrap();
    drop(parked);
    let mut world = World::new(&[("keeper", address)]);
    world.take("keeper", "a");
    world.metric("t_forwards_total{manager=\"keeper\",result=\"unreachable\"} 2").await;
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(serve(listener, |mut stream| async move {
        let _ = request(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    }));
    assert_eq!(world.settled().await, "keeper/a done");
}

#[tokio::test]
async fn a_removed_manager_refuses_and_shutdown_drops_events() {
    let (sender, mut closed) = mpsc::channel(10);
    let silent = service(move |mut stream| {
        let sender = sender.clone();
        async move {
            let _ = request(&mut stream).await;
            let _ = stream.read_buf(&mut Vec::with_capacity(1)).await;
            sender.send(()).await.unwrap();
        }
    })
    .await;
    let mut world = World::new(&[("keeper", silent), ("other", silent)]);
    world.take("keeper", "a");
    world.take("other", "b");
    world.fake.set(&["other"]);
    assert_eq!(world.settled().await, "keeper/a refused");
    closed.recv().await.unwrap();
    assert!(world.forwarders.table().manager("keeper").is_none());
    assert_eq!(world.take("keeper", "c"), Taken::Full, "nobody takes it");
    assert_eq!(world.settled().await, "keeper/c dropped");
    let _ = world.drain.shutdown(SOON).await;
    let World { forwarders, registry, mut settled, sender, fake: _, certificate: _, drain: _ } = world;
    drop((forwarders, registry, sender));
    assert_eq!(settled.recv().await.unwrap(), "other/b dropped");
}
