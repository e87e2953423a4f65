//! The production lane to another manager, and a simulated service.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tidewatch_delivery::{Tick, backoff::Backoff};
use tidewatch_listener::Guard;
use tidewatch_receiver::forward::lane::{Change, Ended, Job, Key, Lane, Limits};
use tokio::{sync::Notify, time::Instant};

use crate::{
    mistake::Mistake,
    oracle::{Object, number},
    step::{Kind, Point},
    world::{Process, Tasks, World, jitter},
};

const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Silent until then.
    pub(crate) dead: Option<Instant>,
    /// Slow until then.
    pub(crate) slow: Option<Instant>,
}

pub(crate) struct Forward {
    lane: Mutex<Lane<Guard>>,
    in_flight: Mutex<Vec<Key>>,
    changed: Notify,
    start: Instant,
}

impl Forward {
    pub(crate) fn new(small: bool) -> Arc<Self> {
        let limits = Limits {
            keys: if small { 2 } else { 1_000 },
            in_flight: 2,
            deadline: DEADLINE,
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_mins(1) },
            ..Limits::default()
        };
        Arc::new(Self {
            lane: Mutex::new(Lane::new(limits)),
            in_flight: Mutex::default(),
            changed: Notify::new(),
            start: Instant::now(),
        })
    }

    fn now(&self) -> Tick {
        self.start.elapsed()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lane.lock().waiting()
    }

    /// Returns false if the lane is full.
    pub(crate) fn take(&self, world: &World, key: Key, guard: (String, Guard)) -> bool {
        let is_notified = match world.mistake {
            Some(Mistake::WaitingCountsAsNotified) => true,
            Some(Mistake::InFlightCountsAsNotified) => self.in_flight.lock().contains(&key),
            _ => false,
        };
        let guard = if is_notified {
            guard.1.finished();
            None
        } else {
            Some(guard)
        };
        let change = Change { key, certificate: Arc::from([]), guard, again: None };
        let taken = self.lane.lock().take(change, self.now());
        self.changed.notify_one();
        taken
    }

    pub(crate) async fn run(self: Arc<Self>, world: Arc<World>, receiver: usize, tasks: Weak<Tasks>) {
        loop {
            loop {
                let Some(job) = self.lane.lock().next(self.now()) else { break };
                let Some(tasks) = tasks.upgrade() else { return };
                self.in_flight.lock().push(job.key.clone());
                tasks.spawn(Arc::clone(&self).send(Arc::clone(&world), receiver, job));
            }
            let wake = self.lane.lock().wake().map(|tick| self.start + tick);
            let due = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = due => {}
            }
        }
    }

    async fn send(self: Arc<Self>, world: Arc<World>, receiver: usize, job: Job) {
        let process = Process::Receiver(receiver);
        world.point(Point::Forwarding, process, 15).await;
        let object = Object { runtime: number(&job.key.runtime), number: number(&job.key.object.name) };
        let answer = tokio::time::timeout(DEADLINE, request(&world, object)).await;
        let mut ended = answer.unwrap_or(Ended::Silent);
        world.point(Point::Forwarded, process, 15).await;
        if world.mistake == Some(Mistake::RefusalCountsAsNotified) && ended == Ended::Answered {
            ended = Ended::Taken;
        }
        self.in_flight.lock().retain(|key| *key != job.key);
        self.lane.lock().finished(&job.key, job.flight, ended, jitter(), self.now());
        self.changed.notify_one();
    }
}

/// The service reads the object on request.
async fn request(world: &Arc<World>, object: Object) -> Ended {
    let at = world.at_ms();
    let (kind, before, after) = {
        let mut state = world.lock();
        let state = &mut *state;
        let (rng, service) = (&mut state.rng, &state.service);
        let (kind, longest) = match rng.below(100) {
            _ if service.dead.is_some() => (Kind::ServiceDead, 20_000),
            _ if state.quiet => (Kind::Notified, 20),
            0..=37 => (Kind::ServiceRefused, 2_000),
            38..=54 => (Kind::ServiceDead, 20_000),
            55..=76 => (Kind::ServiceSlow, 12_000),
            _ if service.slow.is_some() => (Kind::ServiceSlow, 12_000),
            _ => (Kind::Notified, 200),
        };
        state.trace.add(at, kind, object.runtime, object.number as u64);
        (kind, rng.millis(1, longest), rng.millis(1, longest))
    };
    match kind {
        Kind::ServiceRefused | Kind::ServiceDead => {
            tokio::time::sleep(before).await;
            if kind == Kind::ServiceRefused { Ended::Answered } else { Ended::Silent }
        }
        _ => {
            // The service continues after a timeout.
            let (answer, answered) = tokio::sync::oneshot::channel();
            let world = Arc::clone(world);
            tokio::spawn(async move {
                tokio::time::sleep(before).await;
                {
                    let mut state = world.lock();
                    let named = state.runtimes[object.runtime].kept.names_object(object.number);
                    state.oracle.notified(object, named);
                }
                tokio::time::sleep(after).await;
                let _ = answer.send(());
            });
            answered.await.map_or(Ended::Silent, |()| Ended::Taken)
        }
    }
}
