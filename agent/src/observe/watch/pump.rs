//! Processes the events of one stream, and checks beside it.

use super::{
    super::{
        condition::Reason,
        index::Difference,
        message::{Baseline, Message},
        resolve::Resolved,
    },
    Watcher,
    errors::{is_of_conversion, message, status},
    event::{ObjectEvent, StopReason},
    session::{Checks, Session},
    settings::renewed,
    verify::{Judgement, PERIOD},
};
use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use std::time::Duration;
use tidewatch_delivery::outbox::Moved;
use tidewatch_wire::v3::Change;
use tokio::{sync::watch, time::error::Elapsed};

/// Consecutive misses that make a watch unreliable.
const UNRELIABLE: u32 = 3;

/// `Err` after a pause that is too long; `None` at the end of the stream.
type Next = Result<Option<watcher::Result<ObjectEvent>>, Elapsed>;

impl Watcher {
    /// Processes the next event, check or comparison.
    pub(super) async fn step<S>(&mut self, session: &mut Session<'_, S>) -> Result<(), StopReason>
    where
        S: Stream<Item = watcher::Result<ObjectEvent>> + Unpin,
    {
        let kind = &session.resolved.resource;
        self.compare_if_due(&kind.version, &kind.kind).await?;
        let limit = session.limit();
        let Session { events, checks: Checks { list, replay }, baseline, listing, failing, .. } = session;
        let objects = self.index.len();
        let healthy = !*listing && !*failing && self.comparison.round > 0 && self.overflow == 0;
        // Lists suffice for few objects.
        let replays = (healthy || !*listing && !replay.has_begun()) && objects > list.soon();
        let event = async {
            match limit {
                Some(limit) => tokio::time::timeout(limit, events.next()).await,
                None => Ok(events.next().await),
            }
        };
        // Only between events: a taken one is reported first.
        tokio::select! {
            biased;
            () = renewed(&mut self.wanted) => Err(StopReason::Renewed),
            next = event => self.handle_next(next, session).await,
            () = changed(baseline) => Ok(()),
            listed = list.next(), if healthy => {
                let judgement = list.judge(listed, self.index.fine_sums(list.salt()), objects);
                self.judged("list", judgement)
            }
            replayed = replay.next(), if replays => {
                let Some(judgement) = replay.judge(replayed, &self.index) else { return Ok(()) };
                if judgement == Judgement::Unknown {
                    list.hurry(objects);
                }
                self.judged("replay", judgement)
            }
        }
    }

    async fn handle_next<S>(&mut self, next: Next, session: &mut Session<'_, S>) -> Result<(), StopReason> {
        let event = match next {
            // Some servers stream only some kinds and never end the list.
            Err(_) if session.listing && self.streaming => return Err(StopReason::NoStreaming),
            Err(_) if session.listing => {
                self.condition(Reason::Unreachable, "the list makes no progress; beginning again");
                return Err(StopReason::Broken);
            }
            Err(_) => {
                session.failing = false;
                self.watching();
                return Ok(());
            }
            Ok(None) => return Err(StopReason::Broken),
            Ok(Some(Err(error))) => {
                let listing = session.listing;
                session.failing = true;
                return self.handle_error(&error, listing);
            }
            Ok(Some(Ok(event))) => event,
        };
        match event {
            // Retries start like this; keep the failure until success.
            ObjectEvent::ListBegins => {
                session.listing = true;
                if !session.failing {
                    self.set(Reason::Listing, "");
                }
            }
            ObjectEvent::ListEnds => {
                (session.listing, session.failing, *session.attempt) = (false, false, 0);
                let later = self.check_delay();
                session.checks.list.rest(self.index.len());
                session.checks.list.delay(later);
                session.checks.replay.begin(later);
            }
            ObjectEvent::Applied(_) | ObjectEvent::Deleted(_) if session.failing && !session.listing => {
                session.failing = false;
                self.watching();
            }
            ObjectEvent::Applied(_) | ObjectEvent::Deleted(_) => {}
        }
        self.handle(event, session.resolved).await
    }

    fn handle_error(&mut self, error: &watcher::Error, listing: bool) -> Result<(), StopReason> {
        let code = status(error).map(|status| status.code);
        match code {
            Some(404) => return Err(StopReason::KindGone),
            // Unsupported parameter, perhaps only for this kind.
            Some(400 | 422) if listing && self.streaming => return Err(StopReason::NoStreaming),
            // Expired version: the watcher lists again.
            Some(410) => {}
            Some(401) => self.condition(Reason::Unauthorized, &message(error)),
            Some(403) => self.condition(Reason::Forbidden, &message(error)),
            _ => self.condition(Reason::Unreachable, &message(error)),
        }
        if self.spec.version == "*" && is_of_conversion(error) {
            return Err(StopReason::Unconverted);
        }
        Ok(())
    }

    /// Extra delay of checks: each miss costs a list.
    fn check_delay(&self) -> Duration {
        let doublings = self.missed.saturating_sub(1).min(6);
        PERIOD * ((1 << doublings) - 1)
    }

    fn judged(&mut self, check: &str, judgement: Judgement) -> Result<(), StopReason> {
        self.shared.metrics.checked(check, judgement.label());
        match judgement {
            Judgement::Equal if self.missed > 0 => {
                self.missed = 0;
                self.watching();
            }
            Judgement::Missed => {
                self.missed = self.missed.saturating_add(1);
                tracing::warn!(
                    watch = self.spec.name,
                    by = check,
                    in_a_row = self.missed,
                    "the watch has missed an event; beginning anew"
                );
                return Err(StopReason::Broken);
            }
            Judgement::Equal | Judgement::Unsettled | Judgement::Failed | Judgement::Unknown => {}
        }
        Ok(())
    }

    pub(super) async fn handle(&mut self, event: ObjectEvent, resolved: &Resolved) -> Result<(), StopReason> {
        match event {
            ObjectEvent::ListBegins => {
                self.index.begin_list();
                self.overflow = 0;
            }
            ObjectEvent::Applied(object) => {
                let fingerprint = object.fingerprint.ok_or(StopReason::NeedsWhole)?;
                let version = object.content.then_some(object.resource_version.as_str());
                match self.index.apply(object.key.clone(), fingerprint, version) {
                    Difference::Changed(moved) => {
                        self.changed(object, Change::Changed, moved, resolved).await?;
                    }
                    Difference::Quiet(moved) if self.comparison.round > 0 => {
                        self.send(Message::Moved(self.key(object.key), moved)).await?;
                    }
                    Difference::Quiet(_) | Difference::Unchanged => {}
                    Difference::Full => self.not_tracked(),
                }
            }
            ObjectEvent::Deleted(object) => {
                // Also if untracked: other reconciles may have observed it.
                let before = self.index.delete(&object.key).unwrap_or_default();
                self.changed(object, Change::Gone, Moved { before, after: 0 }, resolved).await?;
            }
            ObjectEvent::ListEnds => {
                let kind = &resolved.resource;
                self.end_list(&kind.version, &kind.kind).await?;
                self.shared.conditions.listed(&self.spec.name);
                self.watching();
            }
        }
        self.shared.conditions.set_objects(&self.spec.name, self.index.len());
        Ok(())
    }

    fn not_tracked(&mut self) {
        self.overflow += 1;
        self.shared.metrics.overflow(&self.spec.name);
        if self.overflow == 1 {
            self.watching();
        }
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
                "the last {} checks have each found an event that the watch missed; the API server, or a proxy before \
                 it, loses or delays events",
                self.missed
            );
            self.condition(Reason::Unreliable, &message);
        } else {
            self.condition(Reason::Watching, "");
        }
    }
}

/// Pending forever without a sender.
async fn changed(baseline: &mut watch::Receiver<Baseline>) {
    if baseline.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
