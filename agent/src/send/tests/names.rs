use super::*;

const WATCH: &str = "w";

fn other() -> Route {
    Route::manager("other")
}

/// `names` are from an earlier run.
async fn routed(peer: SocketAddr, ca: &Ca, names: Names, withhold: Duration) -> (Agent, Shelf) {
    let (shelf, memory) = memory();
    let change = |_: &mut Target, settings: &mut Settings| settings.withhold = withhold;
    let agent = agent_with(peer, ca, ca, Some(memory), change).await;
    let (done, message) = oneshot::channel();
    let routes = BTreeMap::from([(WATCH.to_owned(), vec![other()])]);
    let complete = Some([WATCH.to_owned()].into());
    agent.control.send(Control { routes, complete, forget: Vec::new(), done }).await.unwrap();
    message.await.unwrap();
    let Shelf { found, snapshots, stored, names: given, names_stored } = shelf;
    found.send(Found { digest: None, names }).unwrap();
    let (again, _) = oneshot::channel();
    (agent, Shelf { found: again, snapshots, stored, names: given, names_stored })
}

fn kept(names: &[&str]) -> Names {
    let objects = names.iter().map(|name| ("n".into(), (*name).into())).collect();
    let listed = Listed { version: "v1".into(), kind: "Thing".into(), objects };
    Names::found(BTreeMap::from([(WATCH.into(), listed)]))
}

async fn list(agent: &Agent, names: &[&str]) {
    let seen = observation("");
    let key = |name: &str| Key { watch: WATCH.into(), name: name.into(), ..seen.key.clone() };
    let gone = Observation { key: key(""), change: Change::Gone, ..seen.clone() };
    let present = Present { objects: names.iter().map(|name| key(name)).collect(), gone };
    agent.changes.send(Message::Listed(WATCH.into(), present)).await.unwrap();
}

#[tokio::test]
async fn a_name_is_stored_before_its_object_is_reported() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (mut agent, mut shelf) = routed(peer.addr, &ca, Names::default(), Duration::from_mins(1)).await;
    agent.baseline.wait_for(|baseline| baseline.round == 1).await.unwrap();
    assert_eq!(observation("a").key.watch, WATCH.into(), "or this shows nothing");
    agent.see("a").await;
    let is = |snapshot: &Option<Arc<_>>| snapshot.is_some();
    let given = shelf.names.wait_for(is).await.unwrap().clone().unwrap();
    assert_eq!(given.watches[WATCH].objects.len(), 1);
    agent.until_metric("t_unsent_keys 1").await;
    agent.until_metric("t_connections_total 1").await;
    while let Ok(early) = peer.asked.try_recv() {
        assert!(early.seqs().is_empty(), "only signs of life so far");
        early.held();
    }
    shelf.names_stored.send_replace(given.revision);
    assert_eq!(peer.next().await.seqs(), [1]);
}

#[tokio::test]
async fn deletions_during_downtime_are_reported_by_name() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (agent, _shelf) = routed(peer.addr, &ca, kept(&["here", "went"]), Duration::from_mins(1)).await;
    assert_eq!(agent.baseline.clone().wait_for(|b| b.round == 1).await.unwrap().kinds.len(), 1);
    list(&agent, &["here"]).await;
    let asked = loop {
        let asked = peer.next().await;
        if !asked.request.events.is_empty() {
            break asked;
        }
        asked.held();
    };
    let [event] = &asked.request.events[..] else { panic!("{:?}", asked.request) };
    assert_eq!((&*event.name, event.change), ("went", Change::Gone));
}

#[tokio::test]
async fn events_are_sent_even_if_names_cannot_be_stored() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (agent, _shelf) = routed(peer.addr, &ca, Names::default(), Duration::from_millis(20)).await;
    agent.see("a").await;
    loop {
        let asked = peer.next().await;
        if asked.seqs() == [1] {
            break;
        }
        asked.held();
    }
}
