//! Effects of answers and failures.

use super::{Sender, progress::Progress};
use crate::{
    metrics::Metrics,
    send::{
        error::SendError,
        link::{Link, Sent},
        transport::{Fate, Transport},
    },
};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use tidewatch_delivery::{
    digest::Digest,
    outbox::{Applied, InFlight, Released},
};
use tidewatch_telemetry::chain;
use tidewatch_wire::v3;
use tokio::time::Instant;

impl<T: Transport> Sender<T> {
    pub(super) fn batch_ended(&mut self, sent: &Sent, answer: Result<v3::Response, SendError>) {
        match answer.and_then(|response| self.apply(&response)) {
            Ok(_) => {
                self.outbox.passed(&sent.in_flight);
                self.link.mark_poll_stale();
                record_sent(sent, &self.metrics, self.clock.now());
            }
            Err(error) => {
                let request = if sent.in_flight.is_empty() { "heartbeat" } else { "batch" };
                self.failed(request, &error, Some(sent));
            }
        }
    }

    pub(super) fn poll_ended(
        &mut self,
        since: Instant,
        ranges: usize,
        answer: Result<v3::Response, SendError>,
    ) {
        match answer.and_then(|response| self.apply(&response)) {
            Ok(true) => {}
            Ok(false) => self.schedule.poll_was_fruitless(since, &self.clock),
            Err(error) => {
                if error.is_too_large() {
                    self.outbox.too_large(&InFlight::default(), ranges);
                }
                self.failed("poll", &error, None);
            }
        }
    }

    /// Applies an answer. Returns whether there was progress.
    fn apply(&mut self, response: &v3::Response) -> Result<bool, SendError> {
        let applied = self.outbox.answered(response, self.clock.tick());
        if applied.ignored {
            return Err(SendError::OtherEpoch);
        }
        self.status.unready = None;
        if self.link.accepted()
            && let Some(times) = self.failures.record_error("connected to the receiver", &self.clock)
        {
            tracing::info!(times, "connected to the receiver");
        }
        self.schedule.heartbeat_at = Instant::now() + self.settings.heartbeat;
        self.apply_session(response, &applied);
        self.apply_delays(&applied);
        self.status.progress.lock().last_error.clear();
        let progress = applied.to_resend > 0 || !applied.released.is_empty();
        record_released(applied.released, &self.metrics, &self.status.progress);
        Ok(progress)
    }

    /// Reports objects again if the receiver's session or its claim asks for it.
    fn apply_session(&mut self, response: &v3::Response, applied: &Applied) {
        let session = response.session;
        if applied.new_session {
            self.schedule.session_changed(&self.settings, &self.clock);
            if let Some(times) =
                self.failures.record_demand("the receiver answers as another session", &self.clock)
            {
                let to_resend = applied.to_resend;
                tracing::info!(%session, to_resend, times, "another receiver session: sending all again");
            }
        }
        if applied.resync || applied.confirmed == Some(false) {
            if let Some(times) =
                self.failures.record_demand("the receiver wants every object reported", &self.clock)
            {
                tracing::info!(%session, times, "the receiver wants every object reported");
            }
            self.schedule.demand_report(Instant::now(), &self.clock);
            self.report_if_due();
        } else if applied.confirmed.is_some() {
            tracing::info!("the receiver confirms the digest; reporting differences");
            self.compare_with(Arc::new(self.outbox.reconciled().clone()));
        }
    }

    fn apply_delays(&mut self, applied: &Applied) {
        let now = Instant::now();
        if !applied.released.is_empty() {
            self.failures.reset();
            self.schedule.poll_succeeded();
        }
        if applied.asked_again > 0 {
            self.schedule.requested_again(&self.settings, &self.clock);
            if let Some(times) =
                self.failures.record_demand("the receiver asks for events again", &self.clock)
                && times > 1
            {
                let numbers = applied.asked_again;
                tracing::warn!(numbers, times, "the receiver asks for events again and again");
            }
        } else if !self.outbox.dirty().is_asked_again() {
            self.schedule.nothing_requested_again();
        }
        if applied.released.iter().any(|released| &*released.key.watch != v3::CANARY) {
            self.schedule.turn_succeeded();
        }
        if let Some(wait) = applied.older_after {
            self.schedule.delay_older(now, wait, &self.settings, &self.clock);
        }
        if let Some(wait) = applied.retry_after {
            self.schedule.delay_batches(now, wait);
        }
    }

    /// Handles a failure: events in flight become dirty, and the next try waits. `request` labels a metric.
    pub(super) fn failed(&mut self, request: &'static str, error: &SendError, sent: Option<&Sent>) {
        if let Some(sent) = sent {
            if error.is_too_large() {
                self.outbox.too_large(&sent.in_flight, sent.ranges);
                if sent.in_flight.len() == 1 {
                    self.schedule.requested_again(&self.settings, &self.clock);
                }
            } else {
                self.outbox.failed(&sent.in_flight);
            }
            if !sent.observed.is_empty() {
                self.metrics.known.failed();
            }
        }
        self.metrics.failures.with_label_values(&[request, error.label()]).inc();
        let now = Instant::now();
        let earlier = self.failures.add(now);
        if let SendError::Status { retry_after: Some(wait), .. } = error {
            self.schedule.refuse_until(now + *wait);
        }
        if let Link::Up(up) = &self.link
            && error.wants_certificate()
            && self.connector.fate(&up.connection) == Fate::Keep
        {
            self.connector.replace_certificate();
        }
        let text = chain(error).to_string();
        if let Some(times) = self.failures.record_error(&text, &self.clock) {
            tracing::warn!(request, error = text, failures = self.failures.count(), times, "sending failed");
        }
        self.status.progress.lock().failed(text);
        if error.ends_connection() && !sent.is_some_and(|sent| sent.elsewhere) {
            self.reconnect_later(earlier);
        } else {
            let delay = self.settings.backoff.delay(earlier, self.clock.random());
            self.schedule.postpone(self.schedule.not_before.max(now + delay));
        }
    }

    pub(super) fn report_if_due(&mut self) {
        if self.schedule.take_due_report(Instant::now()) {
            self.compare_with(Arc::default());
        }
    }

    fn compare_with(&self, digest: Arc<Digest>) {
        self.baseline.send_modify(|baseline| {
            (baseline.round, baseline.digest) = (baseline.round + 1, digest);
        });
    }
}

/// Counts an answered batch, without the canary.
fn record_sent(sent: &Sent, metrics: &Metrics, now: Timestamp) {
    let Some(last) = sent.observed.iter().max() else { return };
    let (first_seq, last_seq) = sent.seqs.map_or((0, 0), |(first, last)| (first.0, last.0));
    tracing::info!(events = sent.observed.len(), first = first_seq, last = last_seq, "sent");
    metrics.batches_sent.inc();
    metrics.events_sent.inc_by(sent.observed.len() as u64);
    let age = |observed: Timestamp| now.duration_since(observed).as_secs_f64().max(0.0);
    for observed in &sent.observed {
        metrics.observed_to_sent.observe(age(*observed));
    }
    metrics.known.answered(age(*last));
}

/// Counts acknowledged keys.
fn record_released(mut released: Vec<Released>, metrics: &Metrics, progress: &Mutex<Progress>) {
    let canary = released.iter().position(|released| &*released.key.watch == v3::CANARY);
    if let Some(canary) = canary.map(|index| released.swap_remove(index)) {
        metrics.canary.observe(canary.since_observed.as_secs_f64());
    }
    let mut progress = progress.lock();
    for Released { key, seq, since_observed, since_sent, refused } in &released {
        tracing::debug!(%seq, watch = %key.watch, name = %key.name, refused, "acknowledged");
        progress.last_acknowledged = progress.last_acknowledged.max(seq.0);
        metrics.acknowledged.inc();
        if *refused {
            metrics.refused.inc();
        }
        metrics.observed_to_acknowledged.observe(since_observed.as_secs_f64());
        metrics.sent_to_acknowledged.observe(since_sent.as_secs_f64());
    }
    if !released.is_empty() {
        tracing::info!(events = released.len(), up_to = progress.last_acknowledged, "acknowledged");
    }
}
