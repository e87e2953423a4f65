//! A layer that records what reconciles call, and a service that answers from a record.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use kube::{Client, client::Body};
use serde_json::Value;
use tower::{BoxError, Layer, Service};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Answer, Ask, Content, Journal, Player, Recorder, current,
    redact::{is_of_secrets, redact},
};
use crate::runtime::TooManyRequests;

/// Largest answer that is recorded, and largest request that is hashed, in bytes; as much as a runtime may answer.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Largest text that is no JSON.
const MAX_TEXT: usize = 64 * 1024;

/// Records the calls that reconciles make through it. Calls of anybody else pass.
#[derive(Clone)]
pub struct Tap {
    journal: Journal,
    to: Arc<str>,
}

impl Tap {
    pub(super) fn new(journal: Journal, to: &str) -> Self {
        Self { journal, to: to.into() }
    }
}

impl<S> Layer<S> for Tap {
    type Service = Tapped<S>;

    fn layer(&self, inner: S) -> Tapped<S> {
        Tapped { inner, tap: self.clone() }
    }
}

/// A service whose calls are recorded.
#[derive(Clone)]
pub struct Tapped<S> {
    inner: S,
    tap: Tap,
}

impl<S, B> Service<Request<Body>> for Tapped<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Tee<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(recorder) = self.tap.journal.recorder().cloned() else {
            let answer = self.inner.call(request);
            return Box::pin(async move { Ok(answer.await.map_err(Into::into)?.map(Tee::plain)) });
        };
        let (ask, request) = ask_of(&self.tap.to, request);
        let answer = self.inner.call(request);
        // Polled by whoever waits for the answer, which is the reconcile.
        Box::pin(async move {
            let Some(work) = current() else { return Ok(answer.await.map_err(Into::into)?.map(Tee::plain)) };
            let secrets = is_of_secrets(&ask.path);
            let mut open = Open::new(recorder, Ask { work, ..ask }, secrets);
            match answer.await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    Ok(answer.map(|body| Tee::recorded(body, status, open)))
                }
                Err(error) => {
                    let error = error.into();
                    open.end(failure(&*error));
                    Err(error)
                }
            }
        })
    }
}

/// A request, as it is recorded, and the request itself. What reconciles send is in memory.
fn ask_of(to: &str, request: Request<Body>) -> (Ask, Request<Body>) {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(body, MAX_BODY).collect().now_or_never();
    let bytes = match read {
        Some(Ok(read)) => read.to_bytes(),
        // Not ours: nobody here sends a stream, or that much.
        Some(Err(_)) | None => Bytes::new(),
    };
    let body = (!bytes.is_empty()).then(|| hash(&path, &bytes));
    let ask =
        Ask { call: 0, work: 0, to: to.to_owned(), method: head.method.as_str().to_owned(), path, body };
    (ask, Request::from_parts(head, Body::from(bytes.to_vec())))
}

/// Tells requests apart, without the data of Secrets.
fn hash(path: &str, bytes: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(bytes) {
        Ok(mut value) => {
            redact(&mut value, is_of_secrets(path));
            value.to_string().into_bytes()
        }
        Err(_) => bytes.to_vec(),
    };
    format!("{:016x}", xxh3_64(&text))
}

fn failure(error: &(dyn Error + 'static)) -> Answer {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LengthLimitError>() {
            return Answer::TooLarge;
        }
        if let Some(throttled) = error.downcast_ref::<TooManyRequests>() {
            let retry_after = throttled.retry_after.map(super::millis);
            return Answer::Throttled { retry_after };
        }
        next = error.source();
    }
    // As it will be told of: a replay has no sources to leave steps out of.
    Answer::Failed { message: crate::drive::chain(crate::drive::without_steps(error)) }
}

/// A call without an answer. Dropped, it is cut.
struct Open {
    recorder: Recorder,
    call: u64,
    secrets: bool,
    ended: bool,
}

impl Open {
    fn new(recorder: Recorder, ask: Ask, secrets: bool) -> Self {
        let call = recorder.ask(ask);
        Self { recorder, call, secrets, ended: false }
    }

    fn end(&mut self, answer: Answer) {
        if !std::mem::replace(&mut self.ended, true) {
            self.recorder.note(super::Line::Answer { call: self.call, answer });
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(Answer::Cut);
    }
}

/// An answer's body that is recorded on its way.
pub struct Tee<B> {
    inner: B,
    kept: Option<Kept>,
}

struct Kept {
    open: Open,
    status: u16,
    bytes: Vec<u8>,
}

impl<B: http_body::Body> Tee<B> {
    fn plain(inner: B) -> Self {
        Self { inner, kept: None }
    }

    fn recorded(inner: B, status: u16, open: Open) -> Self {
        let mut tee = Self { inner, kept: Some(Kept { open, status, bytes: Vec::new() }) };
        if tee.inner.is_end_stream() {
            tee.finish();
        }
        tee
    }

    fn finish(&mut self) {
        if let Some(Kept { mut open, status, bytes }) = self.kept.take() {
            let body = content(bytes, open.secrets);
            open.end(Answer::Status { status, body });
        }
    }
}

fn content(bytes: Vec<u8>, secrets: bool) -> Content {
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut value) => {
            redact(&mut value, secrets);
            Content::Json(value)
        }
        // What is cut off may still show what it begins with.
        Err(_) if secrets => Content::Text(String::new()),
        Err(_) => {
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            text.truncate(text.floor_char_boundary(MAX_TEXT));
            Content::Text(text)
        }
    }
}

impl<B> http_body::Body for Tee<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(context));
        match frame {
            None => {
                this.finish();
                Poll::Ready(None)
            }
            Some(Ok(frame)) => {
                if let (Some(kept), Some(data)) = (&mut this.kept, frame.data_ref()) {
                    if kept.bytes.len() + data.len() > MAX_BODY {
                        kept.open.end(Answer::TooLarge);
                        this.kept = None;
                    } else {
                        kept.bytes.extend_from_slice(data);
                    }
                }
                if this.inner.is_end_stream() {
                    this.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let error = error.into();
                if let Some(mut kept) = this.kept.take() {
                    kept.open.end(failure(&*error));
                }
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

/// A call that failed in the record.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failed(String);

/// A client that a record answers.
pub(super) fn played(player: &Arc<dyn Player>, to: &str, namespace: &str) -> Client {
    let (player, to): (_, Arc<str>) = (Arc::clone(player), to.into());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (player, to) = (Arc::clone(&player), Arc::clone(&to));
        async move {
            let (ask, _) = ask_of(&to, request);
            let answer = player.ask(Ask { work: current().unwrap_or_default(), ..ask }).await;
            response(answer).await
        }
    });
    Client::new(service, namespace)
}

async fn response(answer: Answer) -> Result<Response<Limited<Full<Bytes>>>, BoxError> {
    match answer {
        Answer::Status { status, body } => {
            let text = match body {
                Content::Json(value) => value.to_string(),
                Content::Text(text) => text,
            };
            let size = text.len();
            let mut response = Response::new(Limited::new(Full::from(text), size));
            *response.status_mut() = StatusCode::from_u16(status)?;
            Ok(response)
        }
        Answer::Failed { message } => Err(Failed(message).into()),
        Answer::Throttled { retry_after } => {
            let retry_after = retry_after.map(Duration::from_millis);
            Err(TooManyRequests { retry_after }.into())
        }
        Answer::TooLarge => Ok(Response::new(Limited::new(Full::from("too large"), 0))),
        Answer::Cut => std::future::pending().await,
    }
}
