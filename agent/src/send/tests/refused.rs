use super::*;

#[tokio::test]
async fn an_agent_with_an_untrusted_issuer_is_not_ready() {
    let (ca, other) = (new_ca(), new_ca());
    let peer = peer(&ca).await;
    let agent = agent(peer.addr, &ca, &other, 100).await;
    agent.see("a").await;
    for _ in 0..3 {
        let before = failures(&agent);
        agent.until("a refusal", |p| p.last_error.contains("does not trust this certificate's issuer")).await;
        agent.until("another try", |p| !p.connected && failures(&agent) > before).await;
        let progress = agent.progress.lock().clone();
        assert!(progress.last_error.contains("does not trust this certificate's issuer"), "{progress:?}");
        assert_eq!(agent.readiness.unready(), ["receiver"]);
        agent.metric("t_connected 0");
    }
    agent.until("a count", |p| p.repeated.iter().any(|one| one.count > 2)).await;

    // The right issuer.
    write(&agent.files, ca.cert_pem(), &ca, Timestamp::now());
    let mut peer = peer;
    let asked = peer.next().await;
    assert_eq!(asked.seqs(), [1]);
    assert!(!agent.progress.lock().connected, "nobody has answered yet");
    asked.done(&[1]);
    agent.until("an answer", |p| p.connected && p.dirty == 0 && p.last_error.is_empty()).await;
    agent.until("readiness", |_| agent.readiness.unready().is_empty()).await;
}

#[tokio::test]
async fn a_v2_request_names_the_refusal_of_the_certificate() {
    let (ca, other) = (new_ca(), new_ca());
    let peer = peer(&ca).await;
    let (_dir, target) = target(peer.addr, &ca, &other).await;
    let registry = Registry::new("t", BuildInfo::new("t", "1")).unwrap();
    let metrics = Metrics::register(&registry, &Conditions::new()).unwrap();
    let connector = Connector::new(target, Duration::from_secs(10), Timestamp::now, metrics).unwrap();
    let connector = connector.speaking_v2(v2::Translator::default());
    let mut outbox = Outbox::new(Epoch::random(), BTreeMap::new());
    outbox.observe(observation("a"), Duration::ZERO);
    let (request, _) = outbox.next_batch(Duration::ZERO).unwrap();
    for _ in 0..10 {
        // The alert comes with the handshake, or later.
        let error = match connector.clone().connect().await {
            Ok(connection) => connection.post(&request, Duration::from_secs(20)).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("does not trust this certificate's issuer"), "{error:?}");
    }
}

fn failures(agent: &Agent) -> u64 {
    let text = agent.registry.encode().unwrap();
    let counts = text.lines().filter(|line| line.contains("reason=\"refused_unknown_ca\""));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn each_tls_alert_has_its_own_message() {
    use rustls::AlertDescription as Alert;
    let message = |description| {
        let error = std::io::Error::other(rustls::Error::AlertReceived(description));
        SendError::Refused(alert::received(&error).unwrap()).to_string()
    };
    for (description, expected) in [
        (Alert::UnknownCA, "the receiver does not trust this certificate's issuer"),
        (Alert::CertificateExpired, "has expired or is not valid yet"),
        (Alert::CertificateRequired, "was shown no certificate"),
        (Alert::BadCertificate, "refuses this certificate"),
        (Alert::ProtocolVersion, "by an alert"),
    ] {
        assert!(message(description).contains(expected), "{}", message(description));
    }
    let own = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
    assert_eq!(alert::received(&std::io::Error::other(own)), None, "what the agent itself finds is no alert");
}
