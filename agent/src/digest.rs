//! Keeping the digest of what was reconciled in the runtime, beyond the agent's own life.
//!
//! It is one ConfigMap of the agent's own. At the start it is read once, and its claim goes to the receiver; see
//! [`tidewatch_delivery::claims`] for why a confirmed claim is safe. It is bound to the cluster and to the runtime's
//! Kyma by their uids: copied into another one, it is as good as none. Each write replaces the whole.

use crate::{jitter, metrics::Metrics, names, observe::condition::Conditions};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidewatch_delivery::{
    backoff::Backoff,
    digest::{BUCKETS, Digest, Section},
    names::{Names, Snapshot as NamesSnapshot},
};
use tidewatch_telemetry::chain;
use tidewatch_wire::v3::Resume;
use tokio::sync::{oneshot, watch};

/// The ConfigMap's name.
pub const NAME: &str = "tidewatch-agent-digest";
/// Its namespace, and that of the runtime's Kyma.
pub const NAMESPACE: &str = "kyma-system";
/// The runtime's Kyma.
const KYMA: &str = "default";
/// Who writes it.
pub(crate) const MANAGER: &str = "tidewatch-agent";
/// The version of the content.
const FORMAT: u32 = 1;
/// The key of what is not sums.
const META: &str = "digest.json";
/// For one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries.
pub(crate) const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_mins(1) };
/// For the watches to list before the claim is made; those that take longer are reported on.
const LISTING: Duration = Duration::from_secs(10);

/// What is stored.
pub type Snapshot = (Resume, Digest);

/// What an earlier run has left.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What was reconciled last.
    pub digest: Option<Snapshot>,
    /// Names of objects that other managers may have been told of.
    pub names: Names,
}

/// The sender's end.
#[derive(Debug)]
pub struct Memory {
    /// What an earlier run has left, when it is known.
    pub(crate) found: oneshot::Receiver<Found>,
    /// What to store.
    pub(crate) snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// The serial that was stored last.
    pub(crate) stored: watch::Receiver<Option<u64>>,
    /// Names to store.
    pub(crate) names: watch::Sender<Option<Arc<NamesSnapshot>>>,
    /// The revision of the names that was stored last, or that is not worth waiting for.
    pub(crate) names_stored: watch::Receiver<u64>,
}

/// The other end of a [`Memory`]: of whoever reads and writes.
#[derive(Debug)]
pub struct Shelf {
    /// Takes what an earlier run has left; not before the watches have listed, or long had the time to.
    pub found: oneshot::Sender<Found>,
    /// What to store.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Takes the serial of what was stored.
    pub stored: watch::Sender<Option<u64>>,
    /// Names to store.
    pub names: watch::Receiver<Option<Arc<NamesSnapshot>>>,
    /// Takes the revision of the names that were stored.
    pub names_stored: watch::Sender<u64>,
}

/// Both ends.
pub fn memory() -> (Shelf, Memory) {
    let (tell_found, found) = oneshot::channel();
    let (snapshots, take_snapshots) = watch::channel(None);
    let (tell_stored, stored) = watch::channel(None);
    let (names, take_names) = watch::channel(None);
    let (tell_names_stored, names_stored) = watch::channel(0);
    let shelf = Shelf {
        found: tell_found,
        snapshots: take_snapshots,
        stored: tell_stored,
        names: take_names,
        names_stored: tell_names_stored,
    };
    (shelf, Memory { found, snapshots, stored, names, names_stored })
}

/// The task that reads and writes.
pub struct Keeper {
    client: Client,
    conditions: Conditions,
    metrics: Metrics,
    shelf: Shelf,
}

/// A keeper for the runtime of `client`, and the sender's end of it.
pub fn keeper(client: Client, conditions: Conditions, metrics: Metrics) -> (Keeper, Memory) {
    let (shelf, memory) = memory();
    (Keeper { client, conditions, metrics, shelf }, memory)
}

impl Keeper {
    /// Reads once, then writes what the sender wants stored, until the sender is gone.
    pub async fn run(self) {
        let Self { client, conditions, metrics, shelf } = self;
        let Shelf { found, mut snapshots, stored, names, names_stored } = shelf;
        let left = tokio::select! {
            left = load(&client) => left,
            // The sender has ended before anything was known.
            () = closed(&mut snapshots) => return,
        };
        // An object that comes and goes between the claim and the first list would leave no trace.
        let listed = async {
            while !conditions.settled() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _in_time = tokio::time::timeout(LISTING, listed).await;
        let (left, known) = left;
        if found.send(left).is_err() {
            return;
        }
        let digests = keep(client.clone(), snapshots, stored, metrics.clone());
        futures::join!(digests, names::keep(client, names, names_stored, metrics, known));
    }
}

/// Writes what the sender wants stored, until the sender is gone.
async fn keep(
    client: Client,
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    stored: watch::Sender<Option<u64>>,
    metrics: Metrics,
) {
    let mut attempt = 0;
    while snapshots.changed().await.is_ok() {
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            let Some(snapshot) = snapshot else { break };
            match store(&client, &snapshot).await {
                Ok(()) => {
                    attempt = 0;
                    metrics.digests.with_label_values(&["stored"]).inc();
                    stored.send_replace(Some(snapshot.0.serial));
                    break;
                }
                Err(error) => {
                    metrics.digests.with_label_values(&["failed"]).inc();
                    if attempt == 0 {
                        tracing::warn!(error = %chain(&error), "the digest could not be stored; trying again");
                    }
                }
            }
            let wait = RETRY.delay(attempt, jitter::random());
            attempt = attempt.saturating_add(1);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = snapshots.changed() => if changed.is_err() { return },
            }
        }
    }
}

async fn closed(snapshots: &mut watch::Receiver<Option<Arc<Snapshot>>>) {
    while snapshots.changed().await.is_ok() {}
}

/// Why a ConfigMap cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error(
        "the API server refused or cannot be reached; the agent's role must allow its own ConfigMaps in {NAMESPACE}"
    )]
    Api(#[source] kube::Error),
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl KeepError {
    /// Whether asking again is of no use.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429)
    }
}

pub(crate) async fn within<T>(ask: impl Future<Output = kube::Result<T>>) -> Result<T, KeepError> {
    match tokio::time::timeout(TIMEOUT, ask).await {
        Ok(answer) => answer.map_err(KeepError::Api),
        Err(_) => Err(KeepError::Timeout),
    }
}

/// Tries until there is an answer: before, no watch has listed anything either.
/// And whether it is known which names there are.
async fn load(client: &Client) -> (Found, bool) {
    let (digest, names) =
        futures::join!(insist("digest", || read(client)), insist("names", || names::load(client)));
    let known = names.is_some();
    (Found { digest: digest.flatten(), names: names.unwrap_or_default() }, known)
}

/// Until there is an answer; nothing, if asking again is of no use.
async fn insist<T, F: Future<Output = Result<T, KeepError>>>(what: &str, ask: impl Fn() -> F) -> Option<T> {
    for attempt in 0.. {
        let error = match ask().await {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        if error.is_final() {
            tracing::warn!(error = %chain(&error), what, "what an earlier run has left cannot be read");
            return None;
        }
        tokio::time::sleep(RETRY.delay(attempt, jitter::random())).await;
    }
    None
}

async fn read(client: &Client) -> Result<Option<Snapshot>, KeepError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let Some(map) = within(api.get_opt(NAME)).await? else { return Ok(None) };
    let found = decode(&map, &identity(client).await?);
    if found.is_none() {
        tracing::info!("the stored digest is not of this runtime or not readable; reporting every object");
    }
    Ok(found)
}

async fn store(client: &Client, snapshot: &Snapshot) -> Result<(), KeepError> {
    let map = encode(snapshot, &identity(client).await?);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let params = PatchParams::apply(MANAGER).force();
    within(api.patch_metadata(NAME, &params, &Patch::Apply(&map))).await?;
    Ok(())
}

/// What is another one in another cluster, or for another Kyma.
async fn identity(client: &Client) -> Result<String, KeepError> {
    let resource = ApiResource {
        group: "operator.kyma-project.io".into(),
        version: "v1beta2".into(),
        api_version: "operator.kyma-project.io/v1beta2".into(),
        kind: "Kyma".into(),
        plural: "kymas".into(),
    };
    let kymas: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let (cluster, kyma) = futures::join!(cluster(client), within(kymas.get_metadata_opt(KYMA)));
    let cluster = cluster?;
    let kyma = match kyma {
        Ok(kyma) => kyma,
        // Not every runtime's agent may see Kymas.
        Err(error) if error.is_final() => None,
        Err(error) => return Err(error),
    };
    Ok(format!("{cluster}/{}", kyma.and_then(|kyma| kyma.metadata.uid).unwrap_or_default()))
}

/// What is another one in another cluster.
pub(crate) async fn cluster(client: &Client) -> Result<String, KeepError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = within(namespaces.get_metadata_opt("kube-system")).await?;
    Ok(namespace.and_then(|namespace| namespace.metadata.uid).unwrap_or_default())
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    format: u32,
    identity: String,
    #[serde(flatten)]
    claim: Resume,
    watches: BTreeMap<String, MetaWatch>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaWatch {
    // As text: 64 bits do not survive every JSON tool that a person may use on it.
    configuration: String,
    stale: String,
    version: String,
    kind: String,
}

fn encode((claim, digest): &Snapshot, identity: &str) -> ConfigMap {
    let mut sums = BTreeMap::new();
    let mut watches = BTreeMap::new();
    for (watch, section) in digest.iter() {
        let bytes = section.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        sums.insert(watch.to_owned(), ByteString(bytes));
        let meta = MetaWatch {
            configuration: format!("{:x}", section.configuration),
            stale: format!("{:x}", section.stale),
            version: section.version.clone(),
            kind: section.kind.clone(),
        };
        watches.insert(watch.to_owned(), meta);
    }
    let meta = Meta { format: FORMAT, identity: identity.to_owned(), claim: *claim, watches };
    let meta = serde_json::to_string(&meta).unwrap_or_default();
    let mut map = ConfigMap {
        data: Some(BTreeMap::from([(META.to_owned(), meta)])),
        binary_data: Some(sums),
        ..ConfigMap::default()
    };
    map.metadata.name = Some(NAME.to_owned());
    map.metadata.namespace = Some(NAMESPACE.to_owned());
    map
}

/// `None` for whatever is not what [`encode`] has made for this identity.
fn decode(map: &ConfigMap, identity: &str) -> Option<Snapshot> {
    let Meta { format, identity: of, claim, watches } =
        serde_json::from_str(map.data.as_ref()?.get(META)?).ok()?;
    if format != FORMAT || of != identity {
        return None;
    }
    let mut digest = Digest::new();
    for (watch, MetaWatch { configuration, stale, version, kind }) in watches {
        let bytes = &map.binary_data.as_ref()?.get(&watch)?.0;
        let (numbers, rest) = bytes.as_chunks::<8>();
        if numbers.len() != BUCKETS || !rest.is_empty() || version.is_empty() || kind.is_empty() {
            return None;
        }
        let mut sums = Box::new([0; BUCKETS]);
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = u64::from_le_bytes(*number);
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let section =
            Section { configuration: hex(&configuration)?, stale: hex(&stale)?, version, kind, sums };
        digest.insert(watch, section);
    }
    Some((claim, digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewatch_wire::{Epoch, SessionId};

    fn snapshot() -> Snapshot {
        let mut section = Section::unknown(u64::MAX - 1, "v1", "Thing");
        for (number, sum) in section.sums.iter_mut().enumerate() {
            *sum = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let mut digest = Digest::new();
        digest.insert("things", section);
        digest.insert("none", Section { stale: 0, ..Section::unknown(7, "v1", "None") });
        (Resume { session: SessionId::from_bits(1), epoch: Epoch::from_bits(2), serial: u64::MAX }, digest)
    }

    #[test]
    fn what_was_stored_is_read() {
        let map = encode(&snapshot(), "cluster/kyma");
        assert_eq!(decode(&map, "cluster/kyma"), Some(snapshot()));
        assert_eq!(decode(&map, "cluster/other"), None, "another runtime's");
        let text = serde_json::to_string(&map).unwrap();
        let read: ConfigMap = serde_json::from_str(&text).unwrap();
        assert_eq!(decode(&read, "cluster/kyma"), Some(snapshot()));
        assert!(text.len() < 4096, "{} bytes for two watches", text.len());
    }

    #[test]
    fn anything_else_is_as_good_as_nothing() {
        let good = encode(&snapshot(), "c");
        let broken = |change: &dyn Fn(&mut ConfigMap)| {
            let mut map = good.clone();
            change(&mut map);
            decode(&map, "c")
        };
        let meta = |from: &'static str, to: &'static str| {
            broken(&|map: &mut ConfigMap| {
                let text = map.data.as_mut().unwrap().get_mut(META).unwrap();
                assert!(text.contains(from), "{text}");
                *text = text.replace(from, to);
            })
        };
        assert!(broken(&|_| ()).is_some());
        assert_eq!(broken(&|map| map.data = None), None);
        assert_eq!(broken(&|map| map.binary_data = None), None);
        let cut =
            |map: &mut ConfigMap| map.binary_data.as_mut().unwrap().get_mut("none").unwrap().0.truncate(511);
        assert_eq!(broken(&cut), None);
        assert_eq!(meta("\"format\":1", "\"format\":2"), None);
        assert_eq!(meta("\"configuration\":\"7\"", "\"configuration\":\"x\""), None);
        assert_eq!(meta("\"kind\":\"None\"", "\"kind\":\"\""), None);
        assert_eq!(meta("{", "["), None);
    }
}
