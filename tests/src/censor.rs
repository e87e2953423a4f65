//! An HTTP proxy that drops watch events and passes everything else.
//!
//! The client's side is plain HTTP, so the proxy can read it. The proxy connects to the API server as its own
//! user.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet};

/// Request limit in bytes. An agent's requests are small.
const MAX_BODY: usize = 1024 * 1024;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;
type Forbidden = Arc<Mutex<Vec<String>>>;

/// The proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Censor {
    url: String,
    forbidden: Forbidden,
    once: Forbidden,
    swallowed: Arc<Mutex<usize>>,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Rules {
    client: Client,
    forbidden: Forbidden,
    once: Forbidden,
    swallowed: Arc<Mutex<usize>>,
}

impl Censor {
    /// Starts a proxy that drops nothing and connects as `client`.
    ///
    /// # Errors If it cannot listen on 127.0.0.1.
    pub async fn before(client: Client) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot bind 127.0.0.1")?;
        let address = listener.local_addr().context("a bound socket has no address")?;
        let rules = Rules {
            client,
            forbidden: Forbidden::default(),
            once: Forbidden::default(),
            swallowed: Arc::default(),
        };
        let (forbidden, once) = (Arc::clone(&rules.forbidden), Arc::clone(&rules.once));
        let swallowed = Arc::clone(&rules.swallowed);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let rules = rules.clone();
                let service = service_fn(move |request| {
                    let rules = rules.clone();
                    async move { Ok::<_, Infallible>(carry(request, rules).await) }
                });
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move { drop(served.await) });
            }
        });
        Ok(Self { url: format!("http://{address}"), forbidden, once, swallowed, _tasks: tasks })
    }

    /// Returns the proxy's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Drops all watch events about objects of this name.
    pub fn forbid(&self, name: &str) {
        self.forbidden.lock().push(named(name));
    }

    /// Drops the next watch event about an object of this name. A new request returns the object.
    pub fn forbid_once(&self, name: &str) {
        self.once.lock().push(named(name));
    }

    /// Returns the number of dropped events.
    pub fn swallowed(&self) -> usize {
        *self.swallowed.lock()
    }
}

/// The name as it appears in an event.
fn named(name: &str) -> String {
    format!("\"name\":\"{name}\"")
}

async fn carry(request: Request<Incoming>, rules: Rules) -> Answer {
    match pass(request, &rules).await {
        Ok(answer) => answer,
        Err(error) => {
            let body = Full::new(Bytes::from(format!("{error:#}"))).map_err(|never| match never {});
            let mut answer = Response::new(body.boxed_unsync());
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            answer
        }
    }
}

async fn pass(request: Request<Incoming>, rules: &Rules) -> Result<Answer> {
    let (mut parts, body) = request.into_parts();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(body, MAX_BODY).collect().await;
    let body = read.map_err(|error| anyhow::anyhow!("the request's body: {error}"))?.to_bytes();
    for own in [header::AUTHORIZATION, header::HOST, header::CONTENT_LENGTH, header::ACCEPT_ENCODING] {
        parts.headers.remove(own);
    }
    let target = parts.uri.path_and_query().context("a request without a path")?.to_string();
    parts.uri = target.parse()?;
    let watch = target.contains("watch=true");
    let answer = rules.client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await?;
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    let data = body.into_data_stream().map_err(std::io::Error::other);
    let data: Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>> =
        if watch { Box::pin(censored(data, rules.clone())) } else { Box::pin(data) };
    Ok(Response::from_parts(parts, StreamBody::new(data.map_ok(Frame::data)).boxed_unsync()))
}

/// Each line is one event.
fn censored(
    data: impl Stream<Item = std::io::Result<Bytes>> + Send + Unpin + 'static,
    rules: Rules,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    stream::unfold((data, Vec::new(), rules), |(mut data, mut rest, rules)| async move {
        loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line);
                let mut once = rules.once.lock();
                let the_once =
                    once.iter().position(|name| text.contains(name)).map(|at| once.swap_remove(at));
                drop(once);
                if the_once.is_some() || rules.forbidden.lock().iter().any(|name| text.contains(name)) {
                    *rules.swallowed.lock() += 1;
                    continue;
                }
                return Some((Ok(Bytes::from(line)), (data, rest, rules)));
            }
            match data.next().await? {
                Ok(piece) => rest.extend_from_slice(&piece),
                Err(error) => return Some((Err(error), (data, rest, rules))),
            }
        }
    })
}
