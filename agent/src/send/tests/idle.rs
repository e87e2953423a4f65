use super::{
    scripted::{self, Scripted},
    *,
};
use crate::observe::message::Message;
use tidewatch_delivery::outbox::Moved;
use tidewatch_wire::v3::Health;

/// A long-lived session.
fn response(request: &v3::Request<'static>) -> v3::Response {
    let done = request.awaiting.clone();
    let ack = RouteAck { route: Route::engine(), done, refused: SeqSet::new() };
    let acks = if request.events.is_empty() { Vec::new() } else { vec![ack] };
    v3::Response { acks, mark: 1_000_000, ..scripted::response(request) }
}

/// On an established connection.
fn bytes(mut asked: v3::Request<'static>) -> usize {
    let mut answer = response(&asked);
    let _in_headers = HeaderFields::take(&mut asked);
    (answer.epoch, answer.session) = (Epoch::default(), SessionId::default());
    serde_json::to_vec(&asked).unwrap().len() + serde_json::to_vec(&answer).unwrap().len()
}

fn canary() -> Message {
    let seen = crate::canary::observation("2026-01-01T00:00:00.123Z".parse().unwrap());
    Message::Changed(seen, Moved::default())
}

/// Three TLS records (22 bytes each), four HTTP/2 frames (9 each), compressed headers.
const AROUND_BODIES: usize = 3 * 22 + 4 * 9 + 28;

#[tokio::test(start_paused = true)]
async fn an_idle_agent_sends_few_bytes_once_a_minute() {
    let (changes, taken) = mpsc::channel(8);
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let mut outbox = Outbox::new(Epoch::random(), BTreeMap::new());
    // Longer numbers.
    for _ in 0..100_000 {
        outbox.observe(crate::canary::observation(Timestamp::UNIX_EPOCH), Duration::ZERO);
    }
    let (guard, resumed) = (Readiness::new().register("receiver"), watch::channel(0).1);
    let receiver = Scripted::new(|request| (Duration::ZERO, Ok(response(request))));
    let clock = || Timestamp::UNIX_EPOCH;
    let health = || Health { configuration: v3::configuration("any"), ..Health::default() };
    let sender =
        Sender::new(outbox, taken, receiver.clone(), Settings::default(), metrics, clock, guard, resumed)
            .with_health(health, watch::channel(()).1);
    let drain = Drain::new();
    drain.spawn("sender", sender.run(drain.watch()));
    let begun = Instant::now();
    // With varying delays.
    for (minute, late) in (1..=60_u64).zip([0, 20, 400, 3, 4_000, 0, 1_500].into_iter().cycle()) {
        tokio::time::sleep_until(begun + Duration::from_mins(minute) + Duration::from_millis(late)).await;
        changes.send(canary()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let minutes = receiver.requests().into_iter().filter(|(at, _)| *at >= begun + Duration::from_secs(50));
    let bodies: Vec<usize> = minutes.map(|(_, request)| bytes(request)).collect();
    assert_eq!(bodies.len(), 60, "no heartbeat beside the canary");
    let largest = bodies.iter().copied().max().unwrap_or_default();
    // Includes 32 for the session's mark, both ways.
    assert!(largest <= 275, "{largest} bytes in the bodies of an exchange");
    let per_day = (largest + AROUND_BODIES) * 24 * 60;
    assert!(per_day <= 600_000, "{per_day} bytes a day");
}

#[tokio::test]
async fn constant_fields_become_headers_if_understood() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    let hello = peer.next().await;
    assert!(!hello.brief, "nobody has said yet that it is understood");
    hello.held();
    agent.until("the session", |p| p.session.is_some()).await;
    agent.see("a").await;
    let asked = peer.next().await;
    assert!(asked.brief && asked.request.session == Some(SessionId::from_bits(7)));
    asked.answer_in_full(&[1]);
    agent.until("the acknowledgement", |p| p.last_acknowledged == 1).await;
    agent.see("a").await;
    let asked = peer.next().await;
    assert!(!asked.brief && asked.request.session == Some(SessionId::from_bits(7)));
    asked.done(&[2]);
    agent.until("the acknowledgement", |p| p.last_acknowledged == 2).await;
    agent.see("a").await;
    let asked = peer.next().await;
    assert!(asked.brief);
    // As without the epoch.
    asked.fail(StatusCode::BAD_REQUEST);
    let asked = peer.next().await;
    assert_eq!((asked.brief, asked.seqs()), (false, vec![3]), "the next try says it all");
    asked.done(&[3]);
    agent.until("the acknowledgement", |p| p.last_acknowledged == 3).await;
    agent.see("a").await;
    assert!(
        !peer.next().await.brief,
        "something on the way takes the headers out: not tried again on this connection"
    );
}
