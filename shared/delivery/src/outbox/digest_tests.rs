//! The digest with both halves: crashes and restored backups on either side.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, test_runner::Config};
use tidewatch_wire::{SeqSet, v3::Request};

use jiff::Timestamp;
use tidewatch_wire::v3::Response;

use super::*;
use crate::{
    claims::Claims,
    digest::{self, BUCKETS, Sums, contribution},
    ledger::{Intake, Ledger, Outcome},
};

const T0: Tick = Tick::ZERO;
const WATCH: &str = "w";

/// A deliberate defect, which the test must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// The digest holds the present state, not the reconciled one.
    CurrentState,
    /// The digest is stored and declared while a key is dirty.
    DirtyDigest,
    EveryClaimConfirmed,
    ReconcilesEndNoClaim,
    /// Unnamed gone objects are not reported.
    NothingForTheGone,
    /// The digest is valid before the resync of gone objects.
    GoneNotWaitedFor,
    /// Sessions of any past are accepted.
    StrangeSessions,
    /// Sessions are accepted without their marks.
    NoMarks,
}

impl Defect {
    const fn stores_dirty(self) -> bool {
        matches!(self, Self::CurrentState | Self::DirtyDigest | Self::GoneNotWaitedFor)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Change(u8),
    Delete(u8),
    Watch,
    Send {
        lose_request: bool,
        lose_answer: bool,
    },
    Sign {
        poll: bool,
        lose_answer: bool,
    },
    Work {
        drop: bool,
    },
    /// A full reconcile without an event.
    Spontaneous,
    TakeDigest,
    StoreDigest {
        confirmed: bool,
    },
    AgentCrash,
    AgentStart,
    ReceiverRestart,
    BackupRuntime,
    RestoreRuntime,
    /// Records the session's progress, if any.
    Mark,
    BackupKcp,
    RestoreKcp,
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<bool>;
    prop_oneof![
        4 => (0_u8..3).prop_map(Step::Change),
        2 => (0_u8..3).prop_map(Step::Delete),
        4 => Just(Step::Watch),
        5 => (prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(lose_request, lose_answer)| Step::Send { lose_request, lose_answer }),
        6 => (any(), prop::bool::weighted(0.2)).prop_map(|(poll, lose_answer)| Step::Sign { poll, lose_answer }),
        5 => prop::bool::weighted(0.1).prop_map(|drop| Step::Work { drop }),
        1 => Just(Step::Spontaneous),
        4 => Just(Step::TakeDigest),
        4 => prop::bool::weighted(0.9).prop_map(|confirmed| Step::StoreDigest { confirmed }),
        2 => Just(Step::AgentCrash),
        4 => Just(Step::AgentStart),
        1 => Just(Step::ReceiverRestart),
        1 => Just(Step::BackupRuntime),
        1 => Just(Step::RestoreRuntime),
        2 => Just(Step::Mark),
        1 => Just(Step::BackupKcp),
        2 => Just(Step::RestoreKcp),
    ]
}

type Stored = Option<(Resume, Digest)>;

struct Run {
    outbox: Outbox,
    index: BTreeMap<u8, u64>,
    /// Whether the claim is answered.
    answered: bool,
    baseline: Option<Section>,
    compared: bool,
    /// Buckets changed between the first list and its comparison.
    early: u64,
    /// Taken, not yet written.
    taken: Stored,
    /// Last stored serial, for defects that store dirty digests.
    stored: Option<u64>,
}

/// KCP's memory: reconciled state per key, and sessions with marks.
#[derive(Clone, Default)]
struct Kcp {
    reconciled: BTreeMap<u8, Option<u64>>,
    sessions: BTreeMap<SessionId, u64>,
    /// Number of reconciles; never restored.
    works: u64,
}

struct World {
    defect: Defect,
    /// Never decreases, like a resourceVersion.
    version: u64,
    ids: u128,
    objects: BTreeMap<u8, u64>,
    /// Objects deleted since the agent's last look.
    flickered: BTreeSet<u8>,
    stored: Stored,
    run: Option<Run>,
    session: SessionId,
    ledger: Ledger,
    claims: Claims,
    queue: Vec<(Epoch, Seq, Option<u8>)>,
    kcp: Kcp,
    /// Whether a reconcile followed the last mark.
    unmarked: bool,
    runtime_backup: Option<(BTreeMap<u8, u64>, Stored)>,
    kcp_backup: Kcp,
}

fn key(n: u8) -> Key {
    Key { watch: WATCH.into(), namespace: "n".into(), name: format!("o{n}").into() }
}

fn contributes(n: u8, state: u64) -> u64 {
    contribution("n", &format!("o{n}"), state, None)
}

fn sums(index: &BTreeMap<u8, u64>) -> Sums {
    let mut sums = [0_u64; BUCKETS];
    for (n, contribution) in index {
        let sum = &mut sums[bucket("n", &format!("o{n}"))];
        *sum = sum.wrapping_add(*contribution);
    }
    sums
}

pub(super) fn observation(key: Key, change: Change) -> Observation {
    Observation {
        key,
        group: "".into(),
        version: "v1".into(),
        kind: "Thing".into(),
        uid: String::new(),
        resource_version: String::new(),
        change,
        listed: false,
        at: Timestamp::UNIX_EPOCH,
    }
}

impl Run {
    fn see(&mut self, n: u8, before: u64, after: u64) {
        let change = if after == 0 { Change::Gone } else { Change::Changed };
        self.outbox.observe_moved(observation(key(n), change), Moved { before, after }, T0);
    }

    fn watch(&mut self, objects: &BTreeMap<u8, u64>, flickered: BTreeSet<u8>, defect: Defect) {
        let now: BTreeMap<u8, u64> = objects.iter().map(|(n, state)| (*n, contributes(*n, *state))).collect();
        let before = std::mem::replace(&mut self.index, now);
        if !self.compared {
            for n in flickered {
                self.early |= 1 << bucket("n", &format!("o{n}"));
            }
            self.compare(defect);
            return;
        }
        for n in flickered {
            if !before.contains_key(&n) && !self.index.contains_key(&n) {
                self.see(n, 0, 0);
            }
        }
        let all: BTreeSet<u8> = before.keys().chain(self.index.keys()).copied().collect();
        for n in all {
            let at = |index: &BTreeMap<u8, u64>| index.get(&n).copied().unwrap_or(0);
            let (before, after) = (at(&before), at(&self.index));
            if before != after {
                self.see(n, before, after);
            }
        }
    }

    fn compare(&mut self, defect: Defect) {
        if !self.answered {
            return;
        }
        let sums = sums(&self.index);
        let mask = digest::compare(self.baseline.as_ref(), 1, &sums) | self.early;
        let stale = if defect == Defect::GoneNotWaitedFor { 0 } else { mask };
        let section = Section { stale, sums: Box::new(sums), ..Section::unknown(1, "v1", "Thing") };
        let nameless = Key { watch: WATCH.into(), namespace: "".into(), name: "".into() };
        let unnamed = mask != 0 && defect != Defect::NothingForTheGone;
        let unnamed = unnamed.then(|| observation(nameless, Change::Resync));
        self.outbox.baseline(WATCH, section, unnamed, T0);
        if defect == Defect::NothingForTheGone {
            self.outbox.reconciled.digest.settle(WATCH);
        }
        for (n, contribution) in self.index.clone() {
            if mask >> bucket("n", &format!("o{n}")) & 1 == 1 {
                self.see(n, 0, contribution);
            }
        }
        self.compared = true;
    }

    fn answered(&mut self, response: &Response, stored: &Stored) {
        let applied = self.outbox.answered(response, T0);
        if let Some(confirmed) = applied.confirmed {
            let section = stored.as_ref().and_then(|(_, digest)| digest.get(WATCH).cloned());
            (self.answered, self.baseline) = (true, section.filter(|_| confirmed));
        }
        if applied.resync {
            (self.baseline, self.compared) = (None, false);
        }
    }
}

impl World {
    fn new(defect: Defect) -> Self {
        let session = SessionId::from_bits(1);
        Self {
            defect,
            version: 0,
            ids: 1,
            objects: BTreeMap::new(),
            flickered: BTreeSet::new(),
            stored: None,
            run: None,
            session,
            ledger: Ledger::new(session, 100),
            claims: Claims::new(),
            queue: Vec::new(),
            kcp: Kcp { sessions: BTreeMap::from([(session, 0)]), ..Kcp::default() },
            unmarked: false,
            runtime_backup: None,
            kcp_backup: Kcp::default(),
        }
    }

    fn receive(&mut self, request: &Request<'_>) -> Response {
        assert_eq!(request.check(), Ok(()));
        let (sessions, defect) = (&self.kcp.sessions, self.defect);
        let known = |s, mark| match defect {
            Defect::StrangeSessions => true,
            Defect::NoMarks => sessions.contains_key(&s),
            _ => sessions.get(&s).is_some_and(|recorded| mark <= *recorded),
        };
        let resync = self.claims.take(request, self.session, known);
        for position in self.ledger.receive(request).fresh {
            let event = &request.events[position];
            self.ledger.route(request.epoch, event.seq, Route::engine(), Intake::Held);
            let about = event.name.strip_prefix('o').map(|n| n.parse().unwrap());
            self.queue.push((request.epoch, event.seq, about));
        }
        let resync = resync && self.defect != Defect::EveryClaimConfirmed;
        let mark = self.kcp.sessions.get(&self.session).copied().unwrap_or_default();
        Response { resync, mark, ..self.ledger.answer(request.epoch, &request.awaiting) }
    }

    /// Whether a restored backup is detectable: no reconcile followed, or the agent received a later mark. True a
    /// minute after the backup.
    fn recognizes(&self, backup: &Kcp) -> bool {
        let Some(run) = &self.run else { return true };
        let recorded = run.outbox.session().and_then(|session| backup.sessions.get(&session));
        self.kcp.works == backup.works || recorded.is_none_or(|recorded| run.outbox.mark() > *recorded)
    }

    fn restart_receiver(&mut self) {
        self.ids += 1;
        self.session = SessionId::from_bits(self.ids);
        self.kcp.sessions.insert(self.session, 0);
        self.unmarked = false;
        self.ledger = Ledger::new(self.session, 100);
        self.claims = Claims::new();
        self.queue.clear();
    }

    fn start(&mut self) {
        if self.run.is_some() {
            return;
        }
        self.ids += 1;
        let mut outbox = Outbox::new(Epoch::from_bits(self.ids), BTreeMap::new());
        let answered = self.stored.is_none();
        if let Some((claim, digest)) = self.stored.clone() {
            outbox.begin(claim, digest);
        }
        // It claims after its first list.
        let index = self.objects.iter().map(|(n, state)| (*n, contributes(*n, *state))).collect();
        self.flickered.clear();
        let baseline = None;
        self.run = Some(Run {
            outbox,
            index,
            answered,
            baseline,
            compared: false,
            early: 0,
            taken: None,
            stored: None,
        });
    }

    fn watch(&mut self) {
        if let Some(run) = &mut self.run {
            run.watch(&self.objects, std::mem::take(&mut self.flickered), self.defect);
        }
    }

    fn exchange(&mut self, request: &Request<'_>, lose_request: bool, lose_answer: bool) -> bool {
        if lose_request {
            return false;
        }
        let response = self.receive(request);
        if lose_answer {
            return false;
        }
        // The claim is answered before a digest is stored.
        if let Some(run) = &mut self.run {
            run.answered(&response, &self.stored);
        }
        true
    }

    fn work(&mut self, drop: bool) {
        if self.queue.is_empty() {
            return;
        }
        let (epoch, seq, about) = self.queue.remove(0);
        if drop {
            self.ledger.settle(epoch, seq, &Route::engine(), Outcome::Dropped);
            return;
        }
        if self.defect != Defect::ReconcilesEndNoClaim {
            self.claims.touched();
        }
        self.reconcile(about);
        self.ledger.settle(epoch, seq, &Route::engine(), Outcome::Done);
    }

    fn reconcile(&mut self, about: Option<u8>) {
        (self.kcp.works, self.unmarked) = (self.kcp.works + 1, true);
        for n in about.map_or(0..3, |n| n..n + 1) {
            self.kcp.reconciled.insert(n, self.objects.get(&n).copied());
        }
    }

    fn apply(&mut self, step: &Step) {
        let defect = self.defect;
        match *step {
            Step::Change(n) => {
                self.version += 1;
                self.objects.insert(n, self.version);
            }
            Step::Delete(n) => {
                if self.objects.remove(&n).is_some() {
                    self.flickered.insert(n);
                }
            }
            Step::Watch => self.watch(),
            Step::Send { lose_request, lose_answer } => {
                let Some(run) = &mut self.run else { return };
                let Some((request, in_flight)) = run.outbox.next_batch(T0) else { return };
                if !self.exchange(&request, lose_request, lose_answer)
                    && let Some(run) = &mut self.run
                {
                    run.outbox.failed(&in_flight);
                }
            }
            Step::Sign { poll, lose_answer } => {
                // Heartbeats are rare, so the watch has shown earlier changes.
                if !poll {
                    self.watch();
                }
                let Some(run) = &mut self.run else { return };
                let request = if poll { run.outbox.poll() } else { None };
                let Some(mut request) = request.or_else(|| (!poll).then(|| run.outbox.heartbeat())) else {
                    return;
                };
                if !poll && defect.stores_dirty() {
                    request.digest = run.stored.filter(|serial| *serial == run.outbox.serial());
                }
                self.exchange(&request, false, lose_answer);
            }
            Step::Work { drop } => self.work(drop),
            Step::Spontaneous => {
                if defect != Defect::ReconcilesEndNoClaim {
                    self.claims.touched();
                }
                self.reconcile(None);
            }
            Step::TakeDigest => {
                let Some(run) = &mut self.run else { return };
                let known = run.outbox.reconciled().clone();
                run.taken = match run.outbox.session() {
                    Some(session) if defect.stores_dirty() => {
                        let (epoch, serial) = (run.outbox.epoch(), run.outbox.serial());
                        Some((Resume { session, epoch, serial }, known))
                    }
                    _ => run.outbox.digest().map(|(claim, digest)| (claim, digest.clone())),
                };
                if defect == Defect::CurrentState
                    && let Some((_, digest)) = &mut run.taken
                    && let Some(section) = digest.get(WATCH).cloned()
                {
                    digest.insert(WATCH, Section { sums: Box::new(sums(&run.index)), ..section });
                }
            }
            Step::StoreDigest { confirmed } => {
                let Some(run) = &mut self.run else { return };
                let Some((claim, digest)) = run.taken.take() else { return };
                if confirmed {
                    run.outbox.digest_stored(claim.serial);
                    run.stored = Some(claim.serial);
                }
                self.stored = Some((claim, digest));
            }
            Step::AgentCrash => self.run = None,
            Step::AgentStart => self.start(),
            Step::ReceiverRestart => self.restart_receiver(),
            Step::BackupRuntime => self.runtime_backup = Some((self.objects.clone(), self.stored.clone())),
            Step::RestoreRuntime => {
                let Some((objects, stored)) = self.runtime_backup.clone() else { return };
                // The agent is a pod of that runtime.
                self.run = None;
                (self.objects, self.stored) = (objects, stored);
            }
            Step::Mark => {
                if std::mem::take(&mut self.unmarked)
                    && let Some(mark) = self.kcp.sessions.get_mut(&self.session)
                {
                    *mark += 1;
                }
            }
            Step::BackupKcp => self.kcp_backup = self.kcp.clone(),
            Step::RestoreKcp => {
                if self.recognizes(&self.kcp_backup) {
                    self.kcp = Kcp { works: self.kcp.works, ..self.kcp_backup.clone() };
                    self.restart_receiver();
                }
            }
        }
    }

    /// Reconciles everything, stores and declares a digest.
    fn rest(&mut self) {
        self.settle().unwrap();
        self.apply(&Step::TakeDigest);
        self.apply(&Step::StoreDigest { confirmed: true });
        self.apply(&Step::Sign { poll: false, lose_answer: false });
    }

    /// Without faults.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        self.start();
        let calm = [
            Step::Sign { poll: false, lose_answer: false },
            Step::Watch,
            Step::Send { lose_request: false, lose_answer: false },
            Step::Work { drop: false },
            Step::Sign { poll: true, lose_answer: false },
        ];
        for _ in 0..30 {
            for step in &calm {
                self.apply(step);
            }
        }
        let dirty = self.run.as_ref().map_or(0, |run| run.outbox.dirty().len());
        prop_assert_eq!(dirty, 0, "held for ever");
        for n in 0..3 {
            let seen = self.kcp.reconciled.get(&n).copied().flatten();
            prop_assert_eq!(seen, self.objects.get(&n).copied(), "object {} was missed", n);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(Config { cases: 1500, ..Config::default() })]
    #[test]
    fn no_change_is_missed_after_any_restart_or_restore(
        at_rest: bool, steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new(Defect::None);
        if at_rest {
            world.rest();
        }
        for step in &steps {
            world.apply(step);
        }
        world.settle()?;
    }
}

#[test]
fn each_protocol_defect_loses_a_change() {
    use Step::{
        AgentCrash, AgentStart, BackupKcp, BackupRuntime, Change, Delete, Mark, ReceiverRestart, RestoreKcp,
        RestoreRuntime, Spontaneous, StoreDigest, TakeDigest, Watch,
    };
    let send = || Step::Send { lose_request: false, lose_answer: false };
    let sign = |poll| Step::Sign { poll, lose_answer: false };
    let work = || Step::Work { drop: false };
    let store = || StoreDigest { confirmed: true };
    let stories = [
        (Defect::CurrentState, vec![Change(1), Watch, TakeDigest, store(), sign(false), AgentCrash]),
        (
            Defect::DirtyDigest,
            vec![Change(1), Watch, TakeDigest, Spontaneous, store(), sign(false), Delete(1), AgentCrash],
        ),
        (
            Defect::EveryClaimConfirmed,
            vec![BackupRuntime, Change(1), Watch, send(), work(), sign(true), RestoreRuntime],
        ),
        (Defect::ReconcilesEndNoClaim, vec![AgentCrash, Change(1), Spontaneous, Delete(1)]),
        (Defect::NothingForTheGone, vec![AgentCrash, Delete(0)]),
        (
            Defect::GoneNotWaitedFor,
            vec![
                AgentCrash,
                Delete(0),
                AgentStart,
                sign(false),
                Watch,
                TakeDigest,
                store(),
                sign(false),
                AgentCrash,
            ],
        ),
        (
            Defect::StrangeSessions,
            vec![
                BackupKcp,
                ReceiverRestart,
                sign(false),
                Change(1),
                Watch,
                send(),
                work(),
                sign(true),
                RestoreKcp,
            ],
        ),
        (
            Defect::NoMarks,
            vec![BackupKcp, Change(1), Watch, send(), work(), sign(true), Mark, sign(false), RestoreKcp],
        ),
    ];
    for (defect, steps) in stories {
        let after = |defect| {
            let mut world = World::new(defect);
            world.apply(&Change(0));
            world.apply(&AgentStart);
            for step in [Watch, send(), work(), work(), sign(true), TakeDigest, store(), sign(false)] {
                world.apply(&step);
            }
            for step in &steps {
                world.apply(step);
            }
            world.settle()
        };
        assert!(after(defect).is_err(), "{defect:?} loses nothing");
        after(Defect::None).unwrap();
    }
}

#[test]
fn a_restart_on_an_unchanged_runtime_sends_nothing() {
    let mut world = World::new(Defect::None);
    (0..3).for_each(|n| world.apply(&Step::Change(n)));
    world.rest();
    for _ in 0..3 {
        world.apply(&Step::AgentCrash);
        world.start();
        world.apply(&Step::Sign { poll: false, lose_answer: false });
        world.apply(&Step::Watch);
        let run = world.run.as_ref().unwrap();
        assert!(run.compared && run.outbox.dirty().is_empty(), "{:?}", run.outbox);
    }
    // One object changes while the agent is down, so its bucket is reported.
    world.apply(&Step::AgentCrash);
    world.apply(&Step::Change(1));
    world.start();
    world.apply(&Step::Sign { poll: false, lose_answer: false });
    world.apply(&Step::Watch);
    let (request, _) = world.run.as_mut().unwrap().outbox.next_batch(T0).unwrap();
    let events: Vec<_> = request.events.iter().map(|event| (&*event.name, event.change)).collect();
    assert_eq!(events, [("", Change::Resync), ("o1", Change::Changed)]);
}

#[test]
fn no_event_is_sent_before_the_claim_is_answered() {
    let mut outbox = Outbox::new(Epoch::from_bits(2), BTreeMap::new());
    let claim = Resume { session: SessionId::from_bits(1), epoch: Epoch::from_bits(1), serial: 5 };
    outbox.begin(claim, Digest::new());
    outbox.observe(observation(key(1), Change::Changed), T0);
    assert!(outbox.next_batch(T0).is_none() && outbox.digest().is_none());
    assert_eq!(outbox.heartbeat().resume, Some(claim));
    let answer = Response::new(Epoch::from_bits(2), SessionId::from_bits(1));
    assert_eq!(outbox.answered(&answer, T0).confirmed, Some(true));
    assert_eq!(outbox.heartbeat().resume, None);
    assert_eq!(outbox.next_batch(T0).unwrap().0.events.len(), 1);
}

#[test]
fn a_session_demands_a_resync_once() {
    let mut outbox = Outbox::new(Epoch::from_bits(2), BTreeMap::new());
    let answer = |session| Response {
        resync: true,
        ..Response::new(Epoch::from_bits(2), SessionId::from_bits(session))
    };
    assert!(outbox.answered(&answer(1), T0).resync);
    assert!(!outbox.answered(&answer(1), T0).resync, "an answer that was on its way");
    assert!(outbox.answered(&answer(2), T0).resync);
}

#[test]
fn quiet_moves_change_sums_after_the_acknowledgement() {
    let mut outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    let empty = Section { stale: 0, ..Section::unknown(1, "v1", "Thing") };
    outbox.baseline(WATCH, empty, None, T0);
    let sum = |outbox: &Outbox| outbox.reconciled.digest.get(WATCH).unwrap().sums[bucket("n", "o1")];
    outbox.observe_moved(observation(key(1), Change::Changed), Moved { before: 0, after: 7 }, T0);
    outbox.moved(&key(1), Moved { before: 7, after: 8 });
    assert_eq!(sum(&outbox), 0, "dirty");
    outbox.next_batch(T0).unwrap();
    let done = [Seq(1)].into_iter().collect();
    let ack = v3::RouteAck { route: Route::engine(), done, refused: SeqSet::new() };
    let answer = Response { acks: vec![ack], ..Response::new(Epoch::from_bits(1), SessionId::from_bits(1)) };
    outbox.answered(&answer, T0);
    assert_eq!(sum(&outbox), 8);
    outbox.moved(&key(1), Moved { before: 8, after: 9 });
    assert_eq!(sum(&outbox), 9);
    assert_eq!(outbox.heartbeat().reconciled_ms, [0]);
    assert!(outbox.heartbeat().reconciled_ms.is_empty(), "told once");
    outbox.forget(WATCH);
    assert!(outbox.reconciled.digest.get(WATCH).is_none());
}
