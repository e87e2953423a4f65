use std::collections::BTreeSet;

use jiff::Timestamp;
use tidewatch_wire::{
    SeqSet, limits,
    v3::{Request, Response},
};

use super::*;

const T0: Tick = Tick::ZERO;

fn tick(ms: u64) -> Tick {
    Tick::from_millis(ms)
}

fn saw(name: &str) -> Observation {
    Observation {
        key: Key { watch: "kyma".into(), namespace: "kyma-system".into(), name: name.into() },
        group: "operator.kyma-project.io".into(),
        version: "v1beta2".into(),
        kind: "Kyma".into(),
        uid: "u".into(),
        resource_version: "1".into(),
        change: Change::Changed,
        listed: false,
        at: Timestamp::UNIX_EPOCH,
    }
}

fn outbox() -> Outbox {
    Outbox::new(Epoch::from_bits(1), BTreeMap::new())
}

fn answer(session: u128, done: &[u64]) -> Response {
    let ack = v3::RouteAck {
        route: Route::engine(),
        done: done.iter().map(|&n| Seq(n)).collect(),
        refused: SeqSet::new(),
    };
    Response { acks: vec![ack], ..Response::new(Epoch::from_bits(1), SessionId::from_bits(session)) }
}

#[test]
fn a_change_is_kept_until_acknowledged() {
    let mut outbox = outbox();
    assert_eq!(outbox.observe(saw("a"), T0), Observed::New(Seq(1)));
    let (request, _) = outbox.next_batch(tick(5)).unwrap();
    assert_eq!(request.events.len(), 1);
    assert!(request.awaiting.contains(Seq(1)));
    assert!(outbox.next_batch(tick(6)).is_none(), "sent once");
    let applied = outbox.answered(&answer(9, &[]), tick(7));
    assert!(applied.released.is_empty() && outbox.dirty().len() == 1, "received is not reconciled");
    let applied = outbox.answered(&answer(9, &[1]), tick(30));
    assert_eq!(applied.released[0].since_observed, tick(30));
    assert_eq!(applied.released[0].since_sent, tick(25));
    assert!(outbox.dirty().is_empty() && outbox.poll().is_none());
}

#[test]
fn an_old_acknowledgement_does_not_release_a_newer_change() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    outbox.next_batch(tick(1)).unwrap();
    assert_eq!(outbox.observe(saw("a"), tick(2)), Observed::Coalesced(Seq(2)));
    let applied = outbox.answered(&answer(9, &[1]), tick(3));
    assert!(applied.released.is_empty());
    assert_eq!(outbox.dirty().len(), 1);
    let (request, _) = outbox.next_batch(tick(4)).unwrap();
    assert_eq!(request.events[0].seq, Seq(2));
    let released = outbox.answered(&answer(9, &[2]), tick(10)).released;
    assert_eq!(released[0].since_observed, tick(10), "counted from the first unreconciled change");
}

#[test]
fn a_full_report_does_not_hide_a_change() {
    let listed = |name: &str| Observation { listed: true, ..saw(name) };
    let mut outbox = outbox();
    for seen in [listed("report"), listed("then-changed"), saw("then-changed"), saw("then-report")] {
        outbox.observe(seen, T0);
    }
    outbox.observe(listed("then-report"), T0);
    let (request, _) = outbox.next_batch(T0).unwrap();
    let order: Vec<_> = request.events.iter().map(|event| (&*event.name, event.listed)).collect();
    assert_eq!(order, [("report", true), ("then-changed", false), ("then-report", false)]);
}

#[test]
fn a_failed_request_is_sent_again() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    let (first, in_flight) = outbox.next_batch(T0).unwrap();
    outbox.failed(&in_flight);
    let (second, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(first.events, second.events);
}

#[test]
fn a_new_session_resends_everything() {
    let mut outbox = outbox();
    for name in ["a", "b"] {
        outbox.observe(saw(name), T0);
    }
    outbox.next_batch(T0).unwrap();
    outbox.answered(&answer(9, &[]), T0);
    let applied = outbox.answered(&answer(10, &[]), T0);
    assert!(applied.new_session);
    assert_eq!((applied.to_resend, outbox.dirty().unsent()), (2, 2));
}

#[test]
fn repeated_new_sessions_without_acknowledgements_wait() {
    let mut outbox = outbox();
    let mut canary = saw("canary");
    canary.key.watch = v3::CANARY.into();
    for seen in [saw("a"), saw("b"), canary] {
        outbox.observe(seen, T0);
    }
    outbox.next_batch(T0).unwrap();
    outbox.answered(&answer(9, &[1]), T0);
    let applied = outbox.answered(&answer(10, &[]), T0);
    assert_eq!((applied.to_resend, applied.asked_again), (2, 0), "a receiver that was restarted");
    assert!(outbox.dirty().has_unsent(May::NONE) && outbox.dirty().has_new_canary());

    outbox.next_batch(T0).unwrap();
    let applied = outbox.answered(&answer(11, &[]), T0);
    assert_eq!((applied.to_resend, applied.asked_again), (2, 0), "or was so soon after its start");

    outbox.next_batch(T0).unwrap();
    let applied = outbox.answered(&answer(12, &[]), T0);
    assert_eq!((applied.to_resend, applied.asked_again), (2, 2));
    assert!(
        !outbox.dirty().has_unsent(May::NONE) && !outbox.dirty().has_new_canary(),
        "nothing of it is sent at once"
    );

    outbox.next_batch(T0).unwrap();
    outbox.answered(&answer(12, &[2, 3]), T0);
    assert!(outbox.dirty().is_empty() && !outbox.dirty().is_asked_again());
}

#[test]
fn only_own_unknown_numbers_are_resent() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    outbox.next_batch(T0).unwrap();
    let mut response = answer(9, &[]);
    response.unknown = [Seq(1), Seq(77)].into_iter().collect();
    assert_eq!(outbox.answered(&response, T0).to_resend, 1);
}

#[test]
fn an_answer_for_another_epoch_changes_nothing() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    outbox.next_batch(T0).unwrap();
    let mut response = answer(9, &[1]);
    response.epoch = Epoch::from_bits(2);
    assert!(outbox.answered(&response, T0).ignored);
    assert_eq!((outbox.dirty().len(), outbox.session()), (1, None));
}

#[test]
fn a_key_is_released_only_after_every_route() {
    let routes = BTreeMap::from([("kyma".to_owned(), vec![Route::engine(), Route::manager("other")])]);
    let mut outbox = Outbox::new(Epoch::from_bits(1), routes);
    outbox.observe(saw("a"), T0);
    outbox.next_batch(T0).unwrap();
    assert!(outbox.answered(&answer(9, &[1]), T0).released.is_empty());
    let mut response = answer(9, &[]);
    response.acks[0].route = Route::manager("other");
    response.acks[0].refused.insert(Seq(1));
    let released = outbox.answered(&response, T0).released;
    assert!(released[0].refused);
}

#[test]
fn a_batch_is_limited_and_oldest_first() {
    let mut outbox = outbox();
    for n in 0..=limits::V3_EVENTS {
        outbox.observe(saw(&format!("o{n}")), T0);
    }
    let (request, in_flight) = outbox.next_batch(T0).unwrap();
    assert_eq!((request.events.len(), in_flight.len()), (limits::V3_EVENTS, limits::V3_EVENTS));
    assert_eq!(request.events[0].seq, Seq(1));
    assert_eq!(request.check(), Ok(()));
    let (rest, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(rest.events.len(), 1);
}

#[test]
fn a_removed_watch_is_forgotten_and_others_stay() {
    let mut outbox = outbox();
    let other = |name: &str| {
        let mut other = saw(name);
        other.key.watch = "other".into();
        other
    };
    outbox.observe(saw("a"), T0);
    outbox.observe(other("a"), T0);
    let (_, in_flight) = outbox.next_batch(T0).unwrap();
    outbox.observe(saw("b"), T0);
    assert_eq!(outbox.forget("kyma"), 2, "one in flight, one not sent");
    assert_eq!((outbox.dirty().len(), outbox.dirty().unsent()), (1, 0));
    outbox.failed(&in_flight);
    assert_eq!(
        (outbox.dirty().len(), outbox.dirty().unsent()),
        (1, 1),
        "what is forgotten is not sent again"
    );
    assert!(outbox.answered(&answer(9, &[1, 3]), T0).released.is_empty(), "a late acknowledgement");
    assert_eq!(outbox.forget("kyma"), 0);
    assert_eq!(outbox.observe(saw("a"), T0), Observed::New(Seq(4)), "numbers go on");
}

#[test]
fn routes_apply_to_later_observations() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    outbox.set_routes(BTreeMap::from([("kyma".to_owned(), vec![Route::manager("m")])]));
    outbox.observe(saw("b"), T0);
    outbox.next_batch(T0);
    let applied = outbox.answered(&answer(9, &[1, 2]), T0);
    assert_eq!(applied.released.iter().map(|r| r.seq).collect::<Vec<_>>(), [Seq(1)]);
    let mut from_manager = answer(9, &[2]);
    from_manager.acks[0].route = Route::manager("m");
    assert_eq!(outbox.answered(&from_manager, T0).released.len(), 1);
}

#[test]
fn a_canary_carries_the_health_and_keeps_the_digest() {
    let mut outbox = outbox();
    let canary = || {
        let mut canary = saw("canary");
        canary.key.watch = v3::CANARY.into();
        canary
    };
    outbox.observe(saw("a"), T0);
    outbox.next_batch(T0).unwrap();
    outbox.answered(&answer(9, &[1]), T0);
    outbox.digest_stored(1);
    let before = outbox.revision();
    let health = Health { configuration: "c".into(), ..Health::default() };
    outbox.set_health(Some(health.clone()));

    outbox.observe(canary(), T0);
    assert!(outbox.dirty().is_calm() && !outbox.dirty().is_empty());
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!((request.health, request.digest), (Some(health), Some(1)), "the stored digest still holds");
    outbox.answered(&answer(9, &[2]), T0);
    assert_eq!((outbox.serial(), outbox.revision()), (1, before), "nothing new to store");

    outbox.observe(canary(), T0);
    outbox.observe(saw("b"), T0);
    assert!(!outbox.dirty().is_calm());
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(request.health, None);
    assert!(request.reconciled_ms.is_empty(), "the canary is in no figure of changes");
    assert!(!outbox.declares(), "a change of the runtime is not covered");
}

#[test]
fn refused_events_do_not_block_others() {
    let max = limits::V3_EVENTS as u64;
    let mut outbox = outbox();
    for n in 0..max + 200 {
        outbox.observe(saw(&format!("stuck-{n:05}")), T0);
    }
    let unknown =
        |seqs: std::ops::RangeInclusive<u64>| Response { unknown: seqs.map(Seq).collect(), ..answer(9, &[]) };
    outbox.next_batch(T0).unwrap();
    assert_eq!(outbox.answered(&unknown(1..=max), T0).to_resend, limits::V3_EVENTS);

    // Fresh numbers first, then the oldest others.
    assert!(outbox.dirty().has_unsent(May::NONE) && outbox.dirty().is_asked_again());
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(request.events.len(), limits::V3_EVENTS);
    assert_eq!(request.events.last().unwrap().seq, Seq(max + 200));
    outbox.answered(&unknown(1..=max + 200), T0);
    assert!(!outbox.dirty().has_unsent(May::NONE) && outbox.next_batch_of(May::NONE, T0).is_none());

    outbox.observe(saw("urgent"), T0);
    let (request, _) = outbox.next_batch_of(May::NONE, T0).unwrap();
    assert_eq!(request.events.iter().map(|e| e.seq.0).collect::<Vec<_>>(), [max + 201]);
    outbox.answered(&answer(9, &[max + 201]), T0);

    // Without capacity, every number still gets a turn.
    let mut sent = BTreeSet::new();
    for _ in 0..3 {
        let (request, _) = outbox.next_batch(T0).unwrap();
        sent.extend(request.events.iter().map(|e| e.seq.0));
        outbox.answered(&unknown(1..=max + 200), T0);
    }
    assert_eq!(sent.len() as u64, max + 200);
    outbox.next_batch(T0).unwrap();
    outbox.next_batch(T0).unwrap();
    outbox.answered(&answer(9, &(1..=max + 200).collect::<Vec<_>>()), T0);
    assert!(
        outbox.dirty().is_empty() && !outbox.dirty().is_asked_again(),
        "nothing is kept of what was let go"
    );
}

/// An object with the longest fields, all escaped.
fn longest(name: usize) -> Observation {
    let text = "\u{1}".repeat(limits::FIELD_BYTES);
    let named = format!("{name:05}{}", &text[5..]);
    Observation {
        key: Key {
            watch: "w".repeat(limits::FIELD_BYTES).into(),
            namespace: text.clone().into(),
            name: named.into(),
        },
        group: text.clone().into(),
        version: text.clone().into(),
        kind: text.clone().into(),
        uid: text.clone(),
        resource_version: text,
        ..saw("")
    }
}

#[test]
fn the_largest_requests_fit_the_contract() {
    let mut outbox = outbox();
    for n in 0..2 * limits::SEQ_RANGES {
        outbox.observe(saw(&format!("o{n:05}")), T0);
    }
    while outbox.next_batch(T0).is_some() {}
    let every_second: Vec<u64> = (1..=2 * limits::SEQ_RANGES as u64).step_by(2).collect();
    outbox.answered(&answer(9, &every_second), T0);
    let health = Health {
        configuration: "c".repeat(64),
        blind: vec!["\u{1}".repeat(512); limits::WATCHES],
        trust: "t".repeat(64),
        installation: "i".repeat(64),
    };
    outbox.set_health(Some(health));
    let fits = |request: &Request<'_>| {
        let bytes = serde_json::to_vec(request).unwrap().len();
        assert!(bytes <= limits::V3_BODY_BYTES, "{bytes} bytes for {} events", request.events.len());
        assert_eq!(request.check(), Ok(()));
    };
    let poll = outbox.poll().unwrap();
    assert_eq!(poll.awaiting.range_count(), limits::SEQ_RANGES);
    fits(&poll);
    for n in 0..limits::V3_EVENTS {
        outbox.observe(longest(n), T0);
    }
    let (mut requests, mut sent) = (0, 0);
    while let Some((request, in_flight)) = outbox.next_batch(T0) {
        fits(&request);
        assert_eq!(in_flight.len(), request.events.len());
        (requests, sent) = (requests + 1, sent + request.events.len());
    }
    assert_eq!(sent, limits::V3_EVENTS);
    assert!(requests < 100, "{requests} requests");
}

#[test]
fn an_oversized_batch_is_split() {
    let mut outbox = outbox();
    for n in 0..3_000 {
        outbox.observe(saw(&format!("o{n:05}")), T0);
    }
    // A proxy accepts 300 events, and never `o00100`.
    let (mut failures, mut passed) = (0, BTreeSet::new());
    for _ in 0..200 {
        let Some((request, in_flight)) = outbox.next_batch(T0) else { break };
        if in_flight.len() > 300 || request.events.iter().any(|event| event.name == "o00100") {
            failures += 1;
            outbox.too_large(&in_flight, request.awaiting.range_count());
        } else {
            outbox.passed(&in_flight);
            passed.extend(in_flight.0);
        }
        if passed.len() == 2_999 {
            break;
        }
    }
    assert_eq!((passed.len(), outbox.dirty().unsent()), (2_999, 1));
    assert!(failures < 20, "{failures}");

    let mut sizes = [0; 100];
    for size in &mut sizes {
        outbox.failed(&InFlight(passed.iter().copied().collect()));
        let (_, in_flight) = outbox.next_batch_of(May::NONE, T0).unwrap();
        outbox.passed(&in_flight);
        *size = in_flight.len();
    }
    assert_eq!(sizes[99], sizes[0] + 99);
}

#[test]
fn a_canary_goes_before_everything() {
    let mut outbox = outbox();
    for n in 0..5_000 {
        outbox.observe(saw(&format!("o{n:05}")), T0);
    }
    let canary = Key { watch: v3::CANARY.into(), ..saw("canary").key };
    outbox.observe(Observation { key: canary, ..saw("") }, T0);
    assert!(outbox.dirty().has_new_canary());
    let (request, first) = outbox.next_batch(T0).unwrap();
    assert_eq!((request.events.len(), request.events[999].seq), (1_000, Seq(5_001)));
    assert!(!outbox.dirty().has_new_canary() && outbox.next_canary(T0).is_none());
    outbox.failed(&first);
    let (request, _) = outbox.next_canary(T0).unwrap();
    assert_eq!(request.events.len(), 1);
    let unknown = Response { unknown: [Seq(5_001)].into_iter().collect(), ..answer(9, &[]) };
    outbox.answered(&unknown, T0);
    assert!(outbox.next_canary(T0).is_none(), "asked for again, it waits like all others");
}

#[test]
fn a_returned_and_oversized_batch_is_counted_once() {
    let mut outbox = outbox();
    outbox.observe(saw("a"), T0);
    outbox.answered(&answer(9, &[]), T0);
    let (_, in_flight) = outbox.next_batch(T0).unwrap();
    // An answer from another session arrives before the batch is found too large.
    assert_eq!(outbox.answered(&answer(10, &[]), T0).to_resend, 1);
    outbox.too_large(&in_flight, 0);
    assert_eq!((outbox.dirty().unsent(), outbox.dirty().has_unsent(May::NONE)), (1, true));
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(request.events.len(), 1);
    assert!(!outbox.dirty().has_unsent(May::NONE) && outbox.next_batch(T0).is_none());
}

#[test]
fn changes_go_before_listed_events() {
    let mut outbox = outbox();
    let listed = |name: &str| Observation { listed: true, ..saw(name) };
    outbox.answered(&answer(9, &[]), T0);
    for n in 0..3_000 {
        outbox.observe(listed(&format!("listed-{n}")), T0);
    }
    assert!(!outbox.dirty().has_unsent(May::NONE) && outbox.next_batch_of(May::NONE, T0).is_none());
    outbox.observe(saw("edited"), T0);
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(
        (request.events.len(), request.events[999].seq),
        (1_000, Seq(3_001)),
        "with it goes what there is room for"
    );

    // A change of a reported object is fresh until the receiver asks again.
    outbox.observe(saw("listed-2999"), T0);
    let (request, in_flight) = outbox.next_batch_of(May::NONE, T0).unwrap();
    assert_eq!(request.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [Seq(3_002)]);
    outbox.failed(&in_flight);
    assert!(outbox.dirty().has_unsent(May::NONE), "of what did not arrive nobody has said anything");
    outbox.next_batch_of(May::NONE, T0).unwrap();
    let unknown = Response { unknown: [Seq(3_002)].into_iter().collect(), ..answer(9, &[]) };
    assert_eq!(outbox.answered(&unknown, T0).asked_again, 1);
    // A full receiver does not move it behind the report.
    let (request, in_flight) = outbox.next_batch(T0).unwrap();
    assert_eq!(request.events.last().map(|event| event.seq), Some(Seq(3_002)));
    outbox.failed(&in_flight);
    assert!(!outbox.dirty().has_unsent(May::NONE) && outbox.next_batch_of(May::NONE, T0).is_none());

    // Steady changes do not starve the report.
    for n in 0..2_000 {
        outbox.observe(saw(&format!("busy-{n}")), T0);
    }
    let (request, _) = outbox.next_batch(T0).unwrap();
    let reported = request.events.iter().filter(|event| event.listed).count();
    assert_eq!((request.events.len(), reported), (1_000, 125));
}

#[test]
fn older_events_waiting_their_turn_are_not_repeats() {
    let mut outbox = outbox();
    outbox.answered(&answer(9, &[]), T0);
    let at = |second| Timestamp::from_second(second).unwrap();
    outbox.observe(Observation { at: at(10), ..saw("before") }, T0);
    outbox.observe(Observation { at: at(30), ..saw("after") }, T0);
    outbox.observe(Observation { at: at(30), listed: true, ..saw("listed") }, T0);
    outbox.next_batch(T0).unwrap();
    outbox.observe(Observation { at: at(11), ..saw("before too") }, T0);
    let older = Some(v3::Older { than: at(20), after_ms: 7_000 });
    let unknown = [Seq(1), Seq(3)].into_iter().collect();
    let applied = outbox.answered(&Response { older, unknown, ..answer(9, &[2]) }, T0);
    assert_eq!((applied.to_resend, applied.asked_again, applied.older_after), (2, 0, Some(tick(7_000))));
    assert!(
        !outbox.dirty().is_asked_again() && !outbox.dirty().has_unsent(May::NONE),
        "nothing that is left may go now"
    );
    assert!(outbox.dirty().has_unsent(May { older: true, ..May::NONE }));
    outbox.observe(Observation { at: at(40), ..saw("edited") }, T0);
    let (request, _) = outbox.next_batch_of(May { again: true, older: false }, T0).unwrap();
    assert_eq!(request.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [Seq(5)]);
    // Another session starts at another time.
    outbox.answered(&answer(10, &[]), T0);
    let (request, _) = outbox.next_batch_of(May::NONE, T0).unwrap();
    assert_eq!(request.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [Seq(1), Seq(4), Seq(5)]);
}
