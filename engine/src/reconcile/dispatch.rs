//! One piece of work, from its lease to its end: what becomes of the key, of who waits for it, and of what came meanwhile.

use std::sync::Arc;

use super::{
    Finish, Lost, Shared, Why, chain, numbered,
    pace::{self, CROWDED, PATIENCE, RECHECK, RETRY, backoff, until},
    seen::{self, End},
};
use crate::{
    gate::Mode,
    history::Record,
    key::{Cause, Guard, Outcome, WorkKey},
    queue::{Class, Ended, worker::Lease},
    stages,
};

/// Work in hand, for events that come meanwhile. Dropping it (a panic, a cancelled task) ends it, too: what was told is asked for anew, and
/// what it has seen was worked on by nobody, so that guards are dropped, and agents send it again.
pub(crate) struct InHand<'a> {
    shared: &'a Shared,
    key: &'a WorkKey,
    ended: bool,
}

impl<'a> InHand<'a> {
    pub(crate) fn begin(shared: &'a Shared, key: &'a WorkKey) -> Self {
        shared.seen.begin(key);
        Self { shared, key, ended: false }
    }

    /// Asks for what is news. Returns what has waited for the end.
    pub(crate) fn end(&mut self, end: End) -> Vec<Guard> {
        self.ended = true;
        let seen::Come { waiting, news } = self.shared.seen.end(self.key, end);
        for (ask, since) in news {
            self.shared.queue.push_of(self.key.clone(), ask, since);
        }
        waiting
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.end(End::Failed));
        }
    }
}

impl Shared {
    /// Does the work of a lease.
    pub(crate) async fn work(self: Arc<Self>, mut lease: Lease<WorkKey, Cause, Guard>) {
        let key = lease.key().clone();
        lease.if_dropped = Some(Cause::retry(&key, "panic"));
        // Declared after the lease, so that it ends before that: then the key may be worked on again.
        let mut in_hand = InHand::begin(&self, &key);
        lease.causes = numbered(&lease);
        // Boxed: its future is large.
        let work = tokio::time::timeout(
            self.config.deadline,
            Box::pin(self.reconcile(
                &key,
                lease.class,
                Why { causes: &lease.causes, count: lease.cause_count },
            )),
        );
        let (result, stages) = stages::noted(work).await;
        let spread = xxhash_rust::xxh3::xxh3_64(key.to_string().as_bytes());
        let result = result.unwrap_or(Err(Lost::Deadline(self.config.deadline)));
        let (result, look_at) = match result {
            Ok(Finish::RecheckAt(at, finish)) => (Ok(*finish), Some((until(self.now(), at, spread), at))),
            other => (other, None),
        };
        let (result, asked) = match result {
            Ok(Finish::NotBefore(wait, finish)) => (Ok(*finish), Some(wait)),
            other => (other, None),
        };
        let wait = |pace| pace::at_least(backoff(pace, lease.attempt, spread), asked, spread);
        let (retry, recheck) = (wait(RETRY), wait(RECHECK));
        let (outcome, message, next) = match &result {
            Ok(Finish::Done | Finish::Unneeded) => (Outcome::Done, String::new(), None),
            Ok(Finish::Waiting(what)) => (Outcome::Waiting, what.clone(), None),
            // Nobody nests them; if somebody did, the outer time would count.
            Ok(Finish::RecheckAt(..) | Finish::NotBefore(..)) => (Outcome::Waiting, String::new(), None),
            Ok(Finish::Recheck(what)) => (Outcome::Waiting, what.clone(), Some((recheck, "waiting"))),
            Ok(Finish::Again(delay, what)) => (Outcome::Waiting, what.clone(), Some((*delay, "waiting"))),
            Ok(Finish::Patient(what)) => (Outcome::Waiting, what.clone(), Some((wait(PATIENCE), "waiting"))),
            Ok(Finish::Settled(report)) => (Outcome::Failed, report.message.clone(), None),
            Ok(Finish::Failed(report, class)) => {
                (Outcome::Failed, report.message.clone(), Some((retry, *class)))
            }
            // The delay is for the case that the gate has opened in between; else it is asked for when the mode changes.
            Err(lost @ Lost::Held(_)) => {
                let delay = if self.gate.hold(&key) { RETRY.1 } else { RETRY.0 };
                (Outcome::Waiting, chain(lost), Some((delay, lost.class())))
            }
            Err(lost @ Lost::Behind(_)) => (Outcome::Waiting, chain(lost), Some((recheck, lost.class()))),
            Err(lost @ Lost::Crowded(_)) => {
                (Outcome::Waiting, chain(lost), Some((wait(CROWDED), lost.class())))
            }
            Err(lost @ Lost::Parked(_, left)) => (
                Outcome::Waiting,
                chain(lost),
                Some((pace::at_least(RETRY.0, Some(*left), spread), lost.class())),
            ),
            Err(lost) => (Outcome::Lost, chain(lost), Some((retry, lost.class()))),
        };
        // What is only tried is looked at once, unless it has not been.
        let is_dry = self.is_dry();
        let is_unseen = matches!(&result, Err(Lost::Behind(_) | Lost::Crowded(_)));
        let (next, look_at) = if is_dry { (next.filter(|_| is_unseen), None) } else { (next, look_at) };
        match outcome {
            Outcome::Failed => tracing::warn!(%key, detail = message, "reconcile failed"),
            Outcome::Lost => {
                tracing::error!(%key, detail = message, "reconcile failed and could not say so in KCP");
            }
            Outcome::Done | Outcome::Waiting => {
                tracing::debug!(%key, ?outcome, detail = message, "reconciled");
            }
        }
        let end = match &result {
            _ if !matches!(self.gate.mode(), Mode::Live) => End::Failed,
            // A failure may have left undone what is to be done about something that was seen.
            Err(_) | Ok(Finish::Failed(..) | Finish::Settled(_)) => End::Failed,
            Ok(Finish::Done | Finish::Unneeded) => End::Done,
            Ok(_) => End::Waiting,
        };
        let no_news = in_hand.end(end);
        self.observer.no_news(no_news.len());
        let guards = lease.take_guards().into_iter().chain(no_news);
        let why_still = result.as_ref().err().map(|lost| lost.leaves(&lease.causes)).unwrap_or_default();
        let report = result.as_ref().ok().and_then(Finish::report);
        let ended_at = self.queue.now();
        let (queued, work) =
            (lease.started_at.saturating_sub(lease.queued_at), ended_at.saturating_sub(lease.started_at));
        let record = Record {
            key: key.to_string(),
            causes: std::mem::take(&mut lease.causes),
            cause_count: lease.cause_count,
            class: lease.class.label(),
            outcome,
            state: report.map(|report| report.state),
            is_found: report.is_some_and(|report| report.is_found),
            looked: !matches!(result, Ok(Finish::Unneeded)),
            message,
            finished_at: self.now(),
            queued_seconds: queued.as_secs_f64(),
            work_seconds: work.as_secs_f64(),
            stages,
            next_try_seconds: next
                .map(|(delay, _)| delay)
                .into_iter()
                .chain(look_at.map(|(delay, _)| delay))
                .min()
                .map(|d| d.as_secs_f64()),
            next_try_for: next.map(|(_, reason)| reason),
        };
        self.observer.reconciled(&key, &record);
        self.history.add(&key, &record);
        // Finished, or what was found is persisted: whoever waited may let go. Otherwise they wait on.
        let kept = if result.is_ok() {
            for guard in guards {
                guard.finished();
            }
            Vec::new()
        } else {
            guards.filter(|guard| guard.is_wanted()).collect()
        };
        if let Some((delay, at)) = look_at {
            self.queue.look_again(key.clone(), Class::Rollout, Some(Cause::Due { at }), delay);
        }
        let ended = match next {
            None => Ended::Done,
            Some((delay, reason)) => {
                let causes = std::iter::once(Cause::retry(&key, reason)).chain(why_still).collect();
                Ended::Retry(delay, kept, causes)
            }
        };
        lease.end(ended);
    }
}
