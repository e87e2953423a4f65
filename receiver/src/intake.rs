//! Requests of agents: paths, bodies and answers.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use tidewatch_drain::Watch;
use tidewatch_engine::{
    Cause, Engine,
    queue::{Class, Push},
};
use tidewatch_tls::{IdentityError, PeerIdentity};
use tidewatch_wire::{ErrorBody, limits, v2, v3};

use crate::{
    deliveries::Deliveries,
    identity::{Refusal, Runtime, identify},
    metrics::{Fate, Metrics},
    route,
};

/// The manager that stands for our own engine in v2 paths.
pub const OWN_MANAGER: &str = "lifecycle-manager";
/// A v2 event comes from an admission webhook, before the change is committed: look again after this.
const SECOND_LOOK: Duration = Duration::from_secs(20);

/// Of a body that is too large, this much more is read and thrown away, and for this long, so that an HTTP/1 peer
/// that is still sending sees the answer.
const SKIP: (usize, Duration) = (4 * 1024 * 1024, Duration::from_secs(2));

/// For a body to arrive.
const BODY: Duration = Duration::from_secs(30);
/// Longest message in an answer or a log line, in characters.
const MAX_MESSAGE: usize = 300;

/// The answer to a request.
pub type Answer = Response<Full<Bytes>>;

/// What requests are served with.
pub struct Intake {
    /// The engine whose queue is fed.
    pub engine: Engine,
    /// The ledgers.
    pub deliveries: Deliveries,
    /// Metrics.
    pub metrics: Metrics,
    /// Ends polls at shutdown.
    pub drain: Watch,
}

/// Why a request is not served.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Identity(#[from] Refusal),
    #[error("there is nothing at this path; events go to POST /v3/events or POST /v2/<manager>/event")]
    NoSuchPath,
    #[error("only POST is answered here")]
    Method,
    #[error("no Watcher names the manager '{0}'")]
    UnknownManager(String),
    #[error("events for the manager '{0}' are not forwarded yet")]
    NotForwarded(String),
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body could not be read")]
    Broken,
    #[error("the body did not arrive within {} s", BODY.as_secs())]
    Slow,
    #[error("the body is not what the contract says: {0}")]
    Malformed(String),
}

impl Fault {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Identity(refusal) => refusal.status(),
            Self::NoSuchPath | Self::UnknownManager(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotForwarded(_) => StatusCode::NOT_IMPLEMENTED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken | Self::Malformed(_) => StatusCode::BAD_REQUEST,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Identity(refusal) => refusal.label(),
            Self::NoSuchPath => "no_such_path",
            Self::Method => "method",
            Self::UnknownManager(_) => "unknown_manager",
            Self::NotForwarded(_) => "not_forwarded",
            Self::TooLarge(_) => "too_large",
            Self::Broken => "broken_body",
            Self::Slow => "slow_body",
            Self::Malformed(_) => "malformed",
        }
    }
}

impl Intake {
    /// Serves one request of a peer whose certificate the handshake has verified.
    pub async fn serve<B>(
        self: Arc<Self>,
        peer: Arc<Result<PeerIdentity, IdentityError>>,
        request: Request<B>,
    ) -> Answer
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
        let answer = match self.handle(&peer, request).await {
            Ok(answer) => answer,
            Err(fault) => {
                let who = (*peer).as_ref().map_or("?", |p| p.common_name.as_str());
                let message = printable(&fault.to_string());
                tracing::warn!(
                    runtime = shorten(who),
                    reason = fault.label(),
                    error = message,
                    "request refused"
                );
                self.metrics.refused.with_label_values(&[fault.label()]).inc();
                error_answer(&fault, message)
            }
        };
        self.metrics.answered(endpoint, answer.status());
        answer
    }

    async fn handle<B>(
        &self,
        peer: &Result<PeerIdentity, IdentityError>,
        request: Request<B>,
    ) -> Result<Answer, Fault>
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
        let runtime = self.identify(peer)?;
        match manager {
            None => {
                let bytes = read(&parts, body, limits::V3_BODY_BYTES).await?;
                self.take_v3(&runtime, &bytes).await
            }
            Some(manager) => {
                self.check_manager(manager)?;
                let bytes = read(&parts, body, limits::V2_BODY_BYTES).await?;
                self.take_v2(&runtime, &bytes)
            }
        }
    }

    fn identify(&self, peer: &Result<PeerIdentity, IdentityError>) -> Result<Runtime, Refusal> {
        let peer = peer.as_ref().map_err(|e| Refusal::from(*e))?;
        let lookup = self.engine.state().read().runtime(&peer.common_name);
        identify(peer, lookup)
    }

    fn check_manager(&self, manager: &str) -> Result<(), Fault> {
        if manager == OWN_MANAGER {
            Ok(())
        } else if self.engine.state().read().has_manager(manager) {
            Err(Fault::NotForwarded(shorten(manager).to_owned()))
        } else {
            Err(Fault::UnknownManager(shorten(manager).to_owned()))
        }
    }

    async fn take_v3(&self, runtime: &Runtime, body: &[u8]) -> Result<Answer, Fault> {
        let request: v3::Request =
            serde_json::from_slice(body).map_err(|e| Fault::Malformed(e.to_string()))?;
        request.check().map_err(|e| Fault::Malformed(e.to_string()))?;
        let resync = self.deliveries.must_resync(&runtime.kyma, &runtime.id, &request);
        self.metrics.reported(&request.reconciled_ms);
        let received = self.deliveries.receive(&runtime.id, &request);
        for index in received.fresh {
            if let Some(event) = request.events.get(index) {
                self.take_event(runtime, &request, event);
            }
        }
        if received.overloaded {
            self.metrics.overloads.inc();
        } else if resync {
            tracing::info!(runtime = runtime.id, "the agent has to report everything again");
            self.metrics.resyncs.inc();
        } else if request.poll {
            let news = self.deliveries.news(&runtime.id, request.epoch, &request.awaiting);
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep(Duration::from_secs(limits::POLL_SECONDS)) => {}
                () = self.drain.signaled() => {}
            }
        }
        let answer = self.deliveries.answer(&runtime.id, &request, received.overloaded);
        Ok(json_answer(&v3::Response { resync, ..answer }))
    }

    fn take_event(&self, runtime: &Runtime, request: &v3::Request, event: &v3::Event) {
        let object = route::object(&event.group, &event.version, &event.kind, &event.namespace, &event.name);
        let state = self.engine.state().read();
        let targets = match event.change {
            v3::Change::Resync => route::targets_of_kind(&runtime.kyma, &event.group, &event.kind, &state),
            v3::Change::Changed | v3::Change::Gone => route::targets(&runtime.kyma, &object, &state),
        };
        drop(state);
        if targets.is_empty() {
            self.deliveries.done_at_once(&runtime.id, request.epoch, event.seq);
            self.metrics.event("v3", Some(event.change), Fate::Unowned);
            return;
        }
        self.metrics.event("v3", Some(event.change), Fate::Queued);
        let guards = self.deliveries.hold(&runtime.id, request.epoch, event.seq, targets.len());
        for (key, guard) in targets.into_iter().zip(guards) {
            let cause = Cause::Event {
                epoch: request.epoch.to_string(),
                seq: event.seq.0,
                watch: event.watch.clone(),
                object: object.to_string(),
            };
            tracing::debug!(runtime = runtime.id, seq = event.seq.0, %object, %key, "event queued");
            let push =
                Push { class: Class::UserEdit, cause: Some(cause), guards: vec![Box::new(guard) as _] };
            self.engine.queue().push(key, push);
        }
    }

    fn take_v2(&self, runtime: &Runtime, body: &[u8]) -> Result<Answer, Fault> {
        let event: v2::WatchEvent =
            serde_json::from_slice(body).map_err(|e| Fault::Malformed(e.to_string()))?;
        let gvk = &event.watched_gvk;
        let object =
            route::object(&gvk.group, &gvk.version, &gvk.kind, &event.watched.namespace, &event.watched.name);
        let targets = route::targets(&runtime.kyma, &object, &self.engine.state().read());
        let fate = if targets.is_empty() { Fate::Unowned } else { Fate::Queued };
        self.metrics.event("v2", None, fate);
        for key in targets {
            let cause =
                Cause::Event { epoch: "v2".into(), seq: 0, watch: "v2".into(), object: object.to_string() };
            let push = Push { class: Class::UserEdit, cause: Some(cause), guards: Vec::new() };
            self.engine.queue().push(key.clone(), push);
            self.engine.queue().look_again(key, Class::UserEdit, SECOND_LOOK);
        }
        Ok(Response::new(Full::new(Bytes::new())))
    }
}

/// The one place where a body is read: never more than `limit` bytes of it are kept.
#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn read<B>(parts: &Parts, body: B, limit: usize) -> Result<Bytes, Fault>
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
        match tokio::time::timeout(BODY, Limited::new(body.as_mut(), limit).collect()).await {
            Ok(Ok(body)) => return Ok(body.to_bytes()),
            Ok(Err(error)) => error.is::<LengthLimitError>(),
            Err(_) => return Err(Fault::Slow),
        }
    };
    if !too_large {
        return Err(Fault::Broken);
    }
    // HTTP/2 ends one stream. HTTP/1 has to close the connection, which would reset it under a peer that writes.
    if parts.version < Version::HTTP_2 {
        let _all_or_enough = tokio::time::timeout(SKIP.1, skip(body, SKIP.0)).await;
    }
    Err(Fault::TooLarge(limit))
}

/// Throws away what comes, until the end or until it was `most` bytes.
async fn skip<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, most: usize) {
    let mut skipped = 0;
    while let Some(Ok(frame)) = body.as_mut().frame().await {
        skipped += frame.data_ref().map_or(0, Bytes::len);
        if skipped > most {
            return;
        }
    }
}

/// At most 64 characters of what a peer has sent, for logs and answers.
fn shorten(text: &str) -> &str {
    text.char_indices().nth(64).map_or(text, |(end, _)| &text[..end])
}

/// A message for a log line and an answer. Parsers quote what they were given, at any length and with whatever is in
/// it.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}

fn json_answer(body: &impl serde::Serialize) -> Answer {
    let mut answer = Response::new(Full::new(serde_json::to_vec(body).unwrap_or_default().into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn error_answer(fault: &Fault, message: String) -> Answer {
    let mut answer = json_answer(&ErrorBody { error: fault.label().replace('_', "-"), message });
    *answer.status_mut() = fault.status();
    if matches!(fault, Fault::Method) {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn parts(version: Version) -> Parts {
        Request::builder().version(version).body(()).unwrap().into_parts().0
    }

    fn pieces(count: usize) -> impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>> {
        stream::repeat(Bytes::from_static(&[b' '; 1024])).take(count).map(|piece| Ok(Frame::data(piece)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_left() {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            // Stops: after the deadline.
            let body = StreamBody::new(pieces(3).chain(stream::pending()));
            let begun = tokio::time::Instant::now();
            let fault = read(&parts(version), body, 10_000).await.unwrap_err();
            assert_eq!((fault.label(), begun.elapsed()), ("slow_body", BODY));

            // Goes on too long and then stops: the answer is not held up for much longer.
            let body = StreamBody::new(pieces(20).chain(stream::pending()));
            let fault = read(&parts(version), body, 10_000).await.unwrap_err();
            assert_eq!(fault.label(), "too_large");
            assert!(begun.elapsed() <= BODY + SKIP.1);

            // Never stops: left after the limit and what is skipped.
            let body = StreamBody::new(pieces(usize::MAX));
            let fault = read(&parts(version), body, 10_000).await.unwrap_err();
            assert_eq!(fault.label(), "too_large");
        }
    }

    #[test]
    fn what_a_peer_has_sent_stays_on_one_short_line() {
        assert_eq!(printable("a\r\n\u{1b}[31mb"), "a   [31mb");
        assert_eq!(printable(&"ä".repeat(1000)).chars().count(), MAX_MESSAGE);
    }
}
