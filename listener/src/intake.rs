//! Agents' requests and answers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use jiff::Timestamp;
use tidewatch_drain::ShutdownSignal;
use tidewatch_tls::{ForwardedError, IdentityError, Names, PeerIdentity, Proxies, xfcc};
use tidewatch_wire::{
    Epoch, ErrorBody, SeqSet, SessionId,
    header_fields::{self, HeaderFields},
    limits, v2, v3,
};
use tokio::time::Instant;

use crate::{
    admission::{Admission, Throttled},
    deliveries::{Deliveries, Door, milliseconds},
    host::{Fate, Host, Manager},
    identity::{Refusal, Runtime, identify},
    metrics::{Metrics, Taken},
    refused::{LogLine, RefusedPeer},
};

/// Bytes and time to skip of a large body, so that its sender sees the answer.
const SKIP: (usize, Duration) = (4 * 1024 * 1024, Duration::from_secs(2));

/// Longest wait for a canary.
const CANARY_WAIT: Duration = Duration::from_millis(250);
/// Longest message, in characters.
const MAX_MESSAGE: usize = 300;

/// Answer to a request.
pub type Answer = Response<Full<Bytes>>;

/// A connection's peer.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Leaf certificate (DER).
    pub leaf: Option<Arc<[u8]>>,
    /// Its identity.
    pub identity: Result<PeerIdentity, IdentityError>,
}

/// Serves requests.
pub struct Intake {
    /// Handles events.
    pub host: Arc<dyn Host>,
    /// Ledgers.
    pub deliveries: Deliveries,
    /// Metrics.
    pub metrics: Metrics,
    /// Limits.
    pub admission: Admission,
    /// Ends polls.
    pub drain: ShutdownSignal,
    /// Trusted proxies.
    pub proxies: Arc<Proxies>,
    /// Wall clock.
    pub clock: fn() -> Timestamp,
}

/// A refused request of this process itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// As in an answer.
    pub status: StatusCode,
    /// Reason.
    pub message: String,
    /// Wait before the next request.
    pub retry_after: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{refusal}")]
    Identity {
        refusal: Refusal,
        /// Verified.
        names: Option<Box<Names>>,
    },
    #[error(transparent)]
    Forwarded(ForwardedError),
    #[error("there is nothing at this path; events go to POST /v3/events or POST /v2/<manager>/event")]
    NoSuchPath,
    #[error("only POST is answered here")]
    Method,
    #[error("no Watcher names the manager '{0}'")]
    UnknownManager(String),
    #[error("the Watchers of the manager '{0}' name no usable service")]
    NotForwarded(String),
    #[error("there is no capacity for this now; send it again in {} s", seconds(*.0))]
    Overloaded(Duration),
    #[error("too many requests; send it again in {} s", seconds(*.0))]
    TooMany(Duration),
    #[error("no Watcher of this manager is about this kind of object")]
    NotWatched,
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body could not be read")]
    Broken,
    #[error("the body did not arrive within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("the body violates the contract: {0}")]
    Malformed(String),
    #[error("a defect in the receiver; its log has details")]
    Panicked,
}

impl Fault {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Identity { refusal, .. } => refusal.status(),
            Self::Forwarded(ForwardedError::NoHeader) => StatusCode::UNAUTHORIZED,
            Self::Forwarded(ForwardedError::NotVerified) | Self::NotWatched => StatusCode::FORBIDDEN,
            Self::NoSuchPath | Self::UnknownManager(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotForwarded(_) => StatusCode::NOT_IMPLEMENTED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Forwarded(_) | Self::Broken | Self::Malformed(_) => StatusCode::BAD_REQUEST,
        }
    }

    const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded(wait) | Self::TooMany(wait) => Some(*wait),
            _ => None,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Identity { refusal, .. } => refusal.label(),
            Self::Forwarded(error) => error.label(),
            Self::NoSuchPath => "no_such_path",
            Self::Method => "method",
            Self::UnknownManager(_) => "unknown_manager",
            Self::NotForwarded(_) => "not_forwarded",
            Self::Overloaded(_) => "overloaded",
            Self::TooMany(_) => "too_many_requests",
            Self::NotWatched => "not_watched",
            Self::TooLarge(_) => "too_large",
            Self::Broken => "broken_body",
            Self::Slow(_) => "slow_body",
            Self::Malformed(_) => "malformed",
            Self::Panicked => "panic",
        }
    }
}

struct Accepted {
    epoch: Epoch,
    awaiting: SeqSet,
    /// Whether a full report is needed.
    resync: bool,
    /// Wait after events were not taken.
    overloaded: Option<Duration>,
    /// Wait for older events and full reports.
    older: Option<Duration>,
    /// Longest delay of the answer.
    wait: Option<Duration>,
}

impl Intake {
    /// Serves a request of a verified peer.
    pub async fn serve<B>(self: Arc<Self>, peer: Arc<Peer>, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path();
        let endpoint = match path {
            v3::PATH => "v3",
            _ if v2::manager_of_path(path).is_some() => "v2",
            _ => "other",
        };
        let known = &self.metrics.known;
        let (_in_flight, began) = (known.begin(), Instant::now());
        // A panic would end the connection's other requests.
        let handled = AssertUnwindSafe(self.handle(&peer, request)).catch_unwind().await;
        let answer = match handled.unwrap_or(Err(Fault::Panicked)) {
            Ok(answer) => answer,
            Err(fault) => {
                let runtime = peer.identity.as_ref().map_or("?", |p| p.common_name.as_str());
                let message = self.note_refusal(shorten(runtime), &fault);
                match fault {
                    Fault::TooLarge(_) => known.was_too_large(),
                    Fault::Identity { .. } | Fault::Forwarded(_) => known.was_not_verified(endpoint),
                    _ => {}
                }
                error_answer(&fault, message)
            }
        };
        if endpoint == "v2" {
            known.took(began.elapsed());
        }
        self.metrics.answered(endpoint, answer.status());
        answer
    }

    /// Takes a request of this process itself: `runtime` is trusted without a certificate. All limits hold.
    pub async fn take(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
    ) -> Result<v3::Response, RefusedRequest> {
        let taken = AssertUnwindSafe(self.handle_own(runtime, request)).catch_unwind().await;
        let result = taken.unwrap_or(Err(Fault::Panicked)).map_err(|fault| {
            let message = self.note_refusal(&runtime.id, &fault);
            RefusedRequest { status: fault.status(), message, retry_after: fault.retry_after() }
        });
        self.metrics
            .answered("v3", result.as_ref().map_or_else(|refused| refused.status, |_| StatusCode::OK));
        result
    }

    async fn handle_own(&self, runtime: &Runtime, request: &v3::Request<'_>) -> Result<v3::Response, Fault> {
        let rated = self.admission.request(Some(&runtime.id));
        rated.map_err(|throttled| Fault::TooMany(self.throttled(throttled)))?;
        request.check().map_err(|e| Fault::Malformed(e.to_string()))?;
        Ok(self.answer(runtime, self.accept(runtime, request)).await)
    }

    /// Counts and logs a refusal. Returns the message for the peer.
    fn note_refusal(&self, runtime: &str, fault: &Fault) -> String {
        let message = printable(&fault.to_string());
        if matches!(fault, Fault::Panicked) {
            self.metrics.panics.inc();
        }
        self.log_refusal(runtime, fault, &message);
        self.metrics.refused.with_label_values(&[fault.label()]).inc();
        message
    }

    async fn handle<B>(&self, peer: &Peer, request: Request<B>) -> Result<Answer, Fault>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let manager = v2::manager_of_path(path);
        if path != v3::PATH && manager.is_none() {
            return Err(Fault::NoSuchPath);
        }
        if parts.method != Method::POST {
            return Err(Fault::Method);
        }
        let identified = self.identify(peer, &parts.headers);
        // Before the refusal, which is logged.
        let rated = self.admission.request(identified.as_ref().ok().map(|runtime| runtime.id.as_str()));
        rated.map_err(|throttled| Fault::TooMany(self.throttled(throttled)))?;
        let runtime = identified?;
        match manager {
            None => {
                let body = self.read(&runtime, &parts, body, limits::V3_BODY_BYTES).await?;
                let value = |name| parts.headers.get(name).map(HeaderValue::as_bytes);
                let header_fields = HeaderFields::read(value).map_err(|e| Fault::Malformed(e.to_string()))?;
                // Headers would keep the read buffer during a poll.
                drop(parts);
                self.take_v3(&runtime, body, header_fields).await
            }
            Some(manager) => {
                self.check_manager(manager)?;
                let rated = self.admission.v2_event(&runtime.id);
                rated.map_err(|throttled| Fault::TooMany(self.throttled(throttled)))?;
                let bytes = self.read(&runtime, &parts, body, limits::V2_BODY_BYTES).await?;
                self.take_v2(&runtime, manager, &bytes)
            }
        }
    }

    /// Logs repetitions at powers of ten and notifies the host.
    fn log_refusal(&self, runtime: &str, fault: &Fault, error: &str) {
        let (reason, now) = (fault.label(), (self.clock)());
        let names = match fault {
            Fault::Identity { names, .. } => names.as_deref(),
            _ => None,
        };
        let (subject, issuer) = (names.map(|names| &names.subject), names.map(|names| &names.issuer));
        let message = format!("{reason}: {runtime}: {}", issuer.map_or("", String::as_str));
        if let Some(LogLine { times, left_out }) = self.admission.refusals.record(&message, now) {
            tracing::warn!(runtime, reason, subject, issuer, error, times, left_out, "request refused");
        }
        if let Some(names) = names {
            let names = names.clone();
            self.host.refused(&RefusedPeer { reason, verified: true, names });
        }
    }

    async fn read<B>(&self, runtime: &Runtime, parts: &Parts, body: B, limit: usize) -> Result<Bytes, Fault>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let permit = self.admission.body(&runtime.id).await;
        let _permit = permit.map_err(|throttled| Fault::Overloaded(self.throttled(throttled)))?;
        read(parts, body, limit, self.admission.limits.body).await
    }

    fn throttled(&self, Throttled { limit, wait }: Throttled) -> Duration {
        self.metrics.throttled.with_label_values(&[limit]).inc();
        wait
    }

    /// Identifies the peer, or a trusted proxy's client. Ignores the proxies' header from other peers.
    fn identify(&self, peer: &Peer, headers: &HeaderMap) -> Result<Runtime, Fault> {
        let forwarded = if peer.leaf.as_ref().is_some_and(|leaf| self.proxies.trusts(leaf)) {
            let values = headers.get_all(xfcc::HEADER).iter().map(HeaderValue::as_bytes);
            Some(self.proxies.client(values, (self.clock)()).map_err(Fault::Forwarded)?)
        } else {
            None
        };
        let client = match &forwarded {
            Some(client) => client,
            None => peer.identity.as_ref().map_err(|e| {
                let names = peer.leaf.as_deref().and_then(Names::of).map(Box::new);
                Fault::Identity { refusal: Refusal::from(*e), names }
            })?,
        };
        let name = &client.common_name;
        let is_revoked = self.host.revocations().is_some_and(|revoked| revoked.contains(name));
        let identified = if is_revoked {
            Err(Refusal::Revoked(name.clone()))
        } else {
            identify(client, self.host.lookup(name))
        };
        identified.map_err(|refusal| {
            // A starting receiver reports no refusals.
            let is_refused = !matches!(refusal, Refusal::Starting);
            let names = is_refused.then(|| Names::of(&client.certificate).map(Box::new)).flatten();
            Fault::Identity { refusal, names }
        })
    }

    fn check_manager(&self, manager: &str) -> Result<(), Fault> {
        match self.host.manager(manager) {
            Manager::Own => Ok(()),
            Manager::Other => Err(Fault::NotForwarded(shorten(manager).to_owned())),
            Manager::Unknown => Err(Fault::UnknownManager(shorten(manager).to_owned())),
        }
    }

    async fn take_v3(
        &self,
        runtime: &Runtime,
        body: Bytes,
        header_fields: HeaderFields,
    ) -> Result<Answer, Fault> {
        let brief = header_fields.epoch.is_some();
        let accepted = self.accept_body(runtime, &body, header_fields)?;
        // Not needed during a poll.
        drop(body);
        Ok(v3_answer(self.answer(runtime, accepted).await, brief))
    }

    /// Answers a request, after its wait.
    async fn answer(&self, runtime: &Runtime, accepted: Accepted) -> v3::Response {
        let Accepted { epoch, awaiting, resync, overloaded, older, wait } = accepted;
        if overloaded.is_some() || older.is_some() {
            self.metrics.overloads.inc();
        } else if resync {
            let message = format!("everything again: {}", runtime.id);
            if let Some(times) = self.admission.refusals.repeat(&message, (self.clock)()) {
                tracing::info!(runtime = runtime.id, times, "the agent has to report everything again");
            }
            self.metrics.resyncs.inc();
        } else if let Some(wait) = wait {
            let changed = self.deliveries.changed(&runtime.id, epoch, &awaiting);
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
                () = self.drain.signaled() => {}
            }
        }
        let answer = self.deliveries.answer(&runtime.id, epoch, &awaiting, overloaded);
        let than = self.admission.since();
        let older = older.map(|wait| v3::Older { than, after_ms: milliseconds(wait) });
        v3::Response { resync, mark: self.host.mark(), older, ..answer }
    }

    fn accept_body(
        &self,
        runtime: &Runtime,
        body: &[u8],
        header_fields: HeaderFields,
    ) -> Result<Accepted, Fault> {
        // Cheaper than a UTF-8 check per string.
        let text = std::str::from_utf8(body).map_err(|e| Fault::Malformed(e.to_string()))?;
        let mut request: v3::Request<'_> =
            serde_json::from_str(text).map_err(|e| Fault::Malformed(e.to_string()))?;
        header_fields.give(&mut request);
        request.check().map_err(|e| Fault::Malformed(e.to_string()))?;
        Ok(self.accept(runtime, &request))
    }

    /// Takes the events of a checked request.
    fn accept(&self, runtime: &Runtime, request: &v3::Request<'_>) -> Accepted {
        let resync = self.host.received(runtime, request);
        self.metrics.reported(&request.reconciled_ms);
        let (overloaded, older) = self.take_events(runtime, request);
        let (epoch, awaiting) = (request.epoch, request.awaiting.clone());
        Accepted { epoch, awaiting, resync, overloaded, older, wait: wait_of(request) }
    }

    /// Takes events; at overload, only the canary. Returns the waits for all and for older events.
    fn take_events(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
    ) -> (Option<Duration>, Option<Duration>) {
        let (door, wait) = match self.admission.events(&runtime.id, request) {
            Ok(()) => (Door::Open, None),
            Err((door, throttled)) => (door, Some(self.throttled(throttled))),
        };
        let (refused, older) = if door == Door::Canary { (wait, None) } else { (None, wait) };
        if refused.is_some() && request.events.iter().all(|event| event.watch != v3::CANARY) {
            return (refused, None);
        }
        let received = self.deliveries.receive_at(&runtime.id, request, door);
        let wait = refused.or_else(|| {
            let limit = if self.deliveries.is_scarce() { "held" } else { "held_by_runtime" };
            let throttled = || Throttled { limit, wait: self.admission.wait() };
            received.overloaded.then(|| self.throttled(throttled()))
        });
        let mut full = false;
        let ticket = self.deliveries.tickets(&runtime.id, request.epoch);
        let fresh = received.fresh.iter().filter_map(|&index| request.events.get(index));
        // All tickets first: a panic must leave no event known but unheld.
        let fresh: Vec<_> = fresh.map(|event| (event, ticket(event))).collect();
        let mut taken = Taken::default();
        for (event, ticket) in fresh {
            let span = tracing::debug_span!(
                "intake",
                runtime = runtime.id,
                kyma = runtime.kyma,
                seq = event.seq.0,
                watch = %event.watch,
                object = format_args!("{}.{} {}/{}", event.kind, event.group, event.namespace, event.name),
                fate = tracing::field::Empty,
            );
            let take = || span.in_scope(|| self.host.take_v3(runtime, request, event, ticket));
            // A panic must not block other events. The agent resends this one.
            let Ok(fate) = catch_unwind(AssertUnwindSafe(take)) else {
                tracing::error!(runtime = runtime.id, seq = %event.seq, "taking an event panicked; it is asked for again");
                self.metrics.panics.inc();
                continue;
            };
            span.record("fate", fate.label());
            full |= fate == Fate::Overloaded;
            taken.add(event.change, fate);
        }
        self.metrics.events_taken("v3", &taken);
        (wait.or_else(|| full.then(|| self.admission.wait())), older)
    }

    fn take_v2(&self, runtime: &Runtime, manager: &str, body: &[u8]) -> Result<Answer, Fault> {
        let event: v2::WatchEvent =
            serde_json::from_slice(body).map_err(|e| Fault::Malformed(e.to_string()))?;
        let load = self.admission.load();
        let span = tracing::debug_span!("intake", runtime = runtime.id, kyma = runtime.kyma, manager);
        let take = || span.in_scope(|| self.host.take_v2(runtime, manager, &event));
        let fate = if load < 1.0 { take() } else { Fate::Overloaded };
        self.metrics.event("v2", None, fate);
        match fate {
            Fate::Overloaded | Fate::Full => {
                let throttled = Throttled { limit: "queued", wait: self.admission.wait_at(load) };
                return Err(Fault::Overloaded(self.throttled(throttled)));
            }
            Fate::Refused => return Err(Fault::NotWatched),
            Fate::Queued | Fate::Forwarded | Fate::Unowned => {}
        }
        Ok(Response::new(Full::new(Bytes::new())))
    }
}

/// A canary alone waits briefly, to need one exchange only.
fn wait_of(request: &v3::Request<'_>) -> Option<Duration> {
    let canary = !request.events.is_empty() && request.events.iter().all(|e| e.watch == v3::CANARY);
    let poll = request.poll.then_some(Duration::from_secs(limits::POLL_SECONDS));
    poll.or(canary.then_some(CANARY_WAIT))
}

/// The only reader of bodies, limited to `limit` bytes.
#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn read<B>(parts: &Parts, body: B, limit: usize, deadline: Duration) -> Result<Bytes, Fault>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let announced =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let too_large = if announced.is_some_and(|n| n > limit as u64) {
        true
    } else {
        match tokio::time::timeout(deadline, Limited::new(body.as_mut(), limit).collect()).await {
            Ok(Ok(body)) => return Ok(body.to_bytes()),
            Ok(Err(error)) => error.is::<LengthLimitError>(),
            Err(_) => return Err(Fault::Slow(deadline)),
        }
    };
    if !too_large {
        return Err(Fault::Broken);
    }
    // Else a writing peer may lose the answer to a close (HTTP/1) or reset (HTTP/2).
    let _all_or_enough = tokio::time::timeout(SKIP.1, skip(body, SKIP.0)).await;
    Err(Fault::TooLarge(limit))
}

async fn skip<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, max: usize) {
    let mut skipped = 0;
    while let Some(Ok(frame)) = body.as_mut().frame().await {
        skipped += frame.data_ref().map_or(0, Bytes::len);
        if skipped > max {
            return;
        }
    }
}

/// Cuts to 64 characters.
fn shorten(text: &str) -> &str {
    text.char_indices().nth(64).map_or(text, |(end, _)| &text[..end])
}

/// Parsers quote any input, so errors are cleaned and cut.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}

/// Rounds up for `Retry-After`.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn json_answer(body: &impl serde::Serialize) -> Answer {
    let mut answer = Response::new(Full::new(serde_json::to_vec(body).unwrap_or_default().into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Returns the session in a header. If the agent uses the headers of [`header_fields`], the body omits session and epoch.
fn v3_answer(mut response: v3::Response, brief: bool) -> Answer {
    let session = HeaderValue::from_str(&response.session.to_string());
    if brief && session.is_ok() {
        (response.epoch, response.session) = (Epoch::default(), SessionId::default());
    }
    let mut answer = json_answer(&response);
    if let Ok(session) = session {
        answer.headers_mut().insert(header_fields::SESSION, session);
    }
    answer
}

fn error_answer(fault: &Fault, message: String) -> Answer {
    let mut answer = json_answer(&ErrorBody { error: fault.label().replace('_', "-"), message });
    *answer.status_mut() = fault.status();
    if matches!(fault, Fault::Method) {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    if let Some(wait) = fault.retry_after() {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds(wait)));
    }
    answer
}

#[cfg(test)]
mod tests;
