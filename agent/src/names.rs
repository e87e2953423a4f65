//! Stores names for other managers ([`tidewatch_delivery::names`] explains why): one readable ConfigMap, or sixteen
//! by hash when it is full.

use crate::{
    config_maps::{MANAGER, NAMESPACE, RETRY, StoreError, cluster, within},
    jitter,
    metrics::Metrics,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};
use tidewatch_delivery::{
    digest::bucket,
    names::{Listed, Names, Snapshot},
};
use tidewatch_telemetry::chain;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

const NAME: &str = "tidewatch-agent-names";
const CHUNKS: usize = 16;
/// Bytes in a single ConfigMap; more names spread over [`CHUNKS`].
const MAX_UNSPREAD_BYTES: usize = 64 * 1024;
/// Bytes per ConfigMap (the API server takes 1 MiB); more names are dropped.
const MAX_BYTES: usize = 900 * 1024;
const FORMAT: u32 = 1;
/// No watch name starts like this.
const META: &str = "_names.json";

#[derive(Serialize, Deserialize)]
struct Meta {
    format: u32,
    /// Cluster only: a Kyma may appear after the agent, and surplus names are harmless.
    identity: String,
    chunks: usize,
    watches: BTreeMap<String, Kind>,
}

#[derive(Serialize, Deserialize)]
struct Kind {
    version: String,
    kind: String,
}

fn name(chunk: usize) -> String {
    format!("{NAME}-{chunk:x}")
}

/// Returns nothing if the names are another runtime's or unreadable.
pub(crate) async fn load(client: &Client) -> Result<Names, StoreError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut found = BTreeMap::new();
    let Some(first) = within(api.get_opt(&name(0))).await? else { return Ok(Names::default()) };
    let identity = cluster(client).await?;
    let Some(chunks) = decode(&first, &identity, &mut found) else {
        tracing::info!("the stored names are not of this runtime or not readable");
        return Ok(Names::default());
    };
    for chunk in 1..chunks.min(CHUNKS) {
        if let Some(map) = within(api.get_opt(&name(chunk))).await? {
            decode(&map, &identity, &mut found);
        }
    }
    Ok(Names::found(found))
}

pub(crate) async fn keep(
    client: Client,
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    stored: watch::Sender<u64>,
    metrics: Metrics,
    known: bool,
) {
    let mut shelf = Shelf { unknown: !known, ..Shelf::default() };
    while snapshots.changed().await.is_ok() {
        for attempt in 0.. {
            let Some(snapshot) = snapshots.borrow_and_update().clone() else { break };
            let error = match shelf.store(&client, &snapshot).await {
                Ok(left_out) => {
                    metrics.names.with_label_values(&["stored"]).inc();
                    metrics.names_left_out.set(i64::try_from(left_out).unwrap_or(i64::MAX));
                    stored.send_replace(snapshot.revision);
                    break;
                }
                Err(error) => error,
            };
            metrics.names.with_label_values(&["failed"]).inc();
            if attempt == 0 {
                tracing::warn!(error = %chain(&error),
                    "names could not be stored; deletions while the agent is down may not reach other managers");
            }
            if error.is_final() {
                // Waiting would withhold events.
                stored.send_replace(snapshot.revision);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY.delay(attempt, jitter::random())) => {}
                changed = snapshots.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    snapshots.mark_changed();
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Shelf {
    /// Once spread, names stay spread.
    spread: bool,
    /// Hashes; 0 if unwritten.
    written: [u64; CHUNKS],
    /// An earlier run's names are unread: do not overwrite them.
    unknown: bool,
    /// Names read late; their deletions are reported only after the next start.
    late: BTreeMap<Arc<str>, Listed>,
}

impl Shelf {
    /// Returns the number of dropped names.
    async fn store(&mut self, client: &Client, snapshot: &Snapshot) -> Result<usize, StoreError> {
        let identity = cluster(client).await?;
        if self.unknown {
            (self.late, self.unknown) = (load(client).await?.snapshot().watches, false);
        }
        let mut snapshot = snapshot.clone();
        for (watch, listed) in &self.late {
            let all = snapshot.watches.entry(Arc::clone(watch)).or_insert_with(|| listed.clone());
            all.objects.extend(listed.objects.iter().cloned());
            all.objects.sort_unstable();
            all.objects.dedup();
        }
        let (maps, left_out) = encode(&snapshot, &identity, &mut self.spread);
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let params = PatchParams::apply(MANAGER).force();
        // Write the first last: until then it holds all names.
        for (chunk, map) in maps.into_iter().enumerate().rev() {
            let hash = xxh3_64(format!("{:?}", map.data).as_bytes()).max(1);
            let Some(written) = self.written.get_mut(chunk).filter(|written| **written != hash) else {
                continue;
            };
            *written = 0;
            within(api.patch_metadata(&name(chunk), &params, &Patch::Apply(&map))).await?;
            *written = hash;
        }
        Ok(left_out)
    }
}

/// Also returns the number of dropped names.
fn encode(snapshot: &Snapshot, identity: &str, spread: &mut bool) -> (Vec<ConfigMap>, usize) {
    let objects = || snapshot.watches.values().flat_map(|listed| &listed.objects);
    *spread |= objects().map(|(namespace, name)| namespace.len() + name.len() + 2).sum::<usize>()
        > MAX_UNSPREAD_BYTES;
    let chunks = if *spread { CHUNKS } else { 1 };
    let mut texts: Vec<BTreeMap<String, String>> = vec![BTreeMap::new(); chunks];
    let mut free = vec![MAX_BYTES; chunks];
    let mut left_out = 0;
    for (watch, listed) in &snapshot.watches {
        for (namespace, name) in &listed.objects {
            let chunk = bucket(namespace, name) % chunks;
            let (Some(texts), Some(free)) = (texts.get_mut(chunk), free.get_mut(chunk)) else { continue };
            let length = namespace.len() + name.len() + 2;
            if *free < length {
                left_out += 1;
                continue;
            }
            *free -= length;
            let text = texts.entry(watch.to_string()).or_default();
            let _ = writeln!(text, "{namespace}/{name}");
        }
    }
    let maps = texts.into_iter().enumerate().map(|(chunk, mut data)| {
        let kind = |watch: &String| {
            let listed = snapshot.watches.get(watch.as_str());
            let text = |of: fn(&Listed) -> &str| listed.map(of).unwrap_or_default().to_owned();
            (watch.clone(), Kind { version: text(|l| &l.version), kind: text(|l| &l.kind) })
        };
        let watches = data.keys().map(kind).collect();
        let meta = Meta { format: FORMAT, identity: identity.to_owned(), chunks, watches };
        data.insert(META.to_owned(), serde_json::to_string(&meta).unwrap_or_default());
        let mut map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        map.metadata.name = Some(name(chunk));
        map.metadata.namespace = Some(NAMESPACE.to_owned());
        map
    });
    (maps.collect(), left_out)
}

/// Returns the number of ConfigMaps; `None` unless written for this identity.
fn decode(map: &ConfigMap, identity: &str, into: &mut BTreeMap<Arc<str>, Listed>) -> Option<usize> {
    let data = map.data.as_ref()?;
    let Meta { format, identity: of, chunks, watches } = serde_json::from_str(data.get(META)?).ok()?;
    if format != FORMAT || of != identity {
        return None;
    }
    for (watch, Kind { version, kind }) in watches {
        let Some(text) = data.get(&watch) else { continue };
        let listed = into.entry(watch.into()).or_default();
        (listed.version, listed.kind) = (version.into(), kind.into());
        let objects = text.lines().filter_map(|line| line.split_once('/'));
        // Shared by hundreds of names.
        let mut namespace: Arc<str> = Arc::default();
        for (of, name) in objects.filter(|(_, name)| !name.is_empty()) {
            if *namespace != *of {
                namespace = of.into();
            }
            listed.objects.push((Arc::clone(&namespace), name.into()));
        }
    }
    Some(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(count: usize) -> Snapshot {
        let objects = (0..count).map(|n| ("some-namespace".into(), format!("object-number-{n:06}").into()));
        let listed = Listed { version: "v1".into(), kind: "Thing".into(), objects: objects.collect() };
        let whole =
            Listed { version: "v2".into(), kind: "Whole".into(), objects: vec![("".into(), "w".into())] };
        Snapshot {
            revision: 1,
            watches: BTreeMap::from([("things".into(), listed), ("whole".into(), whole)]),
        }
    }

    fn decoded(maps: &[ConfigMap], identity: &str) -> BTreeMap<Arc<str>, Listed> {
        let mut found = BTreeMap::new();
        for map in maps {
            decode(map, identity, &mut found);
        }
        for listed in found.values_mut() {
            listed.objects.sort_unstable();
        }
        found
    }

    #[test]
    fn stored_names_are_read_back() {
        let mut spread = false;
        let (few, left_out) = encode(&snapshot(10), "c/k", &mut spread);
        assert_eq!((few.len(), left_out), (1, 0));
        assert_eq!(decoded(&few, "c/k"), snapshot(10).watches);
        assert!(decoded(&few, "c/other").is_empty(), "another runtime's");
        let (many, left_out) = encode(&snapshot(10_000), "c/k", &mut spread);
        assert_eq!((many.len(), left_out), (CHUNKS, 0));
        assert_eq!(decoded(&many, "c/k"), snapshot(10_000).watches);
        assert_eq!(encode(&snapshot(10), "c/k", &mut spread).0.len(), CHUNKS, "they stay where they are");
        // During a spread, the first still has all names.
        let half: Vec<ConfigMap> = few.into_iter().chain(many.into_iter().skip(1)).collect();
        assert!(decoded(&half, "c/k").get("things").unwrap().objects.len() >= 10);
    }

    #[test]
    fn names_over_the_size_limit_are_counted() {
        let long = "x".repeat(200);
        let objects = (0..80_000).map(|n| ("n".into(), format!("{long}{n}").into())).collect();
        let listed = Listed { objects, ..Listed::default() };
        let snapshot = Snapshot { revision: 1, watches: BTreeMap::from([("w".into(), listed)]) };
        let (maps, left_out) = encode(&snapshot, "c", &mut false);
        assert!(left_out > 1_000);
        for map in &maps {
            let bytes: usize = map.data.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
            assert!(bytes < 1024 * 1024, "{bytes}");
        }
        let kept = decoded(&maps, "c").get("w").unwrap().objects.len();
        assert_eq!(kept + left_out, 80_000);
    }

    #[test]
    fn invalid_stored_names_are_ignored() {
        let (maps, _) = encode(&snapshot(1), "c", &mut false);
        let broken = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
            let mut map = maps[0].clone();
            change(map.data.as_mut().unwrap());
            let mut found = BTreeMap::new();
            (decode(&map, "c", &mut found), found.len())
        };
        assert_eq!(broken(&|_| ()), (Some(1), 2));
        assert_eq!(broken(&|data| drop(data.remove(META))), (None, 0));
        assert_eq!(broken(&|data| drop(data.insert(META.into(), "[".into()))), (None, 0));
        assert_eq!(broken(&|data| drop(data.remove("things"))), (Some(1), 1));
        assert_eq!(broken(&|data| drop(data.insert("things".into(), "no slash\n/\n".into()))), (Some(1), 2));
    }
}
