use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use tidewatch_delivery::outbox::{Key, Observation, Outbox};
use tidewatch_wire::{Epoch, v3::Change};

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

fn observation(watch: &str, name: &str) -> Observation {
    Observation {
        key: Key { watch: watch.into(), namespace: "n".into(), name: name.into() },
        group: "g".into(),
        version: "v1".into(),
        kind: "Thing".into(),
        uid: "u".into(),
        resource_version: "1".into(),
        change: Change::Changed,
        listed: false,
        at: Timestamp::UNIX_EPOCH,
    }
}

struct World {
    outbox: Outbox,
    translator: Arc<Translator>,
    sent: Mutex<Vec<String>>,
}

impl World {
    fn new() -> Self {
        let routes = BTreeMap::from([("deployments".to_owned(), vec![Route::manager("keeper")])]);
        let translator = Arc::new(Translator::default());
        translator.set_routes(routes.clone());
        Self { outbox: Outbox::new(Epoch::from_bits(1), routes), translator, sent: Mutex::default() }
    }

    fn see(&mut self, watch: &str, name: &str) {
        self.outbox.observe(observation(watch, name), Duration::ZERO);
    }

    /// The event name's prefix is the HTTP status.
    async fn send(&mut self) -> Result<usize, SendError> {
        let Some((request, in_flight)) = self.outbox.next_batch(Duration::ZERO) else { return Ok(0) };
        let sent = &self.sent;
        let post = |post: Post, _| async move {
            let event: v2::WatchEvent = serde_json::from_slice(&post.body).unwrap();
            let name = event.watched.name;
            sent.lock().push(format!("{} {name}", post.path));
            match name.split('-').next().unwrap() {
                "broken" => Err(SendError::Closed),
                status => Ok(status.parse().unwrap_or(200)),
            }
        };
        match Arc::clone(&self.translator).deliver(request, DEADLINE, post).await {
            Ok(response) => Ok(self.outbox.answered(&response, Duration::ZERO).released.len()),
            Err(error) => {
                self.outbox.failed(&in_flight);
                Err(error)
            }
        }
    }

    fn sent(&self) -> Vec<String> {
        let mut sent = std::mem::take(&mut *self.sent.lock());
        sent.sort();
        sent
    }
}

#[tokio::test(start_paused = true)]
async fn a_200_acknowledges_on_the_watchs_route() {
    let mut world = World::new();
    world.see("kyma", "a");
    world.see("deployments", "b");
    assert_eq!(world.send().await.unwrap(), 2);
    assert_eq!(world.sent(), ["/v2/keeper/event b", "/v2/lifecycle-manager/event a"]);
    assert!(world.outbox.dirty().is_empty());
    let body = request(&v3_event("a"), &Route::engine()).unwrap().body;
    let expected = r#"{"watched":{"Namespace":"n","Name":"a"},"watchedGvk":{"group":"g","version":"v1","kind":"Thing"}}"#;
    assert_eq!(body, expected);
}

fn v3_event(name: &str) -> v3::Event<'static> {
    let mut outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    outbox.observe(observation("kyma", name), Duration::ZERO);
    outbox.next_batch(Duration::ZERO).unwrap().0.events.remove(0)
}

#[tokio::test(start_paused = true)]
async fn any_other_status_keeps_the_event_and_backs_off() {
    for status in ["201", "307", "400", "401", "403", "404", "408", "429", "500", "503"] {
        let mut world = World::new();
        world.see("kyma", status);
        let error = world.send().await.unwrap_err();
        assert!(matches!(error, SendError::Status { status: s, .. } if s.to_string() == status), "{error}");
        assert_eq!((world.outbox.dirty().len(), world.outbox.dirty().unsent()), (1, 1), "{status}");
        assert_eq!(world.sent().len(), 1);
        assert_eq!(world.send().await.unwrap(), 0);
        assert!(world.sent().is_empty(), "not at once again");
        tokio::time::advance(BACKOFF.base).await;
        assert!(world.send().await.is_err());
        assert_eq!(world.sent().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_event_does_not_block_others() {
    let mut world = World::new();
    for name in ["500", "a", "413", "b"] {
        world.see("kyma", name);
    }
    assert_eq!(world.send().await.unwrap(), 3, "413 is about the event itself, and ends it");
    assert_eq!(world.sent().len(), 4);
    world.see("kyma", "c");
    assert_eq!(world.send().await.unwrap(), 1);
    assert_eq!(world.sent(), ["/v2/lifecycle-manager/event c"]);
    assert_eq!(world.outbox.dirty().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_leaves_the_event_unsent() {
    let mut world = World::new();
    world.see("kyma", "broken");
    assert!(matches!(world.send().await, Err(SendError::Closed)));
    assert!(
        matches!(world.send().await, Err(SendError::Closed)),
        "tried again as soon as there is a connection"
    );
    assert_eq!(world.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn posts_four_events_at_once_within_the_deadline() {
    let mut outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    for n in 0..200 {
        outbox.observe(observation("kyma", &n.to_string()), Duration::ZERO);
    }
    let (request, _) = outbox.next_batch(Duration::ZERO).unwrap();
    let (open, max) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (open, max) = (&open, &max);
    let post = |_, limit: Duration| async move {
        max.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(limit).await;
        open.fetch_sub(1, Ordering::SeqCst);
        Ok(200)
    };
    let begun = Instant::now();
    let response = Arc::new(Translator::default()).deliver(request, DEADLINE, post).await.unwrap();
    assert_eq!(max.load(Ordering::SeqCst), CONCURRENCY);
    assert!(begun.elapsed() < DEADLINE);
    let released = outbox.answered(&response, Duration::ZERO).released.len();
    assert_eq!((released, outbox.dirty().unsent()), (8, 192), "the rest is sent with the next batch");
}

#[tokio::test(start_paused = true)]
async fn v2_heartbeats_and_polls_are_answered_locally() {
    let mut outbox = Outbox::new(Epoch::from_bits(1), BTreeMap::new());
    let translator = Arc::new(Translator::default());
    let post = |_, _| async { panic!("nothing to send") };
    let heartbeat = outbox.heartbeat();
    let response = Arc::clone(&translator).deliver(heartbeat, DEADLINE, post).await.unwrap();
    assert!(!outbox.answered(&response, Duration::ZERO).ignored);
    outbox.observe(observation("kyma", "a"), Duration::ZERO);
    let _lost = outbox.next_batch(Duration::ZERO);
    let response = translator.deliver(outbox.poll().unwrap(), DEADLINE, post).await.unwrap();
    assert_eq!(outbox.answered(&response, Duration::ZERO).to_resend, 1);
}
