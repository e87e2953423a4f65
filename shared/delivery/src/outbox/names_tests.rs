//! Deletions reported by name to another manager, with agent crashes at any step.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::{prelude::*, test_runner::Config};
use tidewatch_wire::{
    SeqSet,
    v3::{Response, RouteAck},
};

use super::{digest_tests::observation as saw, *};
use crate::names::Listed;

const T0: Tick = Tick::ZERO;
const WATCH: &str = "routed";
const MANAGER: &str = "other";

fn key(n: u8) -> Key {
    Key { watch: WATCH.into(), namespace: "n".into(), name: format!("o{n}").into() }
}

fn outbox(epoch: u128, found: Names) -> Outbox {
    let routes = BTreeMap::from([(WATCH.to_owned(), vec![Route::manager(MANAGER)])]);
    let mut outbox = Outbox::new(Epoch::from_bits(epoch), routes);
    outbox.keep_names(KeepNames::OfOthers, found);
    outbox
}

fn listed(outbox: &mut Outbox, objects: &[u8]) {
    let present =
        Present { objects: objects.iter().map(|n| key(*n)).collect(), gone: saw(key(0), Change::Gone) };
    outbox.listed(WATCH, present, T0);
}

fn done(outbox: &Outbox, seqs: &[Seq]) -> Response {
    let ack = RouteAck {
        route: Route::manager(MANAGER),
        done: seqs.iter().copied().collect(),
        refused: SeqSet::new(),
    };
    Response { acks: vec![ack], ..Response::new(outbox.epoch(), SessionId::from_bits(1)) }
}

#[test]
fn new_objects_are_sent_after_storing_their_name() {
    let mut outbox = outbox(1, Names::default());
    outbox.observe(saw(key(1), Change::Changed), T0);
    assert!(outbox.next_batch(T0).is_none() && outbox.dirty().withheld() == 1 && !outbox.dirty().is_calm());
    let snapshot = outbox.names().snapshot();
    outbox.observe(saw(key(2), Change::Changed), T0);
    outbox.names_stored(snapshot.revision);
    let (request, _) = outbox.next_batch(T0).unwrap();
    assert_eq!(request.events.iter().map(|event| &*event.name).collect::<Vec<_>>(), ["o1"]);
    assert_eq!(outbox.dirty().withheld(), 1, "the other came later");
    outbox.observe(saw(key(1), Change::Changed), T0);
    assert_eq!(outbox.next_batch(T0).unwrap().0.events.len(), 1, "what is stored is stored");
    assert_eq!(outbox.forget(WATCH), 2);
    assert!(outbox.dirty().withheld() == 0 && outbox.names().is_empty());
}

#[test]
fn objects_with_unstorable_names_are_sent_at_once() {
    let mut outbox = outbox(1, Names::default().within(1));
    for change in [Change::Changed, Change::Gone] {
        outbox.observe(saw(key(1), change), T0);
        outbox.observe(saw(key(2), change), T0);
        let (request, _) = outbox.next_batch(T0).unwrap();
        assert_eq!(request.events.iter().map(|event| &*event.name).collect::<Vec<_>>(), ["o2"]);
        assert_eq!(outbox.dirty().withheld(), 1);
    }
    listed(&mut outbox, &[1, 2]);
    assert_eq!((outbox.names().len(), outbox.names().left_out()), (1, 3));
}

#[test]
fn engine_watches_do_not_wait_for_names() {
    let mut plain = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    plain.keep_names(KeepNames::OfOthers, Names::default());
    plain.observe(saw(key(1), Change::Changed), T0);
    assert!(plain.next_batch(T0).is_some() && plain.names().is_empty());
    let mut all = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    all.keep_names(KeepNames::OfAll, Names::default());
    all.observe(saw(Key { watch: v3::CANARY.into(), ..key(1) }, Change::Changed), T0);
    assert_eq!(all.dirty().withheld(), 0, "the canary is no object of anybody's");
    all.observe(saw(key(1), Change::Changed), T0);
    assert_eq!(all.dirty().withheld(), 1);
}

#[test]
fn names_of_removed_watches_are_dropped() {
    let found = Listed { objects: vec![("n".into(), "o1".into())], ..Listed::default() };
    let mut outbox = outbox(1, Names::found(BTreeMap::from([(WATCH.into(), found)])));
    outbox.names_mut().retain(|watch| watch == WATCH);
    assert_eq!(outbox.names().len(), 1);
    outbox.names_mut().retain(|_| false);
    listed(&mut outbox, &[]);
    assert!(outbox.dirty().is_empty());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    SentUnstored,
    /// A name is removed with the acknowledgement of the end.
    TakenOutWhenLetGo,
    /// A stored snapshot counts for later names.
    LateNamesBelieved,
    /// After a start.
    NotCompared,
    /// After a desync.
    DesyncNotCompared,
}

#[derive(Clone, Debug)]
enum Step {
    Change(u8),
    Delete(u8),
    Watch,
    /// The watch is broken and lists.
    List,
    Expire,
    TakeNames,
    WriteNames {
        confirmed: bool,
    },
    Send {
        lose_request: bool,
        lose_answer: bool,
    },
    Crash,
    Start,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..3).prop_map(Step::Change),
        4 => (0_u8..3).prop_map(Step::Delete),
        5 => Just(Step::Watch),
        1 => Just(Step::List),
        2 => Just(Step::Expire),
        4 => Just(Step::TakeNames),
        4 => prop::bool::weighted(0.8).prop_map(|confirmed| Step::WriteNames { confirmed }),
        6 => (prop::bool::weighted(0.2), prop::bool::weighted(0.3))
            .prop_map(|(lose_request, lose_answer)| Step::Send { lose_request, lose_answer }),
        2 => Just(Step::Crash),
        4 => Just(Step::Start),
    ]
}

struct Run {
    outbox: Outbox,
    index: BTreeMap<u8, u64>,
    /// Changes that the watch will show, in order.
    events: Vec<(u8, Option<u64>)>,
    /// Time at which it last showed all changes.
    shown: Tick,
    taken: Option<crate::names::Snapshot>,
}

fn see(outbox: &mut Outbox, n: u8, change: Change) {
    outbox.observe(saw(key(n), change), T0);
}

struct World {
    defect: Defect,
    version: u64,
    now: Tick,
    epochs: u128,
    objects: BTreeMap<u8, u64>,
    stored: BTreeMap<Arc<str>, Listed>,
    run: Option<Run>,
    /// Objects the manager believes in; it looks when notified.
    believed: BTreeMap<u8, u64>,
}

impl World {
    fn new(defect: Defect) -> Self {
        Self {
            defect,
            version: 0,
            now: T0,
            epochs: 0,
            objects: BTreeMap::new(),
            stored: BTreeMap::new(),
            run: None,
            believed: BTreeMap::new(),
        }
    }

    fn start(&mut self) {
        if self.run.is_some() {
            return;
        }
        self.epochs += 1;
        let mut outbox = outbox(self.epochs, Names::found(self.stored.clone()));
        let index = self.objects.clone();
        if self.defect != Defect::NotCompared {
            listed(&mut outbox, &index.keys().copied().collect::<Vec<_>>());
        }
        for n in index.keys() {
            outbox.observe(saw(key(*n), Change::Changed), T0);
        }
        self.run = Some(Run { outbox, index, events: Vec::new(), shown: self.now, taken: None });
    }

    fn watch(&mut self) {
        let Some(run) = &mut self.run else { return };
        for (n, version) in std::mem::take(&mut run.events) {
            let change = match version {
                Some(version) => {
                    run.index.insert(n, version);
                    Change::Changed
                }
                None => {
                    run.index.remove(&n);
                    Change::Gone
                }
            };
            see(&mut run.outbox, n, change);
        }
        run.shown = self.now;
    }

    fn list(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.events.clear();
        let before = std::mem::replace(&mut run.index, self.objects.clone());
        let all: BTreeSet<u8> = before.keys().chain(run.index.keys()).copied().collect();
        for n in all {
            match (before.get(&n), run.index.get(&n)) {
                (before, now) if before == now => {}
                (_, None) => see(&mut run.outbox, n, Change::Gone),
                _ => see(&mut run.outbox, n, Change::Changed),
            }
        }
        if self.defect != Defect::DesyncNotCompared {
            let index: Vec<u8> = run.index.keys().copied().collect();
            listed(&mut run.outbox, &index);
        }
        run.shown = self.now;
    }

    fn expire(&mut self) {
        let Some(run) = &mut self.run else { return };
        let shown = run.shown;
        run.outbox.names_mut().expire(|_| Some(shown));
    }

    fn take(&mut self) {
        if let Some(run) = &mut self.run {
            run.taken = Some(run.outbox.names().snapshot());
        }
    }

    fn write(&mut self, confirmed: bool) {
        let Some(run) = &mut self.run else { return };
        let Some(snapshot) = run.taken.take() else { return };
        self.stored = snapshot.watches;
        if confirmed {
            let late = self.defect == Defect::LateNamesBelieved;
            run.outbox.names_stored(if late { u64::MAX } else { snapshot.revision });
        }
    }

    fn send(&mut self, lose_request: bool, lose_answer: bool) {
        let Some(run) = &mut self.run else { return };
        if self.defect == Defect::SentUnstored {
            run.outbox.names_stored(u64::MAX);
        }
        let Some((request, in_flight)) = run.outbox.next_batch(T0) else { return };
        if lose_request {
            return run.outbox.failed(&in_flight);
        }
        for event in &request.events {
            let n: u8 = event.name.trim_start_matches('o').parse().unwrap();
            match self.objects.get(&n) {
                Some(version) => self.believed.insert(n, *version),
                None => self.believed.remove(&n),
            };
        }
        if lose_answer {
            return run.outbox.failed(&in_flight);
        }
        let seqs: Vec<Seq> = request.events.iter().map(|event| event.seq).collect();
        let answer = done(&run.outbox, &seqs);
        run.outbox.answered(&answer, self.now);
        if self.defect == Defect::TakenOutWhenLetGo {
            run.outbox.names_mut().expire(|_| Some(Tick::MAX));
        }
    }

    fn happen(&mut self, n: u8, version: Option<u64>) {
        let was = match version {
            Some(version) => self.objects.insert(n, version),
            None => self.objects.remove(&n),
        };
        if let Some(run) = &mut self.run
            && (was.is_some() || version.is_some())
        {
            run.events.push((n, version));
        }
    }

    fn step(&mut self, step: &Step) {
        self.now += Tick::from_secs(1);
        match *step {
            Step::Change(n) => {
                self.version += 1;
                self.happen(n, Some(self.version));
            }
            Step::Delete(n) => self.happen(n, None),
            Step::Watch => self.watch(),
            Step::List => self.list(),
            Step::Expire => self.expire(),
            Step::TakeNames => self.take(),
            Step::WriteNames { confirmed } => self.write(confirmed),
            Step::Send { lose_request, lose_answer } => self.send(lose_request, lose_answer),
            Step::Crash => self.run = None,
            Step::Start => self.start(),
        }
    }

    fn settle(&mut self) {
        self.start();
        for _ in 0..4 {
            self.now += Tick::from_secs(1);
            self.watch();
            self.expire();
            self.take();
            self.write(true);
            self.send(false, false);
        }
        self.now += Tick::from_secs(1);
        self.watch();
        self.expire();
    }
}

/// Whether the manager is right in the end, and nothing is unsent.
fn holds(defect: Defect, steps: &[Step]) -> bool {
    let mut world = World::new(defect);
    for step in steps {
        world.step(step);
    }
    world.settle();
    let run = world.run.as_ref().unwrap();
    let kept: BTreeSet<Arc<str>> = run
        .outbox
        .names()
        .snapshot()
        .watches
        .values()
        .flat_map(|listed| listed.objects.iter().map(|(_, name)| Arc::clone(name)))
        .collect();
    let there: BTreeSet<Arc<str>> = world.objects.keys().map(|n| key(*n).name).collect();
    world.believed == world.objects && run.outbox.dirty().is_empty() && kept == there
}

proptest! {
    #![proptest_config(Config { cases: 2000, ..Config::default() })]

    #[test]
    fn another_manager_receives_every_deletion(steps in prop::collection::vec(step(), 0..60)) {
        prop_assert!(holds(Defect::None, &steps));
    }
}

#[test]
fn each_defect_loses_a_deletion() {
    use Step::{Change, Crash, Delete, List, Start, TakeNames, Watch};
    let write = || Step::WriteNames { confirmed: true };
    let send = || Step::Send { lose_request: false, lose_answer: false };
    let stored = || vec![Start, Change(0), Watch, TakeNames, write(), send()];
    // The manager is notified of an end and finds a recreated object.
    let anew = || [stored(), vec![Delete(0), Watch, Change(0), send()]].concat();
    let stories = [
        (Defect::SentUnstored, vec![Start, Change(0), Watch, send(), Crash, Delete(0)]),
        (Defect::TakenOutWhenLetGo, [anew(), vec![TakeNames, write(), Crash, Delete(0)]].concat()),
        (
            Defect::LateNamesBelieved,
            vec![Start, Change(0), Watch, TakeNames, Change(1), Watch, write(), send(), Crash, Delete(1)],
        ),
        (Defect::NotCompared, [stored(), vec![Crash, Delete(0)]].concat()),
        (Defect::DesyncNotCompared, [anew(), vec![Delete(0), List]].concat()),
    ];
    for (defect, steps) in stories {
        assert!(!holds(defect, &steps), "{defect:?} loses nothing");
        assert!(holds(Defect::None, &steps), "{defect:?}");
    }
}
