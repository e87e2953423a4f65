//! What the receiver's answers, and missing ones, change.

use std::sync::Arc;

use tidewatch_delivery::outbox::Applied;
use tidewatch_telemetry::chain;
use tidewatch_wire::v3;
use tokio::time::Instant;

use super::{Sender, Sent};
use crate::send::{SendError, Transport, connect::MAX_RETRY_AFTER, link::Link};

impl<T: Transport> Sender<T> {
    pub(super) fn sent(&mut self, sent: &Sent) {
        if let Link::Up(up) = &mut self.link
            && let Some(poll) = &mut up.poll
        {
            poll.stale = true;
        }
        // The canary is no event of the runtime.
        if sent.observed.is_empty() {
            return;
        }
        let (first, last) = sent.seqs.map_or((0, 0), |(first, last)| (first.0, last.0));
        tracing::info!(events = sent.observed.len(), first, last, "sent");
        self.metrics.batches_sent.inc();
        self.metrics.events_sent.inc_by(sent.observed.len() as u64);
        let now = (self.clock)();
        for observed in &sent.observed {
            let lag = now.duration_since(*observed).as_secs_f64().max(0.0);
            self.metrics.observed_to_sent.observe(lag);
        }
        if let Some(last) = sent.observed.iter().max() {
            self.metrics.known.answered(now.duration_since(*last).as_secs_f64().max(0.0));
        }
    }

    /// Takes a good answer in. Returns whether it brought anything new.
    pub(super) fn take(&mut self, response: &v3::Response) -> Result<bool, SendError> {
        let applied = self.outbox.answered(response, self.tick());
        if applied.ignored {
            return Err(SendError::OtherEpoch);
        }
        let Applied {
            mut released,
            to_resend,
            new_session,
            ignored: _,
            retry_after,
            older_after,
            asked_again,
            confirmed,
            resync,
        } = applied;
        if confirmed.is_some() || resync {
            let digest = if resync || confirmed == Some(false) {
                tracing::info!(session = %response.session, "the receiver wants every object reported");
                Arc::default()
            } else {
                tracing::info!("the receiver confirms the digest; reporting what differs");
                Arc::new(self.outbox.reconciled().clone())
            };
            self.baseline.send_modify(|baseline| {
                (baseline.round, baseline.digest) = (baseline.round + 1, digest);
            });
        }
        self.failures = 0;
        self.unready = None;
        let now = Instant::now();
        self.heartbeat_at = now + self.settings.heartbeat;
        if new_session {
            tracing::info!(session = %response.session, to_resend, "another receiver session: sending all again");
        }
        if asked_again > 0 || new_session && to_resend > 0 {
            self.resends = self.resends.saturating_add(1);
            // The first time at once: a restarted receiver is the usual case.
            if self.resends > 1 {
                let wait = self.settings.backoff.delay(self.resends - 2, (self.jitter)());
                self.again_after = self.again_after.max(now + wait);
            }
        } else if !self.outbox.is_asked_again() {
            self.resends = 0;
        }
        if let Some(wait) = older_after {
            self.older_after = self.older_after.max(now + wait.min(MAX_RETRY_AFTER));
        }
        if let Some(wait) = retry_after {
            self.patience = self.patience.max(now + wait.min(MAX_RETRY_AFTER));
            self.batch_after = self.batch_after.max(self.patience);
        }
        let mut progress = self.progress.lock();
        progress.last_error.clear();
        let canary = released.iter().position(|release| &*release.key.watch == v3::CANARY);
        if let Some(release) = canary.map(|index| released.swap_remove(index)) {
            self.metrics.canary.observe(release.since_observed.as_secs_f64());
        }
        for release in &released {
            tracing::debug!(seq = %release.seq, watch = %release.key.watch, name = %release.key.name,
                refused = release.refused, "acknowledged");
            progress.last_acknowledged = progress.last_acknowledged.max(release.seq.0);
            self.metrics.acknowledged.inc();
            if release.refused {
                self.metrics.refused.inc();
            }
            self.metrics.observed_to_acknowledged.observe(release.since_observed.as_secs_f64());
            self.metrics.sent_to_acknowledged.observe(release.since_sent.as_secs_f64());
        }
        if !released.is_empty() {
            tracing::info!(events = released.len(), up_to = progress.last_acknowledged, "acknowledged");
        }
        Ok(to_resend > 0 || !released.is_empty())
    }

    /// Something went wrong: what was in flight is dirty again, and the next try waits.
    pub(super) fn failed(&mut self, what: &'static str, error: &SendError, sent: Option<&Sent>) {
        match sent {
            Some(sent) if error.is_too_large() => self.outbox.too_large(&sent.in_flight, sent.ranges),
            Some(sent) => self.outbox.failed(&sent.in_flight),
            None => {}
        }
        self.metrics.failures.with_label_values(&[what, error.label()]).inc();
        if sent.is_some_and(|sent| !sent.observed.is_empty()) {
            self.metrics.known.failed();
        }
        let now = Instant::now();
        let failures = self.failures;
        self.failures = self.failures.saturating_add(1);
        if let SendError::Status { retry_after: Some(wish), .. } = error {
            self.patience = self.patience.max(now + *wish);
        }
        let text = chain(error).to_string();
        tracing::warn!(what, error = text, failures = self.failures, "sending failed");
        self.progress.lock().last_error = text;
        if error.ends_connection() && !sent.is_some_and(|sent| sent.elsewhere) {
            self.lose(failures);
        } else {
            let until = self.patience.max(now + self.settings.backoff.delay(failures, (self.jitter)()));
            for after in [&mut self.batch_after, &mut self.canary_after, &mut self.poll_after] {
                *after = (*after).max(until);
            }
        }
    }
}
