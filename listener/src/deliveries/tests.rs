use super::*;

const RUNTIME: &str = "r1";
const EPOCH: Epoch = Epoch::from_bits(1);

fn request(awaiting: &[u64]) -> Request<'static> {
    Request {
        events: awaiting
            .iter()
            .map(|n| v3::Event {
                seq: Seq(*n),
                watch: "w".into(),
                group: "".into(),
                version: "v1".into(),
                kind: "K".into(),
                namespace: "".into(),
                name: "n".into(),
                uid: "".into(),
                resource_version: "".into(),
                change: v3::Change::Changed,
                listed: false,
                observed_at: Timestamp::UNIX_EPOCH,
            })
            .collect(),
        awaiting: awaiting.iter().map(|n| Seq(*n)).collect(),
        ..Request::new(EPOCH)
    }
}

fn awaited() -> SeqSet {
    request(&[1]).awaiting
}

fn held(parts: usize) -> (Deliveries, Vec<Guard>) {
    let deliveries = Deliveries::new(SessionId::from_bits(7));
    deliveries.receive(RUNTIME, &request(&[1]));
    let guards = deliveries.ticket(RUNTIME, EPOCH, Seq(1)).hold(Route::engine(), parts).collect();
    (deliveries, guards)
}

fn is_done(deliveries: &Deliveries) -> bool {
    deliveries.answer(RUNTIME, EPOCH, &awaited(), None).acks.iter().any(|a| a.done.contains(Seq(1)))
}

#[test]
fn an_event_is_done_when_all_its_guards_finished() {
    let (deliveries, mut guards) = held(2);
    guards.remove(0).finished();
    assert!(!is_done(&deliveries));
    guards.remove(0).finished();
    assert!(is_done(&deliveries));
    assert_eq!(deliveries.held(), 0);
}

#[test]
fn a_dropped_guard_acknowledges_nothing() {
    let (deliveries, mut guards) = held(2);
    drop(guards.remove(0));
    guards.remove(0).finished();
    assert!(!is_done(&deliveries));
    let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
    assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
}

#[test]
fn a_guard_of_a_forgotten_number_is_not_wanted() {
    let (deliveries, guards) = held(1);
    assert!(guards[0].is_wanted());
    for epoch in 2..=3 {
        let next = Request { epoch: Epoch::from_bits(epoch), ..request(&[1]) };
        deliveries.receive(RUNTIME, &next);
    }
    assert!(!guards[0].is_wanted(), "its agent has been started anew, twice");
}

#[test]
fn each_route_acknowledges_separately() {
    let deliveries = Deliveries::new(SessionId::from_bits(7));
    deliveries.receive(RUNTIME, &request(&[1]));
    let mut ticket = deliveries.ticket(RUNTIME, EPOCH, Seq(1));
    let (engine, other) = (ticket.hold(Route::engine(), 1), ticket.hold(Route::manager("other"), 1));
    drop(ticket);
    let done = || -> Vec<Route> {
        let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
        answer.acks.into_iter().map(|a| a.route).collect()
    };
    other.for_each(Guard::finished);
    assert_eq!(done(), [Route::manager("other")]);
    engine.for_each(Guard::finished);
    assert_eq!(done(), [Route::engine(), Route::manager("other")]);
}

#[test]
fn a_split_guard_finishes_with_all_its_parts() {
    let (deliveries, mut guards) = held(2);
    assert!(guards.remove(0).split(0).next().is_none());
    let mut parts: Vec<_> = guards.remove(0).split(2).collect();
    parts.remove(0).finished();
    assert!(!is_done(&deliveries));
    parts.remove(0).finished();
    assert!(is_done(&deliveries));
}

#[test]
fn dropped_guard_parts_return_the_event() {
    let (deliveries, guards) = held(2);
    let [one, other] = <[Guard; 2]>::try_from(guards).unwrap();
    one.finished();
    let mut parts = other.split(3);
    assert_eq!(parts.len(), 3);
    parts.next().unwrap().finished();
    assert_eq!(parts.len(), 2);
    drop(parts);
    let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
    assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
    assert_eq!(deliveries.load().to_bits(), 0.0_f64.to_bits(), "nothing is held");
}

#[test]
fn an_unused_ticket_returns_the_event() {
    let deliveries = Deliveries::new(SessionId::from_bits(7));
    deliveries.receive(RUNTIME, &request(&[1]));
    drop(deliveries.ticket(RUNTIME, EPOCH, Seq(1)));
    let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
    assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
    assert_eq!(deliveries.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_poll_is_answered_when_the_work_is_done() {
    let (deliveries, mut guards) = held(1);
    let waiting = tokio::spawn({
        let deliveries = deliveries.clone();
        async move { deliveries.changed(RUNTIME, EPOCH, &awaited()).await }
    });
    let early = tokio::time::timeout(Duration::from_secs(20), async {
        while !waiting.is_finished() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    assert!(early.await.is_err(), "nothing to say yet");
    guards.remove(0).finished();
    waiting.await.unwrap();
}

#[test]
fn overload_sets_the_retry_after() {
    let (deliveries, guards) = held(1);
    let wait = Some(Duration::from_secs(5));
    assert_eq!(deliveries.answer(RUNTIME, EPOCH, &awaited(), wait).retry_after_ms, Some(5_000));
    deliveries.retain(|_| false);
    assert_eq!((deliveries.held_by(RUNTIME), deliveries.held()), (0, 1), "its work goes on");
    drop(guards);
    assert_eq!(deliveries.held(), 0);
}

fn next(seqs: std::ops::Range<u64>) -> Request<'static> {
    request(&seqs.collect::<Vec<_>>())
}

fn take(deliveries: &Deliveries, runtime: &str, request: &Request<'_>, guards: &mut Vec<Guard>) -> bool {
    let received = deliveries.receive(runtime, request);
    for index in received.fresh {
        let mut ticket = deliveries.ticket(runtime, EPOCH, request.events[index].seq);
        guards.extend(ticket.hold(Route::engine(), 1));
    }
    received.overloaded
}

#[test]
fn an_unfinishing_runtime_fills_only_its_share() {
    let deliveries = Deliveries::new(SessionId::from_bits(7)).with_capacity(500_000);
    let mut guards = Vec::new();
    let mut sent_away = 0;
    for batch in 0..501 {
        let request = next(batch * 1_000..(batch + 1) * 1_000);
        sent_away += usize::from(take(&deliveries, RUNTIME, &request, &mut guards));
    }
    assert_eq!((deliveries.held_by(RUNTIME), sent_away), (20_000, 481));
    assert_eq!(deliveries.held(), 20_000, "the figure is of what is limited");
    assert!(deliveries.load() < 0.05, "{}", deliveries.load());
    assert!(!take(&deliveries, "other", &next(0..1_000), &mut guards), "others do not notice");

    let last = next(500_000..501_000);
    let answer = deliveries.answer(RUNTIME, EPOCH, &last.awaiting, None);
    assert_eq!(answer.unknown, last.awaiting);
}

#[test]
fn a_full_share_holds_only_awaited_events() {
    // A share of ten.
    let deliveries = Deliveries::new(SessionId::from_bits(7)).with_capacity(250);
    let mut guards = Vec::new();
    assert!(!take(&deliveries, RUNTIME, &next(0..9), &mut guards));
    assert!(take(&deliveries, RUNTIME, &next(8..20), &mut guards), "one of eleven is taken");
    assert_eq!(guards.len(), 10);
    assert!(guards.iter().all(Guard::is_wanted), "there was room");

    assert!(take(&deliveries, RUNTIME, &next(8..20), &mut guards));
    guards.retain(Guard::is_wanted);
    assert_eq!(guards.iter().map(|guard| guard.held.seq).collect::<Vec<_>>(), [Seq(8), Seq(9)]);
    assert!(!take(&deliveries, RUNTIME, &next(10..18), &mut guards));
    assert_eq!(deliveries.held_by(RUNTIME), 10);
    assert!(guards.iter().all(Guard::is_wanted), "nobody needs room");
}

#[test]
fn blocked_runtimes_leave_capacity_for_others() {
    let deliveries = Deliveries::new(SessionId::from_bits(7)).with_capacity(5_000);
    let mut guards = Vec::new();
    for runtime in 0..200 {
        for batch in 0..5 {
            take(&deliveries, &format!("hog-{runtime}"), &next(0..(batch + 1) * 100), &mut guards);
        }
    }
    assert!(deliveries.held() <= 5_000 + 200 * 16, "{}", deliveries.held());
    assert!(!take(&deliveries, "newcomer", &next(0..10), &mut guards), "a few always find room");

    // On retries the largest holders drop events.
    let max = deliveries.held_by("hog-0");
    let asked = next(0..1_000).awaiting;
    let unknown = |runtime: &str| deliveries.answer(runtime, EPOCH, &asked, None).unknown.range_count();
    assert_eq!((max, unknown("hog-0")), (200, 1));
    for _ in 0..3 {
        guards.retain(Guard::is_wanted);
    }
    let least = deliveries.held_by("hog-199");
    assert!(deliveries.held_by("hog-0") <= 2 * least, "{} and {least}", deliveries.held_by("hog-0"));
    assert_eq!(deliveries.held_by("newcomer"), 10);
    let known = (0..1_000)
        .map(Seq)
        .filter(|seq| !deliveries.answer("hog-0", EPOCH, &asked, None).unknown.contains(*seq));
    assert_eq!(known.count(), deliveries.held_by("hog-0"), "everything else is asked for again");
}

#[test]
fn a_canary_is_accepted_with_a_full_share() {
    let deliveries = Deliveries::new(SessionId::from_bits(7)).with_capacity(25);
    let mut guards = Vec::new();
    assert!(take(&deliveries, RUNTIME, &next(0..20), &mut guards));
    let taken = |seq: u64, closed: bool| {
        let mut request = request(&[seq, seq + 1]);
        request.events[1].watch = v3::CANARY.into();
        let received = if closed {
            deliveries.receive_at(RUNTIME, &request, Door::Canary)
        } else {
            deliveries.receive(RUNTIME, &request)
        };
        assert!(closed || received.overloaded, "the other is not taken");
        let ticket = deliveries.tickets(RUNTIME, EPOCH);
        let events = received.fresh.into_iter().map(|index| &request.events[index]);
        events.flat_map(|event| ticket(event).hold(Route::engine(), 1)).collect::<Vec<Guard>>()
    };
    let mut canaries: Vec<Guard> = Vec::new();
    for n in 0..4 {
        let guards = taken(100 + 10 * n, n % 2 == 0);
        assert_eq!(guards.iter().map(|guard| guard.held.seq).collect::<Vec<_>>(), [Seq(101 + 10 * n)]);
        canaries.extend(guards);
    }
    assert!(taken(200, false).is_empty(), "no more than a few at a time");
    assert_eq!(deliveries.held_by(RUNTIME), 1, "they have places of their own");
    canaries.remove(0).finished();
    assert_eq!(taken(300, true).len(), 1);
}

#[test]
fn an_edit_goes_before_listed_events() {
    let deliveries = Deliveries::new(SessionId::from_bits(7)).with_capacity(24);
    let mut request = next(0..40);
    request.events[..39].iter_mut().for_each(|event| event.listed = true);
    let received = deliveries.receive(RUNTIME, &request);
    assert_eq!((received.fresh, received.overloaded), (vec![39], true), "there is one place");
    // Excluded events take no capacity.
    let deliveries = Deliveries::new(SessionId::from_bits(7)).remembering(2);
    let received = deliveries.receive_at(RUNTIME, &request, Door::Younger(Timestamp::UNIX_EPOCH));
    assert_eq!((received.fresh, received.overloaded), (vec![39], false));
}
