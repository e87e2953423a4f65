use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::key::Acknowledge;

struct Nobody;

impl Observer for Nobody {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}
    fn reachable(&self, _: &str, _: bool) {}
}

/// Counts that it was let go.
struct Waiter(Arc<AtomicUsize>);

impl Acknowledge for Waiter {
    fn finished(self: Box<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An engine on a KCP that has nothing, and how often that was asked.
fn engine() -> (Engine, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let kcp = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        counter.fetch_add(1, Ordering::SeqCst);
        let answer = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        let body = kube::client::Body::from(answer.to_string().into_bytes());
        async move { Ok::<_, Infallible>(http::Response::builder().status(404).body(body).unwrap()) }
    });
    let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
    let client = Client::new(kcp, "kcp-system");
    (Engine::new(client, EngineConfig::default(), Arc::new(Nobody), clock).unwrap(), asked)
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_not_acknowledged_and_goes_on_when_it_is_live() {
    let ((engine, asked), finished) = (engine(), Arc::new(AtomicUsize::new(0)));
    engine.set_mode(Mode::Paused);
    let guards: Vec<Guard> = vec![Box::new(Waiter(Arc::clone(&finished)))];
    let key = WorkKey::Kyma { kyma: "harbour".into() };
    engine.queue().push(key.clone(), Push { class: Class::UserEdit, cause: None, guards });
    let work = || async {
        let lease = engine.queue().next().await;
        assert_eq!(lease.key(), &key);
        Arc::clone(&engine.0).work(lease).await;
    };
    work().await;
    let ready = || engine.queue().inspect(|q| q.ready().map(|(_, n)| n).sum::<usize>());
    assert_eq!((finished.load(Ordering::SeqCst), asked.load(Ordering::SeqCst), ready()), (0, 0, 0));
    assert_eq!(engine.history().of("harbour")[0].outcome, Outcome::Waiting);
    engine.set_mode(Mode::Live);
    assert_eq!(ready(), 1, "it is asked for at once");
    work().await;
    assert_eq!((finished.load(Ordering::SeqCst), asked.load(Ordering::SeqCst)), (1, 1));
}

#[test]
fn a_look_comes_at_its_time_and_within_a_day() {
    let at = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(until(at(100), at(160)), Duration::from_mins(1));
    assert_eq!(until(at(100), at(40)), Duration::from_secs(1), "it is past already");
    assert_eq!(until(at(0), at(1_000_000)), LONGEST_WAIT);
}

#[test]
fn retries_slow_down_and_do_not_stay_in_step() {
    assert_eq!(backoff(RETRY, 0, 0), Duration::from_secs(1));
    assert_eq!(backoff(RETRY, 40, 0), Duration::from_mins(5));
    assert_ne!(backoff(RETRY, 5, 1), backoff(RETRY, 5, 999));
    assert!(backoff(RETRY, 5, 999) > backoff(RETRY, 5, 0).mul_f64(0.79));
}
