//! A watch: resolves its kind, lists, watches and reports changes.

use super::{
    condition::{Conditions, Reason},
    fingerprint,
    index::{Index, ObjectKey, Verdict},
    resolve::{self, ResolveError, Resolved},
    tap::tapped,
    told::{Baseline, Told},
};
use crate::{
    config::{self, Field},
    jitter,
    metrics::Metrics,
};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::{Client, api::ApiResource, core::Status, runtime::watcher};
pub use metadata::Metadata;
use replay::Replay;
use source::{heard, part_of, seen_metadata, stream};
use std::{sync::Arc, time::Duration};
use tidewatch_delivery::{
    backoff::Backoff,
    outbox::{KeepNames, Moved},
};
use tidewatch_telemetry::readiness;
use tidewatch_wire::v3::Change;
use tokio::sync::{mpsc, watch};
pub use verify::Beside;
use verify::{Check, Judgement};

/// Short, to find new CRDs quickly.
const RESOLVE_BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(15) };
/// Load balancers silently cut idle watches after about 240 s.
const WATCH_SECONDS: u32 = 200;
/// Longest pause within a list.
const LIST_STALL: Duration = Duration::from_mins(1);
/// kube's watcher signals no recovery. It is assumed after this time without an error, which exceeds its longest
/// backoff (30 s) plus the connect timeout.
const RECOVERED_AFTER: Duration = Duration::from_mins(1);

/// Consecutive misses that make a watch unreliable.
const UNRELIABLE: u32 = 3;

/// Dependencies of all watches.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Bounded: floods wait in the API server.
    pub changes: mpsc::Sender<Told>,
    /// State to compare with before reports.
    pub baseline: watch::Receiver<Baseline>,
    /// The watches' conditions.
    pub conditions: Conditions,
    /// Watches that report complete lists.
    pub keep_names: KeepNames,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: fn() -> Timestamp,
    /// Shortest interval of list checks.
    pub check_every: Duration,
    /// Changes after a pause of the process; watches then list again.
    pub resumed: watch::Receiver<u64>,
}

/// Settings of a watch. Name, group, resource and route are fixed while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The watch's configuration.
    pub spec: config::Watch,
    /// Limit of tracked objects.
    pub max_objects: usize,
}

/// A running watch.
#[derive(Debug)]
pub struct Watcher {
    spec: config::Watch,
    /// Shared by observations.
    name: Arc<str>,
    group: Arc<str>,
    version: Arc<str>,
    kind: Arc<str>,
    shared: Shared,
    index: Index,
    wanted: Option<watch::Receiver<Wanted>>,
    /// Dropped after the first list or failure.
    unready: Option<readiness::Guard>,
    /// New objects above the limit since the last list.
    overflow: u64,
    /// Consecutive checks that found a missed event.
    missed: u32,
    listed: bool,
    /// The compared baseline; at 0 nothing is reported.
    round: u64,
    /// Buckets changed between the first list and the comparison.
    early: u64,
    /// The kind was not served at first, so all objects are new.
    appears: bool,
    /// Whether to request streaming lists, which save memory; old servers lack them.
    streaming: bool,
    /// Versions with failed conversion, latest last.
    unconverted: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    ListBegins,
    Applied(Seen),
    Deleted(Seen),
    ListEnds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    key: ObjectKey,
    uid: String,
    resource_version: String,
    /// Whether the fingerprint hashes content, which can return to an earlier value.
    content: bool,
    /// `None`: needs the whole object.
    fingerprint: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The kind has no generation: watch whole objects.
    NeedsWhole,
    KindGone,
    /// The API server does not stream lists: use pages.
    NoStreaming,
    /// Conversion failed: try another version.
    Unconverted,
    Broken,
    Renewed,
    Closed,
}

impl Watcher {
    /// Creates a watch of at most `max_objects` objects.
    pub fn new(spec: config::Watch, max_objects: usize, shared: Shared, unready: readiness::Guard) -> Self {
        shared.conditions.set(&spec.name, Reason::Starting, "", (shared.clock)());
        Self {
            name: spec.name.as_str().into(),
            group: spec.group.as_str().into(),
            version: Arc::default(),
            kind: Arc::default(),
            spec,
            shared,
            index: Index::new(max_objects),
            wanted: None,
            unready: Some(unready),
            overflow: 0,
            missed: 0,
            listed: false,
            round: 0,
            early: 0,
            appears: false,
            streaming: true,
            unconverted: Vec::new(),
        }
    }

    /// Follows changed settings. The index survives, so deselected objects are reported as gone.
    #[must_use]
    pub fn following(mut self, wanted: watch::Receiver<Wanted>) -> Self {
        self.wanted = Some(wanted);
        self
    }

    fn renew(&mut self) -> bool {
        let Some(wanted) = &mut self.wanted else { return false };
        let Wanted { spec, max_objects } = wanted.borrow_and_update().clone();
        self.index.set_limit(max_objects);
        std::mem::replace(&mut self.spec, spec) != self.spec
    }

    fn needs_whole(&self) -> bool {
        self.spec.field == Field::Status || !fingerprint::counts_changes(&self.spec.group)
    }

    /// Watches until `changes` closes or the future is dropped.
    pub async fn run(mut self, client: Client) {
        let (conditions, name) = (self.shared.conditions.clone(), self.spec.name.clone());
        // Checks are no sign of life.
        let beside = client;
        let client = tapped(&beside, move || conditions.heard(&name));
        let mut whole = self.needs_whole();
        let mut attempt = 0;
        // The vanished kind, until another version is ruled out.
        let mut gone: Option<ApiResource> = None;
        loop {
            if self.renew() {
                whole = self.needs_whole();
                attempt = 0;
            }
            let resolved = tokio::select! {
                resolved = resolve::resolve(&client, &self.spec, &self.unconverted) => resolved,
                () = renewed(&mut self.wanted) => continue,
            };
            match resolved {
                Ok(resolved) => {
                    let gvk = &resolved.resource;
                    // Discovery still lists it.
                    if let Some(was) = gone.take()
                        && was == *gvk
                        && self.all_gone(&was.version, &was.kind).await.is_err()
                    {
                        return;
                    }
                    self.shared
                        .conditions
                        .set_resolved(&self.spec.name, format!("{}/{}", gvk.api_version, gvk.kind));
                    let mut resumed = self.shared.resumed.clone();
                    resumed.mark_unchanged();
                    let pause = async move {
                        if resumed.changed().await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    };
                    let events = stream(&client, &self.spec, &resolved, whole, self.streaming);
                    let events = events.take_until(Box::pin(pause));
                    let check =
                        Check::new(&beside, &self.spec, &resolved, whole).every(self.shared.check_every);
                    let replay = Replay::new(&beside, &self.spec, &resolved, whole);
                    match self.pump(events, &resolved, (check, replay), &mut attempt).await {
                        Left::Closed => return,
                        Left::NeedsWhole => {
                            whole = true;
                            continue;
                        }
                        Left::Renewed => continue,
                        Left::NoStreaming => {
                            tracing::info!(watch = self.spec.name, "the API server does not stream lists");
                            self.streaming = false;
                            continue;
                        }
                        Left::KindGone => {
                            self.condition(
                                Reason::WaitingForKind,
                                "the API server does not serve the kind in this version any more; waiting for it",
                            );
                            gone = Some(gvk.clone());
                        }
                        Left::Unconverted => {
                            self.unconverted.retain(|version| *version != gvk.version);
                            self.unconverted.push(gvk.version.clone());
                        }
                        Left::Broken => {}
                    }
                }
                Err(error) => {
                    self.unresolved(&error);
                    if matches!(error, ResolveError::NotServed { .. }) {
                        let told = match gone.take() {
                            Some(was) => self.all_gone(&was.version, &was.kind).await,
                            None => self.never_served().await,
                        };
                        if told.is_err() {
                            return;
                        }
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RESOLVE_BACKOFF.delay(attempt, jitter::random())) => {}
                () = renewed(&mut self.wanted) => {}
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// Processes `events` like [`run`](Self::run), until they end or a check `beside` finds a missed one. Returns
    /// whether changes are still received. For simulations.
    pub async fn feed(
        &mut self,
        events: impl Stream<Item = watcher::Result<watcher::Event<Metadata>>> + Unpin,
        resolved: &Resolved,
        beside: Option<Beside>,
    ) -> bool {
        let part = part_of(&self.spec);
        let seen = move |object: Metadata| seen_metadata(part, object);
        let events = events.map(|event| event.map(|event| heard(event, &seen)));
        let check = beside.map_or_else(Check::never, |beside| Check::beside(beside, part));
        !matches!(self.pump(events, resolved, (check, Replay::never()), &mut 0).await, Left::Closed)
    }

    async fn pump(
        &mut self,
        mut events: impl Stream<Item = watcher::Result<Heard>> + Unpin,
        resolved: &Resolved,
        (mut check, mut replay): (Check, Replay),
        attempt: &mut u32,
    ) -> Left {
        let (mut listing, mut failing) = (true, false);
        let mut baseline = self.shared.baseline.clone();
        loop {
            let gvk = &resolved.resource;
            if let Err(left) = self.compare_if_due(&gvk.version, &gvk.kind).await {
                return left;
            }
            let heard = async {
                if listing || failing {
                    let wait = if listing { LIST_STALL } else { RECOVERED_AFTER };
                    tokio::time::timeout(wait, events.next()).await
                } else {
                    Ok(events.next().await)
                }
            };
            let well = !listing && !failing && self.round > 0 && self.overflow == 0;
            // Only between events: a taken one is reported first.
            let next = tokio::select! {
                biased;
                () = renewed(&mut self.wanted) => return Left::Renewed,
                next = heard => next,
                () = changed(&mut baseline) => continue,
                listed = check.next(), if well => {
                    let judgement = check.judge(listed, self.index.fine_sums(check.salt()), self.index.len());
                    if let Err(left) = self.judged("list", judgement) {
                        return left;
                    }
                    continue;
                }
                // Lists suffice for few objects.
                round = replay.next(), if (well || !listing && !replay.has_begun()) && self.index.len() > check.soon() => {
                    let Some(judgement) = replay.judge(round, &self.index) else { continue };
                    if judgement == Judgement::Unknown {
                        check.hurry(self.index.len());
                    }
                    if let Err(left) = self.judged("replay", judgement) {
                        return left;
                    }
                    continue;
                }
            };
            match next {
                // Some servers stream only some kinds and never end the list.
                Err(_) if listing && self.streaming => return Left::NoStreaming,
                Err(_) if listing => {
                    self.condition(Reason::Unreachable, "the list makes no progress; beginning again");
                    return Left::Broken;
                }
                Err(_) => {
                    failing = false;
                    self.watching();
                }
                Ok(None) => return Left::Broken,
                Ok(Some(Err(error))) => {
                    if status(&error).is_some_and(|status| status.code == 404) {
                        return Left::KindGone;
                    }
                    // Unsupported parameter, perhaps only for this kind.
                    let refused = status(&error).is_some_and(|status| matches!(status.code, 400 | 422));
                    if refused && listing && self.streaming {
                        return Left::NoStreaming;
                    }
                    failing = true;
                    self.failed(&error);
                    if self.spec.version == "*" && is_of_conversion(&error) {
                        return Left::Unconverted;
                    }
                }
                Ok(Some(Ok(heard))) => {
                    match heard {
                        // Retries start like this; keep the failure until success.
                        Heard::ListBegins => {
                            listing = true;
                            if !failing {
                                self.set(Reason::Listing, "");
                            }
                        }
                        Heard::ListEnds => {
                            (listing, failing) = (false, false);
                            *attempt = 0;
                            check.rest(self.index.len());
                            let later = self.brake();
                            check.delay(later);
                            replay.begin(later);
                        }
                        Heard::Applied(_) | Heard::Deleted(_) if failing && !listing => {
                            failing = false;
                            self.watching();
                        }
                        Heard::Applied(_) | Heard::Deleted(_) => {}
                    }
                    if let Err(left) = self.hear(heard, resolved).await {
                        return left;
                    }
                }
            }
        }
    }

    /// Extra delay of checks: each miss costs a list.
    fn brake(&self) -> Duration {
        let doublings = self.missed.saturating_sub(1).min(6);
        verify::PERIOD * ((1 << doublings) - 1)
    }

    fn judged(&mut self, by: &str, judgement: Judgement) -> Result<(), Left> {
        self.shared.metrics.checked(by, judgement.label());
        match judgement {
            Judgement::Equal if self.missed > 0 => {
                self.missed = 0;
                self.watching();
            }
            Judgement::Missed => {
                self.missed = self.missed.saturating_add(1);
                tracing::warn!(
                    watch = self.spec.name,
                    by,
                    in_a_row = self.missed,
                    "the watch has missed an event; beginning anew"
                );
                return Err(Left::Broken);
            }
            Judgement::Equal | Judgement::Unsettled | Judgement::Failed | Judgement::Unknown => {}
        }
        Ok(())
    }

    async fn hear(&mut self, heard: Heard, resolved: &Resolved) -> Result<(), Left> {
        match heard {
            Heard::ListBegins => {
                self.index.begin_list();
                self.overflow = 0;
            }
            Heard::Applied(seen) => {
                let fingerprint = seen.fingerprint.ok_or(Left::NeedsWhole)?;
                let version = seen.content.then_some(seen.resource_version.as_str());
                match self.index.apply(seen.key.clone(), fingerprint, version) {
                    Verdict::Changed(moved) => {
                        self.changed(seen, Change::Changed, moved, resolved).await?;
                    }
                    Verdict::Quiet(moved) if self.round > 0 => {
                        self.tell(Told::Moved(self.key(seen.key), moved)).await?;
                    }
                    Verdict::Quiet(_) | Verdict::Unchanged => {}
                    Verdict::Full => {
                        self.overflow += 1;
                        self.shared.metrics.overflow(&self.spec.name);
                        if self.overflow == 1 {
                            self.watching();
                        }
                    }
                }
            }
            Heard::Deleted(seen) => {
                // Also if untracked: other reconciles may have seen it.
                let before = self.index.delete(&seen.key).unwrap_or_default();
                self.changed(seen, Change::Gone, Moved { before, after: 0 }, resolved).await?;
            }
            Heard::ListEnds => {
                let gvk = &resolved.resource;
                self.end_list(&gvk.version, &gvk.kind).await?;
                self.shared.conditions.listed(&self.spec.name);
                self.watching();
            }
        }
        self.shared.conditions.set_objects(&self.spec.name, self.index.len());
        Ok(())
    }

    fn watching(&mut self) {
        if self.overflow > 0 {
            let message = format!(
                "more than {} objects: some are not reported; narrow the labels or raise maxObjectsPerWatch",
                self.index.len()
            );
            self.condition(Reason::TooManyObjects, &message);
        } else if self.missed >= UNRELIABLE {
            let message = format!(
                "the last {} looks beside the watch have each found an event that it missed; the API server, or what is before it, \
                 loses events or tells them late",
                self.missed
            );
            self.condition(Reason::Unreliable, &message);
        } else {
            self.condition(Reason::Watching, "");
        }
    }

    fn failed(&mut self, error: &watcher::Error) {
        let reason = match status(error).map(|status| status.code) {
            Some(401) => Reason::Unauthorized,
            Some(403) => Reason::Forbidden,
            // Expired version: the watcher lists again.
            Some(410) => return,
            _ => Reason::Unreachable,
        };
        self.condition(reason, &words(error));
    }

    fn unresolved(&mut self, error: &ResolveError) {
        let reason = match error {
            ResolveError::NotServed { .. } | ResolveError::NotWatchable(_) => Reason::WaitingForKind,
            ResolveError::Api(kube::Error::Api(status)) if status.code == 401 => Reason::Unauthorized,
            ResolveError::Api(kube::Error::Api(status)) if status.code == 403 => Reason::Forbidden,
            ResolveError::Api(_) | ResolveError::Timeout => Reason::Unreachable,
        };
        let message = match error {
            ResolveError::Api(kube::Error::Api(status)) => format!("{error}: {}", status.message),
            // kube's Display includes its sources.
            ResolveError::Api(source) => format!("{error}: {source}"),
            other => other.to_string(),
        };
        self.condition(reason, &message);
    }

    fn condition(&mut self, reason: Reason, message: &str) {
        self.set(reason, message);
        self.unready = None;
    }

    fn set(&self, reason: Reason, message: &str) {
        self.shared.conditions.set(&self.spec.name, reason, message, (self.shared.clock)());
    }
}

/// Pending forever without a sender.
async fn changed(baseline: &mut watch::Receiver<Baseline>) {
    if baseline.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Pending forever without a sender.
async fn renewed(wanted: &mut Option<watch::Receiver<Wanted>>) {
    let heard = match wanted {
        Some(wanted) => wanted.changed().await.is_ok(),
        None => false,
    };
    if !heard {
        std::future::pending::<()>().await;
    }
}

fn status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        InitialListFailed(_) | WatchStartFailed(_) | WatchFailed(_) | NoResourceVersion => None,
    }
}

/// Whether conversion failed, for example without its webhook. The stored version still works.
///
/// Only these messages show it; the second comes from the API server's cache.
fn is_of_conversion(error: &watcher::Error) -> bool {
    let words = ["conversion webhook for ", "storage is (re)initializing"];
    status(error).is_some_and(|status| words.iter().any(|words| status.message.contains(words)))
}

/// Prefers the API server's message; the watcher's Display includes its sources.
fn words(error: &watcher::Error) -> String {
    status(error).map_or_else(|| error.to_string(), |status| status.message.clone())
}

mod metadata;
mod replay;
mod report;
mod source;
mod verify;

#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod tests;
