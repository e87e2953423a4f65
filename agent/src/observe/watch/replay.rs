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
    source::{api, part_of, seen_metadata, seen_whole},
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

/// Seconds that the API server has for telling again. It begins at once, and says how far it is two seconds before it ends the
/// watch.
const SECONDS: u32 = 5;
/// For one request, and for a watch to end that should have.
const TIMEOUT: Duration = Duration::from_secs(15);
/// What is told again, a watch that is well has told after this.
const LAG: Duration = Duration::from_secs(5);
/// Until a look that failed is made again.
const AGAIN: Duration = Duration::from_secs(10);
/// Most objects that a look takes up. A watch that tells of more in a minute is not judged.
const MOST: usize = 5_000;
/// The answer to a version that an API server has forgotten.
const EXPIRED: u16 = 410;

/// The last that was told of each object: what it contributes, 0 if it is gone.
type Told = HashMap<ObjectKey, u64>;

/// What one look has found.
pub(super) struct Round {
    /// Where the next look begins.
    until: String,
    told: Heard,
}

enum Heard {
    /// All that was said since the last look.
    All(Told),
    /// More than is taken up.
    TooMuch,
    /// That the last look is too long ago.
    TooLate,
}

/// `None` if it failed: it is made again from the same place.
type Looked = BoxFuture<'static, Option<Round>>;

/// What the last look and the index said of objects on which they differ.
struct Suspect {
    /// How far that look came.
    until: String,
    differ: HashMap<ObjectKey, (u64, u64)>,
}

/// Looks when it is time to.
pub(super) struct Replay {
    look: Option<Box<dyn Fn(Option<String>) -> Looked + Send + Sync>>,
    /// Where the next look begins; none: it only finds out where it is.
    from: Option<String>,
    running: Option<Looked>,
    due: Instant,
    /// How much later than else the first look is made.
    later: Duration,
    suspect: Option<Suspect>,
}

impl Replay {
    /// Of a watch on `resolved`. `client` must not be the one whose answers count as signs of life.
    pub(super) fn new(client: &Client, spec: &config::Watch, resolved: &Resolved, whole: bool) -> Self {
        let (client, spec, resolved) = (client.clone(), spec.clone(), resolved.clone());
        let look = move |from| {
            let marks = api::<Metadata>(&client, &spec, &resolved);
            let selector = spec.selector();
            if whole {
                let (part, group) = (part_of(&spec), resolved.resource.group.clone());
                let seen = move |object: DynamicObject| seen_whole(part, &group, object);
                look(marks, api::<DynamicObject>(&client, &spec, &resolved), selector, from, seen).boxed()
            } else {
                let objects = marks.clone();
                let part = part_of(&spec);
                let seen = move |object: Metadata| seen_metadata(part, object);
                look(marks, objects, selector, from, seen).boxed()
            }
        };
        Self { look: Some(Box::new(look)), ..Self::never() }
    }

    /// Of a watch that nobody can be asked about.
    pub(super) fn never() -> Self {
        Self {
            look: None,
            from: None,
            running: None,
            due: Instant::now(),
            later: Duration::ZERO,
            suspect: None,
        }
    }

    /// The watch has listed: what comes after this is to be told. The first look comes so much `later` than else.
    pub(super) fn begin(&mut self, later: Duration) {
        (self.from, self.running, self.due, self.suspect) = (None, None, Instant::now(), None);
        self.later = later;
    }

    /// Whether it knows yet where to begin. To find that out needs no watch that could be judged.
    pub(super) fn has_begun(&self) -> bool {
        self.from.is_some()
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
        let Some(Round { until, told }) = round else {
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
        let told = match told {
            Heard::All(told) => told,
            Heard::TooMuch => {
                self.from = Some(until);
                return Some(Judgement::Failed);
            }
            Heard::TooLate => {
                self.from = Some(until);
                return Some(Judgement::Unknown);
            }
        };
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
            (self.suspect, self.due) = (Some(Suspect { until, differ }), Instant::now() + LAG);
            return Some(Judgement::Unsettled);
        };
        if differ.iter().any(|(key, values)| before.differ.get(key) == Some(values)) {
            return Some(Judgement::Missed);
        }
        // What the first look differed in has been shown since, or changes all the time. What came after it is looked at again.
        self.from = Some(before.until);
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
    let Some(from) = from else { return Some(Round { until, told: Heard::All(Told::new()) }) };
    let told = tokio::time::timeout(TIMEOUT, again(objects, selector, &from, &until, seen)).await.ok()??;
    Some(Round { until, told })
}

/// All that is told since `from`, at least up to `until`; `None`: it was not all.
async fn again<K>(
    objects: Api<K>,
    selector: Option<String>,
    from: &str,
    until: &str,
    seen: impl Fn(K) -> Seen + Send,
) -> Option<Heard>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let params = WatchParams {
        label_selector: selector,
        timeout: Some(SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    let begun = Instant::now();
    let events = match objects.watch(&params, from).await {
        Err(kube::Error::Api(status)) if status.code == EXPIRED => return Some(Heard::TooLate),
        events => events.ok()?,
    };
    let (mut events, mut told) = (Box::pin(events), Told::new());
    while let Some(event) = events.try_next().await.ok()? {
        let (seen, there) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (seen(object), true),
            WatchEvent::Deleted(object) => (seen(object), false),
            WatchEvent::Bookmark(mark) if reaches(&mark.metadata.resource_version, until) => {
                return Some(Heard::All(told));
            }
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) if status.code == EXPIRED => return Some(Heard::TooLate),
            WatchEvent::Error(_) => return None,
        };
        let Seen { key, resource_version, content, fingerprint, .. } = seen;
        let version = content.then_some(resource_version.as_str());
        let contributed =
            if there { contribution(&key.namespace, &key.name, fingerprint?, version) } else { 0 };
        told.insert(key, contributed);
        if told.len() > MOST {
            return Some(Heard::TooMuch);
        }
    }
    // An API server that gives no bookmarks has told all by then. One that ended the watch earlier was stopped, or had enough of it.
    (begun.elapsed() >= Duration::from_secs(u64::from(SECONDS - 1))).then_some(Heard::All(told))
}

/// Whether a version is at least another one. They are numbers (KEP-5504); of what is none, nothing is concluded.
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
        let told = objects.iter().map(|(name, fingerprint)| {
            (key(name), fingerprint.map_or(0, |fingerprint| contribution("n", name, fingerprint, None)))
        });
        Round { until: until.into(), told: Heard::All(told.collect()) }
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
    async fn what_was_told_again_and_shown_before_is_all_there_is_to_say() {
        let mut replay = begun();
        let told = Some(round("2", &[("a", Some(2)), ("b", None)]));
        assert_eq!(replay.judge(told, &index(&[("a", 2), ("c", 1)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("2", true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_differs_twice_in_the_same_way_was_missed() {
        let cases = [(("a", Some(2)), ("a", 1)), (("a", None), ("a", 1)), (("a", Some(1)), ("b", 1))];
        for (told, shown) in cases {
            let mut replay = begun();
            let told = |until| Some(round(until, &[told, ("c", Some(7))]));
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
        let told = |until, fingerprint| Some(round(until, &[("a", Some(fingerprint))]));
        assert_eq!(replay.judge(told("2", 2), &index(&[("a", 1)])), Some(Judgement::Unsettled));
        assert_eq!(replay.judge(told("3", 2), &index(&[("a", 2)])), Some(Judgement::Equal));
        assert_eq!(from(&replay), ("3", true));
        // It changes all the time; the next look does not begin ever earlier.
        replay.judge(told("4", 3), &index(&[("a", 2)]));
        assert_eq!(replay.judge(told("5", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
        assert_eq!(
            from(&replay),
            ("4", true),
            "what came after the first of the two looks is looked at again"
        );
        // What it differs in after that is a matter of its own.
        assert_eq!(replay.judge(told("6", 4), &index(&[("a", 3)])), Some(Judgement::Unsettled));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_is_made_again_from_the_same_place_soon() {
        let mut replay = begun();
        assert_eq!(replay.judge(None, &index(&[])), Some(Judgement::Failed));
        assert_eq!((from(&replay), replay.due - Instant::now()), (("1", false), AGAIN));
        // What was suspected before stays so.
        let told = |until| Some(round(until, &[("a", Some(2))]));
        replay.judge(told("2"), &index(&[("a", 1)]));
        replay.judge(None, &index(&[("a", 1)]));
        assert_eq!(replay.judge(told("3"), &index(&[("a", 1)])), Some(Judgement::Missed));
    }

    #[tokio::test(start_paused = true)]
    async fn after_too_much_or_too_late_it_goes_on_from_now() {
        for (told, judgement) in [(Heard::TooMuch, Judgement::Failed), (Heard::TooLate, Judgement::Unknown)] {
            let mut replay = begun();
            assert_eq!(replay.judge(Some(Round { until: "2".into(), told }), &index(&[])), Some(judgement));
            assert_eq!(from(&replay), ("2", true));
        }
    }

    #[test]
    fn versions_are_numbers_or_say_nothing() {
        assert!(reaches("10", "9") && reaches("9", "9"));
        assert!(!reaches("9", "10") && !reaches("b", "a") && !reaches("", ""));
    }
}
