//! Finds lost events by comparing sums with occasional lists. Caches and proxies may lose events although bookmarks
//! continue.
//!
//! Each check spreads objects differently, so a lost event eventually shows beside constantly changing objects.

use super::{
    super::{fingerprint::Part, resolve::Resolved},
    event::ObservedObject,
    metadata::Metadata,
    source::{api, observed_metadata, observed_whole, part_of},
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

pub(super) const PERIOD: Duration = Duration::from_mins(1);
/// Objects listed per second, on average; whole objects are larger.
const METADATA_PER_SECOND: f64 = 20.0;
const WHOLE_PER_SECOND: f64 = 5.0;
/// Time for a healthy watch to catch up.
const LAG: Duration = Duration::from_secs(5);
/// Limits memory.
const PAGE: u32 = 100;
const TIMEOUT: Duration = Duration::from_secs(30);

/// `None` after a failure, which the watch itself reports.
type Listed = BoxFuture<'static, Option<FineSums>>;

type Found = BoxFuture<'static, Option<Vec<Metadata>>>;

/// Lists and randomness for simulations.
pub struct Beside {
    /// Lists everything.
    pub list: Box<dyn Fn() -> Found + Send + Sync>,
    /// In `[0, 1)`.
    pub jitter: fn() -> f64,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

pub(super) struct Check {
    list: Option<Box<dyn Fn(u64) -> Listed + Send + Sync>>,
    jitter: fn() -> f64,
    rate: f64,
    min_period: Duration,
    running: Option<Listed>,
    due: Instant,
    hurried: Option<Instant>,
    suspect: Option<(FineSums, FineSums)>,
    /// Spreads objects over the sums, anew for each judgement.
    salt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Equal,
    /// Perhaps a current change.
    Unsettled,
    Missed,
    Failed,
    /// The history expired, so no judgement is possible.
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
    pub(super) fn new(client: &Client, spec: &config::Watch, resolved: &Resolved, whole: bool) -> Self {
        let (client, spec, resolved) = (client.clone(), spec.clone(), resolved.clone());
        let list = move |salt| {
            if whole {
                let (part, group) = (part_of(&spec), resolved.resource.group.clone());
                let observed = move |object: DynamicObject| observed_whole(part, &group, object);
                sums(api::<DynamicObject>(&client, &spec, &resolved), params(&spec), salt, observed).boxed()
            } else {
                let part = part_of(&spec);
                let observed = move |object: Metadata| observed_metadata(part, object);
                sums(api::<Metadata>(&client, &spec, &resolved), params(&spec), salt, observed).boxed()
            }
        };
        let rate = if whole { WHOLE_PER_SECOND } else { METADATA_PER_SECOND };
        Self { list: Some(Box::new(list)), rate, ..Self::never() }
    }

    pub(super) const fn every(mut self, min_period: Duration) -> Self {
        self.min_period = min_period;
        self
    }

    pub(super) fn never() -> Self {
        Self::by(None, jitter::random)
    }

    fn by(list: Option<Box<dyn Fn(u64) -> Listed + Send + Sync>>, jitter: fn() -> f64) -> Self {
        let (rate, due, salt) = (METADATA_PER_SECOND, Instant::now(), salt(jitter));
        Self {
            list,
            jitter,
            rate,
            min_period: PERIOD,
            running: None,
            due,
            hurried: None,
            suspect: None,
            salt,
        }
    }

    pub(super) fn beside(beside: Beside, part: Part) -> Self {
        let Beside { list, jitter } = beside;
        let list = move |salt| {
            let found = list();
            async move {
                let mut sums = vec![0_u64; SLOTS].into_boxed_slice();
                found
                    .await?
                    .into_iter()
                    .try_for_each(|object| add(&mut sums, salt, observed_metadata(part, object)))?;
                Some(sums)
            }
            .boxed()
        };
        Self::by(Some(Box::new(list)), jitter)
    }

    /// Most objects that are listed every minute.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small constant")]
    pub(super) fn soon(&self) -> usize {
        (self.rate * PERIOD.as_secs_f64()) as usize
    }

    pub(super) fn delay(&mut self, later: Duration) {
        self.due += later;
    }

    /// Lists early after an inconclusive replay, at most once per period.
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
        self.min_period.max(share)
    }

    pub(super) fn rest(&mut self, objects: usize) {
        let period = self.period(objects).mul_f64(0.75 + (self.jitter)() / 4.0);
        (self.running, self.due, self.suspect) = (None, Instant::now() + period, None);
        self.salt = salt(self.jitter);
    }

    /// For [`Index::fine_sums`](super::super::index::Index::fine_sums).
    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    /// Cancel-safe: a started list continues.
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

    /// Compares a list with `index`. Two equal differences while the index is unchanged prove a missed event.
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
            // An immediate repeat could loop forever.
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
    // Without a resourceVersion lists are the newest, but API servers from 1.34 use their cache.
    ListParams { label_selector: spec.selector(), limit: Some(PAGE), ..ListParams::default() }
}

/// Any value works: colliding objects separate with another salt.
fn salt(jitter: fn() -> f64) -> u64 {
    jitter().to_bits()
}

async fn sums<K>(
    api: Api<K>,
    mut params: ListParams,
    salt: u64,
    observed: impl Fn(K) -> ObservedObject + Send,
) -> Option<FineSums>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send,
{
    let mut sums = vec![0_u64; SLOTS].into_boxed_slice();
    loop {
        let page = tokio::time::timeout(TIMEOUT, api.list(&params)).await.ok()?.ok()?;
        for object in page.items {
            add(&mut sums, salt, observed(object))?;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Some(sums),
        }
    }
}

fn add(sums: &mut [u64], salt: u64, object: ObservedObject) -> Option<()> {
    let ObservedObject { key, resource_version, content, fingerprint, .. } = object;
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
    async fn an_equal_difference_in_two_lists_was_missed() {
        let mut check = Check::never();
        let (listed, index) = (sums_with(3, 1), sums_with(3, 2));
        assert_eq!(judged(&mut check, Some(listed.clone()), index.clone()), (Judgement::Unsettled, LAG));
        let (judgement, due) = judged(&mut check, Some(listed.clone()), index.clone());
        assert!(judgement == Judgement::Missed && due >= PERIOD.mul_f64(0.75), "{due:?}");
        assert_eq!(judged(&mut check, Some(listed), index).0, Judgement::Unsettled, "from the beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_observed_since_was_not_missed() {
        let mut check = Check::never();
        judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 1));
        assert_eq!(judged(&mut check, Some(sums_with(3, 2)), sums_with(3, 2)).0, Judgement::Equal);
        // Constant changes.
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

    /// 500 objects change per check.
    #[tokio::test(start_paused = true)]
    async fn a_missed_object_is_found_despite_steady_changes() {
        let mut check = Check::never();
        let there = |check: &Check, checks: u64, missed: u64| {
            let mut sums = vec![0; SLOTS].into_boxed_slice();
            for object in 0..1000_u64 {
                let fingerprint =
                    if object < 500 { checks } else { 0 } + if object == 999 { missed } else { 0 };
                let name = format!("o{object}");
                add_fine(&mut sums, check.salt(), "n", &name, contribution("n", &name, fingerprint, None));
            }
            sums
        };
        // The index lags by one change and lacks the last object.
        let found = (1..=60).find(|checks| {
            let (listed, index) = (there(&check, checks + 1, 1), there(&check, *checks, 0));
            check.judge(Some(listed), index, 1000) == Judgement::Missed
        });
        assert!(found.is_some(), "not one of thirty checks has found it");
        let late = (1..=60).find(|checks| {
            let (listed, index) = (there(&check, checks + 1, 0), there(&check, *checks, 0));
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
