//! Finds lost events of large watches: a short second watch repeats the last minute's events. Listing
//! ([`super::verify`]) each minute is too expensive.

use super::{
    super::{
        index::{Index, ObjectKey},
        resolve::Resolved,
    },
    event::ObservedObject,
    metadata::Metadata,
    source::{api, observed_metadata, observed_whole, part_of},
    verify::{Judgement, PERIOD},
};
use crate::{config, jitter};
use futures::{FutureExt, TryStreamExt, future::BoxFuture};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use std::{collections::HashMap, fmt, time::Duration};
use tidewatch_delivery::digest::contribution;
use tokio::time::Instant;

/// The API server sends a bookmark two seconds before this ends.
const SECONDS: u32 = 5;
const TIMEOUT: Duration = Duration::from_secs(15);
/// Time for a healthy watch to catch up.
const LAG: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(10);
/// Objects per check; busier watches are not judged.
const MAX_OBJECTS: usize = 5_000;
const EXPIRED: u16 = 410;

/// Latest contribution by object; 0 if deleted.
type Contributions = HashMap<ObjectKey, u64>;

pub(super) struct Round {
    until: String,
    events: Events,
}

enum Events {
    Complete(Contributions),
    TooMany,
    /// The API server has forgotten the start.
    Expired,
}

/// `None` after a failure.
type Fetch = BoxFuture<'static, Option<Round>>;

struct Suspect {
    until: String,
    differ: HashMap<ObjectKey, (u64, u64)>,
}

pub(super) struct Replay {
    fetch: Option<Box<dyn Fn(Option<String>) -> Fetch + Send + Sync>>,
    /// Start of the next check; `None` if the current version is unknown.
    from: Option<String>,
    running: Option<Fetch>,
    due: Instant,
    later: Duration,
    suspect: Option<Suspect>,
}

impl Replay {
    /// `client` must not count as a sign of life.
    pub(super) fn new(client: &Client, spec: &config::Watch, resolved: &Resolved, whole: bool) -> Self {
        let (client, spec, resolved) = (client.clone(), spec.clone(), resolved.clone());
        let fetch = move |from| {
            let marks = api::<Metadata>(&client, &spec, &resolved);
            let selector = spec.selector();
            if whole {
                let (part, group) = (part_of(&spec), resolved.resource.group.clone());
                let observed = move |object: DynamicObject| observed_whole(part, &group, object);
                fetch(marks, api::<DynamicObject>(&client, &spec, &resolved), selector, from, observed)
                    .boxed()
            } else {
                let objects = marks.clone();
                let part = part_of(&spec);
                let observed = move |object: Metadata| observed_metadata(part, object);
                fetch(marks, objects, selector, from, observed).boxed()
            }
        };
        Self { fetch: Some(Box::new(fetch)), ..Self::never() }
    }

    pub(super) fn never() -> Self {
        Self {
            fetch: None,
            from: None,
            running: None,
            due: Instant::now(),
            later: Duration::ZERO,
            suspect: None,
        }
    }

    /// The first check waits for `later`.
    pub(super) fn begin(&mut self, later: Duration) {
        (self.from, self.running, self.due, self.suspect) = (None, None, Instant::now(), None);
        self.later = later;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.from.is_some()
    }

    /// Cancel-safe: a started check continues.
    pub(super) async fn next(&mut self) -> Option<Round> {
        let Some(fetch) = &self.fetch else { return std::future::pending().await };
        if self.running.is_none() {
            tokio::time::sleep_until(self.due).await;
        }
        let from = &self.from;
        let round = self.running.get_or_insert_with(|| fetch(from.clone())).await;
        self.running = None;
        round
    }

    /// Two checks with an equal difference, while the index is unchanged, prove a missed event. `None` if only the
    /// current version was found.
    pub(super) fn judge(&mut self, round: Option<Round>, index: &Index) -> Option<Judgement> {
        let Some(Round { until, events }) = round else {
            self.due = Instant::now() + AGAIN;
            return Some(Judgement::Failed);
        };
        let before = self.suspect.take();
        self.due = Instant::now() + PERIOD.mul_f64(0.75 + jitter::random() / 4.0);
        if self.from.is_none() {
            self.from = Some(until);
            self.due += std::mem::take(&mut self.later);
            return None;
        }
        let replayed = match events {
            Events::Complete(contributions) => contributions,
            Events::TooMany => {
                self.from = Some(until);
                return Some(Judgement::Failed);
            }
            Events::Expired => {
                self.from = Some(until);
                return Some(Judgement::Unknown);
            }
        };
        let differ: HashMap<_, _> = replayed
            .into_iter()
            .map(|(key, replayed)| (replayed, index.contribution(&key), key))
            .filter(|(replayed, indexed, _)| replayed != indexed)
            .map(|(replayed, indexed, key)| (key, (replayed, indexed)))
            .collect();
        if differ.is_empty() {
            self.from = Some(until);
            return Some(Judgement::Equal);
        }
        let Some(before) = before else {
            // Repeat from the same version.
            (self.suspect, self.due) = (Some(Suspect { until, differ }), Instant::now() + LAG);
            return Some(Judgement::Unsettled);
        };
        if differ.iter().any(|(key, values)| before.differ.get(key) == Some(values)) {
            return Some(Judgement::Missed);
        }
        // That difference is resolved or keeps changing. Continue at its check's end.
        self.from = Some(before.until);
        Some(Judgement::Unsettled)
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("from", &self.from).field("due", &self.due).finish_non_exhaustive()
    }
}

async fn fetch<K>(
    marks: Api<Metadata>,
    objects: Api<K>,
    selector: Option<String>,
    from: Option<String>,
    observed: impl Fn(K) -> ObservedObject + Send,
) -> Option<Round>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    // First, so that events in between are repeated, not lost.
    let one = ListParams { label_selector: selector.clone(), limit: Some(1), ..ListParams::default() };
    let list = tokio::time::timeout(TIMEOUT, marks.list(&one)).await.ok()?.ok()?;
    let until = list.metadata.resource_version.filter(|version| !version.is_empty())?;
    let Some(from) = from else {
        return Some(Round { until, events: Events::Complete(Contributions::new()) });
    };
    let events = replay(objects, selector, &from, &until, observed);
    let events = tokio::time::timeout(TIMEOUT, events).await.ok()??;
    Some(Round { until, events })
}

/// Covers at least `until`; `None` if incomplete.
async fn replay<K>(
    objects: Api<K>,
    selector: Option<String>,
    from: &str,
    until: &str,
    observed: impl Fn(K) -> ObservedObject + Send,
) -> Option<Events>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let params = WatchParams {
        label_selector: selector,
        timeout: Some(SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    let started = Instant::now();
    let events = match objects.watch(&params, from).await {
        Err(kube::Error::Api(status)) if status.code == EXPIRED => return Some(Events::Expired),
        events => events.ok()?,
    };
    let (mut events, mut contributions) = (Box::pin(events), Contributions::new());
    while let Some(event) = events.try_next().await.ok()? {
        let (object, exists) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (observed(object), true),
            WatchEvent::Deleted(object) => (observed(object), false),
            WatchEvent::Bookmark(mark) if reaches(&mark.metadata.resource_version, until) => {
                return Some(Events::Complete(contributions));
            }
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) if status.code == EXPIRED => return Some(Events::Expired),
            WatchEvent::Error(_) => return None,
        };
        let ObservedObject { key, resource_version, content, fingerprint, .. } = object;
        let version = content.then_some(resource_version.as_str());
        let contributed =
            if exists { contribution(&key.namespace, &key.name, fingerprint?, version) } else { 0 };
        contributions.insert(key, contributed);
        if contributions.len() > MAX_OBJECTS {
            return Some(Events::TooMany);
        }
    }
    // Without bookmarks, the full duration proves completeness; an earlier end proves nothing.
    (started.elapsed() >= Duration::from_secs(u64::from(SECONDS - 1)))
        .then_some(Events::Complete(contributions))
}

/// Versions are numbers (KEP-5504); others never match.
fn reaches(version: &str, until: &str) -> bool {
    matches!((version.parse::<u64>(), until.parse::<u64>()), (Ok(version), Ok(until)) if version >= until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX_SIZE: usize = 10;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: name.into() }
    }

    fn index(objects: &[(&str, u64)]) -> Index {
        let mut index = Index::new(INDEX_SIZE);
        for (name, fingerprint) in objects {
            index.apply(key(name), *fingerprint, None);
        }
        index
    }

    fn round(until: &str, objects: &[(&str, Option<u64>)]) -> Round {
        let reported = objects.iter().map(|(name, fingerprint)| {
            (key(name), fingerprint.map_or(0, |fingerprint| contribution("n", name, fingerprint, None)))
        });
        Round { until: until.into(), events: Events::Complete(reported.collect()) }
    }

    fn begun() -> Replay {
        let mut replay = Replay::never();
        assert_eq!(replay.judge(Some(round("1", &[])), &index(&[])), None, "it only finds out where it is");
        replay
    }

    fn from(replay: &Replay) -> (&str, bool) {
        (replay.from.as_deref().unwrap(), replay.due >= Instant::now() + PERIOD.mul_f64(0.75))
    }

    #[tokio::test(start_paused = true)]
    async fn a_replay_matching_the_index_is_equal() {
        let mut replay = begun();
        let reported = Some(round("2", &[("a", Some(2)), ("b", None)]));
        assert_eq!(replay.judge(reported, &index(&[("a", 2), ("c", 1)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("2", true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_equal_difference_in_two_replays_was_missed() {
        let cases = [(("a", Some(2)), ("a", 1)), (("a", None), ("a", 1)), (("a", Some(1)), ("b", 1))];
        for (reported, shown) in cases {
            let mut replay = begun();
            let reported = |until| Some(round(until, &[reported, ("c", Some(7))]));
            let shown = index(&[shown, ("c", 7)]);
            assert_eq!(replay.judge(reported("2"), &shown), Some(Judgement::Unsettled));
            assert_eq!(
                (from(&replay), replay.due - Instant::now()),
                (("1", false), LAG),
                "from the same place"
            );
            assert_eq!(replay.judge(reported("3"), &shown), Some(Judgement::Missed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_observed_by_the_watch_was_not_missed() {
        let mut replay = begun();
        let reported = |until, fingerprint| Some(round(until, &[("a", Some(fingerprint))]));
        assert_eq!(replay.judge(reported("2", 2), &index(&[("a", 1)])), Some(Judgement::Unsettled));
        assert_eq!(replay.judge(reported("3", 2), &index(&[("a", 2)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("3", true));
        // The next check must not start ever earlier.
        replay.judge(reported("4", 3), &index(&[("a", 2)]));
        assert_eq!(replay.judge(reported("5", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
        assert_eq!(
            from(&replay),
            ("4", true),
            "what came after the first of the two looks is looked at again"
        );
        // A later difference is a new one.
        assert_eq!(replay.judge(reported("6", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_replay_is_repeated_from_the_same_version() {
        let mut replay = begun();
        assert_eq!(replay.judge(None, &index(&[])), Some(Judgement::Failed));
        assert_eq!((from(&replay), replay.due - Instant::now()), (("1", false), AGAIN));
        // The suspicion survives.
        let reported = |until| Some(round(until, &[("a", Some(2))]));
        replay.judge(reported("2"), &index(&[("a", 1)]));
        replay.judge(None, &index(&[("a", 1)]));
        assert_eq!(replay.judge(reported("3"), &index(&[("a", 1)])), Some(Judgement::Missed));
    }

    #[tokio::test(start_paused = true)]
    async fn an_oversized_or_expired_replay_restarts_from_now() {
        for (events, judgement) in
            [(Events::TooMany, Judgement::Failed), (Events::Expired, Judgement::Unknown)]
        {
            let mut replay = begun();
            assert_eq!(replay.judge(Some(Round { until: "2".into(), events }), &index(&[])), Some(judgement));
            assert_eq!(from(&replay), ("2", true));
        }
    }

    #[test]
    fn resource_versions_are_compared_as_numbers() {
        assert!(reaches("10", "9") && reaches("9", "9"));
        assert!(!reaches("9", "10") && !reaches("b", "a") && !reaches("", ""));
    }
}
