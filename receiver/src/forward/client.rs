//! Bounded requests to a manager's service.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tidewatch_tls::xfcc;
use tidewatch_wire::v2;
use tokio::net::TcpStream;

use super::{lane::Ended, target::Target};

/// Bytes read only to reuse the connection.
const BODY: usize = 4 * 1024;
const BODY_TIME: Duration = Duration::from_millis(250);
const HEAD: usize = 16 * 1024;
const HEADERS: usize = 64;
/// Connections kept for reuse.
const IDLE: usize = 8;

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// HTTP 200.
    Taken,
    /// Another status.
    Status(u16),
    /// No connection.
    Unreachable,
    /// Broken connection or no HTTP.
    Broken,
    /// No response in time.
    Timeout,
}

impl Sent {
    /// Returns the metrics label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Status(_) => "status",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }

    /// Returns the lane's view of the result.
    pub const fn ended(self) -> Ended {
        match self {
            Self::Taken => Ended::Taken,
            Self::Status(_) => Ended::Answered,
            Self::Unreachable | Self::Broken | Self::Timeout => Ended::Silent,
        }
    }
}

/// Polled only by its request: an idle one needs no task.
struct Connection {
    requests: http1::SendRequest<Full<Bytes>>,
    driver: Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
    ended: bool,
}

impl Connection {
    async fn open(address: &str) -> Result<Self, Sent> {
        let stream = TcpStream::connect(address).await.map_err(|_| Sent::Unreachable)?;
        let _ = stream.set_nodelay(true);
        let (requests, driver) = http1::Builder::new()
            .max_buf_size(HEAD)
            .max_headers(HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Sent::Broken)?;
        Ok(Self { requests, driver: Box::pin(driver), ended: false })
    }

    /// Cancel-safe if `work` is.
    async fn drive<T>(
        driver: &mut Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
        ended: &mut bool,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            if !*ended && driver.as_mut().poll(context).is_ready() {
                *ended = true;
                return work.as_mut().poll(context);
            }
            Poll::Pending
        })
        .await
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Sent> {
        let Self { requests, driver, ended } = self;
        let work = async {
            requests.ready().await?;
            requests.send_request(request).await
        };
        Self::drive(driver, ended, work).await.map_err(|_| Sent::Broken)
    }

    /// Returns whether the connection is reusable.
    async fn rest(&mut self, mut body: Incoming) -> bool {
        let Self { requests, driver, ended } = self;
        let work = async {
            let mut read = 0;
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > BODY {
                    return false;
                }
            }
            body.is_end_stream() && requests.ready().await.is_ok()
        };
        let drained = tokio::time::timeout(BODY_TIME, Self::drive(driver, ended, work)).await;
        drained.unwrap_or(false) && !*ended
    }
}

/// A client of one service.
pub struct Client {
    target: Arc<Target>,
    deadline: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    /// Creates a client; `deadline` lasts until the response's head.
    pub fn new(target: Arc<Target>, deadline: Duration) -> Self {
        Self { target, deadline, idle: Mutex::default() }
    }

    /// Returns the service.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Sends an event. `certificate`: value of [`xfcc::HEADER`].
    pub async fn send(&self, event: &v2::WatchEvent, certificate: &HeaderValue) -> Sent {
        let sent = tokio::time::timeout(self.deadline, self.send_now(event, certificate)).await;
        let (mut connection, body, status) = match sent {
            Ok(Ok(answer)) => answer,
            Ok(Err(failure)) => return failure,
            Err(_) => return Sent::Timeout,
        };
        if connection.rest(body).await {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE {
                idle.push(connection);
            }
        }
        // Never follow redirects.
        if status == StatusCode::OK { Sent::Taken } else { Sent::Status(status.as_u16()) }
    }

    async fn send_now(
        &self,
        event: &v2::WatchEvent,
        certificate: &HeaderValue,
    ) -> Result<(Connection, Incoming, StatusCode), Sent> {
        // The service may have closed an idle connection: retry once. Services accept duplicates.
        let kept = self.idle.lock().pop();
        if let Some(mut connection) = kept
            && let Ok(answer) = connection.exchange(self.request(event, certificate)?).await
        {
            let status = answer.status();
            return Ok((connection, answer.into_body(), status));
        }
        let mut connection = Connection::open(&self.target.address).await?;
        let answer = connection.exchange(self.request(event, certificate)?).await?;
        let status = answer.status();
        Ok((connection, answer.into_body(), status))
    }

    fn request(
        &self,
        event: &v2::WatchEvent,
        certificate: &HeaderValue,
    ) -> Result<Request<Full<Bytes>>, Sent> {
        let body = serde_json::to_vec(event).map_err(|_| Sent::Broken)?;
        Request::builder()
            .method(Method::POST)
            .uri(self.target.path())
            .header(header::HOST, self.target.host())
            .header(header::CONTENT_TYPE, "application/json")
            .header(xfcc::HEADER, certificate)
            .body(Full::new(body.into()))
            .map_err(|_| Sent::Broken)
    }
}
