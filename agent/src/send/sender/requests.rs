//! Starts requests when they are due.

use super::Sender;
use crate::send::{link::Link, transport::Transport};
use futures::FutureExt;
use std::time::Duration;
use tidewatch_delivery::outbox::InFlight;
use tidewatch_wire::v3;
use tokio::time::Instant;

impl<T: Transport> Sender<T> {
    pub(super) fn start_due_requests(&mut self) {
        let now = Instant::now();
        let urgent = !self.outbox.dirty().is_calm();
        let waits = self.digests.is_loading() || matches!(&self.link, Link::Up(up) if up.batch.is_some());
        match &self.link {
            Link::Down(pause) if pause.until(urgent).max(self.schedule.not_before) <= now => {
                self.link = Link::Connecting(self.connector.clone().connect().boxed());
            }
            Link::Up(_) if !waits => {
                self.refresh_health(now);
                let due = self.due_request(now);
                let Link::Up(up) = &mut self.link else { return };
                if let Some((request, in_flight)) = due {
                    up.start_batch(&request, in_flight, self.settings.answer);
                } else if self.schedule.poll_after <= now
                    && up.needs_poll()
                    && up.start_poll(self.outbox.poll(), self.settings.poll)
                {
                    self.schedule.poll_after = now + self.settings.poll_pause;
                }
            }
            Link::Down(_) | Link::Connecting(_) | Link::Up(_) => {}
        }
    }

    /// Updates the health for a heartbeat or the canary. While keys are held, polls carry it.
    fn refresh_health(&mut self, now: Instant) {
        let canary = self.outbox.dirty().unsent() > 0 && self.outbox.dirty().is_calm();
        if (self.schedule.heartbeat_at.min(self.schedule.health_at) <= now || canary)
            && let Some(health) = &self.health
        {
            self.outbox.set_health(Some(health()));
            self.schedule.health_at = now + self.settings.heartbeat / 2;
        }
    }

    /// Next batch, canary or heartbeat.
    fn due_request(&mut self, now: Instant) -> Option<(v3::Request<'static>, InFlight)> {
        let tick = self.clock.tick_of(now);
        if self.schedule.batch_after <= now {
            let batch = self.outbox.next_batch_of(self.schedule.permits(now, &self.clock), tick);
            if self.needs_heartbeat() && self.schedule.heartbeat_at <= now {
                return Some((self.outbox.heartbeat(), InFlight::default()));
            }
            batch
        } else if self.schedule.canary_after <= now {
            self.outbox.next_canary(tick)
        } else {
            None
        }
    }

    /// Whether no event can be sent. A replaced connection starts with a heartbeat too, so wait for it.
    fn needs_heartbeat(&self) -> bool {
        let idle = self.outbox.dirty().is_empty() || self.outbox.is_claiming();
        idle && matches!(&self.link, Link::Up(up) if up.replacement.is_none())
    }

    /// Time of the next work without any event.
    pub(super) fn wake(&self) -> Instant {
        let others = [self.schedule.report_at(), self.digests.submit_at(), self.names.wake()];
        others.into_iter().flatten().fold(self.wake_link(), Instant::min)
    }

    fn wake_link(&self) -> Instant {
        let now = Instant::now();
        let (schedule, dirty) = (&self.schedule, self.outbox.dirty());
        let idle = (now + self.settings.heartbeat).min(self.upkeep.wake());
        match &self.link {
            Link::Down(pause) => pause.until(!dirty.is_calm()).max(schedule.not_before),
            Link::Up(up) if !self.digests.is_loading() && up.batch.is_none() => {
                let batch = schedule.batch_at(&self.outbox, &self.clock).unwrap_or(idle);
                let canary = if dirty.has_new_canary() { schedule.canary_after } else { idle };
                // A poll needs sent events.
                let sent = dirty.len() > dirty.unsent() + dirty.withheld();
                let polls = up.poll.as_ref().map_or(sent, |poll| poll.stale);
                let poll = if polls { schedule.poll_after } else { idle };
                let heartbeat = schedule.heartbeat_at.max(schedule.batch_after);
                let heartbeat = if self.needs_heartbeat() { heartbeat } else { idle };
                // Avoids a busy loop: due work has begun, or waits.
                batch.min(canary).min(poll).min(heartbeat).max(now + Duration::from_millis(1))
            }
            Link::Connecting(_) | Link::Up(_) => idle,
        }
    }
}
