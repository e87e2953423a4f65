use super::{
    scripted::{Bench, response},
    *,
};

/// Refuses the first tunnel.
async fn egress_proxy(to: SocketAddr) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (ask, asked) = mpsc::channel(10);
    tokio::spawn(async move {
        let mut first = true;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            let answer = if first { "HTTP/1.1 403 Forbidden\r\n\r\n" } else { "HTTP/1.1 200 OK\r\n\r\n" };
            stream.write_all(answer.as_bytes()).await.unwrap();
            ask.send(String::from_utf8(request).unwrap()).await.unwrap();
            if !std::mem::take(&mut first) {
                let mut peer = TcpStream::connect(to).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut peer).await });
            }
        }
    });
    (addr, asked)
}

#[tokio::test]
async fn connects_through_an_egress_proxy() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (proxy, mut tunnels) = egress_proxy(peer.addr).await;
    let url = format!("http://agent:hunter2@{proxy}");
    let agent =
        agent_with(peer.addr, &ca, &ca, None, |target, _| target.proxy = Some(Proxy::parse(&url).unwrap()))
            .await;
    let hello = peer.next().await;
    agent.until("the proxy's refusal", |p| p.last_error.contains("403")).await;
    assert!(!agent.progress.lock().last_error.contains("hunter2"));
    hello.held();
    agent.see("a").await;
    peer.next().await.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0).await;
    agent.metric("t_send_failures_total{reason=\"proxy_status\",what=\"connect\"} 1");
    for _ in 0..2 {
        let tunnel = tunnels.recv().await.unwrap();
        assert!(tunnel.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", peer.addr)), "{tunnel}");
    }
    assert!(tunnels.try_recv().is_err(), "one tunnel for all");
}

#[tokio::test]
async fn a_renewed_certificate_replaces_the_connection() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent_with(peer.addr, &ca, &ca, None, |_, s| s.replace_within = Duration::ZERO).await;
    peer.next().await.held();
    agent.see("a").await;
    let in_flight = peer.next().await;
    assert_eq!((in_flight.seqs(), in_flight.connection), (vec![1], 1));

    write(&agent.files, ca.cert_pem(), &ca, Timestamp::now() + SignedDuration::from_secs(1));
    std::fs::write(&agent.files.key, "half a key").unwrap();
    agent.reload().await;
    agent.reload().await;
    agent.metric("t_tls_reloads_total{result=\"unusable\"} 1");
    agent.metric("t_connections_total 1");

    write(&agent.files, ca.cert_pem(), &ca, Timestamp::now());
    agent.reload().await;
    agent.until_metric("t_connections_total 2").await;
    agent.metric("t_connected 1");
    agent.metric("t_connections_ended_total{reason=\"renewed\"} 1");
    agent.metric("t_tls_reloads_total{result=\"taken\"} 1");
    let not_after = agent.connector.to.material.current().unwrap().1.as_second();
    // Prometheus prints whole numbers.
    agent.metric(&format!("t_certificate_not_after_timestamp_seconds {not_after}"));
    in_flight.held();
    let poll = peer.next().await;
    assert!(poll.is_poll_for(&[1]) && poll.connection == 2, "what was in flight ended where it began");
    poll.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0 && p.last_error.is_empty()).await;
    assert!(!agent.registry.encode().unwrap().contains("t_send_failures_total{"));
}

#[tokio::test]
async fn a_new_certificate_ends_the_wait_for_the_next_connection() {
    let (ca, other) = (new_ca(), new_ca());
    let mut peer = peer(&ca).await;
    let agent = agent_with(peer.addr, &other, &ca, None, |_, settings| {
        let hour = Window { first: Duration::from_hours(1), max: Duration::from_hours(1) };
        settings.spread = Spread { calm: hour, urgent: hour };
    })
    .await;
    agent.until("a refusal", |p| p.last_error.contains("unknown_ca")).await;
    write(&agent.files, ca.cert_pem(), &ca, Timestamp::now());
    agent.reload().await;
    peer.next().await.held();
    agent.until_metric("t_connections_total 1").await;
}

#[tokio::test]
async fn an_untrusted_receiver_is_disconnected_and_gets_no_events() {
    let (ca, other) = (new_ca(), new_ca());
    let mut peer = peer(&ca).await;
    let agent =
        agent_with(peer.addr, &ca, &ca, None, |_, s| s.replace_within = Duration::from_hours(1)).await;
    peer.next().await.held();
    let both = format!("{}{}", ca.cert_pem(), other.cert_pem());
    write(&agent.files, &both, &ca, Timestamp::now());
    agent.reload().await;
    agent.see("a").await;
    let in_flight = peer.next().await;
    assert_eq!(in_flight.connection, 1, "a bundle with one more CA leaves the connection for now");

    write(&agent.files, other.cert_pem(), &ca, Timestamp::now());
    agent.reload().await;
    agent.until_metric("t_connections_ended_total{reason=\"untrusted\"} 1").await;
    agent.until("a refusal", |p| !p.connected && p.last_error.contains("unknown_ca")).await;
    write(&agent.files, &both, &ca, Timestamp::now());
    let again = peer.next().await;
    assert_eq!((again.seqs(), again.connection), (vec![1], 2), "what was in flight is sent again");
    drop(in_flight);
}

#[tokio::test]
async fn a_failed_replacement_keeps_the_connection() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let (proxy, mut tunnels) = egress_proxy(peer.addr).await;
    let url = format!("http://{proxy}");
    let agent = agent_with(peer.addr, &ca, &ca, None, |target, settings| {
        target.proxy = Some(Proxy::parse(&url).unwrap());
        settings.replace_within = Duration::ZERO;
        settings.replace_backoff = settings.backoff;
    });
    let agent = agent.await;
    peer.next().await.held();
    for _ in 0..2 {
        tunnels.recv().await.unwrap();
    }
    // The proxy then drops connections.
    drop(tunnels);
    write(&agent.files, ca.cert_pem(), &ca, Timestamp::now());
    agent.reload().await;
    agent.until_metric("t_send_failures_total{reason=\"proxy_connect\",what=\"replacement\"} 2").await;
    agent.see("a").await;
    let asked = peer.next().await;
    assert_eq!((asked.seqs(), asked.connection), (vec![1], 1));
    asked.done(&[1]);
    agent.until("the acknowledgement", |p| p.dirty == 0 && p.connected).await;
    let text = agent.registry.encode().unwrap();
    assert!(!text.contains("what=\"connection\""), "{text}");
}

#[tokio::test]
async fn a_pause_reconnects_after_the_receivers_retry_after() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &ca, 100).await;
    peer.next().await.held();
    agent.see("a").await;
    let asked = peer.next().await;
    let answered = Instant::now();
    asked.answer(|response| response.retry_after_ms = Some(300));
    let open = peer.next().await;
    assert!(open.is_poll_for(&[1]));
    agent.resume.send_modify(|count| *count += 1);
    agent.until_metric("t_pauses_total 1").await;
    let asked = peer.next().await;
    assert_eq!(asked.connection, 2);
    assert!(answered.elapsed() >= Duration::from_millis(300), "the receiver had asked for patience");
    agent.metric("t_connections_ended_total{reason=\"paused\"} 1");
    drop(open);
}

#[tokio::test]
async fn an_agent_with_a_change_reconnects_without_delay() {
    let ca = new_ca();
    let mut peer = peer(&ca).await;
    let agent = agent_with(peer.addr, &ca, &ca, None, |_, settings| {
        let hours = Duration::from_hours(1000);
        settings.spread.calm = Window { first: hours, max: hours };
    })
    .await;
    peer.next().await.held();
    agent.resume.send_modify(|count| *count += 1);
    agent.until("the loss", |p| !p.connected).await;
    agent.see("a").await;
    let asked = peer.next().await;
    assert_eq!((asked.seqs(), asked.connection), (vec![1], 2));
}

#[tokio::test(start_paused = true)]
async fn connections_are_replaced_daily_at_random_times() {
    let bench = Bench::start(|request| (Duration::ZERO, Ok(response(request))));
    let (begun, day) = (Instant::now(), Duration::from_hours(24));
    tokio::time::sleep(day * 4).await;
    let made = bench.connected();
    let lasted: Vec<Duration> = made.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(made[0] == begun && (4..=8).contains(&lasted.len()), "{lasted:?}");
    let second = Duration::from_secs(1);
    assert!(lasted.iter().all(|age| (day / 2..=day + second).contains(age)), "{lasted:?}");
    assert!(lasted.iter().any(|age| *age != lasted[0]), "{lasted:?}");
    // The receiver's limit is 30 s.
    let requested = bench.requests();
    let asks = |at: &Instant| requested.iter().any(|requested| (*at..*at + second).contains(requested));
    assert!(made.iter().all(asks), "{made:?}");
    let silent = requested.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(silent <= Some(Settings::default().heartbeat + second), "{silent:?}");
}

fn patient(request: &v3::Request<'static>) -> (Duration, Result<v3::Response, SendError>) {
    (Duration::ZERO, Ok(v3::Response { retry_after_ms: Some(300_000), ..response(request) }))
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_not_replaced_during_a_retry_after() {
    let bench = Bench::start(patient);
    tokio::time::sleep(Duration::from_hours(96)).await;
    let (made, requested) = (bench.connected(), bench.requests());
    assert!(made.len() > 3, "{made:?}");
    let wait = Duration::from_mins(5);
    let requested_before = |at: &Instant| {
        requested
            .iter()
            .rev()
            .find(|requested| *requested < at)
            .is_some_and(|requested| *at - *requested >= wait)
    };
    assert!(made[1..].iter().all(requested_before), "{made:?}");
}
