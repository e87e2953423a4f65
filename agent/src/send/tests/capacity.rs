use super::{
    scripted::{Scripted, response},
    *,
};
use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering},
};

const ANSWER: Duration = Duration::from_secs(10);
const CHANGES: usize = 5_000;

#[tokio::test(start_paused = true)]
async fn a_first_list_is_sent_in_batches_without_blocking() {
    let (changes, taken) = mpsc::channel(8);
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    let (guard, resumed) = (Readiness::new().register("receiver"), watch::channel(0).1);
    let clock = || Timestamp::UNIX_EPOCH;
    // Holds everything, slowly.
    let slow = Scripted::new(|request| (ANSWER, Ok(response(request))));
    let sender = Sender::new(outbox, taken, slow, Settings::default(), metrics, clock, guard, resumed);
    let drain = Drain::new();
    drain.spawn("sender", sender.run(drain.watch()));
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    tokio::spawn(async move {
        for n in 0..CHANGES {
            changes.send(observation(&format!("o-{n}")).into()).await.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
        }
        pending::<()>().await;
    });
    tokio::time::sleep(ANSWER / 2).await;
    let first = taken.load(Ordering::Relaxed);
    assert!((limits::V3_EVENTS..2 * limits::V3_EVENTS).contains(&first), "{first} before the first answer");
    // Unacknowledged events do not block.
    tokio::time::sleep(ANSWER * 10).await;
    assert_eq!(taken.load(Ordering::Relaxed), CHANGES);
}
