//! Stores the digest in a ConfigMap of the runtime and claims it at start ([`tidewatch_delivery::claims`] explains
//! the safety). The uids of cluster and Kyma guard against copies elsewhere.

use crate::{
    config_maps::{MANAGER, NAMESPACE, RETRY, StoreError, cluster, within},
    jitter,
    metrics::Metrics,
    names,
    observe::condition::Conditions,
};
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidewatch_delivery::{
    digest::{BUCKETS, Digest, Section},
    names::{Names, Snapshot as NamesSnapshot},
};
use tidewatch_telemetry::chain;
use tidewatch_wire::v3::Resume;
use tokio::sync::{oneshot, watch};

/// Name of the ConfigMap.
pub const NAME: &str = "tidewatch-agent-digest";
const KYMA: &str = "default";
/// Version of the ConfigMap's content.
const FORMAT: u32 = 1;
const META: &str = "digest.json";
/// Time to list before the claim. Slower watches report their objects.
const LISTING: Duration = Duration::from_secs(10);

/// A claim and its digest.
pub type Snapshot = (Resume, Digest);

/// State stored by an earlier run.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The last reconciled state.
    pub digest: Option<Snapshot>,
    /// Names that other managers may know.
    pub names: Names,
}

/// The sender's end of the storage.
#[derive(Debug)]
pub struct Memory {
    pub(crate) found: oneshot::Receiver<Found>,
    pub(crate) snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    pub(crate) stored: watch::Receiver<Option<u64>>,
    pub(crate) names: watch::Sender<Option<Arc<NamesSnapshot>>>,
    /// Latest names revision that is stored, or not worth waiting for.
    pub(crate) names_stored: watch::Receiver<u64>,
}

/// The storage's end of a [`Memory`].
#[derive(Debug)]
pub struct Shelf {
    /// Takes the earlier state, after the watches have listed or timed out.
    pub found: oneshot::Sender<Found>,
    /// Digests to store.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Takes stored serials.
    pub stored: watch::Sender<Option<u64>>,
    /// Names to store.
    pub names: watch::Receiver<Option<Arc<NamesSnapshot>>>,
    /// Takes stored names revisions.
    pub names_stored: watch::Sender<u64>,
}

/// Creates both ends of the storage.
pub fn memory() -> (Shelf, Memory) {
    let (found_sender, found) = oneshot::channel();
    let (snapshots, snapshots_receiver) = watch::channel(None);
    let (stored_sender, stored) = watch::channel(None);
    let (names, names_receiver) = watch::channel(None);
    let (names_stored_sender, names_stored) = watch::channel(0);
    let shelf = Shelf {
        found: found_sender,
        snapshots: snapshots_receiver,
        stored: stored_sender,
        names: names_receiver,
        names_stored: names_stored_sender,
    };
    (shelf, Memory { found, snapshots, stored, names, names_stored })
}

/// The task that reads and writes the ConfigMaps.
pub struct Keeper {
    client: Client,
    conditions: Conditions,
    metrics: Metrics,
    shelf: Shelf,
}

/// Creates a keeper and the sender's end.
pub fn keeper(client: Client, conditions: Conditions, metrics: Metrics) -> (Keeper, Memory) {
    let (shelf, memory) = memory();
    (Keeper { client, conditions, metrics, shelf }, memory)
}

impl Keeper {
    /// Reads once, then writes until the sender is dropped.
    pub async fn run(self) {
        let Self { client, conditions, metrics, shelf } = self;
        let Shelf { found, mut snapshots, stored, names, names_stored } = shelf;
        let (loaded, names_known) = tokio::select! {
            loaded = load(&client) => loaded,
            () = closed(&mut snapshots) => return,
        };
        // Before the first list, short-lived objects would leave no trace.
        let listed = async {
            while !conditions.settled() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _in_time = tokio::time::timeout(LISTING, listed).await;
        if found.send(loaded).is_err() {
            return;
        }
        let digests = keep(client.clone(), snapshots, stored, metrics.clone());
        futures::join!(digests, names::keep(client, names, names_stored, metrics, names_known));
    }
}

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

/// Also returns whether the names are known. Retries forever: without the API server nothing is listed either.
async fn load(client: &Client) -> (Found, bool) {
    let (digest, names) =
        futures::join!(retry("digest", || read(client)), retry("names", || names::load(client)));
    let known = names.is_some();
    (Found { digest: digest.flatten(), names: names.unwrap_or_default() }, known)
}

/// Retries; `None` after a final error.
async fn retry<T, F: Future<Output = Result<T, StoreError>>>(kind: &str, read: impl Fn() -> F) -> Option<T> {
    for attempt in 0.. {
        let error = match read().await {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        if error.is_final() {
            tracing::warn!(error = %chain(&error), kind, "the state of an earlier run cannot be read");
            return None;
        }
        tokio::time::sleep(RETRY.delay(attempt, jitter::random())).await;
    }
    None
}

async fn read(client: &Client) -> Result<Option<Snapshot>, StoreError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let Some(map) = within(api.get_opt(NAME)).await? else { return Ok(None) };
    let found = decode(&map, &identity(client).await?);
    if found.is_none() {
        tracing::info!("the stored digest is not of this runtime or not readable; reporting every object");
    }
    Ok(found)
}

async fn store(client: &Client, snapshot: &Snapshot) -> Result<(), StoreError> {
    let map = encode(snapshot, &identity(client).await?);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let params = PatchParams::apply(MANAGER).force();
    within(api.patch_metadata(NAME, &params, &Patch::Apply(&map))).await?;
    Ok(())
}

async fn identity(client: &Client) -> Result<String, StoreError> {
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
        // The role may forbid reading Kymas.
        Err(error) if error.is_final() => None,
        Err(error) => return Err(error),
    };
    Ok(format!("{cluster}/{}", kyma.and_then(|kyma| kyma.metadata.uid).unwrap_or_default()))
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
    // Text: JSON tools may round 64-bit numbers.
    configuration: String,
    stale: String,
    version: String,
    kind: String,
}

fn encode(snapshot: &Snapshot, identity: &str) -> ConfigMap {
    let (claim, digest) = snapshot;
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

/// Returns `None` unless it was written for this identity.
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
    fn a_stored_digest_is_read_back() {
        let map = encode(&snapshot(), "cluster/kyma");
        assert_eq!(decode(&map, "cluster/kyma"), Some(snapshot()));
        assert_eq!(decode(&map, "cluster/other"), None, "another runtime's");
        let text = serde_json::to_string(&map).unwrap();
        let read: ConfigMap = serde_json::from_str(&text).unwrap();
        assert_eq!(decode(&read, "cluster/kyma"), Some(snapshot()));
        assert!(text.len() < 4096, "{} bytes for two watches", text.len());
    }

    #[test]
    fn an_invalid_stored_digest_is_ignored() {
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
