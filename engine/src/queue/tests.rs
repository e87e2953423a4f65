use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct K(u8, u8);

impl Key for K {
    type Group = u8;
    fn group(&self) -> u8 {
        self.0
    }
}

type Q = Queue<K, &'static str, u32>;

fn tick(ms: u64) -> Tick {
    Tick::from_millis(ms)
}

fn now_with(class: Class, guard: u32) -> Push<&'static str, u32> {
    Push { class, trigger: Some("event"), guards: vec![guard] }
}

#[test]
fn urgent_classes_go_first() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::Resync, 1), tick(0));
    q.push(K(2, 1), now_with(Class::UserEdit, 2), tick(1));
    assert_eq!(q.pop(tick(2)).unwrap().key, K(2, 1));
    assert_eq!(q.pop(tick(2)).unwrap().key, K(1, 1));
}

#[test]
fn repeated_pushes_merge_and_raise_the_class() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::Resync, 1), tick(0));
    q.push(K(2, 1), now_with(Class::Resync, 2), tick(0));
    q.push(K(2, 1), now_with(Class::UserEdit, 3), tick(5));
    q.push(K(2, 1), Push { class: Class::Resync, trigger: Some("resync"), guards: vec![] }, tick(6));
    let work = q.pop(tick(6)).unwrap();
    assert_eq!((work.key, work.class, work.guards), (K(2, 1), Class::UserEdit, vec![2, 3]));
    assert_eq!((work.queued_at, work.trigger_count), (tick(0), 2));
    assert_eq!(work.triggers, ["event", "resync"], "a repeated trigger counts once");
    assert_eq!(q.pop(tick(6)).unwrap().key, K(1, 1));
    assert!(q.pop(tick(6)).is_none());
    // An earlier event, pushed late.
    q.push(K(3, 1), now_with(Class::Resync, 4), tick(9));
    q.push(K(3, 1), now_with(Class::UserEdit, 5), tick(7));
    assert_eq!(q.pop(tick(9)).unwrap().queued_at, tick(7));
}

#[test]
fn a_raised_key_is_served_once() {
    let mut q = Q::new(4);
    for round in 0..100 {
        q.push(K(1, 1), now_with(Class::Resync, 1), tick(round));
        q.push(K(1, 1), now_with(Class::UserEdit, 2), tick(round));
        assert_eq!(q.ready().map(|(_, n)| n).sum::<usize>(), 1);
        let work = q.pop(tick(round)).unwrap();
        assert_eq!((work.key, work.guards.len()), (K(1, 1), 2));
        q.end(&work.key, Ended::Done, tick(round));
    }
    q.push(K(1, 2), now_with(Class::Resync, 3), tick(200));
    assert_eq!(q.pop(tick(200)).unwrap().key, K(1, 2), "a raised key is skipped in its old lane");
    assert!(q.pop(tick(200)).is_none());
}

#[test]
fn a_runtime_with_many_keys_does_not_delay_others() {
    let mut q = Q::new(10);
    for n in 0..50 {
        q.push(K(1, n), now_with(Class::UserEdit, 0), tick(0));
    }
    q.push(K(2, 0), now_with(Class::UserEdit, 0), tick(1));
    assert_eq!(q.pop(tick(2)).unwrap().key.0, 1);
    assert_eq!(q.pop(tick(2)).unwrap().key, K(2, 0));
}

#[test]
fn runtime_limits_hold_and_keys_never_run_concurrently() {
    let mut q = Q::new(1);
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(0));
    q.push(K(1, 2), now_with(Class::UserEdit, 2), tick(0));
    let first = q.pop(tick(0)).unwrap();
    assert!(q.pop(tick(0)).is_none(), "the runtime's budget is used up");
    // Requested during its reconcile: it runs again, with the new guard.
    q.push(K(1, 1), now_with(Class::UserEdit, 3), tick(1));
    q.end(&first.key, Ended::Done, tick(2));
    assert_eq!(q.pop(tick(2)).unwrap().key, K(1, 2));
    q.end(&K(1, 2), Ended::Done, tick(3));
    let again = q.pop(tick(3)).unwrap();
    assert_eq!((again.key, again.guards, again.queued_at), (K(1, 1), vec![3], tick(1)));
}

#[test]
fn an_event_ends_a_retrys_wait() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(0));
    q.pop(tick(0)).unwrap();
    q.end(
        &K(1, 1),
        Ended::Retry { delay: Duration::from_millis(100).into(), guards: vec![], triggers: vec!["retry"] },
        tick(0),
    );
    assert!(q.pop(tick(99)).is_none());
    assert_eq!(q.next_due(), Some(tick(100)));
    q.push(K(1, 1), now_with(Class::UserEdit, 2), tick(50));
    let work = q.pop(tick(50)).unwrap();
    assert_eq!((work.key, &*work.triggers), (K(1, 1), &["retry", "event"][..]));
    assert_eq!(q.next_due(), None);
}

#[test]
fn an_early_attempt_does_not_shorten_a_wait_that_a_server_asks_for() {
    let mut q = Q::new(4);
    let asked = RetryDelay { backoff: Duration::from_millis(1), at_least: Duration::from_millis(30) };
    let refused = || Ended::Retry { delay: asked, guards: vec![], triggers: vec![] };
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(0));
    q.pop(tick(0)).unwrap();
    q.end(&K(1, 1), refused(), tick(0));
    q.push(K(1, 1), now_with(Class::UserEdit, 2), tick(10));
    q.pop(tick(10)).unwrap();
    q.end(&K(1, 1), refused(), tick(10));
    assert_eq!(q.next_due(), Some(tick(40)), "30 ms after the last refusal");
}

#[test]
fn a_retry_keeps_its_cause_among_other_causes() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(0));
    let others: Vec<&str> = "a b c d e f g h i j k l m n o p q r s t".split(' ').collect();
    let many = ["retry", "a", "b", "c", "d", "e", "f", "g"];
    for (now, asked_again, triggers, count) in [
        (0, 0, &["event"][..], 1),
        (100, 1, &["retry"], 1),
        (200, 20, &["retry", "a"], 2),
        (300, 0, &many, 21),
    ] {
        let work = q.pop(tick(now)).unwrap();
        assert_eq!((&*work.triggers, work.trigger_count), (triggers, count), "at {now}");
        for other in &others[..asked_again] {
            q.push(
                K(1, 1),
                Push { class: Class::UserEdit, trigger: Some(*other), guards: vec![2] },
                tick(now),
            );
        }
        q.end(
            &K(1, 1),
            Ended::Retry {
                delay: Duration::from_millis(100).into(),
                guards: vec![],
                triggers: vec!["retry"],
            },
            tick(now),
        );
    }
}

#[test]
fn an_unstarted_key_keeps_its_causes() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(0));
    for (now, asked_again, triggers) in [
        (0, false, &["event"][..]),
        (100, true, &["crowded", "event"]),
        (200, false, &["crowded", "event", "other"]),
    ] {
        let work = q.pop(tick(now)).unwrap();
        assert_eq!((&*work.triggers, work.trigger_count), (triggers, triggers.len()), "at {now}");
        if asked_again {
            q.push(
                K(1, 1),
                Push { class: Class::UserEdit, trigger: Some("other"), guards: vec![] },
                tick(now),
            );
        }
        let kept = work.triggers.into_iter().filter(|trigger| *trigger != "crowded");
        let triggers = ["crowded"].into_iter().chain(kept).collect();
        q.end(
            &K(1, 1),
            Ended::Retry { delay: Duration::from_millis(100).into(), guards: vec![], triggers },
            tick(now),
        );
    }
}

#[test]
fn a_repeated_cause_is_listed_once() {
    let mut q = Q::new(4);
    let push = |trigger| Push { class: Class::UserEdit, trigger: Some(trigger), guards: vec![] };
    q.push(K(1, 1), push("a"), tick(0));
    q.push(K(1, 1), push("b"), tick(0));
    q.push(K(1, 1), push("a"), tick(0));
    let work = q.pop(tick(0)).unwrap();
    assert_eq!((&*work.triggers, work.trigger_count), (&["a", "b"][..], 2));
    q.push(K(1, 1), push("a"), tick(1));
    q.push(K(1, 1), push("a"), tick(1));
    q.end(&K(1, 1), Ended::Done, tick(2));
    let work = q.pop(tick(2)).unwrap();
    assert_eq!((&*work.triggers, work.trigger_count), (&["a"][..], 1));
}

#[test]
fn a_later_look_is_served_despite_earlier_pushes() {
    let mut q = Q::new(4);
    for (at, trigger) in [(0, "first"), (5, "served by the last"), (10, "last")] {
        q.push_later(K(1, 1), Class::UserEdit, Some(trigger), Duration::from_millis(20), tick(at));
    }
    q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(11));
    for (now, due) in
        [(11, Some("event")), (19, None), (20, Some("first")), (29, None), (30, Some("last")), (100, None)]
    {
        let work = q.pop(tick(now));
        assert_eq!(
            work.as_ref().map(|work| &*work.triggers),
            due.as_ref().map(std::slice::from_ref),
            "at {now}"
        );
        if let Some(work) = work {
            q.end(&work.key, Ended::Done, tick(now));
        }
    }
    assert!(q.slots.is_empty() && q.scheduled.is_empty());
}

#[test]
fn a_later_due_time_keeps_an_edits_second_look() {
    let mut q = Q::new(4);
    let ms = Duration::from_millis;
    q.push_later(K(1, 1), Class::Rollout, Some("turn"), ms(10), tick(0));
    q.push_later(K(1, 1), Class::Rollout, Some("tomorrow"), ms(90), tick(0));
    q.push_later(K(1, 1), Class::UserEdit, Some("edit"), ms(20), tick(0));
    let mut taken = Vec::new();
    while let Some(due) = q.next_due() {
        let work = q.pop(due).unwrap();
        taken.push((due, work.class, work.triggers[0]));
        q.end(&work.key, Ended::Done, due);
    }
    let all = [
        (ms(10), Class::Rollout, "turn"),
        (ms(20), Class::UserEdit, "edit"),
        (ms(90), Class::Rollout, "tomorrow"),
    ];
    assert_eq!(taken, all);
    assert!(q.slots.is_empty() && q.scheduled.is_empty());
}

#[test]
fn the_first_and_last_of_many_looks_are_served() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut q = Q::new(4);
        for number in order {
            let trigger = ["10", "20", "30"][number];
            let delay = Duration::from_millis(trigger.parse().unwrap());
            q.push_later(K(1, 1), Class::Retry, Some(trigger), delay, tick(0));
            q.push_later(K(1, 1), Class::Poll, Some("the same"), delay, tick(0));
        }
        let mut taken = Vec::new();
        for now in (0..50).step_by(5) {
            let Some(work) = q.pop(tick(now)) else { continue };
            assert_eq!(work.class, Class::Retry);
            taken.push((now, work.triggers[0]));
            q.end(&work.key, Ended::Done, tick(now));
        }
        assert_eq!(taken, [(10, "10"), (30, "30")], "{order:?}");
        assert!(q.slots.is_empty() && q.scheduled.is_empty());
    }
}

#[test]
fn failures_are_counted_and_keep_their_guards() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::UserEdit, 7), tick(0));
    for attempt in 0..3 {
        let work = q.pop(tick(attempt * 10)).unwrap();
        assert_eq!((work.attempt, work.guards.clone()), (u32::try_from(attempt).unwrap(), vec![7]));
        q.end(
            &work.key,
            Ended::Retry { delay: Duration::from_millis(10).into(), guards: work.guards, triggers: vec![] },
            tick(attempt * 10),
        );
    }
    q.pop(tick(40)).unwrap();
    q.end(&K(1, 1), Ended::Done, tick(40));
    q.push(K(1, 1), now_with(Class::UserEdit, 8), tick(41));
    assert_eq!(q.pop(tick(41)).unwrap().attempt, 0);
}

/// KCP is unavailable for two seconds while events arrive.
#[test]
fn attempts_before_the_due_time_do_not_lengthen_backoff() {
    let mut q = Q::new(4);
    let doubling = |attempt: u32| Duration::from_secs(1 << attempt.min(16));
    let mut tried = Vec::new();
    for now in (0..2_000).step_by(50) {
        q.push(K(1, 1), now_with(Class::UserEdit, 1), tick(now));
        // A push during the reconcile makes the next attempt immediate.
        let work = q.pop(tick(now)).unwrap();
        q.push(K(1, 1), now_with(Class::UserEdit, 2), tick(now));
        q.end(
            &work.key,
            Ended::Retry { delay: doubling(work.attempt).into(), guards: vec![], triggers: vec![] },
            tick(now),
        );
        let work = q.pop(tick(now)).unwrap();
        q.end(
            &work.key,
            Ended::Retry { delay: doubling(work.attempt).into(), guards: vec![], triggers: vec![] },
            tick(now),
        );
        tried.push(work.attempt);
    }
    assert_eq!((tried.first(), tried.last()), (Some(&1), Some(&2)), "after 0 s and 1 s, not with each event");
    assert_eq!(q.next_due(), Some(tick(3_000)));
    let work = q.pop(tick(3_000)).unwrap();
    q.end(&work.key, Ended::Done, tick(3_000));
    assert!(q.slots.is_empty());
}

#[test]
fn an_idle_queue_holds_nothing() {
    let mut q = Q::new(4);
    q.push(K(1, 1), now_with(Class::UserEdit, 7), tick(0));
    let work = q.pop(tick(0)).unwrap();
    q.end(&work.key, Ended::Done, tick(0));
    assert!(q.slots.is_empty() && q.working.is_empty() && q.delayed.is_empty());
    assert_eq!(q.ready().map(|(_, n)| n).sum::<usize>(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8, u8, usize),
    Schedule(u8, u8, u64),
    Pop,
    End(u8, u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..3, 0_u8..3, 0_usize..5).prop_map(|(g, k, c)| Step::Push(g, k, c)),
        (0_u8..3, 0_u8..3, 0_u64..9).prop_map(|(g, k, d)| Step::Schedule(g, k, d)),
        Just(Step::Pop),
        (0_u8..3, 0_u64..3).prop_map(|(how, d)| Step::End(how, d)),
        (0_u64..3).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn no_pushed_guard_is_lost(steps in prop::collection::vec(step(), 1..120)) {
        let mut q = Q::new(2);
        let (mut now, mut guard) = (0, 0);
        let mut open: BTreeMap<u32, K> = BTreeMap::new();
        let mut working: Vec<Work<K, &str, u32>> = Vec::new();
        let check = |working: &[Work<K, &str, u32>]| {
            for (i, a) in working.iter().enumerate() {
                assert!(working[i + 1..].iter().all(|b| b.key != a.key));
                assert!(working.iter().filter(|b| b.key.0 == a.key.0).count() <= 2);
            }
        };
        for step in steps {
            match step {
                Step::Schedule(g, k, d) => {
                    q.push_later(K(g, k), Class::Retry, Some("scheduled"), Duration::from_millis(d), tick(now));
                }
                Step::Push(g, k, c) => {
                    guard += 1;
                    open.insert(guard, K(g, k));
                    let push = Push { class: Class::ALL[c], trigger: Some("x"), guards: vec![guard] };
                    q.push(K(g, k), push, tick(now));
                }
                Step::Pop => working.extend(q.pop(tick(now))),
                Step::End(how, d) => if let Some(work) = working.pop() {
                    let delay = Duration::from_millis(d);
                    let ended = match how {
                        0 => { for g in &work.guards { prop_assert_eq!(open.remove(g), Some(work.key)); } Ended::Done }
                        1 => { for g in &work.guards { prop_assert_eq!(open.remove(g), Some(work.key)); } Ended::Retry { delay: delay.into(), guards: vec![], triggers: vec![] } }
                        _ => Ended::Retry { delay: delay.into(), guards: work.guards, triggers: vec![] },
                    };
                    q.end(&work.key, ended, tick(now));
                },
                Step::Wait(d) => now += d,
            }
            check(&working);
        }
        for _ in 0..200 {
            now += 5;
            working.extend(q.pop(tick(now)));
            if let Some(work) = working.pop() {
                for g in &work.guards { prop_assert_eq!(open.remove(g), Some(work.key)); }
                q.end(&work.key, Ended::Done, tick(now));
            }
        }
        prop_assert!(open.is_empty());
        prop_assert!(q.slots.is_empty());
        prop_assert_eq!(q.ready().map(|(_, n)| n).sum::<usize>(), 0);
    }
}

#[test]
fn a_capped_class_keeps_its_limit_across_retries() {
    let mut q = Q::new(4);
    q.cap(Class::Poll, 1);
    for group in 1..=3 {
        q.push(K(group, 1), now_with(Class::Poll, 1), tick(0));
    }
    let first = q.pop(tick(0)).unwrap();
    assert!(q.pop(tick(0)).is_none(), "one at a time");
    q.push(K(9, 1), now_with(Class::UserEdit, 1), tick(0));
    assert_eq!(q.pop(tick(0)).unwrap().key, K(9, 1), "others are not held up");
    q.end(
        &first.key,
        Ended::Retry { delay: Duration::ZERO.into(), guards: Vec::new(), triggers: Vec::new() },
        tick(1),
    );
    assert_eq!(q.pop(tick(2)).unwrap().class, Class::Poll);
    assert!(q.pop(tick(2)).is_none(), "a retry of a poll is a poll");
}
