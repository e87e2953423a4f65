//! Simulated control plane with backups and an unreliable client.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Weak},
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tidewatch_engine::WorkKey;
use tidewatch_wire::SessionId;

use crate::{
    oracle::Object,
    step::{Kind, Point},
    world::{Process, RECEIVERS, RUNTIMES, World},
};

/// Bytes.
const MAX_BODY: usize = 64 * 1024;
pub(crate) const NAMESPACE: &str = "control";

#[derive(Clone, Debug, Default)]
struct Backup {
    sessions: Option<Value>,
    failed: BTreeMap<WorkKey, Vec<(Object, u64)>>,
}

#[derive(Debug, Default)]
pub(crate) struct Control {
    /// ConfigMap of the sessions.
    sessions: Option<Value>,
    version: u64,
    backup: Backup,
}

impl Control {
    fn read(&self) -> (StatusCode, Value) {
        self.sessions.clone().map_or_else(|| refused(StatusCode::NOT_FOUND), |map| (StatusCode::OK, map))
    }

    fn write(&mut self, mut map: Value, replaces: bool) -> (StatusCode, Value) {
        let version = |map: &Value| map["metadata"]["resourceVersion"].clone();
        match &self.sessions {
            Some(_) if !replaces => return refused(StatusCode::CONFLICT),
            None if replaces => return refused(StatusCode::NOT_FOUND),
            Some(now) if version(now) != version(&map) => return refused(StatusCode::CONFLICT),
            _ => {}
        }
        self.version += 1;
        map["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.sessions = Some(map.clone());
        (StatusCode::OK, map)
    }
}

impl Backup {
    /// Whether the session is recorded, with at least this mark.
    fn knows(&self, session: SessionId, mark: u64) -> bool {
        let list = self.sessions.as_ref().and_then(|map| map["data"]["sessions.json"].as_str());
        let list: Vec<Value> = list.and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
        let session = session.to_string();
        list.iter().any(|one| one["session"] == session.as_str() && one["mark"].as_u64() >= Some(mark))
    }
}

fn refused(status: StatusCode) -> (StatusCode, Value) {
    let reason = match status {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::CONFLICT => "Conflict",
        _ => "InternalError",
    };
    let status_body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "simulated",
        "reason": reason, "code": status.as_u16() });
    (status, status_body)
}

pub(crate) fn client(world: &Arc<World>, receiver: usize) -> Client {
    let world = Arc::downgrade(world);
    let service = tower::service_fn(move |request: Request<Body>| {
        let world = Weak::clone(&world);
        async move {
            let (status, body) = match world.upgrade() {
                Some(world) => answer(&world, receiver, request).await,
                None => refused(StatusCode::SERVICE_UNAVAILABLE),
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, NAMESPACE)
}

async fn answer(world: &Arc<World>, receiver: usize, request: Request<Body>) -> (StatusCode, Value) {
    let (parts, body) = request.into_parts();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return refused(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let (delay, again) = {
        let rng = &mut world.lock().rng;
        (rng.millis(1, 100), rng.millis(1, 100))
    };
    tokio::time::sleep(delay).await;
    if world.happens(receiver, Kind::RequestLost, 50) {
        return std::future::pending().await;
    }
    let process = Process::Receiver(receiver);
    let writes = parts.method != Method::GET;
    if writes {
        world.point(Point::Recording, process, 30).await;
    }
    let answer = {
        let control = &mut world.lock().control;
        match serde_json::from_slice(&body.to_bytes()) {
            Ok(map) if writes => control.write(map, parts.method == Method::PUT),
            _ if writes => refused(StatusCode::BAD_REQUEST),
            _ => control.read(),
        }
    };
    if world.happens(receiver, Kind::AnswerLost, 50) {
        return std::future::pending().await;
    }
    tokio::time::sleep(again).await;
    if writes {
        world.point(Point::Recorded, process, 30).await;
    }
    world.step(Kind::Delivered, receiver, u64::from(answer.0.as_u16()));
    answer
}

impl World {
    pub(crate) fn back_up_control_plane(&self) {
        let mut state = self.lock();
        let (sessions, failed) = (state.control.sessions.clone(), state.oracle.persisted());
        state.control.backup = Backup { sessions, failed };
    }

    /// Restores the backup. If `ends`, also kills the receivers; else they run until they detect it.
    ///
    /// Agents that know more than the backup resync. Elsewhere, a safety resync reveals later failures.
    ///
    /// If a running receiver has recorded nothing since the backup, no agent resyncs.
    pub(crate) fn restore_control_plane(self: &Arc<Self>, ends: bool) {
        {
            let mut state = self.lock();
            let state = &mut *state;
            let mut backup = state.control.backup.clone();
            let failed = std::mem::take(&mut backup.failed);
            let goes_on = |number: usize| state.receivers.get(number).and_then(Option::as_ref);
            let unnoticed = !ends
                && (0..RECEIVERS).filter_map(goes_on).any(|one| {
                    let (session, mark) = one.recorded();
                    backup.knows(session, mark)
                });
            let within = |runtime: usize| {
                let last = state.runtimes[runtime].last_answer;
                unnoticed || last.is_some_and(|last| backup.knows(last.session, last.mark))
            };
            for runtime in 0..RUNTIMES {
                let counts = &mut state.trace.counts;
                *(if within(runtime) { &mut counts.within } else { &mut counts.beyond }) += 1;
            }
            state.oracle.restored(failed, within);
            state.control.version += 1;
            state.control.sessions = backup.sessions.map(|mut map| {
                map["metadata"]["resourceVersion"] = state.control.version.to_string().into();
                map
            });
        }
        for number in (0..RECEIVERS).filter(|_| ends) {
            self.crash(Point::ReceiverAnywhere, Process::Receiver(number));
        }
    }
}
