use super::{
    scripted::{Bench, response},
    *,
};

fn overloaded(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    let mut response = response(request);
    response.unknown = request.awaiting.clone();
    response.retry_after_ms = Some(60_000);
    (Duration::ZERO, Ok(response))
}

#[tokio::test(start_paused = true)]
async fn a_throttled_sender_sleeps() {
    let (bench, mut run) = Bench::new(overloaded);
    bench.changes.send(observation("a").into()).await.unwrap();
    let mut wakeups = 0;
    let counted = std::future::poll_fn(|context| {
        wakeups += 1;
        run.as_mut().poll(context)
    });
    tokio::time::timeout(Duration::from_mins(10), counted).await.unwrap_err();
    assert!(wakeups < 100, "{wakeups} in ten minutes, in each of which it may ask once");
}
