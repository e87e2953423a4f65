//! KCP's past sessions and their marks, in a ConfigMap.
//!
//! A *mark* rises after reconciles; agents receive it once recorded. An agent with an unknown session or a higher mark knows more than
//! KCP, which was restored from a backup: the agent must report everything. The last ten seconds and a heartbeat may be missed.

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
/// Agents away for more restarts report everything.
const KEPT: usize = 64;
/// Per request.
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
const MARK_EVERY: Duration = Duration::from_secs(10);

/// Past sessions and this mark. Cheap to clone; empty until [`Sessions::record`] returns.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    past: OnceLock<HashMap<SessionId, u64>>,
    /// Recorded mark.
    mark: AtomicU64,
    /// A reconcile finished since the last mark.
    worked: AtomicBool,
}

/// A session's record.
#[derive(Clone)]
pub struct SessionRecord {
    /// KCP's client.
    pub client: Client,
    /// Namespace of Kymas.
    pub namespace: String,
    /// This session.
    pub session: SessionId,
}

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
    /// 409 is a concurrent write.
    fn is_refusal(&self) -> bool {
        let again = |code: u16| code == 409 || code == 429 || code >= 500;
        matches!(self, Self::Api(kube::Error::Api(status)) if !again(status.code))
    }
}

enum Outcome {
    Recorded(u64),
    /// KCP lacks the recorded mark.
    Restored,
}

impl Sessions {
    /// Returns whether KCP had this session with at least `mark`.
    pub fn knows(&self, session: SessionId, mark: u64) -> bool {
        self.0.past.get().and_then(|past| past.get(&session)).is_some_and(|recorded| mark <= *recorded)
    }

    /// Returns this session's recorded mark.
    pub fn mark(&self) -> u64 {
        self.0.mark.load(Ordering::Acquire)
    }

    /// Raises the mark soon; for a persisted reconcile.
    pub fn worked(&self) {
        self.0.worked.store(true, Ordering::Release);
    }

    /// Adds this session to the record. Retries until KCP responds. After a refusal, agents report everything.
    pub async fn record(&self, record: &SessionRecord) {
        let (api, session) = (record.api(), record.session);
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

    /// Records marks. Returns if KCP was restored: the process must end, as its acknowledgements are void.
    pub async fn keep(&self, record: &SessionRecord) {
        let api = record.api();
        if self.0.past.get().is_none() {
            // The session has no entry.
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(MARK_EVERY).await;
            if !self.0.worked.swap(false, Ordering::AcqRel) {
                continue;
            }
            match within(raise(&api, record.session, self.mark())).await {
                Ok(Outcome::Recorded(mark)) => self.0.mark.store(mark, Ordering::Release),
                Ok(Outcome::Restored) => {
                    tracing::error!(
                        "the control plane has no record of this session any more: it was restored from a backup, or its \
                         ConfigMap {NAME} was edited; ending, to restart from the restored state"
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

impl SessionRecord {
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

/// Records the next mark if KCP has `mark`.
async fn raise(api: &Api<ConfigMap>, session: SessionId, mark: u64) -> kube::Result<Outcome> {
    let found = api.get_opt(NAME).await?;
    let mut kept = found.as_ref().map(parse).unwrap_or_default();
    let Some(next) = raised(&mut kept, session, mark) else { return Ok(Outcome::Restored) };
    write(api, found.as_ref(), &kept).await?;
    Ok(Outcome::Recorded(next))
}

/// The recorded mark is higher if a response was lost. The session moves to the end, as the first are evicted.
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
            // Conflicts on a concurrent write.
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

/// An unreadable list counts as empty.
fn parse(map: &ConfigMap) -> Vec<Marked> {
    let list = map.data.as_ref().and_then(|data| data.get(KEY));
    list.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Marked = Marked { session: SessionId::from_bits(7), mark: 3 };

    #[test]
    fn an_unreadable_session_list_is_empty() {
        let with = |text: &str| ConfigMap {
            data: Some(BTreeMap::from([(KEY.to_owned(), text.to_owned())])),
            ..ConfigMap::default()
        };
        assert_eq!(parse(&with(&serde_json::to_string(&[ONE]).unwrap())), [ONE]);
        assert!(parse(&with("[1]")).is_empty());
        assert!(parse(&ConfigMap::default()).is_empty());
    }

    #[test]
    fn a_session_is_known_up_to_its_recorded_mark() {
        let sessions = Sessions::default();
        assert!(!sessions.knows(ONE.session, 0), "nothing is known yet");
        sessions.0.past.set(HashMap::from([(ONE.session, 3)])).unwrap();
        assert!(sessions.knows(ONE.session, 0) && sessions.knows(ONE.session, 3));
        assert!(!sessions.knows(ONE.session, 4), "from a backup");
        assert!(!sessions.knows(SessionId::from_bits(8), 0));
    }

    #[test]
    fn a_mark_rises_only_above_the_recorded_one() {
        let mut kept = vec![ONE, Marked { session: SessionId::from_bits(1), mark: 9 }];
        assert_eq!(raised(&mut kept, ONE.session, 3), Some(4));
        assert_eq!(kept[1], Marked { mark: 4, ..ONE });
        assert_eq!(raised(&mut kept, ONE.session, 3), Some(5), "the answer to the write before was lost");
        assert_eq!(raised(&mut kept, ONE.session, 9), None, "restored");
        assert_eq!(raised(&mut kept, SessionId::from_bits(2), 0), None);
    }
}
