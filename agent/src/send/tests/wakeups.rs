//! How often the sender wakes up, on a transport that answers as it is told.

use super::*;
use crate::send::{Channel, Fate, Transport};
use std::{future::pending, pin::pin};

/// Knows no event, and wants to be left alone.
#[derive(Clone)]
struct Overloaded;

impl Transport for Overloaded {
    type Connection = Self;

    async fn connect(self) -> Result<Self, SendError> {
        Ok(self)
    }

    fn renewals(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn fate(&self, _: &Self) -> Fate {
        Fate::Keep
    }

    fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
}

impl Channel for Overloaded {
    fn not_after(&self) -> Timestamp {
        Timestamp::MAX
    }

    async fn closed(&mut self) {
        pending::<()>().await;
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        _: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let mut response = v3::Response::new(request.epoch, SessionId::from_bits(7));
        response.unknown = request.awaiting.clone();
        response.retry_after_ms = Some(60_000);
        async move { Ok(response) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_may_send_nothing_sleeps() {
    let (changes, taken) = mpsc::channel(1);
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    let (guard, resumed) = (Readiness::new().register("receiver"), watch::channel(0).1);
    let clock = || Timestamp::UNIX_EPOCH;
    let sender = Sender::new(outbox, taken, Overloaded, Settings::default(), metrics, clock, guard, resumed);
    changes.send(observation("a").into()).await.unwrap();
    let drain = Drain::new();
    let (mut wakeups, mut run) = (0, pin!(sender.run(drain.watch())));
    let counted = std::future::poll_fn(|context| {
        wakeups += 1;
        run.as_mut().poll(context)
    });
    tokio::time::timeout(Duration::from_mins(10), counted).await.unwrap_err();
    assert!(wakeups < 100, "{wakeups} in ten minutes, in each of which it may ask once");
}
