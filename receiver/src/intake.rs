//! Requests of agents: paths, bodies and answers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
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
                tracing::warn!(runtime = shorten(who), reason = fault.label(), error = %fault, "request refused");
                self.metrics.refused.with_label_values(&[fault.label()]).inc();
                error_answer(&fault)
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
                let bytes = read(&parts.headers, body, limits::V3_BODY_BYTES).await?;
                self.take_v3(&runtime, &bytes).await
            }
            Some(manager) => {
                self.check_manager(manager)?;
                let bytes = read(&parts.headers, body, limits::V2_BODY_BYTES).await?;
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
        let received = self.deliveries.receive(&runtime.id, &request);
        for index in received.fresh {
            if let Some(event) = request.events.get(index) {
                self.take_event(runtime, &request, event);
            }
        }
        if received.overloaded {
            self.metrics.overloads.inc();
        } else if request.poll {
            let news = self.deliveries.news(&runtime.id, request.epoch, &request.awaiting);
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep(Duration::from_secs(limits::POLL_SECONDS)) => {}
                () = self.drain.signaled() => {}
            }
        }
        Ok(json_answer(&self.deliveries.answer(&runtime.id, &request, received.overloaded)))
    }

    fn take_event(&self, runtime: &Runtime, request: &v3::Request, event: &v3::Event) {
        let object = route::object(&event.group, &event.version, &event.kind, &event.namespace, &event.name);
        let targets = route::targets(&runtime.kyma, &object, &self.engine.state().read());
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

/// The one place where a body is read: never more than `limit` bytes of it.
#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn read<B>(headers: &http::HeaderMap, body: B, limit: usize) -> Result<Bytes, Fault>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit as u64) {
        return Err(Fault::TooLarge(limit));
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Fault::TooLarge(limit)),
        Err(_) => Err(Fault::Broken),
    }
}

/// At most 64 characters of what a peer has sent, for logs and answers.
fn shorten(text: &str) -> &str {
    text.char_indices().nth(64).map_or(text, |(end, _)| &text[..end])
}

fn json_answer(body: &impl serde::Serialize) -> Answer {
    let mut answer = Response::new(Full::new(serde_json::to_vec(body).unwrap_or_default().into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn error_answer(fault: &Fault) -> Answer {
    let mut answer =
        json_answer(&ErrorBody { error: fault.label().replace('_', "-"), message: fault.to_string() });
    *answer.status_mut() = fault.status();
    if matches!(fault, Fault::Method) {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    answer
}
