//! When the digest is stored, and the sender's end of the storage.

use super::{clock::Clock, schedule::Schedule, settings::Settings};
use crate::digest::{Found, Memory};
use std::{sync::Arc, time::Duration};
use tidewatch_delivery::outbox::{Outbox, Revision};
use tokio::time::Instant;

pub(super) struct DigestStore {
    memory: Option<Memory>,
    /// The earlier state is not read yet; nothing is sent.
    loading: bool,
    /// Revision passed to the storage, and time of the next.
    submitted: Revision,
    submit_at: Option<Instant>,
}

/// A report of the storage.
pub(super) enum Stored {
    Found(Found),
    Digest(u64),
    Names(u64),
}

impl DigestStore {
    /// Without storage, nothing is loaded or stored.
    pub(super) fn new(memory: Option<Memory>) -> Self {
        let loading = memory.is_some();
        Self { memory, loading, submitted: Revision::default(), submit_at: None }
    }

    pub(super) fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading
    }

    pub(super) fn loaded(&mut self) {
        self.loading = false;
    }

    pub(super) fn submit_at(&self) -> Option<Instant> {
        self.submit_at
    }

    /// Pending forever without storage. Cancel-safe.
    pub(super) async fn next(&mut self) -> Stored {
        let Some(memory) = &mut self.memory else { return std::future::pending().await };
        if self.loading {
            return Stored::Found((&mut memory.found).await.unwrap_or_default());
        }
        let Memory { stored, names_stored, .. } = memory;
        loop {
            tokio::select! {
                biased;
                Ok(()) = names_stored.changed() => return Stored::Names(*names_stored.borrow_and_update()),
                Ok(()) = stored.changed() => {
                    if let Some(serial) = *stored.borrow_and_update() {
                        return Stored::Digest(serial);
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }

    /// Submits a changed digest after a delay.
    pub(super) fn submit_if_due(
        &mut self,
        outbox: &Outbox,
        schedule: &Schedule,
        settings: &Settings,
        clock: &Clock,
    ) {
        let (now, revision) = (Instant::now(), outbox.revision());
        if self.memory.is_none() || revision == self.submitted {
            return;
        }
        let counts = revision.counted != self.submitted.counted;
        let due = now + if counts { settings.store } else { settings.store_quiet };
        // The digest names the session: avoid storing it for each new one.
        let due = due.max(schedule.sessions_until(clock));
        let submit_at = self.submit_at.map_or(due, |earlier| earlier.min(due));
        self.submit_at = Some(submit_at);
        if submit_at <= now {
            self.submit(outbox);
        }
    }

    /// Submits the digest to the storage. Returns whether there is one.
    fn submit(&mut self, outbox: &Outbox) -> bool {
        let (Some(memory), Some((claim, digest))) = (&self.memory, outbox.digest()) else {
            // No answer yet.
            self.submit_at = None;
            return false;
        };
        memory.snapshots.send_replace(Some(Arc::new((claim, digest.clone()))));
        (self.submitted, self.submit_at) = (outbox.revision(), None);
        true
    }

    /// Stores the final digest within `limit`. Returns its serial if it was stored; an error is a timeout.
    pub(super) async fn store_last(
        &mut self,
        outbox: &Outbox,
        limit: Duration,
    ) -> Result<Option<u64>, StorageSilent> {
        // Changes in the channel differ at the next start.
        let fresh = outbox.revision() != self.submitted;
        if let Some(memory) = self.memory.as_mut().filter(|_| fresh) {
            // Ignore confirmations of earlier digests.
            memory.stored.mark_unchanged();
        }
        // A recent digest may still be in flight.
        let was_submitted = self.memory.as_ref().is_some_and(|memory| memory.snapshots.borrow().is_some());
        let waits = if fresh {
            self.submit(outbox)
        } else {
            was_submitted && outbox.digest().is_some() && !outbox.declares()
        };
        let Some(memory) = self.memory.as_mut().filter(|_| waits) else { return Ok(None) };
        let serial = outbox.serial();
        let stored = async {
            (!fresh || memory.stored.changed().await.is_ok())
                && memory.stored.wait_for(|stored| *stored == Some(serial)).await.is_ok()
        };
        match tokio::time::timeout(limit, stored).await {
            Ok(true) => Ok(Some(serial)),
            Ok(false) | Err(_) => Err(StorageSilent),
        }
    }
}

/// The storage has ended, or has not answered in time.
pub(super) struct StorageSilent;
