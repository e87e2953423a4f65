//! The sessions of this control plane's past, in a ConfigMap of its own.
//!
//! An agent that speaks of a session which is not in it was told things that this control plane does not know of:
//! it was restored from a backup. It must report everything again.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
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

/// The sessions before this one. Cheap to clone; empty until [`Sessions::record`] is through.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<OnceLock<HashSet<SessionId>>>);

#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("the ConfigMap {NAME} cannot be read or written")]
    Api(#[source] kube::Error),
    #[error("the control plane did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl Sessions {
    /// Whether it is an earlier session of this control plane.
    pub fn knows(&self, session: SessionId) -> bool {
        self.0.get().is_some_and(|known| known.contains(&session))
    }

    /// Reads the past and adds `session` to it. Tries until the control plane answers; where it refuses, the past
    /// is unknown, and every agent with one reports everything.
    pub async fn record(&self, client: Client, namespace: &str, session: SessionId) {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        loop {
            let error = match tokio::time::timeout(TIMEOUT, append(&api, session)).await {
                Ok(Ok(past)) => {
                    tracing::info!(%session, past = past.len(), "session recorded");
                    let _ = self.0.set(past.into_iter().collect());
                    return;
                }
                Ok(Err(error)) => RecordError::Api(error),
                Err(_) => RecordError::Timeout,
            };
            // 409: somebody else has written meanwhile.
            let again = |code: u16| code == 409 || code == 429 || code >= 500;
            if let RecordError::Api(kube::Error::Api(status)) = &error
                && !again(status.code)
            {
                tracing::error!(error = %chain(&error), "the session is not recorded: agents report everything");
                return;
            }
            tracing::warn!(error = %chain(&error), "the session is not recorded yet; trying again");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn append(api: &Api<ConfigMap>, session: SessionId) -> kube::Result<Vec<SessionId>> {
    let found = api.get_opt(NAME).await?;
    let past = found.as_ref().map(parse).unwrap_or_default();
    let mut kept = past.clone();
    kept.retain(|earlier| *earlier != session);
    kept.drain(..kept.len().saturating_sub(KEPT - 1));
    kept.push(session);
    let list = serde_json::to_string(&kept).map_err(kube::Error::SerdeError)?;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            // Only over what was read.
            resource_version: found.as_ref().and_then(|map| map.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), list)])),
        ..ConfigMap::default()
    };
    match found {
        Some(_) => api.replace(NAME, &PostParams::default(), &map).await?,
        None => api.create(&PostParams::default(), &map).await?,
    };
    Ok(past)
}

/// What is not readable is not known.
fn parse(map: &ConfigMap) -> Vec<SessionId> {
    let list = map.data.as_ref().and_then(|data| data.get(KEY));
    list.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_not_readable_is_empty() {
        let with = |text: &str| ConfigMap {
            data: Some(BTreeMap::from([(KEY.to_owned(), text.to_owned())])),
            ..ConfigMap::default()
        };
        let session = SessionId::from_bits(7);
        assert_eq!(parse(&with(&serde_json::to_string(&[session]).unwrap())), [session]);
        assert!(parse(&with("[1]")).is_empty());
        assert!(parse(&ConfigMap::default()).is_empty());
        assert!(!Sessions::default().knows(session));
    }
}
