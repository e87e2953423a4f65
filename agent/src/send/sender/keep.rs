//! Claims the digest at start, stores it, and declares it at the end.

use super::{
    super::{Channel, Transport, link::Link},
    Sender,
};
use crate::{
    digest::{Found, Memory},
    observe::told::Baseline,
};
use std::sync::Arc;
use tidewatch_telemetry::chain;
use tokio::time::Instant;

pub(super) enum Remembered {
    Found(Found),
    Stored(u64),
    NamesStored(u64),
}

/// Pending forever without storage. Cancel-safe.
pub(super) async fn remembered(memory: &mut Option<Memory>, searching: bool) -> Remembered {
    let Some(memory) = memory else { return std::future::pending().await };
    if searching {
        return Remembered::Found((&mut memory.found).await.unwrap_or_default());
    }
    let Memory { stored, names_stored, .. } = memory;
    loop {
        tokio::select! {
            biased;
            Ok(()) = names_stored.changed() => return Remembered::NamesStored(*names_stored.borrow_and_update()),
            Ok(()) = stored.changed() => {
                if let Some(serial) = *stored.borrow_and_update() {
                    return Remembered::Stored(serial);
                }
            }
            else => return std::future::pending().await,
        }
    }
}

impl<T: Transport> Sender<T> {
    pub(super) fn remember(&mut self, remembered: Remembered) {
        match remembered {
            Remembered::Found(Found { digest, names }) => {
                self.searching = false;
                let kinds = Arc::new(self.keep_names(names));
                let Some((claim, digest)) = digest else {
                    self.baseline.send_replace(Baseline { kinds, ..Baseline::nothing_known() });
                    return;
                };
                tracing::info!(epoch = %claim.epoch, serial = claim.serial, "an earlier run has left a digest");
                self.baseline.send_modify(|baseline| baseline.kinds = kinds);
                self.outbox.begin(claim, digest);
            }
            Remembered::NamesStored(revision) => self.names_stored(revision),
            Remembered::Stored(serial) => {
                tracing::debug!(serial, "the digest is stored");
                self.outbox.digest_stored(serial);
                if self.outbox.declares() {
                    self.heartbeat_at = Instant::now();
                }
            }
        }
    }

    pub(super) fn give_what_is_due(&mut self) {
        let (now, revision) = (Instant::now(), self.outbox.revision());
        if self.memory.is_none() || revision == self.given {
            return;
        }
        let counts = revision.counted != self.given.counted;
        let due = now + if counts { self.settings.store } else { self.settings.store_quiet };
        // The digest names the session: avoid storing it for each new one.
        let due = due.max(self.start + self.sessions.until());
        let give_at = self.give_at.map_or(due, |earlier| earlier.min(due));
        self.give_at = Some(give_at);
        if give_at <= now {
            self.give();
        }
    }

    /// Gives the digest to storage. Returns whether there is one.
    fn give(&mut self) -> bool {
        let (Some(memory), Some((claim, digest))) = (&self.memory, self.outbox.digest()) else {
            // No answer yet.
            self.give_at = None;
            return false;
        };
        memory.snapshots.send_replace(Some(Arc::new((claim, digest.clone()))));
        (self.given, self.give_at) = (self.outbox.revision(), None);
        true
    }

    /// Stores and declares the final digest, for the next start to claim.
    pub(super) async fn farewell(mut self) {
        let patience = self.settings.farewell;
        // Changes in the channel differ at the next start.
        let fresh = self.outbox.revision() != self.given;
        if let Some(memory) = self.memory.as_mut().filter(|_| fresh) {
            // Ignore confirmations of earlier digests.
            memory.stored.mark_unchanged();
        }
        // A recent digest may still be in flight.
        let was_given = self.memory.as_ref().is_some_and(|memory| memory.snapshots.borrow().is_some());
        let waits = if fresh {
            self.give()
        } else {
            was_given && self.outbox.digest().is_some() && !self.outbox.declares()
        };
        if waits && let Some(memory) = &mut self.memory {
            let serial = self.outbox.serial();
            let stored = async {
                (!fresh || memory.stored.changed().await.is_ok())
                    && memory.stored.wait_for(|stored| *stored == Some(serial)).await.is_ok()
            };
            match tokio::time::timeout(patience, stored).await {
                Ok(true) => self.outbox.digest_stored(serial),
                Ok(false) | Err(_) => {
                    return tracing::warn!(
                        "the digest could not be stored; the next start reports everything"
                    );
                }
            }
        }
        if self.outbox.declares() {
            let request = self.outbox.heartbeat();
            let declared = match &mut self.link {
                Link::Up(up) => up.connection.post(&request, patience).await.map(drop),
                _ => {
                    return tracing::warn!(
                        "without a connection, the digest is not declared; the next start reports everything"
                    );
                }
            };
            if let Err(error) = declared {
                tracing::warn!(error = %chain(&error), "the digest could not be declared; the next start reports everything");
            }
        }
    }
}
