//! Connections by identity.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

#[derive(Debug)]
pub(crate) struct Peers {
    max: usize,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    next: u64,
    /// Oldest first, never empty.
    by_identity: HashMap<Arc<str>, VecDeque<(u64, Arc<Notify>)>>,
}

#[derive(Debug)]
pub(crate) struct Seat {
    peers: Arc<Peers>,
    identity: Arc<str>,
    id: u64,
    superseded: Arc<Notify>,
}

impl Peers {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), seats: Mutex::default() })
    }

    /// Adds a connection and supersedes the oldest beyond the limit.
    pub(crate) fn seat(self: &Arc<Self>, identity: &Arc<str>) -> Seat {
        let mut seats = self.seats.lock();
        let id = seats.next;
        seats.next += 1;
        let superseded = Arc::new(Notify::new());
        let queue = seats.by_identity.entry(Arc::clone(identity)).or_default();
        queue.push_back((id, Arc::clone(&superseded)));
        if queue.len() > self.max
            && let Some((_, oldest)) = queue.pop_front()
        {
            // Kept for a task that does not wait yet.
            oldest.notify_one();
        }
        Seat { peers: Arc::clone(self), identity: Arc::clone(identity), id, superseded }
    }

    #[cfg(test)]
    fn identities(&self) -> usize {
        self.seats.lock().by_identity.len()
    }
}

impl Seat {
    pub(crate) async fn lost(&self) {
        self.superseded.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.peers.seats.lock();
        if let Some(queue) = seats.by_identity.get_mut(&self.identity) {
            queue.retain(|(id, _)| *id != self.id);
            if queue.is_empty() {
                seats.by_identity.remove(&self.identity);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Activity(Mutex<Acts>);

#[derive(Clone, Copy, Debug)]
struct Acts {
    open: usize,
    used: bool,
    /// End of the last request, or start of the connection.
    since: Instant,
}

#[derive(Debug)]
pub(crate) struct Act(Arc<Activity>);

impl Activity {
    pub(crate) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Acts { open: 0, used: false, since: now })))
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Act {
        let mut acts = self.0.lock();
        acts.open += 1;
        acts.used = true;
        Act(Arc::clone(self))
    }

    /// Waits until no request came for `first`, or for `idle` after the last. Returns whether there was one.
    pub(crate) async fn none_for(&self, first: Duration, idle: Duration) -> bool {
        loop {
            let Acts { open, used, since } = *self.0.lock();
            let now = Instant::now();
            let until = if open > 0 { now + idle } else { since + if used { idle } else { first } };
            if until <= now {
                return used;
            }
            // A request may start and end meanwhile.
            tokio::time::sleep_until(until.min(now + idle)).await;
        }
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        let mut acts = self.0.0.lock();
        acts.open -= 1;
        acts.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_connection_of_an_identity_is_superseded() {
        let peers = Peers::new(2);
        let (first, second, other) =
            (peers.seat(&"a".into()), peers.seat(&"a".into()), peers.seat(&"b".into()));
        assert!(first.lost().now_or_never().is_none());
        let third = peers.seat(&"a".into());
        assert!(first.lost().now_or_never().is_some());
        for stays in [&second, &third, &other] {
            assert!(stays.lost().now_or_never().is_none());
        }
        // A late end removes only its own entry.
        drop(first);
        drop(third);
        let fourth = peers.seat(&"a".into());
        assert!(second.lost().now_or_never().is_none());
        drop((second, fourth, other));
        assert_eq!(peers.identities(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_noticed() {
        let (first, idle) = (Duration::from_secs(30), Duration::from_mins(5));
        let start = Instant::now();
        assert!(!Activity::new(start).none_for(first, idle).await);
        assert_eq!(start.elapsed(), first);

        let start = Instant::now();
        let activity = Activity::new(start);
        let act = activity.begin();
        let ending = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_mins(11)).await;
            drop(act);
        });
        assert!(activity.none_for(first, idle).await);
        assert_eq!(start.elapsed(), Duration::from_mins(16), "a request at work is not idle");
        ending.await.unwrap();
    }
}
