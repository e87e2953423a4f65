use super::*;
use crate::send::transport::{Channel, Fate, Transport};
use std::{future::pending, pin::Pin};

/// A busy loop would stop virtual time.
const MAX_REQUESTS: usize = 10_000;

pub(super) type Script = fn(&v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>);

#[derive(Clone)]
pub(super) struct Scripted {
    connected: Arc<Mutex<Vec<Instant>>>,
    requests: Arc<Mutex<Vec<(Instant, v3::Request<'static>)>>>,
    script: Script,
    lasts: Duration,
    fate: Fate,
}

impl Scripted {
    pub(super) fn new(script: Script) -> Self {
        let lasts = Duration::from_hours(24 * 365);
        Self { connected: Arc::default(), requests: Arc::default(), script, lasts, fate: Fate::Keep }
    }

    pub(super) fn requests(&self) -> Vec<(Instant, v3::Request<'static>)> {
        self.requests.lock().clone()
    }
}

impl Transport for Scripted {
    type Connection = Self;

    async fn connect(self) -> Result<Self, SendError> {
        self.connected.lock().push(Instant::now());
        Ok(self)
    }

    fn renewals(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn fate(&self, _: &Self) -> Fate {
        self.fate
    }

    fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
}

impl Channel for Scripted {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) -> SendError {
        tokio::time::sleep(self.lasts).await;
        SendError::Closed
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        _: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let mut requests = self.requests.lock();
        requests.push((Instant::now(), request.clone()));
        let (asked, (wait, answer)) = (requests.len(), (self.script)(request));
        async move {
            if asked >= MAX_REQUESTS {
                pending::<()>().await;
            }
            tokio::time::sleep(wait).await;
            answer
        }
    }
}

pub(super) fn response(request: &v3::Request<'_>) -> v3::Response {
    v3::Response::new(request.epoch, SessionId::from_bits(7))
}

pub(super) type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Bench {
    transport: Scripted,
    pub(super) changes: mpsc::Sender<Message>,
    pub(super) blind: Arc<Mutex<Vec<String>>>,
    pub(super) baseline: watch::Receiver<Baseline>,
    pub(super) progress: Arc<Mutex<Progress>>,
    _drain: Drain,
}

impl Bench {
    /// The test must poll it.
    pub(super) fn new(script: Script) -> (Self, Run) {
        Self::on(Scripted::new(script))
    }

    fn on(transport: Scripted) -> (Self, Run) {
        let (changes, taken) = mpsc::channel(2_000);
        let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
        let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
        let outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
        let (guard, resumed) = (Readiness::new().register("receiver"), watch::channel(0).1);
        let (settings, clock) = (Settings::default(), || Timestamp::UNIX_EPOCH);
        let blind: Arc<Mutex<Vec<String>>> = Arc::default();
        let shared_blind = Arc::clone(&blind);
        let health = move || v3::Health {
            configuration: String::new(),
            blind: shared_blind.lock().clone(),
            ..v3::Health::default()
        };
        let sender = Sender::new(outbox, taken, transport.clone(), settings, metrics, clock, guard, resumed)
            .with_health(health, watch::channel(()).1);
        let (drain, baseline, progress) = (Drain::new(), sender.baseline(), sender.progress());
        let run = Box::pin(sender.run(drain.watch()));
        (Self { transport, changes, blind, baseline, progress, _drain: drain }, run)
    }

    pub(super) fn start(script: Script) -> Self {
        let (bench, run) = Self::new(script);
        tokio::spawn(run);
        bench
    }

    pub(super) fn start_on(script: Script, lasts: Duration, fate: Fate) -> Self {
        let (bench, run) = Self::on(Scripted { lasts, fate, ..Scripted::new(script) });
        tokio::spawn(run);
        bench
    }

    pub(super) fn connected(&self) -> Vec<Instant> {
        self.transport.connected.lock().clone()
    }

    pub(super) fn requests(&self) -> Vec<Instant> {
        self.transport.requests().into_iter().map(|(at, _)| at).collect()
    }

    pub(super) fn after(
        &self,
        since: Instant,
        is: impl Fn(&v3::Request<'static>) -> bool,
    ) -> Option<Duration> {
        let requests = self.transport.requests.lock();
        let (at, _) = requests.iter().find(|(at, request)| *at >= since && is(request))?;
        Some(at.duration_since(since))
    }

    pub(super) fn made(&self, is: impl Fn(&v3::Request<'static>) -> bool) -> usize {
        self.transport.requests.lock().iter().filter(|(_, request)| is(request)).count()
    }
}
