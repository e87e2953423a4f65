//! Watch bodies.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    accept::{Form, metadata_of},
    answer::{Body, JSON, Look},
    handle::Dropped,
    hosted::Hosted,
    table::table,
};
use crate::{
    faults::Fault,
    object::meta,
    store::{Refusal, Said, WatchEvent, Watching},
};

/// Events per chunk.
const AT_ONCE: usize = 64;
/// Bookmark interval.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// Default and maximum duration.
const LONGEST: Duration = Duration::from_mins(45);

struct State {
    hosted: Arc<Hosted>,
    watching: Watching,
    changed: watch::Receiver<u64>,
    interrupted: watch::Receiver<u64>,
    /// Sends nothing and stays open.
    silent: bool,
    look: Look,
    clock: fn() -> Timestamp,
    ends: Instant,
    bookmark: Instant,
    fault: Option<(Instant, Fault)>,
    with_columns: bool,
    over: bool,
}

pub(crate) fn response(
    hosted: Arc<Hosted>,
    watching: Watching,
    look: Look,
    clock: fn() -> Timestamp,
    fault: &Fault,
) -> Response<Body> {
    let now = Instant::now();
    let lasts = watching.timeout_seconds.map_or(LONGEST, Duration::from_secs).min(LONGEST);
    let fault = match fault {
        Fault::Silent(after) | Fault::BreakOff(after) | Fault::Expire(after) => {
            Some((now + *after, fault.clone()))
        }
        _ => None,
    };
    let (changed, interrupted) = (hosted.changes(), hosted.interruptions());
    let state = State {
        hosted,
        watching,
        changed,
        interrupted,
        silent: false,
        look,
        clock,
        ends: now + lasts,
        bookmark: now + BOOKMARK_EVERY,
        fault,
        with_columns: true,
        over: false,
    };
    let pieces = stream::unfold(state, |mut state| async {
        let piece = state.next().await?;
        Some((Ok(Frame::data(piece)), state))
    });
    let mut response = Response::new(StreamBody::new(pieces.boxed()).boxed_unsync());
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(JSON));
    response
}

impl State {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            if self.silent {
                _ = self.interrupted.changed().await;
                return None;
            }
            self.changed.borrow_and_update();
            let events = self.hosted.with(|cluster| cluster.poll(&mut self.watching, AT_ONCE));
            if !events.is_empty() {
                self.over = events.iter().any(|event| event.said == Said::Error);
                return Some(self.written(events));
            }
            let fault_at = self.fault.as_ref().map_or(self.ends + LONGEST, |(at, _)| *at);
            tokio::select! {
                biased;
                _ = self.interrupted.changed() => return None,
                () = sleep_until(fault_at) => match self.fault.take() {
                    Some((_, Fault::Silent(_))) => self.silent = true,
                    Some((_, Fault::Expire(_))) => {
                        self.over = true;
                        let object = Refusal::expired("too old resource version").body();
                        return Some(self.written([WatchEvent { said: Said::Error, object }]));
                    }
                    _ => return None,
                },
                () = sleep_until(self.ends) => return None,
                changed = self.changed.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = sleep_until(self.bookmark), if self.watching.bookmarks => {
                    self.bookmark += BOOKMARK_EVERY;
                    let mark = self.watching.bookmark();
                    return Some(self.written([mark]));
                }
            }
        }
    }

    fn written(&mut self, events: impl IntoIterator<Item = WatchEvent>) -> Bytes {
        let mut text = String::new();
        for event in events {
            let said = event.said.name().into();
            let event = meta::object([("type", said), ("object", self.shown(event))]);
            text.push_str(&event.to_string());
            text.push('\n');
        }
        Bytes::from(text)
    }

    fn shown(&mut self, event: WatchEvent) -> Value {
        if event.said == Said::Error {
            return event.object;
        }
        match self.look.form {
            Form::Table => {
                let metadata = json!({"resourceVersion": event.object.pointer("/metadata/resourceVersion")});
                let with_columns = std::mem::take(&mut self.with_columns);
                let items = std::slice::from_ref(&event.object);
                let now = self.hosted.now((self.clock)());
                table(&self.watching.kind, items, metadata, self.look, with_columns, now)
            }
            Form::Metadata | Form::MetadataList => metadata_of(event.object, self.look.version),
            _ => event.object,
        }
    }
}

/// Hangs until interrupted.
pub(crate) async fn hang(mut interrupted: watch::Receiver<u64>) -> Result<Response<Body>, Dropped> {
    // Error: the cluster is gone.
    _ = interrupted.changed().await;
    Err(Dropped)
}
