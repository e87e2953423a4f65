use jiff::SignedDuration;
use tidewatch_wire::{Epoch, Seq, SessionId, v3::Change};

use super::*;
use crate::Deliveries;

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn limits() -> Limits {
    Limits { bodies: 1, ..Limits::default() }
}

fn request(seqs: std::ops::Range<u64>, observed_at: Timestamp) -> v3::Request<'static> {
    let event = |seq| v3::Event {
        seq: Seq(seq),
        watch: "w".into(),
        group: "".into(),
        version: "v1".into(),
        kind: "K".into(),
        namespace: "".into(),
        name: seq.to_string().into(),
        uid: "".into(),
        resource_version: "".into(),
        change: Change::Changed,
        listed: false,
        observed_at,
    };
    let awaiting = seqs.clone().map(Seq).collect();
    let epoch = Epoch::from_bits(1);
    v3::Request { events: seqs.map(event).collect(), awaiting, ..v3::Request::new(epoch) }
}

#[tokio::test(start_paused = true)]
async fn each_runtime_has_a_rate_of_its_own() {
    let admission = Admission::new(limits(), START);
    for _ in 0..200 {
        admission.request(Some("a")).unwrap();
    }
    let throttled = admission.request(Some("a")).unwrap_err();
    assert_eq!((throttled.limit, throttled.wait), ("requests", Duration::from_millis(20)));
    admission.request(Some("b")).unwrap();
    admission.request(None).unwrap();
    tokio::time::advance(Duration::from_millis(20)).await;
    admission.request(Some("a")).unwrap();

    for _ in 0..100 {
        admission.v2_event("b").unwrap();
    }
    assert_eq!(admission.v2_event("b").unwrap_err().limit, "v2_events");
}

#[tokio::test(start_paused = true)]
async fn forgotten_runtimes_free_their_memory() {
    let admission = Admission::new(limits(), START);
    for n in 0..50_000 {
        admission.request(Some(&n.to_string())).unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let kept = admission.runtimes.lock().capacity();
    assert!(kept <= 4 * KEPT_RUNTIMES, "{kept}");
}

#[tokio::test(start_paused = true)]
async fn resent_events_take_turns_and_changes_pass() {
    let admission = Admission::new(limits(), START);
    let old = request(0..1_000, START - SignedDuration::from_secs(1));
    let fresh = request(0..1_000, START);
    // 100 agents with 1,000 events each reconnect.
    let outcomes: Vec<_> = (0..100).map(|n| admission.events(&n.to_string(), &old)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 20);
    let (door, throttled) = outcomes[50].unwrap_err();
    assert_eq!(door, Door::Younger(START), "what has changed since passes");
    assert!(throttled.limit == "resent" && throttled.wait >= MIN_WAIT / 2, "{throttled:?}");
    for _ in 0..100 {
        admission.events("1", &fresh).unwrap();
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    let passed = (50..100).filter(|n| admission.events(&n.to_string(), &old).is_ok()).count();
    assert_eq!(passed, 5, "5,000 events in a second");

    let mut report = request(0..1_000, START);
    report.events.iter_mut().for_each(|event| event.listed = true);
    assert!(admission.events("99", &report).is_err(), "a full report is none");

    let full = Admission::new(limits(), START).with_work(|| 1.0);
    assert_eq!(full.events("1", &fresh).unwrap_err().0, Door::Canary);
    assert!(full.events("1", &request(0..0, START)).is_ok(), "heartbeats and polls always pass");
    let mut canary = request(0..1, START - SignedDuration::from_secs(1));
    canary.events[0].watch = v3::CANARY.into();
    assert!(full.events("1", &canary).is_ok(), "and so does the canary");
}

#[tokio::test(start_paused = true)]
async fn one_runtime_cannot_use_the_whole_resend_rate() {
    let admission = Admission::new(limits(), START);
    let old = request(0..1_000, START - SignedDuration::from_secs(1));
    let mut passed = 0;
    for _ in 0..10_000 {
        match admission.events("hog", &old) {
            Ok(()) => passed += 1,
            Err((_, throttled)) => assert_eq!(throttled.limit, "resent_by_runtime"),
        }
        admission.events("other", &request(0..1, START - SignedDuration::from_secs(1))).unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    assert!((50..55).contains(&passed), "2,000 at once, and 500 in each of 100 s: {passed},000");

    // A waiting runtime keeps its own tokens.
    let others = (0..50).filter(|n| admission.events(&n.to_string(), &old).is_ok()).count();
    assert!((20..25).contains(&others), "{others}");
    for _ in 0..100 {
        assert_eq!(admission.events("late", &old).unwrap_err().1.limit, "resent");
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    admission.events("late", &old).unwrap();
}

#[tokio::test(start_paused = true)]
async fn more_waiting_runtimes_get_a_longer_retry_after() {
    let admission = Admission::new(limits(), START).with_jitter(|| 0.5);
    let old = request(0..50, START - SignedDuration::from_secs(1));
    let waits = |n: usize| -> Vec<f64> {
        let turned_away = (0..n).filter_map(|n| admission.events(&n.to_string(), &old).err());
        turned_away.map(|(_, throttled)| throttled.wait.as_secs_f64()).collect()
    };
    let waits_of_many = waits(10_000);
    assert!(waits_of_many[0] < 6.0, "the first: {}", waits_of_many[0]);
    assert!(waits_of_many.last().is_some_and(|wait| *wait > 59.0), "480,000 events, 5,000 in a second");
    tokio::time::advance(Duration::from_mins(3)).await;
    let waits_of_few = waits(500);
    assert!(waits_of_few.iter().all(|wait| *wait < 7.0), "{:?}", waits_of_few.last());
}

#[test]
fn the_retry_after_grows_with_overload_and_is_spread() {
    let seconds = |load, random| wait(load, random).as_secs_f64();
    for (load, expected) in
        [(1.0, 5.0), (0.0, 5.0), (2.0, 10.0), (100.0, 60.0), (f64::NAN, 60.0), (f64::INFINITY, 60.0)]
    {
        assert!((seconds(load, 0.5) - expected).abs() < 1e-6, "{load}");
        assert!((seconds(load, 0.0) - expected * 0.5).abs() < 1e-6, "{load}");
        assert!((seconds(load, 1.0) - expected * 1.5).abs() < 1e-6, "{load}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_bodies_are_limited() {
    let admission = Admission::new(limits(), START);
    let first = admission.body("a").await.unwrap();
    assert_eq!(admission.body("b").await.unwrap_err().limit, "bodies");
    drop(first);
    let _again = admission.body("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bodies_of_one_runtime_leave_capacity_for_others() {
    let admission = Admission::new(Limits { bodies: 32, ..limits() }, START);
    let reading = futures::future::join_all((0..40).map(|_| admission.body("a"))).await;
    assert_eq!(reading.iter().filter(|permit| permit.is_ok()).count(), 8);
    let refused = reading.iter().find_map(|permit| permit.as_ref().err()).unwrap();
    assert_eq!(refused.limit, "bodies_by_runtime");
    let begun = Instant::now();
    let others = futures::future::join_all(["b", "c", "b"].map(|runtime| admission.body(runtime))).await;
    assert!(others.iter().all(Result::is_ok) && begun.elapsed() < Duration::from_millis(1));

    let (next, ()) = tokio::join!(admission.body("a"), async {
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(reading);
    });
    next.unwrap();
    drop(others);
    assert_eq!(admission.reading.holders(), 0, "who reads nothing costs nothing");
}

#[tokio::test(start_paused = true)]
async fn ledgers_stay_bounded_under_ten_times_the_limits() {
    const HELD: usize = 2_000;
    const RUNTIMES: u64 = 100;
    const EACH: u64 = 200;
    let admission = Admission::new(limits(), START);
    let deliveries = Deliveries::new(SessionId::from_bits(1)).with_capacity(HELD);
    let (mut guards, mut sent_away) = (Vec::new(), 0);
    for round in 0..EACH / 10 {
        for runtime in 0..RUNTIMES {
            let (id, seqs) = (runtime.to_string(), round * 10..(round + 1) * 10);
            let request = request(seqs, START);
            admission.events(&id, &request).unwrap();
            let received = deliveries.receive(&id, &request);
            sent_away += usize::from(received.overloaded);
            for index in received.fresh {
                let mut ticket = deliveries.ticket(&id, request.epoch, request.events[index].seq);
                guards.extend(ticket.hold(tidewatch_wire::Route::engine(), 1));
            }
        }
    }
    let held = deliveries.held();
    assert!((HELD / 2..=HELD).contains(&held), "{held}");
    assert!(sent_away > usize::try_from(RUNTIMES * EACH / 10).unwrap() - HELD / 10);
    assert!(deliveries.is_scarce());

    let rest = guards.split_off(held / 2);
    guards.into_iter().for_each(crate::Guard::finished);
    assert_eq!(deliveries.held(), rest.len());
    drop(rest);
    assert!(deliveries.load() < f64::EPSILON && deliveries.held() == 0);
}
