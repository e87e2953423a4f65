//! The listener for an operator: a stream of verified events, each of which the operator acknowledges.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use jiff::Timestamp;
use kube::core::GroupVersionKind;
use rustls::ServerConfig;
use tidewatch_drain::Drain;
use tidewatch_telemetry::{
    BuildInfo,
    metrics::{MetricsError, Registry},
};
use tidewatch_tls::{Proxies, Store};
use tidewatch_wire::{
    Route, SessionId, v2,
    v3::{self, Change},
};
use tokio::{net::TcpListener, sync::mpsc};

use crate::{
    Admission, Deliveries, Fate, Guard, Host, Intake, Limits, Manager, Metrics, Runtime, RuntimeLookup,
    Ticket, listener,
};

/// Events that wait in the stream.
const QUEUED: usize = 1_024;
/// Events that are in the stream or with the operator.
const HELD: usize = 100_000;
/// How often what is known of unregistered runtimes is dropped.
const SWEEP: Duration = Duration::from_mins(10);

type Lookup = Arc<dyn Fn(&str) -> RuntimeLookup + Send + Sync>;

/// Takes events from runtimes' agents (`POST /v3/events`) and hands them to an operator.
///
/// Both its limits are answered as overload: the event is not kept, and the agent is asked to wait and send it again.
#[must_use = "nothing listens before start"]
pub struct Listener {
    address: SocketAddr,
    tls: Arc<Store<ServerConfig>>,
    lookup: Lookup,
    route: Route,
    queued: usize,
    held: usize,
    limits: Limits,
    metrics: Option<Registry>,
}

/// Why a listener does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; is another process using it?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A metric is registered already; give each listener a component of its own.
    #[error("the listener's metrics cannot be registered; are those of another listener in this registry?")]
    Metrics(#[from] MetricsError),
}

impl Listener {
    /// A listener on `address` (port 0 takes a free one) with the own certificate and the CAs in `tls`. It looks at
    /// `tls` for each new connection, so [`Store::reload`] takes effect at once. `lookup` says what is registered
    /// under a runtime id: it is asked for each request and must not block.
    pub fn new(
        address: SocketAddr,
        tls: Arc<Store<ServerConfig>>,
        lookup: impl Fn(&str) -> RuntimeLookup + Send + Sync + 'static,
    ) -> Self {
        let lookup = Arc::new(lookup);
        Self {
            address,
            tls,
            lookup,
            route: Route::engine(),
            queued: QUEUED,
            held: HELD,
            limits: Limits::default(),
            metrics: None,
        }
    }

    /// The route it acknowledges for, as the agents' watches name it. Without, the one of watches that name none.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Most events that wait in the stream, at least 1; 1,024 without.
    pub fn queued(mut self, most: usize) -> Self {
        self.queued = most.max(1);
        self
    }

    /// Most events that are not acknowledged, in the stream or with the operator, at least 1; 100,000 without. Each runtime
    /// may have a share of them, and a few in any case: see [`Deliveries::with_room_for`].
    pub fn held(mut self, most: usize) -> Self {
        self.held = most.max(1);
        self
    }

    /// What it takes at most from whom; see `docs/limits.md`. [`Limits::held`] has no effect, [`Listener::held`] has.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Where its metrics are shown; nowhere without.
    pub fn metrics(mut self, registry: &Registry) -> Self {
        self.metrics = Some(registry.clone());
        self
    }

    /// Opens the port. `drain` owns the tasks; when it is signaled the listener takes no more connections, ends those
    /// it has, and then the stream ends.
    pub async fn start(self, drain: &Drain) -> Result<(SocketAddr, Events), StartError> {
        let Self { address, tls, lookup, route, queued, held, limits, metrics } = self;
        let registry = match metrics {
            Some(registry) => registry,
            None => Registry::new(
                "tidewatch_listener",
                BuildInfo::new("tidewatch-listener", env!("CARGO_PKG_VERSION")),
            )?,
        };
        let metrics = Metrics::register(&registry)?;
        let failed = |source| StartError::Listen { address, source };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;

        let deliveries = Deliveries::new(SessionId::random()).with_room_for(held);
        let (sender, events) = mpsc::channel(queued);
        let host = Arc::new(Operator { lookup: Arc::clone(&lookup), route, sender });
        let admission = Admission::new(limits, Timestamp::now());
        let intake = Intake {
            host,
            deliveries: deliveries.clone(),
            metrics,
            admission,
            drain: drain.watch(),
            proxies: Arc::new(Proxies::none()),
            clock: Timestamp::now,
        };
        let serving = listener::serve(socket, tls, Arc::new(intake), Timestamp::now, drain.watch());
        drain.spawn_critical("listener", serving);
        let watch = drain.watch();
        drain.spawn("listener-sweep", async move {
            loop {
                tokio::select! {
                    () = watch.signaled() => return,
                    () = tokio::time::sleep(SWEEP) => {}
                }
                deliveries.retain(|id| lookup(id) != RuntimeLookup::Unknown);
            }
        });
        Ok((bound, Events(events)))
    }
}

/// A change in a runtime whose agent has proven who it is.
#[derive(Debug)]
pub struct RuntimeEvent {
    /// The runtime.
    pub runtime: Runtime,
    /// The agent's watch that saw it.
    pub watch: String,
    /// The object's kind.
    pub gvk: GroupVersionKind,
    /// The object's namespace in the runtime, empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// What happened.
    pub change: Change,
    /// When, on the agent's clock.
    pub observed_at: Timestamp,
    /// Acknowledges it.
    pub ack: Ack,
}

/// Acknowledges an event. Dropped without [`Ack::finished`] it gives the event back: the agent is asked to send it
/// again, which it does without delay.
#[derive(Debug)]
#[must_use = "an event whose acknowledgement is dropped is sent again"]
pub struct Ack(Guard);

impl Ack {
    /// Everything that depends on the event is done, or its failure is persisted: the agent lets it go.
    pub fn finished(self) {
        self.0.finished();
    }

    /// The same acknowledgement for `parts` pieces of work, each of which has to finish. For none, it is finished.
    pub fn split(self, parts: usize) -> Vec<Self> {
        self.0.split(parts).map(Self).collect()
    }
}

/// The events of all runtimes, in the order of their arrival. When it is dropped, every event is answered as overload.
#[derive(Debug)]
#[must_use = "events are answered as overload when nobody takes them"]
pub struct Events(mpsc::Receiver<RuntimeEvent>);

impl Stream for Events {
    type Item = RuntimeEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<RuntimeEvent>> {
        self.0.poll_recv(context)
    }
}

struct Operator {
    lookup: Lookup,
    route: Route,
    sender: mpsc::Sender<RuntimeEvent>,
}

impl Host for Operator {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        (self.lookup)(common_name)
    }

    fn manager(&self, _: &str) -> Manager {
        // An event of the v2 contract cannot be acknowledged.
        Manager::Unknown
    }

    fn take_v3(
        &self,
        runtime: &Runtime,
        _: &v3::Request<'_>,
        event: &v3::Event<'_>,
        mut ticket: Ticket,
    ) -> Fate {
        // Before the ticket is used: without room, the event is given back as if it had not come.
        let Ok(slot) = self.sender.try_reserve() else { return Fate::Overloaded };
        let Some(guard) = ticket.hold(self.route.clone(), 1).next() else { return Fate::Overloaded };
        slot.send(RuntimeEvent {
            runtime: runtime.clone(),
            watch: event.watch.to_string(),
            gvk: GroupVersionKind::gvk(&event.group, &event.version, &event.kind),
            namespace: event.namespace.to_string(),
            name: event.name.to_string(),
            change: event.change,
            observed_at: event.observed_at,
            ack: Ack(guard),
        });
        Fate::Queued
    }

    fn take_v2(&self, _: &Runtime, _: &str, _: &v2::WatchEvent) -> Fate {
        Fate::Overloaded
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures::{FutureExt, StreamExt};
    use tidewatch_wire::{Epoch, Seq, SeqSet};

    use super::*;

    /// An operator's side of the intake, without a connection.
    pub(crate) struct Bench {
        deliveries: Deliveries,
        host: Operator,
        pub(crate) events: Option<Events>,
    }

    impl Bench {
        pub(crate) fn new(queued: usize, held: usize) -> Self {
            let (sender, events) = mpsc::channel(queued);
            let lookup: Lookup = Arc::new(|_: &str| RuntimeLookup::Unknown);
            let host = Operator { lookup, route: Route::engine(), sender };
            let deliveries = Deliveries::new(SessionId::from_bits(1)).with_room_for(held);
            Self { deliveries, host, events: Some(Events(events)) }
        }

        /// An event comes in.
        pub(crate) fn tell(&self, seq: u64, name: &str) -> Fate {
            let event = v3::Event {
                seq: Seq(seq),
                watch: "w".into(),
                group: "".into(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: "s".into(),
                name: name.to_owned().into(),
                uid: "".into(),
                resource_version: "".into(),
                change: Change::Changed,
                listed: false,
                observed_at: Timestamp::UNIX_EPOCH,
            };
            let runtime = Runtime {
                id: "r1".into(),
                kyma: "harbour".into(),
                certificate: Arc::from(*b"der"),
                renewed_by: Timestamp::MAX,
                not_after: Timestamp::MAX,
            };
            let request = request(seq, vec![event]);
            if self.deliveries.receive("r1", &request).fresh.is_empty() {
                return Fate::Overloaded;
            }
            let ticket = self.deliveries.ticket("r1", request.epoch, Seq(seq));
            self.host.take_v3(&runtime, &request, &request.events[0], ticket)
        }

        pub(crate) fn next(&mut self) -> Option<RuntimeEvent> {
            self.events.as_mut()?.next().now_or_never()?
        }

        /// What the agent hears of a number: `done`, `unknown` (send it again) or `held`.
        pub(crate) fn said(&self, seq: u64) -> &'static str {
            let v3::Request { epoch, awaiting, .. } = request(seq, Vec::new());
            let answer = self.deliveries.answer("r1", epoch, &awaiting, None);
            if answer.unknown.contains(Seq(seq)) {
                "unknown"
            } else if answer.acks.iter().any(|a| a.done.contains(Seq(seq))) {
                "done"
            } else {
                "held"
            }
        }
    }

    fn request(seq: u64, events: Vec<v3::Event<'static>>) -> v3::Request<'static> {
        // All that came before stays awaited.
        let awaiting: SeqSet = (1..=seq).map(Seq).collect();
        v3::Request { events, awaiting, ..v3::Request::new(Epoch::from_bits(1)) }
    }

    #[test]
    fn an_event_is_held_until_it_is_acknowledged() {
        let mut bench = Bench::new(4, 100);
        assert_eq!(bench.tell(1, "a"), Fate::Queued);
        let event = bench.next().unwrap();
        assert_eq!((event.runtime.id.as_str(), event.name.as_str()), ("r1", "a"));
        assert_eq!(bench.said(1), "held");
        event.ack.finished();
        assert_eq!(bench.said(1), "done");
        bench.tell(2, "b");
        drop(bench.next());
        assert_eq!(bench.said(2), "unknown");
    }

    #[test]
    fn a_full_stream_is_overload_and_keeps_nothing() {
        let mut bench = Bench::new(1, 100);
        assert_eq!(bench.tell(1, "a"), Fate::Queued);
        assert_eq!(bench.tell(2, "b"), Fate::Overloaded);
        assert_eq!((bench.said(1), bench.said(2)), ("held", "unknown"));
        let _first = bench.next().unwrap();
        assert_eq!(bench.tell(2, "b"), Fate::Queued, "there is room again");
        bench.events = None;
        assert_eq!(bench.tell(3, "c"), Fate::Overloaded, "nobody takes events");
    }

    #[test]
    fn an_operator_that_does_not_acknowledge_gets_no_more() {
        let mut bench = Bench::new(10, 1);
        bench.tell(1, "a");
        let parts = bench.next().unwrap().ack.split(2);
        for part in parts {
            assert_eq!(bench.tell(2, "b"), Fate::Overloaded);
            part.finished();
        }
        assert_eq!(bench.said(1), "done");
        assert_eq!(bench.tell(2, "b"), Fate::Queued);
    }
}
