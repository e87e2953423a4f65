//! Whether a watch that seems well has told everything: from time to time the objects are listed beside it, and the sums
//! of both are compared.
//!
//! A watch may lose an event and go on, bookmarks and all: a cache in an API server, or anything between, has swallowed
//! it. No sign of life shows that. A list does, unless it comes from the same cache.
//!
//! The sums are many, and each check spreads the objects over them in another way. So what was swallowed is found beside
//! other objects that change all the time: sooner or later it shares its sum with none of them.

use super::{
    super::{fingerprint::Part, resolve::Resolved},
    Metadata, Seen,
    source::{api, part_of, seen_metadata, seen_whole},
};
use crate::{config, jitter};
use futures::{FutureExt, future::BoxFuture};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;
use std::{fmt, time::Duration};
use tidewatch_delivery::digest::{FineSums, SLOTS, add_fine, contribution};
use tokio::time::Instant;

/// Between two lists, if there are few objects.
pub(super) const PERIOD: Duration = Duration::from_mins(1);
/// Objects that are listed a second, over a period, at most; and whole ones, which are larger.
const METADATA_PER_SECOND: f64 = 20.0;
const WHOLE_PER_SECOND: f64 = 5.0;
/// What a list shows, a watch that is well has shown after this.
const LAG: Duration = Duration::from_secs(5);
/// Objects of one page: what is in memory at once.
const PAGE: u32 = 100;
/// For one page.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The sums of a list; `None` if it failed. The watch has a say about that itself.
type Listed = BoxFuture<'static, Option<FineSums>>;

/// What is there, as a list beside a watch finds it; `None` if it failed.
type Found = BoxFuture<'static, Option<Vec<Metadata>>>;

/// Lists that are not an API server's, and another randomness for when they are due: for simulations.
pub struct Beside {
    /// Lists everything.
    pub list: Box<dyn Fn() -> Found + Send + Sync>,
    /// Numbers in `[0, 1)`.
    pub jitter: fn() -> f64,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

/// Lists when it is time to.
pub(super) struct Check {
    list: Option<Box<dyn Fn(u64) -> Listed + Send + Sync>>,
    jitter: fn() -> f64,
    rate: f64,
    /// Between two lists, at least.
    least: Duration,
    running: Option<Listed>,
    due: Instant,
    /// When a list was last asked for out of turn.
    hurried: Option<Instant>,
    /// What the last list and the index said, if that was different.
    suspect: Option<(FineSums, FineSums)>,
    /// How the objects are spread over the sums, until the watch is judged.
    salt: u64,
}

/// What a list says about a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It has told everything.
    Equal,
    /// The two differ, perhaps because something happens right now.
    Unsettled,
    /// It has missed something.
    Missed,
    /// There was no list.
    Failed,
    /// Nobody can tell any more what it should have told.
    Unknown,
}

impl Judgement {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Unsettled => "unsettled",
            Self::Missed => "missed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl Check {
    /// Of a watch on `resolved`.
    pub(super) fn new(client: &Client, spec: &config::Watch, resolved: &Resolved, whole: bool) -> Self {
        let (client, spec, resolved) = (client.clone(), spec.clone(), resolved.clone());
        let list = move |salt| {
            if whole {
                let (part, group) = (part_of(&spec), resolved.resource.group.clone());
                let seen = move |object: DynamicObject| seen_whole(part, &group, object);
                sums(api::<DynamicObject>(&client, &spec, &resolved), params(&spec), salt, seen).boxed()
            } else {
                let part = part_of(&spec);
                let seen = move |object: Metadata| seen_metadata(part, object);
                sums(api::<Metadata>(&client, &spec, &resolved), params(&spec), salt, seen).boxed()
            }
        };
        let rate = if whole { WHOLE_PER_SECOND } else { METADATA_PER_SECOND };
        Self { list: Some(Box::new(list)), rate, ..Self::never() }
    }

    /// The same, at most so often.
    pub(super) const fn every(mut self, least: Duration) -> Self {
        self.least = least;
        self
    }

    /// Of a watch beside which nothing can be listed.
    pub(super) fn never() -> Self {
        Self::by(None, jitter::random)
    }

    fn by(list: Option<Box<dyn Fn(u64) -> Listed + Send + Sync>>, jitter: fn() -> f64) -> Self {
        let (rate, due, salt) = (METADATA_PER_SECOND, Instant::now(), salt(jitter));
        Self { list, jitter, rate, least: PERIOD, running: None, due, hurried: None, suspect: None, salt }
    }

    /// Of a watch beside which somebody else lists.
    pub(super) fn beside(Beside { list, jitter }: Beside, part: Part) -> Self {
        let list = move |salt| {
            let found = list();
            async move {
                let mut sums = vec![0_u64; SLOTS].into_boxed_slice();
                found
                    .await?
                    .into_iter()
                    .try_for_each(|object| add(&mut sums, salt, seen_metadata(part, object)))?;
                Some(sums)
            }
            .boxed()
        };
        Self::by(Some(Box::new(list)), jitter)
    }

    /// Of at most so many objects, the lists come each minute.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small constant")]
    pub(super) fn soon(&self) -> usize {
        (self.rate * PERIOD.as_secs_f64()) as usize
    }

    /// The next list comes so much later.
    pub(super) fn delay(&mut self, later: Duration) {
        self.due += later;
    }

    /// Something else cannot tell whether the watch has told everything: the next list is due at once, but no more often than lists
    /// are.
    pub(super) fn hurry(&mut self, objects: usize) {
        let now = Instant::now();
        if self.hurried.is_none_or(|at| now >= at + self.period(objects)) {
            self.hurried = Some(now);
            self.due = now;
        }
    }

    fn period(&self, objects: usize) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a count of objects is far below 2^52")]
        let share = Duration::from_secs_f64(objects as f64 / self.rate);
        self.least.max(share)
    }

    /// The watch has listed by itself, or was judged: the next list is due in a while.
    pub(super) fn rest(&mut self, objects: usize) {
        let period = self.period(objects).mul_f64(0.75 + (self.jitter)() / 4.0);
        (self.running, self.due, self.suspect) = (None, Instant::now() + period, None);
        self.salt = salt(self.jitter);
    }

    /// For [`Index::fine_sums`](super::super::index::Index::fine_sums), to compare with what is listed.
    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    /// The next list that has ended. Cancel-safe: a list that has begun goes on.
    pub(super) async fn next(&mut self) -> Option<FineSums> {
        let Some(list) = &self.list else { return std::future::pending().await };
        if self.running.is_none() {
            tokio::time::sleep_until(self.due).await;
        }
        let salt = self.salt;
        let listed = self.running.get_or_insert_with(|| list(salt)).await;
        self.running = None;
        listed
    }

    /// What the list says of a watch that has shown `index`, with so many objects. Two lists that differ from it in the same
    /// way, while it stays as it is, show that something is missing.
    pub(super) fn judge(&mut self, listed: Option<FineSums>, index: FineSums, objects: usize) -> Judgement {
        let Some(listed) = listed else {
            self.rest(objects);
            return Judgement::Failed;
        };
        if listed == index {
            self.rest(objects);
            return Judgement::Equal;
        }
        let stays = self.suspect.as_ref().is_some_and(|(listed_before, index_before)| {
            (0..SLOTS).any(|n| {
                listed.get(n) != index.get(n)
                    && listed.get(n) == listed_before.get(n)
                    && index.get(n) == index_before.get(n)
            })
        });
        if stays {
            self.rest(objects);
            return Judgement::Missed;
        }
        if self.suspect.is_some() {
            // Something happens all the time: to ask again at once would be to ask for ever.
            self.rest(objects);
            return Judgement::Unsettled;
        }
        (self.suspect, self.due) = (Some((listed, index)), Instant::now() + LAG);
        Judgement::Unsettled
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("due", &self.due).finish_non_exhaustive()
    }
}

fn params(spec: &config::Watch) -> ListParams {
    // Without a resourceVersion: as new as what the store has. Since 1.34 API servers answer it from their cache all the same.
    ListParams { label_selector: spec.selector(), limit: Some(PAGE), ..ListParams::default() }
}

/// Needs no quality: what two objects share by one, they do not share by another.
fn salt(jitter: fn() -> f64) -> u64 {
    jitter().to_bits()
}

async fn sums<K>(
    api: Api<K>,
    mut params: ListParams,
    salt: u64,
    seen: impl Fn(K) -> Seen + Send,
) -> Option<FineSums>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send,
{
    let mut sums = vec![0_u64; SLOTS].into_boxed_slice();
    loop {
        let page = tokio::time::timeout(TIMEOUT, api.list(&params)).await.ok()?.ok()?;
        for object in page.items {
            add(&mut sums, salt, seen(object))?;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Some(sums),
        }
    }
}

/// Adds an object to the sums; `None` if it cannot be told what counts of it.
fn add(sums: &mut [u64], salt: u64, seen: Seen) -> Option<()> {
    let Seen { key, resource_version, content, fingerprint, .. } = seen;
    let version = content.then_some(resource_version.as_str());
    let contributed = contribution(&key.namespace, &key.name, fingerprint?, version);
    add_fine(sums, salt, &key.namespace, &key.name, contributed);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums_with(bucket: usize, sum: u64) -> FineSums {
        let mut sums = vec![7; SLOTS].into_boxed_slice();
        sums[bucket] = sum;
        sums
    }

    fn judged(check: &mut Check, listed: Option<FineSums>, index: FineSums) -> (Judgement, Duration) {
        let judgement = check.judge(listed, index, 10);
        (judgement, check.due - Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn what_differs_twice_in_the_same_way_was_missed() {
        let mut check = Check::never();
        let (listed, index) = (sums_with(3, 1), sums_with(3, 2));
        assert_eq!(judged(&mut check, Some(listed.clone()), index.clone()), (Judgement::Unsettled, LAG));
        let (judgement, due) = judged(&mut check, Some(listed.clone()), index.clone());
        assert!(judgement == Judgement::Missed && due >= PERIOD.mul_f64(0.75), "{due:?}");
        assert_eq!(judged(&mut check, Some(listed), index).0, Judgement::Unsettled, "from the beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_watch_has_shown_since_was_not_missed() {
        let mut check = Check::never();
        judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 1));
        assert_eq!(judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 2)).0, Judgement::Equal);
        // Something happens all the time, elsewhere too.
        judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 1));
        let (judgement, due) = judged(&mut check, Some(sums_with(3, 4)), sums_with(3, 3));
        assert!(
            judgement == Judgement::Unsettled && due >= PERIOD.mul_f64(0.75),
            "not for ever at once: {due:?}"
        );
        assert_eq!(judged(&mut check, Some(sums_with(3, 4)), sums_with(3, 4)).0, Judgement::Equal);
        judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 1));
        assert_eq!(judged(&mut check, None, sums_with(3, 1)).0, Judgement::Failed);
        assert_eq!(judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 1)).0, Judgement::Unsettled);
    }

    /// Half a thousand objects change at each look, wherever they are spread to.
    #[tokio::test(start_paused = true)]
    async fn what_was_missed_is_found_beside_steady_change() {
        let mut check = Check::never();
        let there = |check: &Check, looks: u64, missed: u64| {
            let mut sums = vec![0; SLOTS].into_boxed_slice();
            for object in 0..1000_u64 {
                let fingerprint =
                    if object < 500 { looks } else { 0 } + if object == 999 { missed } else { 0 };
                let name = format!("o{object}");
                add_fine(&mut sums, check.salt(), "n", &name, contribution("n", &name, fingerprint, None));
            }
            sums
        };
        // The watch comes late by one change, and knows nothing of the last object's.
        let found = (1..=60).find(|looks| {
            let (listed, index) = (there(&check, looks + 1, 1), there(&check, *looks, 0));
            check.judge(Some(listed), index, 1000) == Judgement::Missed
        });
        assert!(found.is_some(), "not one of thirty checks has found it");
        let late = (1..=60).find(|looks| {
            let (listed, index) = (there(&check, looks + 1, 0), there(&check, *looks, 0));
            check.judge(Some(listed), index, 1000) == Judgement::Missed
        });
        assert_eq!(late, None, "nothing was missed");
    }

    #[tokio::test(start_paused = true)]
    async fn many_objects_are_listed_more_rarely() {
        let mut check = Check::never();
        check.rest(100);
        assert!(check.due - Instant::now() <= PERIOD);
        check.rest(10_000);
        assert!(check.due - Instant::now() >= Duration::from_secs(375));
        let mut check = check.every(Duration::from_secs(800));
        check.rest(100);
        assert!(check.due - Instant::now() >= Duration::from_mins(10));
    }
}
