use super::*;

fn left_behind() -> Snapshot {
    let mut digest = Digest::new();
    digest.insert("w", Section { stale: 0, ..Section::unknown(1, "v1", "Thing") });
    (Resume { session: SessionId::from_bits(7), epoch: Epoch::from_bits(1), serial: 5 }, digest)
}

async fn given(snapshots: &mut watch::Receiver<Option<Arc<Snapshot>>>, serial: u64) -> Arc<Snapshot> {
    let is = |snapshot: &Option<Arc<Snapshot>>| snapshot.as_ref().is_some_and(|s| s.0.serial == serial);
    let given = tokio::time::timeout(Duration::from_secs(20), snapshots.wait_for(is)).await;
    given.unwrap().unwrap().clone().unwrap()
}

#[tokio::test]
async fn a_digest_is_claimed_kept_and_declared() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (kept, memory) = memory();
    let mut agent = agent_with(peer.addr, &ca, &ca, Some(memory), |_, _| {}).await;
    agent.until_metric("t_connections_total 1").await;
    agent.see("early").await;
    assert_eq!(agent.baseline.borrow().round, 0, "nothing is known yet");
    let Shelf { found, mut snapshots, stored, .. } = kept;
    found.send(Found { digest: Some(left_behind()), ..Found::default() }).unwrap();
    let hello = peer.next().await;
    assert_eq!(
        (hello.seqs(), hello.request.resume),
        (vec![], Some(left_behind().0)),
        "no event before the answer"
    );
    hello.fail(StatusCode::SERVICE_UNAVAILABLE);
    let hello = peer.next().await;
    assert_eq!(hello.request.resume, Some(left_behind().0), "and again until it is answered");
    hello.held();
    agent.baseline.wait_for(|baseline| baseline.round == 1).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, left_behind().1);
    let batch = peer.next().await;
    assert_eq!((batch.seqs(), batch.request.resume), (vec![1], None));
    batch.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;

    // Stored, then declared at once.
    let first = given(&mut snapshots, 1).await;
    assert_eq!((first.0.session, &first.1), (SessionId::from_bits(7), &left_behind().1));
    stored.send_replace(Some(1));
    let heartbeat = peer.next().await;
    assert_eq!((heartbeat.seqs(), heartbeat.request.digest), (vec![], Some(1)));
    heartbeat.answer(|response| {
        response.resync = true;
        response.session = SessionId::from_bits(8);
    });
    agent.baseline.wait_for(|baseline| baseline.round == 2).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, Digest::new(), "everything is reported");

    // Shutdown stores and declares again.
    agent.see("late").await;
    let batch = peer.next().await;
    assert_eq!((batch.seqs(), batch.request.digest), (vec![2], None));
    batch.done(&[2]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    let ended = tokio::spawn(async move { agent.drain.shutdown(Duration::from_secs(10)).await });
    given(&mut snapshots, 2).await;
    stored.send_replace(Some(2));
    let farewell = peer.next().await;
    assert_eq!((farewell.seqs(), farewell.request.digest), (vec![], Some(2)));
    farewell.held();
    assert_eq!(ended.await.unwrap(), Outcome::Finished);
}

#[tokio::test]
async fn a_digest_stored_during_shutdown_is_still_declared() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (kept, memory) = memory();
    let agent = agent_with(peer.addr, &ca, &ca, Some(memory), |_, _| {}).await;
    let Shelf { found, mut snapshots, stored, .. } = kept;
    found.send(Found::default()).unwrap();
    agent.see("one").await;
    let batch = peer.next().await;
    batch.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    // Unconfirmed at shutdown.
    given(&mut snapshots, 1).await;
    let drain = agent.drain;
    drain.begin();
    let ended = tokio::spawn(async move { drain.shutdown(Duration::from_secs(10)).await });
    tokio::task::yield_now().await;
    stored.send_replace(Some(1));
    let farewell = peer.next().await;
    assert_eq!((farewell.seqs(), farewell.request.digest), (vec![], Some(1)));
    farewell.held();
    assert_eq!(ended.await.unwrap(), Outcome::Finished);
}

#[tokio::test]
async fn without_a_digest_everything_is_reported() {
    let ca = new_ca();
    let peer = peer(&ca).await;
    let (kept, memory) = memory();
    let mut agent = agent_with(peer.addr, &ca, &ca, Some(memory), |_, _| {}).await;
    kept.found.send(Found::default()).unwrap();
    agent.baseline.wait_for(|baseline| baseline.round == 1).await.unwrap();
    assert_eq!(*agent.baseline.borrow().digest, Digest::new());
}
