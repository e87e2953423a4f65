use super::{
    scripted::{Bench, response},
    *,
};

/// Rejects `full…`, holds `held…`.
fn full(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    let named = |start: &str| -> Vec<Seq> {
        request.events.iter().filter(|e| e.name.starts_with(start)).map(|e| e.seq).collect()
    };
    let mut response = response(request);
    response.unknown = named("full").into_iter().collect();
    response.acks = acks(&named("done").iter().map(|seq| seq.0).collect::<Vec<_>>());
    let wait = if request.poll { Duration::from_secs(25) } else { Duration::ZERO };
    (wait, Ok(response))
}

#[tokio::test(start_paused = true)]
async fn a_full_route_does_not_delay_others() {
    let bench = Bench::start(full);
    for n in 0..1_500 {
        bench.changes.send(observation(&format!("full-{n}")).into()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    let made = bench.made(|_| true);
    assert!(made < 200, "{made} requests in ten minutes for what finds no room");
    let since = Instant::now();
    bench.changes.send(observation("done").into()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let took = bench.after(since, |r| r.events.iter().any(|e| e.name == "done")).unwrap();
    assert!(took < Duration::from_secs(1), "sent after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_blind_watch_is_reported_despite_held_keys() {
    let bench = Bench::start(full);
    bench.changes.send(observation("held").into()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let since = Instant::now();
    bench.blind.lock().push("w".to_owned());
    tokio::time::sleep(Duration::from_mins(5)).await;
    let took = bench.after(since, |r| r.health.as_ref().is_some_and(|h| h.blind == ["w"])).unwrap();
    assert!(took <= Duration::from_mins(1), "sent after {took:?}");
}

/// Rejects everything but the canary.
fn busy(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    let (canaries, others): (Vec<_>, Vec<_>) =
        request.events.iter().partition(|event| event.watch == v3::CANARY);
    let mut response = response(request);
    response.acks = acks(&canaries.iter().map(|event| event.seq.0).collect::<Vec<_>>());
    response.unknown = others.iter().map(|event| event.seq).collect();
    response.retry_after_ms = (!others.is_empty()).then_some(90_000);
    let wait = if request.poll { Duration::from_secs(25) } else { Duration::ZERO };
    (wait, Ok(response))
}

#[tokio::test(start_paused = true)]
async fn a_canary_is_sent_despite_the_receivers_overload() {
    let bench = Bench::start(busy);
    bench.changes.send(observation("a").into()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let canary = |request: &v3::Request<'static>| request.events.iter().any(|e| e.watch == v3::CANARY);
    for _ in 0..5 {
        let since = Instant::now();
        let mut seen = observation("canary");
        seen.key.watch = v3::CANARY.into();
        bench.changes.send(seen.into()).await.unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let took = bench.after(since, canary).unwrap();
        assert!(took < Duration::from_secs(1), "sent after {took:?}");
    }
    assert_eq!(bench.made(canary), 5);
    let others = bench.made(|request| request.events.iter().any(|e| e.name == "a"));
    assert!(others <= 4, "{others} times in five minutes, though 90 s were asked for");
}

/// Defers full reports.
fn reporting(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    let (listed, others): (Vec<_>, Vec<_>) = request.events.iter().partition(|event| event.listed);
    let mut response = response(request);
    response.acks = acks(&others.iter().map(|event| event.seq.0).collect::<Vec<_>>());
    response.unknown = listed.iter().map(|event| event.seq).collect();
    let than = Timestamp::UNIX_EPOCH;
    response.older = (!listed.is_empty()).then_some(v3::Older { than, after_ms: 60_000 });
    let wait = if request.poll { Duration::from_secs(25) } else { Duration::ZERO };
    (wait, Ok(response))
}

#[tokio::test(start_paused = true)]
async fn an_edit_does_not_wait_behind_the_full_report() {
    let bench = Bench::start(reporting);
    for n in 0..2_500 {
        bench
            .changes
            .send(Observation { listed: true, ..observation(&format!("listed-{n}")) }.into())
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reports = |bench: &Bench| bench.made(|request| request.events.iter().any(|e| e.listed));
    assert_eq!(reports(&bench), 1, "the rest of the report is not tried");
    for n in 0..10 {
        let (since, name) = (Instant::now(), format!("edit-{n}"));
        bench.changes.send(observation(&name).into()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let took = bench.after(since, |request| request.events.iter().any(|e| e.name == name)).unwrap();
        assert!(took < Duration::from_secs(1), "sent after {took:?}");
    }
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert!(
        (3..=6).contains(&reports(&bench)),
        "{} times in five minutes, though 60 s were asked for",
        reports(&bench)
    );
}

/// Refuses 300 events or 100 ranges.
fn narrow(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    if request.events.len() > 300 || request.awaiting.range_count() > 100 {
        let message = "too large".to_owned();
        return (Duration::ZERO, Err(SendError::Status { status: 413, message, retry_after: None }));
    }
    let mut response = response(request);
    // Leaves many ranges.
    response.acks =
        acks(&request.events.iter().map(|e| e.seq.0).filter(|seq| seq % 4 > 0).collect::<Vec<_>>());
    (if request.poll { Duration::from_secs(25) } else { Duration::ZERO }, Ok(response))
}

#[tokio::test(start_paused = true)]
async fn a_batch_too_large_for_a_proxy_is_split() {
    let bench = Bench::start(narrow);
    for n in 0..1_500 {
        bench.changes.send(observation(&format!("a-{n}")).into()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_mins(2)).await;
    let sends = |name: &str| {
        bench.made(|r| {
            r.events.len() <= 300
                && r.awaiting.range_count() <= 100
                && r.events.iter().any(|e| e.name == name)
        })
    };
    for n in 0..1_500 {
        assert!(sends(&format!("a-{n}")) > 0, "a-{n} was not sent");
    }
    let polls = bench.made(|request| request.poll && request.awaiting.range_count() <= 100);
    assert!(polls > 0, "what is held is asked about");
}
