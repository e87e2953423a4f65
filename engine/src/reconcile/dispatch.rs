//! One piece of work, from its lease to its end: what becomes of the key, of who waits for it, and of what came meanwhile.

use std::{sync::Arc, time::Duration};

use super::{
    Lost, Outcome, Shared, Why, chain, numbered,
    outcome::{self, Ending, Next},
    pace::{self, RETRY, backoff, until},
    seen::{self, End},
};
use crate::{
    gate::Mode,
    history::Record,
    key::{Cause, Guard, OutcomeKind, WorkKey},
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
        let (outcome, message, due) = match &result {
            Ok(ended) => (ended.kind(), ended.message().to_owned(), ended.due),
            Err(lost) => (lost.kind(), chain(lost), None),
        };
        let next = self.next_try_of(&key, &result, (lease.attempt, spread));
        let look_at = due.map(|at| (until(self.now(), at, spread), at));
        // What is only tried is looked at once, unless it has not been.
        let is_dry = self.is_dry();
        let is_unseen = matches!(&result, Err(Lost::Behind(_) | Lost::Crowded(_)));
        let (next, look_at) = if is_dry { (next.filter(|_| is_unseen), None) } else { (next, look_at) };
        match outcome {
            OutcomeKind::Failed => tracing::warn!(%key, detail = message, "reconcile failed"),
            OutcomeKind::Lost => {
                tracing::error!(%key, detail = message, "reconcile failed and could not say so in KCP");
            }
            OutcomeKind::Done | OutcomeKind::Waiting => {
                tracing::debug!(%key, ?outcome, detail = message, "reconciled");
            }
        }
        let end = match &result {
            _ if !matches!(self.gate.mode(), Mode::Live) => End::Failed,
            Ok(ended) => match ended.state {
                Ending::Unneeded | Ending::Done => End::Done,
                Ending::Waiting(_) => End::Waiting,
                // A failure may have left undone what is to be done about something that was seen.
                Ending::Failed(_) => End::Failed,
            },
            Err(_) => End::Failed,
        };
        let no_news = in_hand.end(end);
        self.observer.no_news(no_news.len());
        let guards = lease.take_guards().into_iter().chain(no_news);
        let why_still = result.as_ref().err().map(|lost| lost.leaves(&lease.causes)).unwrap_or_default();
        let report = result.as_ref().ok().and_then(Outcome::report);
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
            looked: !matches!(&result, Ok(Outcome { state: Ending::Unneeded, .. })),
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

    /// The delay after which the key is due again, and why; `None` if an event makes it due.
    fn next_try_of(
        &self,
        key: &WorkKey,
        result: &Result<Outcome, Lost>,
        (attempt, spread): (u32, u64),
    ) -> Option<(Duration, &'static str)> {
        let (next, reason) = match result {
            Ok(outcome) => (outcome.next, outcome::WAITING),
            Err(Lost::Held(_)) if !self.gate.hold(key) => (Next::After(RETRY.first), "held"),
            Err(lost) => (lost.next(), lost.class()),
        };
        match next {
            Next::OnEvent => None,
            Next::After(wait) => Some((wait, reason)),
            Next::Backoff { pace, reason, at_least } => {
                Some((pace::at_least(backoff(pace, attempt, spread), at_least, spread), reason))
            }
        }
    }
}
