//! One watch: resolve the kind, list, watch, and report what changed.

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

/// Between two tries to resolve a kind: short enough that a fresh CRD is picked up while somebody looks.
const RESOLVE_BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(15) };
/// Seconds that one watch request lasts. Idle watches are cut silently by load balancers after about 240 s.
const WATCH_SECONDS: u32 = 200;
/// A list that makes no progress for this long is begun again.
const LIST_STALL: Duration = Duration::from_mins(1);
/// After an error the watcher tells nothing when its next request works, until an object changes. Without another
/// error for longer than its longest backoff (30 s) and the connect timeout together, it does.
const RECOVERED_AFTER: Duration = Duration::from_mins(1);

/// A watch that has missed something so often in a row is no proof of anything.
const UNRELIABLE: u32 = 3;

/// What all watches of an agent share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Where changes go; bounded, so that a flood waits in the API server.
    pub changes: mpsc::Sender<Told>,
    /// What to compare with before anything is reported.
    pub baseline: watch::Receiver<Baseline>,
    /// What to say about the watches.
    pub conditions: Conditions,
    /// Of which watches the names are kept: their lists are told as a whole.
    pub keep_names: KeepNames,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: fn() -> Timestamp,
    /// How often a watch is compared with a list, at most.
    pub check_every: Duration,
    /// Changes when the process did not run for a while: each watch begins anew, from a list.
    pub resumed: watch::Receiver<u64>,
}

/// What a watch does. While it runs, all but the watch's name, group, resource and route may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What to watch.
    pub spec: config::Watch,
    /// Most objects remembered.
    pub max_objects: usize,
}

/// One configured watch at work.
#[derive(Debug)]
pub struct Watcher {
    spec: config::Watch,
    /// What all its observations say, shared by them.
    name: Arc<str>,
    group: Arc<str>,
    version: Arc<str>,
    kind: Arc<str>,
    shared: Shared,
    index: Index,
    /// Where it hears that something else is wanted.
    wanted: Option<watch::Receiver<Wanted>>,
    /// Dropped when it is known how the watch stands, well or not.
    unready: Option<readiness::Guard>,
    /// New objects that found the index full, since the last list.
    overflow: u64,
    /// How often in a row a look beside the watch has found that it had missed something.
    missed: u32,
    /// Whether a list was complete, ever.
    listed: bool,
    /// The round of the baseline that was compared; 0 is none, and nothing is reported.
    round: u64,
    /// Buckets in which something has happened since the first list, before it could be compared.
    early: u64,
    /// Whether the kind was not served before the first list: what that has was all made since.
    appears: bool,
    /// Whether lists are asked for as streams, which neither side has to hold as a whole. Not every server can.
    streaming: bool,
    /// Versions that could not be watched because nobody converts the objects to them; the last one was left last.
    unconverted: Vec<String>,
}

/// What the API server said, reduced to what is needed.
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
    /// Whether the fingerprint is a hash of content, which can return to what it was.
    content: bool,
    /// `None`: metadata alone do not tell, the whole object is needed.
    fingerprint: Option<u64>,
}

/// Why a stream of events was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The kind has no generation: watch whole objects.
    NeedsWhole,
    /// The kind is not served in this version any more.
    KindGone,
    /// The API server does not stream lists: list in pages.
    NoStreaming,
    /// The objects cannot be had in this version: watch another one.
    Unconverted,
    /// The stream ended, or a list stalled: begin again.
    Broken,
    /// Something else is wanted: begin again with that.
    Renewed,
    /// Nobody takes changes any more.
    Closed,
}

impl Watcher {
    /// A watch that remembers at most `max_objects` objects.
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

    /// The same, that does something else when something else is wanted. It keeps what it knows of the objects, so
    /// that those which are gone meanwhile, or no longer selected, are reported as gone.
    #[must_use]
    pub fn following(mut self, wanted: watch::Receiver<Wanted>) -> Self {
        self.wanted = Some(wanted);
        self
    }

    /// Takes over what is wanted; whether that is something else.
    fn renew(&mut self) -> bool {
        let Some(wanted) = &mut self.wanted else { return false };
        let Wanted { spec, max_objects } = wanted.borrow_and_update().clone();
        self.index.set_limit(max_objects);
        std::mem::replace(&mut self.spec, spec) != self.spec
    }

    /// Whether metadata alone cannot tell what is wanted.
    fn needs_whole(&self) -> bool {
        self.spec.field == Field::Status || !fingerprint::counts_changes(&self.spec.group)
    }

    /// Watches until nobody takes changes any more. The caller drops it to end it earlier.
    pub async fn run(mut self, client: Client) {
        let (conditions, name) = (self.shared.conditions.clone(), self.spec.name.clone());
        // What is asked beside a watch is no sign of its life.
        let beside = client;
        let client = tapped(&beside, move || conditions.heard(&name));
        let mut whole = self.needs_whole();
        let mut attempt = 0;
        // What was served and is not any more, until it is known whether another version is.
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
                    // The API server still names what it does not serve.
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

    /// Does with `events` what [`run`](Self::run) does with those of an API server's watch on `resolved`, until they
    /// end, or a list `beside` them shows that one was swallowed. Returns whether anybody still takes changes. For
    /// simulations.
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
            // Between two events only: one that is in hand is reported first.
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
                // Of few objects the lists tell soon enough.
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
                // A server that knows streams for some kinds only may never say that the list has ended.
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
                    // It does not know the parameter, or not for this kind.
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
                        // While it fails, each try begins so; the condition keeps the failure until one succeeds.
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

    /// How much later than else the next looks come: each of one that finds something costs a list.
    fn brake(&self) -> Duration {
        let doublings = self.missed.saturating_sub(1).min(6);
        verify::PERIOD * ((1 << doublings) - 1)
    }

    /// A look beside the watch has told something of it.
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
                // Also of what was never shown: whoever has looked for another reason may have seen it.
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
            // Too old a version: the watcher lists again by itself.
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

/// A new baseline; never, when nobody can give one any more.
async fn changed(baseline: &mut watch::Receiver<Baseline>) {
    if baseline.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Something else is wanted. Never, if nobody can want anything else.
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

/// Whether the API server cannot give objects in the version that was asked for, as where the webhook that converts them is down. In the
/// version in which they are stored it can. It has no reason or cause for it, but these words, the second ones for reads from its cache.
fn is_of_conversion(error: &watcher::Error) -> bool {
    let words = ["conversion webhook for ", "storage is (re)initializing"];
    status(error).is_some_and(|status| words.iter().any(|words| status.message.contains(words)))
}

/// The API server's own words where there are any; else the watcher's Display, which includes its sources.
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
