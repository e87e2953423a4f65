use std::{sync::Arc, time::Duration};

use tidewatch_delivery::{digest::Digest, outbox::Applied};
use tidewatch_telemetry::chain;
use tidewatch_wire::v3;
use tokio::time::Instant;

use super::{Sender, Sent};
use crate::send::{SendError, Transport, connect::MAX_RETRY_AFTER, link::Link};

/// Time without failures that resets their count.
const FORGIVEN: Duration = Duration::from_mins(10);

impl<T: Transport> Sender<T> {
    pub(super) fn sent(&mut self, sent: &Sent) {
        if let Link::Up(up) = &mut self.link
            && let Some(poll) = &mut up.poll
        {
            poll.stale = true;
        }
        // Excludes the canary.
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

    /// Applies an answer. Returns whether there was progress.
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
        let (now, tick) = (Instant::now(), self.tick());
        self.answered();
        self.heartbeat_at = now + self.settings.heartbeat;
        if new_session {
            self.sessions.demanded(&self.settings.sessions, (self.jitter)(), tick);
            if let Some(times) = self.demanded("the receiver answers as another session") {
                tracing::info!(session = %response.session, to_resend, times, "another receiver session: sending all again");
            }
        }
        if resync || confirmed == Some(false) {
            if let Some(times) = self.demanded("the receiver wants every object reported") {
                tracing::info!(session = %response.session, times, "the receiver wants every object reported");
            }
            self.report_at = Some(now.max(self.start + self.sessions.until()));
            self.report_what_is_due();
        } else if confirmed.is_some() {
            tracing::info!("the receiver confirms the digest; reporting what differs");
            self.compare_with(Arc::new(self.outbox.reconciled().clone()));
        }
        if !released.is_empty() {
            self.failures = 0;
            self.errors.clear();
            self.polls.progress();
        }
        if asked_again > 0 {
            self.asked_again(asked_again);
        } else if !self.outbox.is_asked_again() {
            self.again.progress();
        }
        if released.iter().any(|release| &*release.key.watch != v3::CANARY) {
            self.turns.progress();
        }
        if let Some(wait) = older_after {
            // Fruitless turns back off, even against the receiver's wish.
            self.turns.demanded(&self.settings.backoff, (self.jitter)(), tick);
            let until = (now + wait.min(MAX_RETRY_AFTER)).max(self.start + self.turns.until());
            self.older_after = self.older_after.max(until);
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

    /// Handles a failure: events in flight become dirty, and the next try waits.
    pub(super) fn failed(&mut self, what: &'static str, error: &SendError, sent: Option<&Sent>) {
        match sent {
            Some(sent) if error.is_too_large() => self.outbox.too_large(&sent.in_flight, sent.ranges),
            Some(sent) => self.outbox.failed(&sent.in_flight),
            None => {}
        }
        if let Some(sent) = sent
            && error.is_too_large()
            && sent.in_flight.len() == 1
        {
            self.again.demanded(&self.settings.backoff, (self.jitter)(), self.tick());
        }
        self.metrics.failures.with_label_values(&[what, error.label()]).inc();
        if sent.is_some_and(|sent| !sent.observed.is_empty()) {
            self.metrics.known.failed();
        }
        let now = Instant::now();
        let failures = self.count_failure();
        if let SendError::Status { retry_after: Some(wish), .. } = error {
            self.patience = self.patience.max(now + *wish);
        }
        let text = chain(error).to_string();
        let (told, tick) = ((self.clock)(), self.tick());
        if let Some(times) = self.errors.told(&text, told, tick) {
            tracing::warn!(what, error = text, failures = self.failures, times, "sending failed");
        }
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

    /// Only a good answer proves acceptance.
    fn answered(&mut self) {
        let (now, tick) = ((self.clock)(), self.tick());
        self.unready = None;
        let Link::Up(up) = &mut self.link else { return };
        if std::mem::replace(&mut up.answered, true) {
            return;
        }
        if let Some(times) = self.errors.told("connected to the receiver", now, tick) {
            tracing::info!(times, "connected to the receiver");
        }
    }

    fn asked_again(&mut self, numbers: usize) {
        self.again.demanded(&self.settings.backoff, (self.jitter)(), self.tick());
        if let Some(times) = self.demanded("the receiver asks for events again")
            && times > 1
        {
            tracing::warn!(numbers, times, "the receiver asks for events again and again");
        }
    }

    fn demanded(&mut self, what: &str) -> Option<u64> {
        let (now, tick) = ((self.clock)(), self.tick());
        self.demands.told(what, now, tick)
    }

    /// Only recent failures count.
    pub(super) fn count_failure(&mut self) -> u32 {
        let now = Instant::now();
        if now.duration_since(self.failed_at) > FORGIVEN {
            self.failures = 0;
        }
        self.failed_at = now;
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        failures
    }

    pub(super) fn report_what_is_due(&mut self) {
        if self.report_at.is_some_and(|at| at <= Instant::now()) {
            self.report_at = None;
            self.compare_with(Arc::default());
        }
    }

    fn compare_with(&self, digest: Arc<Digest>) {
        self.baseline.send_modify(|baseline| {
            (baseline.round, baseline.digest) = (baseline.round + 1, digest);
        });
    }
}
