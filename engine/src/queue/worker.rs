//! Asynchronous shell of [`Queue`]: hands out leases.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Class, Ended, Key, Push, Queue, Tick, Work};

struct Shared<K: Key, T, G> {
    queue: Mutex<Queue<K, T, G>>,
    changed: Notify,
    start: Instant,
}

/// A shared queue. Cheap to clone.
pub struct WorkQueue<K: Key, T, G>(Arc<Shared<K, T, G>>);

impl<K: Key, T, G> Clone for WorkQueue<K, T, G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A reconcile in flight. A drop without [`Lease::end`] (panic, cancelled task) retries the key. Its guards stay, so
/// nothing is acknowledged early.
pub struct Lease<K: Key, T: PartialEq, G> {
    shared: Arc<Shared<K, T, G>>,
    key: K,
    guards: Vec<G>,
    /// Urgency.
    pub class: Class,
    /// The first triggers.
    pub triggers: Vec<T>,
    /// Number of all triggers.
    pub trigger_count: usize,
    /// Time of the oldest push.
    pub queued_at: Tick,
    /// Start.
    pub started_at: Tick,
    /// Previous retries in a row.
    pub attempt: u32,
    /// Cause of a drop's retry.
    pub if_dropped: Option<T>,
    ended: bool,
}

/// First and longest backoff after a drop; doubles each time.
const AFTER_DROP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

fn after_drop(attempt: u32) -> Duration {
    AFTER_DROP.0.saturating_mul(1 << attempt.min(16)).min(AFTER_DROP.1)
}

impl<K: Key, T: PartialEq, G> WorkQueue<K, T, G> {
    /// An empty queue; see [`Queue::new`].
    #[must_use]
    pub fn new(per_group: usize) -> Self {
        Self(Arc::new(Shared {
            queue: Mutex::new(Queue::new(per_group)),
            changed: Notify::new(),
            start: Instant::now(),
        }))
    }

    /// Limits a class; see [`Queue::cap`].
    pub fn cap(&self, class: Class, limit: usize) {
        self.0.queue.lock().cap(class, limit);
    }

    /// This queue's time.
    pub fn now(&self) -> Tick {
        Instant::now().duration_since(self.0.start)
    }

    /// Requests a reconcile.
    pub fn push(&self, key: K, push: Push<T, G>) {
        self.push_since(key, push, self.now());
    }

    /// Requests a reconcile that has waited since `since`.
    pub fn push_since(&self, key: K, push: Push<T, G>, since: Tick) {
        self.0.queue.lock().push(key, push, since);
        self.0.changed.notify_one();
    }

    /// Requests a later reconcile; see [`Queue::push_later`].
    pub fn push_later(&self, key: K, class: Class, trigger: Option<T>, delay: Duration) {
        let now = self.now();
        self.0.queue.lock().push_later(key, class, trigger, delay, now);
        self.0.changed.notify_one();
    }

    /// Reads the queue, for metrics.
    pub fn inspect<R>(&self, read: impl FnOnce(&Queue<K, T, G>) -> R) -> R {
        read(&self.0.queue.lock())
    }

    /// Waits for a reconcile. Cancel-safe.
    pub async fn next(&self) -> Lease<K, T, G> {
        loop {
            let due = {
                let now = self.now();
                let mut queue = self.0.queue.lock();
                if let Some(work) = queue.pop(now) {
                    // There may be more.
                    self.0.changed.notify_one();
                    return self.lease(work, now);
                }
                queue.next_due()
            };
            let changed = self.0.changed.notified();
            match due {
                Some(at) => {
                    // Reproducible, unlike a random order.
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = tokio::time::sleep_until(self.0.start + at) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    fn lease(&self, work: Work<K, T, G>, now: Tick) -> Lease<K, T, G> {
        let Work { key, class, triggers, trigger_count, guards, queued_at, attempt } = work;
        let shared = Arc::clone(&self.0);
        Lease {
            shared,
            key,
            guards,
            class,
            triggers,
            trigger_count,
            queued_at,
            started_at: now,
            attempt,
            if_dropped: None,
            ended: false,
        }
    }
}

impl<K: Key, T: PartialEq, G> Lease<K, T, G> {
    /// Key to reconcile.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Takes the guards, to release them after the reconcile.
    pub fn take_guards(&mut self) -> Vec<G> {
        std::mem::take(&mut self.guards)
    }

    /// Ends the reconcile.
    pub fn end(mut self, ended: Ended<T, G>) {
        self.return_key(ended);
    }

    fn return_key(&mut self, ended: Ended<T, G>) {
        self.ended = true;
        let now = Instant::now().duration_since(self.shared.start);
        self.shared.queue.lock().end(&self.key, ended, now);
        self.shared.changed.notify_one();
    }
}

impl<K: Key, T: PartialEq, G> Drop for Lease<K, T, G> {
    fn drop(&mut self) {
        if !self.ended {
            let (guards, trigger) = (self.take_guards(), self.if_dropped.take());
            let delay = after_drop(self.attempt);
            self.return_key(Ended::Retry {
                delay: delay.into(),
                guards,
                triggers: trigger.into_iter().collect(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    struct K(u8);

    impl Key for K {
        type Group = u8;
        fn group(&self) -> u8 {
            self.0
        }
    }

    fn push(guard: u32) -> Push<&'static str, u32> {
        Push { class: Class::UserEdit, trigger: Some("event"), guards: vec![guard] }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_waits_for_a_due_key() {
        let queue = WorkQueue::<K, &'static str, u32>::new(1);
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move {
                let mut lease = queue.next().await;
                let got = (*lease.key(), lease.take_guards());
                lease.end(Ended::Done);
                got
            }
        });
        tokio::task::yield_now().await;
        queue.push_later(K(1), Class::Retry, Some("later"), Duration::from_mins(1));
        assert_eq!(waiting.await.unwrap(), (K(1), vec![]));
        assert_eq!(queue.now(), Duration::from_mins(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_lease_is_retried_with_its_guards() {
        let queue = WorkQueue::new(1);
        queue.push(K(1), push(5));
        let lease = queue.next().await;
        let worker = tokio::spawn(async move {
            let mut held = lease;
            held.if_dropped = Some("a panic");
            panic!("a bug in a reconcile");
        });
        assert!(worker.await.is_err());
        let mut lease = queue.next().await;
        assert_eq!((lease.attempt, lease.take_guards(), &*lease.triggers), (1, vec![5], &["a panic"][..]));
        lease.end(Ended::Done);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeatedly_dropped_lease_backs_off() {
        let queue = WorkQueue::new(1);
        queue.push(K(1), push(5));
        let mut delays = Vec::new();
        for _ in 0..11 {
            let before = queue.now();
            drop(queue.next().await);
            delays.push(queue.now().saturating_sub(before).as_secs());
        }
        assert_eq!(delays, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_a_queue() {
        let queue = WorkQueue::new(1);
        for n in 0..10 {
            queue.push(K(n), push(u32::from(n)));
        }
        let workers = (0..3).map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while let Ok(lease) = tokio::time::timeout(Duration::from_secs(1), queue.next()).await {
                    tokio::task::yield_now().await;
                    lease.end(Ended::Done);
                    done += 1;
                }
                done
            })
        });
        let mut total = 0;
        for worker in workers {
            total += worker.await.unwrap();
        }
        assert_eq!(total, 10);
    }
}
