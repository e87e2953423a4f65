use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;
use tidewatch_wire::{limits, v3::Change};

use super::*;
use crate::{
    Tick,
    outbox::{Key, Observation, Outbox},
};

fn event(seq: u64) -> v3::Event<'static> {
    v3::Event {
        seq: Seq(seq),
        watch: "w".into(),
        group: "".into(),
        version: "v1".into(),
        kind: "Thing".into(),
        namespace: "n".into(),
        name: format!("o{seq}").into(),
        uid: "".into(),
        resource_version: "".into(),
        change: Change::Changed,
        listed: false,
        observed_at: Timestamp::UNIX_EPOCH,
    }
}

fn request(epoch: u128, events: &[u64], awaiting: &[u64]) -> Request<'static> {
    Request {
        events: events.iter().map(|&n| event(n)).collect(),
        awaiting: awaiting.iter().map(|&n| Seq(n)).collect(),
        ..Request::new(Epoch::from_bits(epoch))
    }
}

fn seqs(numbers: &[u64]) -> SeqSet {
    numbers.iter().map(|&n| Seq(n)).collect()
}

const E1: u128 = 1;

fn ledger_holding(numbers: &[u64]) -> Ledger {
    let mut ledger = Ledger::new(SessionId::from_bits(9), 100);
    ledger.receive(&request(E1, numbers, numbers));
    for &n in numbers {
        ledger.route(Epoch::from_bits(E1), Seq(n), Route::engine(), Intake::Held);
    }
    ledger
}

#[test]
fn a_quiet_runtimes_ledger_entry_is_small() {
    // Above 512 bytes, a map node shares pages with short-lived JSON objects and pins them (docs/concepts/scale.md). The
    // smallest node has room for eleven.
    assert!(11 * (size_of::<Seq>() + size_of::<Verdicts>()) + 16 <= 512);
}

#[test]
fn only_done_events_are_acknowledged() {
    let mut ledger = ledger_holding(&[1, 2]);
    let epoch = Epoch::from_bits(E1);
    assert!(!ledger.has_changes(epoch, &seqs(&[1, 2])));
    ledger.settle(epoch, Seq(2), &Route::engine(), Outcome::Done);
    let answer = ledger.answer(epoch, &seqs(&[1, 2]));
    assert_eq!(answer.acks[0].done, seqs(&[2]), "a stuck number does not hold back another");
    assert_eq!(ledger.held(), 1);
}

#[test]
fn a_repeated_event_is_not_fresh() {
    let mut ledger = ledger_holding(&[1]);
    assert_eq!(ledger.receive(&request(E1, &[1], &[1])), Received::default());
    ledger.settle(Epoch::from_bits(E1), Seq(1), &Route::engine(), Outcome::Done);
    assert_eq!(ledger.receive(&request(E1, &[1], &[1])), Received::default(), "nor after it is done");
}

#[test]
fn dropped_work_is_requested_again() {
    let mut ledger = ledger_holding(&[1]);
    let epoch = Epoch::from_bits(E1);
    ledger.settle(epoch, Seq(1), &Route::engine(), Outcome::Dropped);
    let answer = ledger.answer(epoch, &seqs(&[1]));
    assert!(answer.acks.is_empty());
    assert_eq!(answer.unknown, seqs(&[1]));
}

#[test]
fn numbers_of_another_session_are_unknown() {
    let mut ledger = Ledger::new(SessionId::from_bits(10), 100);
    let answer = ledger.answer(Epoch::from_bits(E1), &seqs(&[3, 4]));
    assert_eq!(answer.unknown, seqs(&[3, 4]));
}

#[test]
fn settled_numbers_are_forgotten_once_not_awaited() {
    let mut ledger = ledger_holding(&[1, 2]);
    ledger.settle(Epoch::from_bits(E1), Seq(1), &Route::engine(), Outcome::Done);
    ledger.receive(&request(E1, &[], &[2]));
    assert_eq!(ledger.answer(Epoch::from_bits(E1), &seqs(&[1])).unknown, seqs(&[1]));
    assert_eq!(ledger.held(), 1, "what is held stays, awaited or not");
}

#[test]
fn a_late_verdict_for_a_replaced_epoch_is_ignored() {
    let mut ledger = ledger_holding(&[1]);
    for epoch in 2..10 {
        ledger.receive(&request(epoch, &[1], &[1]));
        ledger.route(Epoch::from_bits(epoch), Seq(1), Route::engine(), Intake::Held);
    }
    ledger.settle(Epoch::from_bits(E1), Seq(1), &Route::engine(), Outcome::Done);
    let answer = ledger.answer(Epoch::from_bits(9), &seqs(&[1]));
    assert!(answer.acks.is_empty() && answer.unknown.is_empty());
    assert_eq!(ledger.held(), EPOCHS, "old epochs cost nothing");
}

#[test]
fn replaced_numbers_do_not_fill_the_ledger() {
    let mut ledger = Ledger::new(SessionId::from_bits(9), 2);
    let epoch = Epoch::from_bits(E1);
    // A suspended key: each change replaces a number that never finishes.
    for n in [1, 2, 3] {
        let received = ledger.receive(&request(E1, &[n], &[n]));
        assert_eq!(received, Received { fresh: vec![0], overloaded: false }, "{n}");
        ledger.route(epoch, Seq(n), Route::engine(), Intake::Held);
    }
    let received = ledger.receive(&request(E1, &[4], &[3, 4]));
    assert_eq!(received, Received { fresh: vec![0], overloaded: false });
    assert!(ledger.answer(epoch, &seqs(&[3])).unknown.is_empty(), "what is awaited is kept");
}

#[test]
fn a_full_ledger_refuses_new_events() {
    let mut ledger = Ledger::new(SessionId::from_bits(9), 2);
    let received = ledger.receive(&request(E1, &[1, 2, 3], &[1, 2, 3]));
    assert_eq!(received, Received { fresh: vec![0, 1], overloaded: true });
    assert_eq!(ledger.answer(Epoch::from_bits(E1), &seqs(&[1, 2, 3])).unknown, seqs(&[3]));
}

#[test]
fn a_full_ledger_accepts_a_canary() {
    let mut ledger = Ledger::new(SessionId::from_bits(9), 2);
    let full = request(E1, &[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 5, 6]);
    let mut canaries = full.clone();
    for event in &mut canaries.events[3..] {
        event.watch = v3::CANARY.into();
    }
    assert_eq!(ledger.receive(&canaries), Received { fresh: vec![0, 1, 3, 4], overloaded: true });
    assert_eq!(
        ledger.receive(&full),
        Received { fresh: vec![], overloaded: true },
        "there is no end to no room"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Change(u8),
    Send { lose_request: bool, lose_answer: bool },
    Poll { lose_answer: bool },
    Work { drop: bool },
    ReceiverRestart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..4).prop_map(Step::Change),
        4 => (any::<bool>(), any::<bool>())
            .prop_map(|(lose_request, lose_answer)| Step::Send { lose_request, lose_answer }),
        3 => any::<bool>().prop_map(|lose_answer| Step::Poll { lose_answer }),
        3 => any::<bool>().prop_map(|drop| Step::Work { drop }),
        1 => Just(Step::ReceiverRestart),
    ]
}

/// Both production halves, with loss, dropped reconciles and restarts.
struct World {
    outbox: Outbox,
    ledger: Ledger,
    queue: Vec<(Epoch, Seq, u8)>,
    sessions: u128,
    versions: BTreeMap<u8, u64>,
    /// Per key: version that the last finished reconcile observed.
    reconciled: BTreeMap<u8, u64>,
}

impl World {
    fn new() -> Self {
        Self {
            outbox: Outbox::new(Epoch::from_bits(1), BTreeMap::new()),
            ledger: Ledger::new(SessionId::from_bits(1), 3),
            queue: Vec::new(),
            sessions: 1,
            versions: BTreeMap::new(),
            reconciled: BTreeMap::new(),
        }
    }

    fn receive(&mut self, request: &Request<'_>) -> Response {
        for index in self.ledger.receive(request).fresh {
            let event = &request.events[index];
            self.ledger.route(request.epoch, event.seq, Route::engine(), Intake::Held);
            self.queue.push((request.epoch, event.seq, event.name[1..].parse().unwrap()));
        }
        self.ledger.answer(request.epoch, &request.awaiting)
    }

    fn work(&mut self, drop: bool) {
        let Some((epoch, seq, key)) = self.queue.pop() else { return };
        if drop {
            self.ledger.settle(epoch, seq, &Route::engine(), Outcome::Dropped);
        } else {
            self.reconciled.insert(key, self.versions[&key]);
            self.ledger.settle(epoch, seq, &Route::engine(), Outcome::Done);
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Change(key) => {
                *self.versions.entry(key).or_default() += 1;
                let observation = Observation {
                    key: Key { watch: "w".into(), namespace: "n".into(), name: format!("o{key}").into() },
                    group: "".into(),
                    version: "v1".into(),
                    kind: "Thing".into(),
                    uid: String::new(),
                    resource_version: String::new(),
                    change: Change::Changed,
                    listed: false,
                    at: Timestamp::UNIX_EPOCH,
                };
                self.outbox.observe(observation, Tick::ZERO);
            }
            Step::Send { lose_request, lose_answer } => {
                let Some((request, in_flight)) = self.outbox.next_batch(Tick::ZERO) else { return };
                let answer = (!lose_request).then(|| self.receive(&request));
                match answer {
                    Some(answer) if !lose_answer => drop(self.outbox.answered(&answer, Tick::ZERO)),
                    _ => self.outbox.failed(&in_flight),
                }
            }
            Step::Poll { lose_answer } => {
                let Some(request) = self.outbox.poll() else { return };
                let answer = self.receive(&request);
                if !lose_answer {
                    self.outbox.answered(&answer, Tick::ZERO);
                }
            }
            Step::Work { drop } => self.work(drop),
            Step::ReceiverRestart => {
                self.sessions += 1;
                self.ledger = Ledger::new(SessionId::from_bits(self.sessions), 3);
                self.queue.clear();
            }
        }
    }

    fn dirty(&mut self) -> BTreeSet<u8> {
        self.versions.iter().filter(|(k, v)| self.reconciled.get(k) != Some(v)).map(|(k, _)| *k).collect()
    }
}

proptest! {
    #[test]
    fn every_key_is_released_only_after_its_reconcile(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            if world.outbox.dirty().is_empty() {
                prop_assert!(world.dirty().is_empty(), "let go before it was reconciled");
            }
        }
        // Without faults, everything is acknowledged.
        for _ in 0..30 {
            world.apply(&Step::Send { lose_request: false, lose_answer: false });
            world.apply(&Step::Work { drop: false });
            world.apply(&Step::Poll { lose_answer: false });
        }
        prop_assert!(world.outbox.dirty().is_empty(), "{} keys held for ever", world.outbox.dirty().len());
        prop_assert!(world.dirty().is_empty());
    }
}

#[test]
fn an_answer_stays_within_the_limit_of_ranges() {
    // Known numbers split each of the most ranges, which doubles them.
    let middles: Vec<u64> = (1..=100).map(|n| n * 10).collect();
    let ranges: Vec<[u64; 2]> = (1..=limits::SEQ_RANGES as u64).map(|n| [n * 10 - 1, n * 10 + 1]).collect();
    let mut ledger = ledger_holding(&middles);
    let mut awaiting = SeqSet::try_from(ranges).unwrap();
    let epoch = Epoch::from_bits(E1);
    for _ in 0..3 {
        let answer = ledger.answer(epoch, &awaiting);
        assert_eq!(answer.unknown.range_count(), limits::SEQ_RANGES.min(awaiting.range_count()));
        assert!(SeqSet::try_from(Vec::from(answer.unknown.clone())).is_ok(), "the agent can read it");
        // The agent asks for the rest after it has resent these.
        let left: Vec<[u64; 2]> = awaiting
            .ranges()
            .filter(|(s, _)| !answer.unknown.contains(Seq(*s)))
            .map(|(s, e)| [s, e])
            .collect();
        awaiting = SeqSet::try_from(left).unwrap();
        if awaiting.is_empty() {
            return;
        }
    }
    panic!("{} ranges are never asked for", awaiting.range_count());
}
