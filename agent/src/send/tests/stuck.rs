//! Keys that stay dirty for long, on a transport that answers as it is told.

use super::*;
use crate::send::{Channel, Fate, Transport};
use std::{future::pending, time::Duration};
use tokio::time::Instant;

/// Has no room for what is called `full…`, holds what is called `held…`, and has done all else. Keeps what it is asked.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Vec<(Instant, v3::Request<'static>)>>>);

impl Transport for Scripted {
    type Connection = Self;

    async fn connect(self) -> Result<Self, SendError> {
        Ok(self)
    }

    fn renewals(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn fate(&self, _: &Self) -> Fate {
        Fate::Keep
    }

    fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
}

impl Channel for Scripted {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) {
        pending::<()>().await;
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        _: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        self.0.lock().push((Instant::now(), request.clone()));
        let named = |start: &str| -> Vec<Seq> {
            request.events.iter().filter(|e| e.name.starts_with(start)).map(|e| e.seq).collect()
        };
        let mut response = v3::Response::new(request.epoch, SessionId::from_bits(7));
        response.unknown = named("full").into_iter().collect();
        response.acks = acks(&named("done").iter().map(|seq| seq.0).collect::<Vec<_>>());
        let wait = if request.poll { Duration::from_secs(25) } else { Duration::ZERO };
        async move {
            tokio::time::sleep(wait).await;
            Ok(response)
        }
    }
}

struct Bench {
    told: Scripted,
    changes: mpsc::Sender<Told>,
    blind: Arc<Mutex<Vec<String>>>,
    _run: tokio::task::JoinHandle<()>,
    _drain: Drain,
}

impl Bench {
    fn start() -> Self {
        let (changes, taken) = mpsc::channel(2_000);
        let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
        let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
        let outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
        let (guard, resumed) = (Readiness::new().register("receiver"), watch::channel(0).1);
        let (told, blind) = (Scripted::default(), Arc::new(Mutex::new(Vec::new())));
        let clock = || Timestamp::UNIX_EPOCH;
        let settings = Settings::default();
        let stand = Arc::clone(&blind);
        let health = move || v3::Health { configuration: String::new(), blind: stand.lock().clone() };
        let sender = Sender::new(outbox, taken, told.clone(), settings, metrics, clock, guard, resumed)
            .with_health(health, watch::channel(()).1);
        let drain = Drain::new();
        let run = tokio::spawn(sender.run(drain.watch()));
        Self { told, changes, blind, _run: run, _drain: drain }
    }

    /// How long after `since` the first request was made for which `is` holds.
    fn after(&self, since: Instant, is: impl Fn(&v3::Request<'static>) -> bool) -> Option<Duration> {
        let told = self.told.0.lock();
        let (at, _) = told.iter().find(|(at, request)| *at >= since && is(request))?;
        Some(at.duration_since(since))
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_without_room_delays_nothing_else() {
    let bench = Bench::start();
    for n in 0..1_500 {
        bench.changes.send(observation(&format!("full-{n}")).into()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    let made = bench.told.0.lock().len();
    assert!(made < 200, "{made} requests in ten minutes for what finds no room");
    let since = Instant::now();
    bench.changes.send(observation("done").into()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let took = bench.after(since, |r| r.events.iter().any(|e| e.name == "done")).unwrap();
    assert!(took < Duration::from_secs(1), "sent after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_blind_is_told_while_a_key_is_held() {
    let bench = Bench::start();
    bench.changes.send(observation("held").into()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let since = Instant::now();
    bench.blind.lock().push("w".to_owned());
    tokio::time::sleep(Duration::from_mins(5)).await;
    let took = bench.after(since, |r| r.health.as_ref().is_some_and(|h| h.blind == ["w"])).unwrap();
    assert!(took <= Duration::from_mins(1), "told after {took:?}");
}
