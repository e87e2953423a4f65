//! The Go agent's protocol: `POST /v2/<manager>/event` with one event. Only HTTP 200 acknowledges, but it proves no
//! reconcile. There are no polls and heartbeats; HTTP/2 pings check the connection.

use super::error::SendError;
use crate::jitter;
use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};
use tidewatch_delivery::backoff::Backoff;
use tidewatch_wire::{
    Route, Seq, SeqSet, SessionId, v2,
    v3::{self, RouteAck},
};
use tokio::time::Instant;

const CONCURRENCY: usize = 4;
/// Time per event; Go listeners hold events until their operator takes them.
const EVENT: Duration = Duration::from_secs(10);
/// No event starts in this rest of a batch's time.
const MARGIN: Duration = Duration::from_secs(12);
/// Per object.
const BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_mins(5) };
/// Other failed objects are retried with every batch.
const MAX_FAILED_OBJECTS: usize = 10_000;
/// The engine's name in v2.
const ENGINE: &str = "lifecycle-manager";

type Object = (String, String, String);

/// Converts batches to single requests.
pub struct Translator {
    /// Default: the engine.
    routes: Mutex<BTreeMap<String, Vec<Route>>>,
    session: SessionId,
    failed: Mutex<HashMap<Object, Failed>>,
}

#[derive(Clone, Copy)]
struct Failed {
    times: u32,
    not_before: Instant,
}

/// A v2 request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Path.
    pub path: String,
    /// Body.
    pub body: Bytes,
}

enum Answer {
    Taken,
    /// Retries are useless.
    Refused,
    Later,
    Failed(SendError),
}

/// Answers to the events of a batch.
#[derive(Default)]
struct Results {
    acks: BTreeMap<Route, RouteAck>,
    /// Numbers to send again.
    again: SeqSet,
    failure: Option<SendError>,
}

impl Results {
    fn collect(answers: Vec<(Seq, Route, Answer)>) -> Self {
        let mut results = Self::default();
        for (seq, route, answer) in answers {
            match answer {
                Answer::Taken => results.ack(route).done.insert(seq),
                Answer::Refused => results.ack(route).refused.insert(seq),
                Answer::Later => results.again.insert(seq),
                Answer::Failed(error) => {
                    results.again.insert(seq);
                    results.failure = Some(error);
                }
            }
        }
        results
    }

    fn ack(&mut self, route: Route) -> &mut RouteAck {
        self.acks.entry(route.clone()).or_insert_with(|| RouteAck {
            route,
            done: SeqSet::new(),
            refused: SeqSet::new(),
        })
    }
}

impl Translator {
    /// Sets routes other than the engine's, by watch.
    pub fn set_routes(&self, routes: BTreeMap<String, Vec<Route>>) {
        *self.routes.lock() = routes;
    }

    /// Sends events singly by `post`, which returns the HTTP status.
    pub async fn deliver<F>(
        self: Arc<Self>,
        request: v3::Request<'static>,
        deadline: Duration,
        post: impl Fn(Post, Duration) -> F,
    ) -> Result<v3::Response, SendError>
    where
        F: Future<Output = Result<u16, SendError>>,
    {
        let until = Instant::now() + deadline.saturating_sub(MARGIN);
        let mut parts = self.parts(&request.events).into_iter();
        let (mut open, mut answers) = (FuturesUnordered::new(), Vec::new());
        loop {
            while open.len() < CONCURRENCY
                && let Some((event, route)) = parts.next()
            {
                open.push(self.send(event, route, until, &post));
            }
            match open.next().await {
                Some(answer) => answers.push(answer),
                None => break,
            }
        }
        drop(open);
        let Results { acks, again, failure } = Results::collect(answers);
        if let Some(failure) = failure.filter(|_| acks.is_empty()) {
            return Err(failure);
        }
        let v3::Request { epoch, events, awaiting, resume, .. } = request;
        // The listener remembers nothing: send the rest again.
        let settled: SeqSet = events.iter().map(|e| e.seq).filter(|seq| !again.contains(*seq)).collect();
        let awaited = awaiting.ranges().flat_map(|(from, to)| from..=to).map(Seq);
        Ok(v3::Response {
            epoch,
            session: self.session,
            mark: 0,
            acks: acks.into_values().collect(),
            unknown: awaited.filter(|seq| !settled.contains(*seq)).collect(),
            retry_after_ms: None,
            older: None,
            // The listener remembers no earlier run.
            resync: resume.is_some(),
        })
    }

    /// One part for each route of an event.
    fn parts<'a>(&self, events: &'a [v3::Event<'static>]) -> Vec<(&'a v3::Event<'static>, Route)> {
        let routes = self.routes.lock();
        let mut parts = Vec::with_capacity(events.len());
        for event in events {
            match routes.get(&*event.watch) {
                Some(routes) => parts.extend(routes.iter().map(|route| (event, route.clone()))),
                None => parts.push((event, Route::engine())),
            }
        }
        parts
    }

    async fn send<F>(
        &self,
        event: &v3::Event<'_>,
        route: Route,
        until: Instant,
        post: &impl Fn(Post, Duration) -> F,
    ) -> (Seq, Route, Answer)
    where
        F: Future<Output = Result<u16, SendError>>,
    {
        let answer = self.answer_of(event, &route, until, post).await;
        (event.seq, route, answer)
    }

    async fn answer_of<F>(
        &self,
        event: &v3::Event<'_>,
        route: &Route,
        until: Instant,
        post: &impl Fn(Post, Duration) -> F,
    ) -> Answer
    where
        F: Future<Output = Result<u16, SendError>>,
    {
        if event.change == v3::Change::Resync {
            // v2 requires an object.
            return Answer::Taken;
        }
        let object = (event.watch.to_string(), event.namespace.to_string(), event.name.to_string());
        let now = Instant::now();
        let waits = self.failed.lock().get(&object).is_some_and(|failed| failed.not_before > now);
        if now >= until || waits {
            return Answer::Later;
        }
        let answer = match request(event, route) {
            Ok(request) => post(request, EVENT).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(200) => {
                self.failed.lock().remove(&object);
                Answer::Taken
            }
            Ok(status @ (413 | 422)) => {
                tracing::warn!(
                    status,
                    watch = &*event.watch,
                    name = &*event.name,
                    "the listener refuses this event for good"
                );
                self.failed.lock().remove(&object);
                Answer::Refused
            }
            Ok(status) => {
                self.failed(object);
                Answer::Failed(SendError::Status { status, message: String::new(), retry_after: None })
            }
            Err(error) => {
                // A broken connection is not the event's fault.
                if !error.ends_connection() || matches!(error, SendError::Timeout) {
                    self.failed(object);
                }
                Answer::Failed(error)
            }
        }
    }

    fn failed(&self, object: Object) {
        let mut failed = self.failed.lock();
        let now = Instant::now();
        if failed.len() >= MAX_FAILED_OBJECTS && !failed.contains_key(&object) {
            // Expired entries may be of deleted objects.
            failed.retain(|_, f| f.not_before > now);
            if failed.len() >= MAX_FAILED_OBJECTS {
                return;
            }
        }
        let entry = failed.entry(object).or_insert(Failed { times: 0, not_before: now });
        entry.not_before = now + BACKOFF.delay(entry.times, jitter::random());
        entry.times = entry.times.saturating_add(1);
    }
}

impl Default for Translator {
    fn default() -> Self {
        Self { routes: Mutex::default(), session: SessionId::random(), failed: Mutex::default() }
    }
}

impl fmt::Debug for Translator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translator").field("routes", &*self.routes.lock()).finish_non_exhaustive()
    }
}

fn request(event: &v3::Event<'_>, route: &Route) -> Result<Post, SendError> {
    let manager = if *route == Route::engine() { ENGINE } else { route.as_str() };
    let body = v2::WatchEvent {
        watched: v2::ObjectKey { namespace: event.namespace.to_string(), name: event.name.to_string() },
        watched_gvk: v2::GroupVersionKind {
            group: event.group.to_string(),
            version: event.version.to_string(),
            kind: event.kind.to_string(),
        },
    };
    let body = serde_json::to_vec(&body).map_err(|e| SendError::Request(Box::new(e)))?;
    Ok(Post { path: format!("/v2/{manager}/event"), body: body.into() })
}

#[cfg(test)]
#[path = "v2_tests.rs"]
mod tests;
