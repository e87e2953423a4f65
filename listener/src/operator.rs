//! Listener for operators.

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

const QUEUED: usize = 1_024;
const HELD: usize = 100_000;
const SWEEP: Duration = Duration::from_mins(10);

type Lookup = Arc<dyn Fn(&str) -> RuntimeLookup + Send + Sync>;

/// Receives agents' events for an operator. Beyond a limit, agents must wait and resend.
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

/// Error of starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Cannot listen.
    #[error("cannot listen on {address}; is another process using it?")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Metrics are already registered. Use a component per listener.
    #[error("the listener's metrics cannot be registered; are those of another listener in this registry?")]
    Metrics(#[from] MetricsError),
}

impl Listener {
    /// Creates a listener on `address` (port 0 takes a free one).
    ///
    /// Each connection reads `tls`, so [`Store::reload`] takes effect. `lookup` runs per request and must not block.
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

    /// Sets the route. The default is that of watches without one.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Sets the stream's capacity, at least 1, default 1,024.
    pub fn queued(mut self, max: usize) -> Self {
        self.queued = max.max(1);
        self
    }

    /// Sets the most unacknowledged events, at least 1, default 100,000; see [`Deliveries::with_capacity`].
    pub fn held(mut self, max: usize) -> Self {
        self.held = max.max(1);
        self
    }

    /// Sets the limits. [`Listener::held`] replaces [`Limits::held`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the metrics registry. By default, metrics are not shown.
    pub fn metrics(mut self, registry: &Registry) -> Self {
        self.metrics = Some(registry.clone());
        self
    }

    /// Opens the port. When `drain` is signaled, connections end, then the stream.
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

        let deliveries = Deliveries::new(SessionId::random()).with_capacity(held);
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

/// A change in a verified runtime.
#[derive(Debug)]
pub struct RuntimeEvent {
    /// Runtime.
    pub runtime: Runtime,
    /// The agent's watch.
    pub watch: String,
    /// Kind.
    pub gvk: GroupVersionKind,
    /// Namespace, empty if cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Change.
    pub change: Change,
    /// On the agent's clock.
    pub observed_at: Timestamp,
    /// Acknowledgement.
    pub ack: Ack,
}

/// Acknowledges an event. Dropped without [`Ack::finished`], the event is resent immediately.
#[derive(Debug)]
#[must_use = "an event whose acknowledgement is dropped is sent again"]
pub struct Ack(Guard);

impl Ack {
    /// Acknowledges: all reconciles have finished, or their failure is persisted.
    pub fn finished(self) {
        self.0.finished();
    }

    /// Splits into parts that must all finish. With zero parts, it is finished.
    pub fn split(self, parts: usize) -> Vec<Self> {
        self.0.split(parts).map(Self).collect()
    }
}

/// Events in order of arrival. After a drop, agents get overload answers.
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
        // V2 has no acknowledgements.
        Manager::Unknown
    }

    fn take_v3(
        &self,
        runtime: &Runtime,
        _: &v3::Request<'_>,
        event: &v3::Event<'_>,
        mut ticket: Ticket,
    ) -> Fate {
        // Before the ticket is used, so that a full stream drops the event.
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
            let deliveries = Deliveries::new(SessionId::from_bits(1)).with_capacity(held);
            Self { deliveries, host, events: Some(Events(events)) }
        }

        pub(crate) fn send(&self, seq: u64, name: &str) -> Fate {
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

        pub(crate) fn verdict(&self, seq: u64) -> &'static str {
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
        // Earlier numbers stay awaited.
        let awaiting: SeqSet = (1..=seq).map(Seq).collect();
        v3::Request { events, awaiting, ..v3::Request::new(Epoch::from_bits(1)) }
    }

    #[test]
    fn an_event_is_held_until_acknowledged() {
        let mut bench = Bench::new(4, 100);
        assert_eq!(bench.send(1, "a"), Fate::Queued);
        let event = bench.next().unwrap();
        assert_eq!((event.runtime.id.as_str(), event.name.as_str()), ("r1", "a"));
        assert_eq!(bench.verdict(1), "held");
        event.ack.finished();
        assert_eq!(bench.verdict(1), "done");
        bench.send(2, "b");
        drop(bench.next());
        assert_eq!(bench.verdict(2), "unknown");
    }

    #[test]
    fn a_full_stream_is_overload_and_keeps_nothing() {
        let mut bench = Bench::new(1, 100);
        assert_eq!(bench.send(1, "a"), Fate::Queued);
        assert_eq!(bench.send(2, "b"), Fate::Overloaded);
        assert_eq!((bench.verdict(1), bench.verdict(2)), ("held", "unknown"));
        let _first = bench.next().unwrap();
        assert_eq!(bench.send(2, "b"), Fate::Queued, "there is room again");
        bench.events = None;
        assert_eq!(bench.send(3, "c"), Fate::Overloaded, "nobody takes events");
    }

    #[test]
    fn an_unacknowledging_operator_gets_no_more_events() {
        let mut bench = Bench::new(10, 1);
        bench.send(1, "a");
        let parts = bench.next().unwrap().ack.split(2);
        for part in parts {
            assert_eq!(bench.send(2, "b"), Fate::Overloaded);
            part.finished();
        }
        assert_eq!(bench.verdict(1), "done");
        assert_eq!(bench.send(2, "b"), Fate::Queued);
    }
}
