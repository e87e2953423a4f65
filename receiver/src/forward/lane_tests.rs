use parking_lot::Mutex;
use tidewatch_api::object::Gvk;

use super::*;

type Log = Arc<Mutex<Vec<String>>>;

/// Logs its end.
struct Note(&'static str, Log, bool);

impl Note {
    fn end(&mut self, how: &str) {
        self.2 = true;
        self.1.lock().push(format!("{} {how}", self.0));
    }
}

impl Settle for Note {
    fn done(mut self) {
        self.end("done");
    }
    fn refused(mut self) {
        self.end("refused");
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if !self.2 {
            self.1.lock().push(format!("{} dropped", self.0));
        }
    }
}

fn key(runtime: &str, name: &str) -> Key {
    let gvk = Gvk { group: "g".into(), version: "v1".into(), kind: "Thing".into() };
    Key { runtime: runtime.into(), object: ObjectRef { gvk, namespace: "n".into(), name: name.into() } }
}

fn ms(n: u64) -> Tick {
    Duration::from_millis(n)
}

struct Bench {
    lane: Lane<Note>,
    log: Log,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self { lane: Lane::new(limits), log: Log::default() }
    }

    /// `at` is `runtime/name`, `id` the guard's name.
    fn take(&mut self, at: &str, watch: &str, id: &'static str, now: Tick) -> bool {
        let (runtime, name) = at.split_once('/').unwrap();
        let guard = Some((watch.to_owned(), Note(id, Arc::clone(&self.log), false)));
        let change = Change { key: key(runtime, name), certificate: Arc::from(*b"der"), guard, again: None };
        self.lane.take(change, now)
    }

    fn next(&mut self, now: Tick) -> Option<(String, Job)> {
        let job = self.lane.next(now)?;
        Some((format!("{}/{}", job.key.runtime, job.key.object.name), job))
    }

    fn end(&mut self, job: &Job, ended: Ended, now: Tick) {
        self.lane.finished(&job.key, job.flight, ended, 1.0, now);
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }
}

fn limits() -> Limits {
    Limits { keys: 4, per_runtime: 3, in_flight: 2, ..Limits::default() }
}

#[test]
fn only_a_success_answer_acknowledges_and_failures_are_retried() {
    let mut b = Bench::new(limits());
    assert!(b.take("r1/a", "w", "1", ms(0)));
    for (failures, wait) in [(0, 500), (1, 1_000), (2, 2_000)] {
        let now = ms(100_000 * (failures + 1));
        let (_, job) = b.next(now).unwrap();
        assert!(b.next(now).is_none(), "one request about an object at a time");
        b.end(&job, if failures == 1 { Ended::Answered } else { Ended::Silent }, now);
        assert!(b.log().is_empty());
        assert_eq!(b.lane.wake(), Some(now + ms(wait)));
        assert!(b.next(now + ms(wait - 1)).is_none());
    }
    let (_, job) = b.next(ms(900_000)).unwrap();
    assert_eq!(b.lane.oldest(ms(900_000)), Some(ms(900_000)));
    b.end(&job, Ended::Taken, ms(900_000));
    assert_eq!(b.log(), ["1 done"]);
    assert_eq!((b.lane.waiting(), b.lane.wake()), (0, None));
}

#[test]
fn the_backoff_ends_at_five_minutes() {
    let mut b = Bench::new(limits());
    b.take("r1/a", "w", "1", ms(0));
    let mut now = ms(0);
    for _ in 0..40 {
        let (_, job) = b.next(now).unwrap();
        b.end(&job, Ended::Silent, now);
        let due = b.lane.wake().unwrap();
        assert!(due <= now + Duration::from_mins(5));
        now = due;
    }
}

#[test]
fn a_change_during_a_request_is_sent_once_more() {
    let mut b = Bench::new(limits());
    b.take("r1/a", "w", "1", ms(0));
    let (_, first) = b.next(ms(0)).unwrap();
    b.take("r1/a", "w", "2", ms(5));
    b.take("r1/a", "w", "3", ms(6));
    assert_eq!(b.log(), ["2 dropped"], "its agent has forgotten that number");
    b.end(&first, Ended::Taken, ms(10));
    assert_eq!(b.log(), ["1 done"], "the request was begun before the later changes");
    assert_eq!(b.lane.oldest(ms(10)), Some(ms(5)));
    let (_, second) = b.next(ms(10)).unwrap();
    b.end(&second, Ended::Taken, ms(11));
    assert_eq!(b.log(), ["3 done"]);
    assert_eq!(b.lane.waiting(), 0);
}

#[test]
fn changes_during_a_failed_request_replace_earlier_ones() {
    let mut b = Bench::new(limits());
    b.take("r1/a", "w", "1", ms(0));
    b.take("r1/a", "other watch", "2", ms(0));
    let (_, first) = b.next(ms(0)).unwrap();
    b.take("r1/a", "w", "3", ms(5));
    b.end(&first, Ended::Silent, ms(10));
    assert_eq!(b.log(), ["1 dropped"]);
    let (_, second) = b.next(ms(10_000)).unwrap();
    b.end(&second, Ended::Taken, ms(10_000));
    assert_eq!(b.log(), ["2 done", "3 done"]);
}

#[test]
fn a_full_lane_refuses_and_runtimes_have_shares() {
    let mut b = Bench::new(limits());
    for name in ["r1/a", "r1/b", "r1/c"] {
        assert!(b.take(name, "w", "1", ms(0)));
    }
    assert!(!b.take("r1/d", "w", "2", ms(0)), "one runtime's share");
    assert_eq!(b.log(), ["2 dropped"], "given back");
    assert!(b.take("r2/a", "w", "3", ms(0)));
    assert!(!b.take("r3/a", "w", "4", ms(0)), "full");
    assert!(b.take("r1/a", "w", "5", ms(0)), "an object that waits already needs no room");
    assert_eq!(b.lane.waiting(), 4);
    let (_, job) = b.next(ms(0)).unwrap();
    b.end(&job, Ended::Taken, ms(0));
    assert!(b.take("r1/d", "w", "6", ms(0)), "room again");
}

#[test]
fn runtimes_take_turns_and_requests_are_bounded() {
    let mut b = Bench::new(Limits { in_flight: 3, ..limits() });
    for name in ["r1/a", "r1/b", "r1/c", "r2/a"] {
        b.take(name, "w", "1", ms(0));
    }
    let order: Vec<String> = std::iter::from_fn(|| b.next(ms(0))).map(|(name, _)| name).collect();
    assert_eq!(order, ["r1/a", "r2/a", "r1/b"]);
}

#[test]
fn a_recovered_service_gets_waiting_changes_soon() {
    let mut b = Bench::new(limits());
    b.take("r1/a", "w", "1", ms(0));
    b.take("r1/b", "w", "2", ms(0));
    for round in 0..12 {
        let now = Duration::from_mins(6) * round;
        while let Some((_, job)) = b.next(now) {
            b.end(&job, Ended::Silent, now);
        }
    }
    let now = Duration::from_mins(6) * 11;
    assert!(b.lane.wake().unwrap() > now + Duration::from_mins(4));
    b.take("r1/a", "w", "3", now);
    assert_eq!(b.lane.wake(), Some(now + limits().nudge));
    let now = now + limits().nudge;
    let (name, job) = b.next(now).unwrap();
    assert_eq!(name, "r1/a");
    b.end(&job, Ended::Taken, now);
    assert!(b.lane.wake().unwrap() <= now + limits().comeback);
}

#[test]
fn removed_watches_refuse_and_removed_runtimes_drop_events() {
    let mut b = Bench::new(limits());
    b.take("r1/a", "w1", "1", ms(0));
    b.take("r1/a", "w2", "2", ms(0));
    b.take("r1/b", "w1", "3", ms(0));
    b.take("r2/a", "w2", "4", ms(0));
    let (_, job) = b.next(ms(0)).unwrap();
    assert_eq!(job.key, key("r1", "a"));
    b.lane.keep_watches(|watch| watch == "w2");
    let mut log = b.log();
    log.sort();
    assert_eq!(log, ["1 refused", "3 refused"]);
    assert_eq!(b.lane.waiting(), 2);
    b.lane.keep_runtimes(|runtime| runtime == "r1");
    assert_eq!(b.log(), ["4 dropped"]);
    b.lane.refuse_all();
    assert_eq!(b.log(), ["2 refused"]);
    // The old response is not the new entry's.
    b.take("r1/a", "w2", "5", ms(1));
    let (_, later) = b.next(ms(1)).unwrap();
    b.end(&job, Ended::Taken, ms(2));
    assert!(b.log().is_empty());
    b.end(&later, Ended::Taken, ms(2));
    assert_eq!(b.log(), ["5 done"]);
}

#[test]
fn an_event_before_its_commit_is_sent_again_later() {
    let mut b = Bench::new(limits());
    let change = Change {
        key: key("r1", "a"),
        certificate: Arc::from(*b"der"),
        guard: None,
        again: Some(Duration::from_secs(20)),
    };
    assert!(b.lane.take(change, ms(0)));
    let (_, job) = b.next(ms(0)).unwrap();
    b.end(&job, Ended::Taken, ms(10));
    assert_eq!(b.lane.wake(), Some(Duration::from_secs(20)));
    let (_, job) = b.next(Duration::from_secs(20)).unwrap();
    b.end(&job, Ended::Taken, Duration::from_secs(21));
    assert_eq!((b.lane.waiting(), b.lane.wake()), (0, None));
}
