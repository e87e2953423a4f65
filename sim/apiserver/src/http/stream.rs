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
    accept::{Form, JSON},
    answer::Body,
    error::Dropped,
    hosted::Hosted,
    representation::{Representation, metadata_of},
    table::table,
};
use crate::{
    faults::Fault,
    object::meta,
    store::{EventType, Refusal, WatchEvent, Watching},
};

/// Events per chunk.
const MAX_EVENTS: usize = 64;
/// Bookmark interval.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// Default and maximum duration.
const MAX_DURATION: Duration = Duration::from_mins(45);

struct State {
    hosted: Arc<Hosted>,
    watching: Watching,
    changed: watch::Receiver<u64>,
    interrupted: watch::Receiver<u64>,
    /// Sends nothing and stays open.
    silent: bool,
    representation: Representation,
    clock: fn() -> Timestamp,
    ends: Instant,
    bookmark: Instant,
    fault: Option<(Instant, Fault)>,
    with_columns: bool,
    is_over: bool,
}

pub(crate) fn response(
    hosted: Arc<Hosted>,
    watching: Watching,
    representation: Representation,
    clock: fn() -> Timestamp,
    fault: &Fault,
) -> Response<Body> {
    let now = Instant::now();
    let duration = watching.timeout_seconds.map_or(MAX_DURATION, Duration::from_secs).min(MAX_DURATION);
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
        representation,
        clock,
        ends: now + duration,
        bookmark: now + BOOKMARK_EVERY,
        fault,
        with_columns: true,
        is_over: false,
    };
    let chunks = stream::unfold(state, |mut state| async {
        let chunk = state.next().await?;
        Some((Ok(Frame::data(chunk)), state))
    });
    let mut response = Response::new(StreamBody::new(chunks.boxed()).boxed_unsync());
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(JSON));
    response
}

impl State {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            if self.silent {
                _ = self.interrupted.changed().await;
                return None;
            }
            self.changed.borrow_and_update();
            let events = self.hosted.with(|cluster| cluster.poll(&mut self.watching, MAX_EVENTS));
            if !events.is_empty() {
                self.is_over = events.iter().any(|event| event.event_type == EventType::Error);
                return Some(self.serialize(events));
            }
            let fault_at = self.fault.as_ref().map_or(self.ends + MAX_DURATION, |(at, _)| *at);
            tokio::select! {
                biased;
                _ = self.interrupted.changed() => return None,
                () = sleep_until(fault_at) => match self.fault.take() {
                    Some((_, Fault::Silent(_))) => self.silent = true,
                    Some((_, Fault::Expire(_))) => {
                        self.is_over = true;
                        let object = Refusal::expired("too old resource version").body();
                        return Some(self.serialize([WatchEvent { event_type: EventType::Error, object }]));
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
                    let bookmark = self.watching.bookmark();
                    return Some(self.serialize([bookmark]));
                }
            }
        }
    }

    fn serialize(&mut self, events: impl IntoIterator<Item = WatchEvent>) -> Bytes {
        let mut text = String::new();
        for event in events {
            let event_type = event.event_type.name().into();
            let event = meta::object([("type", event_type), ("object", self.represent(event))]);
            text.push_str(&event.to_string());
            text.push('\n');
        }
        Bytes::from(text)
    }

    fn represent(&mut self, event: WatchEvent) -> Value {
        if event.event_type == EventType::Error {
            return event.object;
        }
        match self.representation.form {
            Form::Table => {
                let metadata = json!({"resourceVersion": event.object.pointer("/metadata/resourceVersion")});
                let with_columns = std::mem::take(&mut self.with_columns);
                let items = std::slice::from_ref(&event.object);
                let now = self.hosted.now((self.clock)());
                let representation = Representation { now, ..self.representation };
                table(&self.watching.kind, items, metadata, representation, with_columns)
            }
            Form::Metadata | Form::MetadataList => metadata_of(event.object, self.representation.version),
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
