//! Whether a watch on many objects has told what has changed lately: what the API server has told since a minute ago is
//! watched once more, and compared.
//!
//! To list tens of thousands of objects each minute would cost more than it is worth ([`super::verify`] takes its time with
//! them). What has changed in a minute is little, however many objects there are: a short watch from where the last look
//! ended tells it again, on a request of its own.

use super::{
    super::{
        index::{Index, ObjectKey},
        resolve::Resolved,
    },
    Metadata, Seen,
    source::{api, seen_metadata, seen_whole},
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

/// Seconds that the API server has for telling again. It begins at once, and ends the watch then.
const SECONDS: u32 = 5;
/// For one request, and for a watch to end that should have.
const TIMEOUT: Duration = Duration::from_secs(15);
/// What is told again, a watch that is well has told after this.
const LAG: Duration = Duration::from_secs(5);
/// Most objects that a look takes up. A watch that tells of more in a minute is not judged.
const MOST: usize = 5_000;

/// The last that was told of each object: what it contributes, 0 if it is gone.
type Told = HashMap<ObjectKey, u64>;

/// What one look has found.
pub(super) struct Round {
    /// Where the next look begins.
    until: String,
    told: Told,
}

/// `None` if it failed. The watch has a say about that itself.
type Looked = BoxFuture<'static, Option<Round>>;

/// Looks when it is time to.
pub(super) struct Replay {
    look: Option<Box<dyn Fn(Option<String>) -> Looked + Send + Sync>>,
    /// Where the next look begins; none: it only finds out where it is.
    from: Option<String>,
    running: Option<Looked>,
    due: Instant,
    /// What the last look and the index said of objects on which they differ.
    suspect: Option<HashMap<ObjectKey, (u64, u64)>>,
}

impl Replay {
    /// Of a watch on `resolved`. `client` must not be the one whose answers count as signs of life.
    pub(super) fn new(client: &Client, spec: &config::Watch, resolved: &Resolved, whole: bool) -> Self {
        let (client, spec, resolved) = (client.clone(), spec.clone(), resolved.clone());
        let look = move |from| {
            let marks = api::<Metadata>(&client, &spec, &resolved);
            let selector = spec.selector();
            if whole {
                let (field, group) = (spec.field, resolved.resource.group.clone());
                let seen = move |object: DynamicObject| seen_whole(field, &group, object);
                look(marks, api::<DynamicObject>(&client, &spec, &resolved), selector, from, seen).boxed()
            } else {
                let objects = marks.clone();
                look(marks, objects, selector, from, seen_metadata).boxed()
            }
        };
        Self { look: Some(Box::new(look)), ..Self::never() }
    }

    /// Of a watch that nobody can be asked about.
    pub(super) fn never() -> Self {
        Self { look: None, from: None, running: None, due: Instant::now(), suspect: None }
    }

    /// The watch has listed: what comes after this is to be told.
    pub(super) fn begin(&mut self) {
        (self.from, self.running, self.due, self.suspect) = (None, None, Instant::now(), None);
    }

    /// The next look that has ended. Cancel-safe: a look that has begun goes on.
    pub(super) async fn next(&mut self) -> Option<Round> {
        let Some(look) = &self.look else { return std::future::pending().await };
        if self.running.is_none() {
            tokio::time::sleep_until(self.due).await;
        }
        let from = &self.from;
        let looked = self.running.get_or_insert_with(|| look(from.clone())).await;
        self.running = None;
        looked
    }

    /// What a look says of a watch that has shown `index`; none if it only found out where to begin. Two looks that differ
    /// from it about an object in the same way, while it stays as it is, show that something is missing.
    pub(super) fn judge(&mut self, round: Option<Round>, index: &Index) -> Option<Judgement> {
        let pause = PERIOD.mul_f64(0.75 + jitter::random() / 4.0);
        let before = self.suspect.take();
        self.due = Instant::now() + pause;
        let Some(Round { until, told }) = round else {
            // Too long ago, perhaps: from where it is now, then.
            self.begin();
            self.due += pause;
            return Some(Judgement::Failed);
        };
        if self.from.is_none() {
            self.from = Some(until);
            return None;
        }
        let differ: HashMap<_, _> = told
            .into_iter()
            .map(|(key, told)| (told, index.contribution(&key), key))
            .filter(|(told, shown, _)| told != shown)
            .map(|(told, shown, key)| (key, (told, shown)))
            .collect();
        if differ.is_empty() {
            self.from = Some(until);
            return Some(Judgement::Equal);
        }
        let Some(before) = before else {
            // Once more from the same place.
            (self.suspect, self.due) = (Some(differ), Instant::now() + LAG);
            return Some(Judgement::Unsettled);
        };
        if differ.iter().any(|(key, values)| before.get(key) == Some(values)) {
            return Some(Judgement::Missed);
        }
        // These change all the time, and the watch tells of them: whatever it misses of them, the next change mends.
        self.from = Some(until);
        Some(Judgement::Unsettled)
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("from", &self.from).field("due", &self.due).finish_non_exhaustive()
    }
}

async fn look<K>(
    marks: Api<Metadata>,
    objects: Api<K>,
    selector: Option<String>,
    from: Option<String>,
    seen: impl Fn(K) -> Seen + Send,
) -> Option<Round>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    // Before the watch: what comes between the two is told twice, and not at all the other way round.
    let one = ListParams { label_selector: selector.clone(), limit: Some(1), ..ListParams::default() };
    let list = tokio::time::timeout(TIMEOUT, marks.list(&one)).await.ok()?.ok()?;
    let until = list.metadata.resource_version.filter(|version| !version.is_empty())?;
    let mut told = Told::new();
    let Some(from) = from else { return Some(Round { until, told }) };
    let params = WatchParams {
        label_selector: selector,
        timeout: Some(SECONDS),
        bookmarks: false,
        ..WatchParams::default()
    };
    let again = async {
        let mut events = Box::pin(objects.watch(&params, &from).await.ok()?);
        while let Some(event) = events.try_next().await.ok()? {
            let (seen, there) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (seen(object), true),
                WatchEvent::Deleted(object) => (seen(object), false),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(_) => return None,
            };
            let Seen { key, resource_version, content, fingerprint, .. } = seen;
            let version = content.then_some(resource_version.as_str());
            let contributed =
                if there { contribution(&key.namespace, &key.name, fingerprint?, version) } else { 0 };
            told.insert(key, contributed);
            if told.len() > MOST {
                return None;
            }
        }
        Some(told)
    };
    let told = tokio::time::timeout(TIMEOUT, again).await.ok()??;
    Some(Round { until, told })
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

    fn round(until: &str, objects: &[(&str, Option<u64>)]) -> Option<Round> {
        let told = objects.iter().map(|(name, fingerprint)| {
            (key(name), fingerprint.map_or(0, |fingerprint| contribution("n", name, fingerprint, None)))
        });
        Some(Round { until: until.into(), told: told.collect() })
    }

    fn begun() -> Replay {
        let mut replay = Replay::never();
        assert_eq!(replay.judge(round("1", &[]), &index(&[])), None, "it only finds out where it is");
        replay
    }

    fn from(replay: &Replay) -> (&str, bool) {
        (replay.from.as_deref().unwrap(), replay.due >= Instant::now() + PERIOD.mul_f64(0.75))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_again_and_shown_before_is_all_there_is_to_say() {
        let mut replay = begun();
        let told = round("2", &[("a", Some(2)), ("b", None)]);
        assert_eq!(replay.judge(told, &index(&[("a", 2), ("c", 1)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("2", true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_differs_twice_in_the_same_way_was_missed() {
        let cases = [(("a", Some(2)), ("a", 1)), (("a", None), ("a", 1)), (("a", Some(1)), ("b", 1))];
        for (told, shown) in cases {
            let mut replay = begun();
            let told = |until| round(until, &[told, ("c", Some(7))]);
            let shown = index(&[shown, ("c", 7)]);
            assert_eq!(replay.judge(told("2"), &shown), Some(Judgement::Unsettled));
            assert_eq!(
                (from(&replay), replay.due - Instant::now()),
                (("1", false), LAG),
                "from the same place"
            );
            assert_eq!(replay.judge(told("3"), &shown), Some(Judgement::Missed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_watch_has_shown_since_was_not_missed() {
        let mut replay = begun();
        let told = |until, fingerprint| round(until, &[("a", Some(fingerprint))]);
        assert_eq!(replay.judge(told("2", 2), &index(&[("a", 1)])), Some(Judgement::Unsettled));
        assert_eq!(replay.judge(told("3", 2), &index(&[("a", 2)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("3", true));
        // It changes all the time; the next look does not begin ever earlier.
        replay.judge(told("4", 3), &index(&[("a", 2)]));
        assert_eq!(replay.judge(told("5", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
        assert_eq!(from(&replay), ("5", true));
        // What it differs in after that is a matter of its own.
        assert_eq!(replay.judge(told("6", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_begins_anew_after_a_while() {
        let mut replay = begun();
        assert_eq!(replay.judge(None, &index(&[])), Some(Judgement::Failed));
        assert!(replay.from.is_none() && replay.due >= Instant::now() + PERIOD.mul_f64(0.75));
    }
}
