use std::convert::Infallible;

use futures::{StreamExt, stream};
use http::Version;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tidewatch_drain::Drain;
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tidewatch_wire::{Route, Seq, SessionId};

use super::*;
use crate::{Guard, Limits, RuntimeLookup, Ticket};

const BODY: Duration = Duration::from_secs(30);

fn parts(version: Version) -> Parts {
    Request::builder().version(version).body(()).unwrap().into_parts().0
}

fn pieces(count: usize) -> impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    stream::repeat(Bytes::from_static(&[b' '; 1024])).take(count).map(|piece| Ok(Frame::data(piece)))
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_is_abandoned() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        // Stalls.
        let body = StreamBody::new(pieces(3).chain(stream::pending()));
        let begun = Instant::now();
        let fault = read(&parts(version), body, 10_000, BODY).await.unwrap_err();
        assert_eq!((fault.label(), begun.elapsed()), ("slow_body", BODY));

        // Too long, then stalls.
        let body = StreamBody::new(pieces(20).chain(stream::pending()));
        let fault = read(&parts(version), body, 10_000, BODY).await.unwrap_err();
        assert_eq!(fault.label(), "too_large");
        assert!(begun.elapsed() <= BODY + SKIP.1);

        // Endless.
        let body = StreamBody::new(pieces(usize::MAX));
        let fault = read(&parts(version), body, 10_000, BODY).await.unwrap_err();
        assert_eq!(fault.label(), "too_large");
    }
}

#[test]
fn peer_text_is_logged_as_one_short_line() {
    assert_eq!(printable("a\r\n\u{1b}[31mb"), "a   [31mb");
    assert_eq!(printable(&"ä".repeat(1000)).chars().count(), MAX_MESSAGE);
}

#[derive(Default)]
struct Fragile(parking_lot::Mutex<Vec<Guard>>, Arc<parking_lot::Mutex<Vec<RefusedPeer>>>);

impl Host for Fragile {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        assert_ne!(common_name, "poison");
        RuntimeLookup::One { kyma: "k".to_owned(), domain: Some("d".to_owned()), registered: None }
    }

    fn manager(&self, _: &str) -> Manager {
        Manager::Own
    }

    fn refused(&self, peer: &RefusedPeer) {
        self.1.lock().push(peer.clone());
    }

    fn take_v3(&self, _: &Runtime, _: &v3::Request<'_>, event: &v3::Event<'_>, mut ticket: Ticket) -> Fate {
        assert_ne!(event.name, "poison");
        let guards = ticket.hold(Route::engine(), 1);
        assert_ne!(event.name, "late poison");
        self.0.lock().extend(guards);
        Fate::Queued
    }

    fn take_v2(&self, _: &Runtime, _: &str, _: &v2::WatchEvent) -> Fate {
        Fate::Queued
    }
}

struct Bench {
    intake: Arc<Intake>,
    refused: Arc<parking_lot::Mutex<Vec<RefusedPeer>>>,
    _drain: Drain,
}

impl Bench {
    fn new(work: f64) -> Self {
        let (registry, drain) = (Registry::new("t", BuildInfo::new("t", "1")).unwrap(), Drain::new());
        let host = Fragile::default();
        let refused = Arc::clone(&host.1);
        let intake = Intake {
            host: Arc::new(host),
            deliveries: Deliveries::new(SessionId::from_bits(1)),
            metrics: Metrics::register(&registry).unwrap(),
            admission: Admission::new(Limits::default(), Timestamp::UNIX_EPOCH).with_work(move || work),
            drain: drain.watch(),
            proxies: Arc::new(Proxies::none()),
            clock: || Timestamp::UNIX_EPOCH,
        };
        Self { intake: Arc::new(intake), refused, _drain: drain }
    }

    async fn post(&self, common_name: &str, names: &[&str]) -> (StatusCode, Option<v3::Response>) {
        self.post_from(common_name, 1, names).await
    }

    async fn post_from(
        &self,
        common_name: &str,
        first: u64,
        names: &[&str],
    ) -> (StatusCode, Option<v3::Response>) {
        let event = |(name, seq): (&&str, u64)| v3::Event {
            seq: Seq(seq),
            watch: if *name == "canary" { v3::CANARY.into() } else { "w".into() },
            group: "".into(),
            version: "v1".into(),
            kind: "K".into(),
            namespace: "".into(),
            name: (*name).to_owned().into(),
            uid: "".into(),
            resource_version: "".into(),
            change: v3::Change::Changed,
            listed: name.starts_with("listed"),
            observed_at: Timestamp::UNIX_EPOCH,
        };
        let events: Vec<_> = names.iter().zip(first..).map(event).collect();
        let awaiting = events.iter().map(|event| event.seq).collect();
        let request = v3::Request { events, awaiting, ..v3::Request::new(Epoch::from_bits(1)) };
        let body = Full::new(Bytes::from(serde_json::to_vec(&request).unwrap()));
        let request = Request::post(v3::PATH).body(body).unwrap();
        let identity = PeerIdentity {
            common_name: common_name.to_owned(),
            dns_names: vec!["d".to_owned()],
            ip_addrs: Vec::new(),
            uris: Vec::new(),
            not_before: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::MAX,
            certificate: Arc::from(*b"der"),
        };
        let peer = Arc::new(Peer { leaf: None, identity: Ok(identity) });
        let answer = Arc::clone(&self.intake).serve(peer, request).await;
        let (parts, body) = answer.into_parts();
        #[allow(clippy::disallowed_methods, reason = "the answer is our own")]
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, serde_json::from_slice(&body).ok())
    }
}

fn seqs(seqs: &[u64]) -> SeqSet {
    seqs.iter().map(|seq| Seq(*seq)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_host_receives_the_refused_certificates_names() {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let (bench, hour) = (Bench::new(0.0), jiff::SignedDuration::from_hours(1));
    let ca = tidewatch_certs::Ca::create("factory", hour, Timestamp::UNIX_EPOCH).unwrap();
    let request = tidewatch_certs::ClientRequest {
        runtime_id: "r1".into(),
        dns_names: vec!["another.example".into()],
        organizations: vec![],
        validity: hour,
    };
    let own = ca.issue_client(&request, Timestamp::UNIX_EPOCH).unwrap();
    let leaf = CertificateDer::from_pem_slice(own.cert_pem.as_bytes()).unwrap();
    let peer = Arc::new(Peer { leaf: None, identity: PeerIdentity::from_leaf(&leaf) });
    let request = Request::post(v3::PATH).body(Full::new(Bytes::new())).unwrap();
    let answer = Arc::clone(&bench.intake).serve(peer, request).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    let refused = bench.refused.lock().clone();
    let [RefusedPeer { reason: "san_mismatch", verified: true, names }] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(names.common_name.as_deref(), Some("r1"));
    assert!(names.subject.contains("CN=r1") && names.issuer.contains("CN=factory"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn panicking_events_are_returned_and_block_no_other() {
    let bench = Bench::new(0.0);
    let (status, answer) = bench.post("r1", &["a", "poison", "b", "late poison", "c"]).await;
    let answer = answer.unwrap();
    assert_eq!((status, answer.unknown), (StatusCode::OK, seqs(&[2, 4])));
    assert_eq!((bench.intake.deliveries.held(), bench.intake.metrics.panics.get()), (3, 2));
    // New after the drop.
    let answer = bench.post("r1", &["a", "mended", "b", "mended", "c"]).await.1.unwrap();
    assert_eq!((answer.unknown, bench.intake.deliveries.held()), (SeqSet::new(), 5));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_answered_with_500() {
    let bench = Bench::new(0.0);
    assert_eq!(bench.post("poison", &["a"]).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(bench.intake.metrics.panics.get(), 1);
    assert_eq!(bench.post("r1", &["a"]).await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn an_edit_does_not_wait_for_the_resend_rate() {
    let bench = Bench::new(0.0);
    let report: Vec<String> = (0..1_000).map(|n| format!("listed-{n}")).collect();
    let names: Vec<&str> = report.iter().map(String::as_str).collect();
    for common_name in ["r1", "r1"] {
        // Known numbers also count.
        let answer = bench.post(common_name, &names).await.1.unwrap();
        assert_eq!((answer.older, answer.retry_after_ms), (None, None));
    }
    let held = bench.intake.deliveries.held();
    let names: Vec<&str> = names.iter().copied().take(99).chain(["edited"]).collect();
    let answer = bench.post_from("r1", 2_001, &names).await.1.unwrap();
    assert!(answer.older.is_some_and(|older| older.after_ms >= 2_500), "{:?}", answer.older);
    assert_eq!(answer.retry_after_ms, None);
    assert_eq!((bench.intake.deliveries.held() - held, answer.unknown.range_count()), (1, 1));
    assert!(!answer.unknown.contains(Seq(2_100)) && answer.unknown.contains(Seq(2_099)));
}

#[tokio::test(start_paused = true)]
async fn a_canary_is_accepted_at_any_load() {
    let bench = Bench::new(2.0);
    let answer = bench.post("r1", &["a", "canary", "b"]).await.1.unwrap();
    assert_eq!((answer.unknown, bench.intake.deliveries.held()), (seqs(&[1, 3]), 1));
    assert!(answer.retry_after_ms.is_some_and(|wait| wait >= 5_000), "{:?}", answer.retry_after_ms);
}

#[tokio::test(start_paused = true)]
async fn a_request_within_the_process_needs_no_certificate_and_keeps_the_limits() {
    let bench = Bench::new(0.0);
    let (certificate, end) = (Arc::from([]), Timestamp::MAX);
    let runtime = Runtime { id: "r1".into(), kyma: "k".into(), certificate, renewed_by: end, not_after: end };
    let request = v3::Request::new(Epoch::from_bits(1));
    let answer = bench.intake.take(&runtime, &request).await.unwrap();
    assert_eq!((answer.epoch, answer.session), (Epoch::from_bits(1), SessionId::from_bits(1)));
    let malformed = v3::Request { reconciled_ms: vec![1; 10_000], ..request.clone() };
    let refused = bench.intake.take(&runtime, &malformed).await.unwrap_err();
    assert_eq!((refused.status, refused.retry_after), (StatusCode::BAD_REQUEST, None));
    let mut last = Ok(answer);
    for _ in 0..250 {
        last = bench.intake.take(&runtime, &request).await;
    }
    let refused = last.unwrap_err();
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.retry_after.is_some(), "{refused:?}");
}
