//! The sessions of this control plane's past, in a ConfigMap of its own, and how far each went.
//!
//! An agent that speaks of a session which is not in it, or of a higher *mark* of that session, was told things that
//! this control plane does not know of: it was restored from a backup. The agent must report everything again.
//!
//! A mark is a number that rises after something was reconciled, and is told to agents when it is recorded. So a backup
//! that lacks what an agent was told lacks the mark, too, from some ten seconds and a heartbeat on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use serde::{Deserialize, Serialize};
use tidewatch_telemetry::chain;
use tidewatch_wire::SessionId;

/// The ConfigMap's name.
pub const NAME: &str = "tidewatch-sessions";
const KEY: &str = "sessions.json";
/// Sessions that are remembered. An agent that was away for more restarts than that reports everything.
const KEPT: usize = 64;
/// For one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two marks; an idle fleet has none.
const MARK_EVERY: Duration = Duration::from_secs(10);

/// The sessions before this one, and the mark of this one. Cheap to clone; empty until [`Sessions::record`] is through.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    past: OnceLock<HashMap<SessionId, u64>>,
    /// What is recorded of this session.
    mark: AtomicU64,
    /// Whether anything was reconciled since that was decided.
    worked: AtomicBool,
}

/// Where a session is recorded.
#[derive(Clone)]
pub struct Place {
    /// The control plane.
    pub client: Client,
    /// Its namespace for Kymas.
    pub namespace: String,
    /// This process's session.
    pub session: SessionId,
}

/// A session and how far it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marked {
    session: SessionId,
    #[serde(default)]
    mark: u64,
}

#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("the ConfigMap {NAME} cannot be read or written")]
    Api(#[source] kube::Error),
    #[error("the control plane did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl RecordError {
    /// Whether the control plane refuses. 409: somebody else has written meanwhile.
    fn is_refusal(&self) -> bool {
        let again = |code: u16| code == 409 || code == 429 || code >= 500;
        matches!(self, Self::Api(kube::Error::Api(status)) if !again(status.code))
    }
}

/// What became of a mark.
enum Outcome {
    Recorded(u64),
    /// The control plane does not know what was recorded there before.
    Restored,
}

impl Sessions {
    /// Whether it is an earlier session of this control plane, and went as far as `mark`.
    pub fn knows(&self, session: SessionId, mark: u64) -> bool {
        self.0.past.get().and_then(|past| past.get(&session)).is_some_and(|recorded| mark <= *recorded)
    }

    /// How far this session is recorded.
    pub fn mark(&self) -> u64 {
        self.0.mark.load(Ordering::Acquire)
    }

    /// Something was reconciled, and what came of it is persisted: the mark rises.
    pub fn worked(&self) {
        self.0.worked.store(true, Ordering::Release);
    }

    /// Reads the past and adds the session to it. Tries until the control plane answers; where it refuses, the past
    /// is unknown, and every agent with one reports everything.
    pub async fn record(&self, place: &Place) {
        let (api, session) = (place.api(), place.session);
        loop {
            let error = match within(append(&api, session)).await {
                Ok(past) => {
                    tracing::info!(%session, past = past.len(), "session recorded");
                    let past = past.into_iter().map(|Marked { session, mark }| (session, mark)).collect();
                    let _ = self.0.past.set(past);
                    return;
                }
                Err(error) => error,
            };
            if error.is_refusal() {
                tracing::error!(error = %chain(&error), "the session is not recorded: agents report everything");
                return;
            }
            tracing::warn!(error = %chain(&error), "the session is not recorded yet; trying again");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Records marks. Returns when the control plane turns out to be a restored one: what was told in this session
    /// means nothing there, so it has to end.
    pub async fn keep(&self, place: &Place) {
        let api = place.api();
        if self.0.past.get().is_none() {
            // Nothing is recorded that a mark could belong to.
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(MARK_EVERY).await;
            if !self.0.worked.swap(false, Ordering::AcqRel) {
                continue;
            }
            match within(raise(&api, place.session, self.mark())).await {
                Ok(Outcome::Recorded(mark)) => self.0.mark.store(mark, Ordering::Release),
                Ok(Outcome::Restored) => {
                    tracing::error!(
                        "the control plane does not know this session any more: it was restored from a backup, or its \
                         ConfigMap {NAME} was changed by hand; ending, to begin with what it knows"
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the session's mark is not recorded; trying again");
                    self.worked();
                }
            }
        }
    }
}

impl Place {
    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

async fn within<T>(ask: impl Future<Output = kube::Result<T>>) -> Result<T, RecordError> {
    match tokio::time::timeout(TIMEOUT, ask).await {
        Ok(answer) => answer.map_err(RecordError::Api),
        Err(_) => Err(RecordError::Timeout),
    }
}

async fn append(api: &Api<ConfigMap>, session: SessionId) -> kube::Result<Vec<Marked>> {
    let found = api.get_opt(NAME).await?;
    let past = found.as_ref().map(parse).unwrap_or_default();
    let mut kept = past.clone();
    kept.retain(|earlier| earlier.session != session);
    kept.drain(..kept.len().saturating_sub(KEPT - 1));
    kept.push(Marked { session, mark: 0 });
    write(api, found.as_ref(), &kept).await?;
    Ok(past)
}

/// Records the mark after `mark`, if the control plane still knows `mark`.
async fn raise(api: &Api<ConfigMap>, session: SessionId, mark: u64) -> kube::Result<Outcome> {
    let found = api.get_opt(NAME).await?;
    let mut kept = found.as_ref().map(parse).unwrap_or_default();
    let Some(next) = raised(&mut kept, session, mark) else { return Ok(Outcome::Restored) };
    write(api, found.as_ref(), &kept).await?;
    Ok(Outcome::Recorded(next))
}

/// A write that was not heard of may have raised it before: then what is recorded is higher. It becomes the last to be
/// forgotten.
fn raised(kept: &mut Vec<Marked>, session: SessionId, mark: u64) -> Option<u64> {
    let at = kept.iter().position(|earlier| earlier.session == session && earlier.mark >= mark)?;
    let Marked { session, mark } = kept.remove(at);
    kept.push(Marked { session, mark: mark + 1 });
    Some(mark + 1)
}

async fn write(api: &Api<ConfigMap>, over: Option<&ConfigMap>, kept: &[Marked]) -> kube::Result<()> {
    let list = serde_json::to_string(kept).map_err(kube::Error::SerdeError)?;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            // Only over what was read.
            resource_version: over.and_then(|map| map.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), list)])),
        ..ConfigMap::default()
    };
    match over {
        Some(_) => api.replace(NAME, &PostParams::default(), &map).await?,
        None => api.create(&PostParams::default(), &map).await?,
    };
    Ok(())
}

/// What is not readable is not known.
fn parse(map: &ConfigMap) -> Vec<Marked> {
    let list = map.data.as_ref().and_then(|data| data.get(KEY));
    list.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Marked = Marked { session: SessionId::from_bits(7), mark: 3 };

    #[test]
    fn a_list_that_is_not_readable_is_empty() {
        let with = |text: &str| ConfigMap {
            data: Some(BTreeMap::from([(KEY.to_owned(), text.to_owned())])),
            ..ConfigMap::default()
        };
        assert_eq!(parse(&with(&serde_json::to_string(&[ONE]).unwrap())), [ONE]);
        assert!(parse(&with("[1]")).is_empty());
        assert!(parse(&ConfigMap::default()).is_empty());
    }

    #[test]
    fn a_session_is_known_as_far_as_it_is_recorded() {
        let sessions = Sessions::default();
        assert!(!sessions.knows(ONE.session, 0), "nothing is known yet");
        sessions.0.past.set(HashMap::from([(ONE.session, 3)])).unwrap();
        assert!(sessions.knows(ONE.session, 0) && sessions.knows(ONE.session, 3));
        assert!(!sessions.knows(ONE.session, 4), "from a backup");
        assert!(!sessions.knows(SessionId::from_bits(8), 0));
    }

    #[test]
    fn a_mark_rises_only_over_what_was_recorded() {
        let mut kept = vec![ONE, Marked { session: SessionId::from_bits(1), mark: 9 }];
        assert_eq!(raised(&mut kept, ONE.session, 3), Some(4));
        assert_eq!(kept[1], Marked { mark: 4, ..ONE });
        assert_eq!(raised(&mut kept, ONE.session, 3), Some(5), "the answer to the write before was lost");
        assert_eq!(raised(&mut kept, ONE.session, 9), None, "restored");
        assert_eq!(raised(&mut kept, SessionId::from_bits(2), 0), None);
    }
}
