//! The example `operator`, without a cluster.

#[path = "../examples/operator/agent.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod agent;
#[path = "../examples/operator/plain.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod plain;

use std::time::Duration;

use futures::StreamExt;
use tidewatch_drain::{Drain, Outcome};
use tidewatch_wire::{Epoch, Seq};

#[tokio::test]
async fn an_event_is_acknowledged_only_by_the_operator() {
    let drain = Drain::new();
    let seen = plain::round(&drain).await.unwrap();
    assert_eq!(seen.object, "runtime-anchor ConfigMap default/settings");
    assert!(seen.answer.acks.is_empty() && seen.answer.unknown.is_empty(), "held: {:?}", seen.answer);
    assert!(seen.polled.acks[0].done.contains(Seq(1)), "{:?}", seen.polled);
    assert_eq!(drain.shutdown(Duration::from_secs(10)).await, Outcome::Finished);
}

#[tokio::test]
async fn a_departed_operator_is_answered_as_overload() {
    let drain = Drain::new();
    let (events, mut agent) = plain::start(&drain).await.unwrap();
    drop(events);
    // Even a poll.
    let mut request = agent::request(Epoch::random(), &["settings"], false);
    request.poll = true;
    let answer = agent.post(&request).await.unwrap();
    assert!(answer.unknown.contains(Seq(1)) && answer.retry_after_ms.is_some(), "{answer:?}");
}

#[tokio::test]
async fn the_stream_ends_with_the_listener() {
    let drain = Drain::new();
    let (mut events, agent) = plain::start(&drain).await.unwrap();
    assert_eq!(drain.shutdown(Duration::from_secs(10)).await, Outcome::Finished);
    assert!(events.next().await.is_none());
    drop(agent);
}
