//! Answers must not cause request loops.

use super::{
    scripted::{Bench, Script, response},
    *,
};
use std::sync::atomic::{AtomicU64, Ordering};

type Answered = (Duration, Result<v3::Response, SendError>);

const OBJECTS: usize = 50;
const LONG: Duration = Duration::from_hours(24 * 365);

fn another(request: &v3::Request<'static>) -> v3::Response {
    static SESSIONS: AtomicU64 = AtomicU64::new(1_000);
    let session = SessionId::from_bits(SESSIONS.fetch_add(1, Ordering::Relaxed).into());
    v3::Response { session, ..response(request) }
}

fn awaited(request: &v3::Request<'static>) -> Vec<RouteAck> {
    vec![RouteAck { route: Route::engine(), done: request.awaiting.clone(), refused: SeqSet::new() }]
}

fn at_once(response: v3::Response) -> Answered {
    (Duration::ZERO, Ok(response))
}

fn status(status: u16) -> Answered {
    let retry_after = Some(Duration::ZERO);
    (Duration::ZERO, Err(SendError::Status { status, message: String::new(), retry_after }))
}

fn holds(request: &v3::Request<'static>) -> Answered {
    let wait = if request.poll { Duration::from_secs(25) } else { Duration::ZERO };
    (wait, Ok(response(request)))
}

fn lively(bench: &Bench) {
    let (mut baseline, changes) = (bench.baseline.clone(), bench.changes.clone());
    tokio::spawn(async move {
        loop {
            for n in 0..OBJECTS {
                let listed = Observation { listed: true, ..observation(&format!("o-{n}")) };
                if changes.send(listed.into()).await.is_err() {
                    return;
                }
            }
            if baseline.changed().await.is_err() {
                return;
            }
        }
    });
    let changes = bench.changes.clone();
    tokio::spawn(async move {
        loop {
            let mut canary = observation("canary");
            canary.key.watch = v3::CANARY.into();
            if changes.send(canary.into()).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
    });
}

/// Connections, requests, full reports.
async fn ten_minutes(script: Script, lasts: Duration, fate: Fate) -> (usize, usize, u64) {
    let bench = Bench::start_on(script, lasts, fate);
    lively(&bench);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let rounds = bench.baseline.borrow().round;
    (bench.connected().len(), bench.made(|_| true), rounds)
}

#[tokio::test(start_paused = true)]
async fn no_answer_causes_a_busy_loop() {
    let scripts: [(&str, Script); 13] = [
        ("another session each time", |r| at_once(another(r))),
        ("another session, which has done all", |r| at_once(v3::Response { acks: awaited(r), ..another(r) })),
        ("another session, and everything", |r| at_once(v3::Response { resync: true, ..another(r) })),
        ("all is done, and everything is wanted again", |r| {
            at_once(v3::Response { resync: true, acks: awaited(r), ..another(r) })
        }),
        ("nothing is known", |r| at_once(v3::Response { unknown: r.awaiting.clone(), ..response(r) })),
        ("nothing is known, and no patience is asked for", |r| {
            at_once(v3::Response { unknown: r.awaiting.clone(), retry_after_ms: Some(0), ..response(r) })
        }),
        ("everything has to take turns at once", |r| {
            let older = Some(v3::Older { than: Timestamp::MAX, after_ms: 0 });
            at_once(v3::Response { unknown: r.awaiting.clone(), older, ..response(r) })
        }),
        ("polls end at once", |r| at_once(response(r))),
        ("too many requests, Retry-After: 0", |_| status(429)),
        ("batches are refused, polls end at once", |r| {
            if r.events.is_empty() { at_once(response(r)) } else { status(503) }
        }),
        ("a redirect", |_| status(307)),
        ("too large", |r| if r.events.is_empty() { holds(r) } else { status(413) }),
        ("another epoch", |r| at_once(v3::Response { epoch: Epoch::from_bits(99), ..response(r) })),
    ];
    for (name, script) in scripts {
        let (connections, requests, reports) = ten_minutes(script, LONG, Fate::Keep).await;
        assert!(connections <= 1, "{name}: {connections} connections in ten minutes");
        assert!(requests <= 120, "{name}: {requests} requests in ten minutes");
        assert!(reports <= 12, "{name}: {reports} full reports in ten minutes");
    }
}

#[tokio::test(start_paused = true)]
async fn no_lost_connection_causes_a_busy_loop() {
    let ends: [(&str, Script, Duration, Fate); 4] = [
        ("ended before it is used", |_| (LONG, Err(SendError::Timeout)), Duration::ZERO, Fate::Keep),
        ("ended after each answer", holds, Duration::from_millis(1), Fate::Keep),
        ("its certificate has expired", holds, LONG, Fate::End("expired")),
        ("another one is to be made at once", holds, LONG, Fate::Replace),
    ];
    for (name, script, lasts, fate) in ends {
        let (connections, requests, _) = ten_minutes(script, lasts, fate).await;
        assert!(connections <= 120, "{name}: {connections} connections in ten minutes");
        assert!(requests <= 240, "{name}: {requests} requests in ten minutes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovered_receiver_gets_everything_within_a_minute() {
    static SENSES: AtomicU64 = AtomicU64::new(0);
    let bench = Bench::start(|request| {
        if SENSES.load(Ordering::Relaxed) == 0 {
            at_once(v3::Response { resync: true, ..another(request) })
        } else {
            at_once(v3::Response { acks: awaited(request), ..response(request) })
        }
    });
    lively(&bench);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let repeated = bench.progress.lock().repeated.clone();
    let of = |text: &str| repeated.iter().find(|r| r.message.contains(text)).map_or(0, |r| r.count);
    assert!(of("as another session") > 5 && of("every object") > 5, "{repeated:?}");
    SENSES.store(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(bench.progress.lock().dirty, 0);
}
