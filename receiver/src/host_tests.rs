use std::time::Duration;

use kube::Client;
use tidewatch_api::{
    Kyma, WatcherSpec,
    names::{annotations, labels},
    watcher::{Service, WatchableGvr},
};
use tidewatch_engine::{
    EngineConfig, Trigger, WorkKey,
    history::{Observer, Record},
    queue::{Class, Ended},
};
use tidewatch_listener::Deliveries;
use tidewatch_telemetry::BuildInfo;
use tidewatch_wire::{Epoch, Seq, SessionId};

use super::*;
use crate::forward::{lane::Limits, target::Overrides};
use crate::paths::Settings;

struct Unseen;

impl Observer for Unseen {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}

    fn reachable(&self, _kyma: &str, _reachable: bool) {}
}

/// One registered runtime, two managers' Watchers, no KCP.
fn host() -> EngineHost {
    let kcp = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    host_on(kcp, Arc::new(Unseen))
}

/// One registered runtime, and two managers' Watchers.
pub(super) fn host_on(kcp: Client, observer: Arc<dyn Observer>) -> EngineHost {
    let engine = Engine::new(kcp, EngineConfig::default(), observer, Arc::new(jiff::Timestamp::now)).unwrap();
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let mut kyma = Kyma::new("harbour", tidewatch_api::KymaSpec::default());
    kyma.metadata.labels = Some([(labels::RUNTIME_ID.to_owned(), "r1".to_owned())].into());
    kyma.metadata.annotations = Some([(annotations::SKR_DOMAIN.to_owned(), "a.example".to_owned())].into());
    let watcher = |name: &str, group: &str| {
        let mut watcher = Watcher::new(
            name,
            WatcherSpec {
                manager: name.into(),
                service_info: Service { name: "svc".into(), namespace: "ops".into(), port: 80 },
                resource_to_watch: WatchableGvr { group: group.into(), ..WatchableGvr::default() },
                ..WatcherSpec::default()
            },
        );
        watcher.metadata.namespace = Some("kcp".into());
        watcher
    };
    {
        let mut state = engine.state().write();
        state.apply_kyma(kyma);
        state.apply_watcher("keeper", Some(watcher("keeper", "apps")));
        state.apply_watcher(OWN_MANAGER, Some(watcher(OWN_MANAGER, tidewatch_api::names::GROUP)));
    }
    let forwarders =
        Forwarders::new(OWN_MANAGER, engine.clone(), Overrides::new(), Limits::default(), &registry).unwrap();
    let refused = refused_metric(&registry).unwrap();
    EngineHost {
        revocations: Revocations::default(),
        claims: ClaimBook::new(SessionId::from_bits(7), crate::sessions::Sessions::default()),
        engine,
        forwarders,
        paths: PathWatch::new(Settings::default()),
        ready: Arc::new(true.into()),
        namespace: "kcp".into(),
        refused,
        lines: RefusalLog::new(),
        certificates: None,
    }
}

fn runtime() -> Runtime {
    use rustls::pki_types::pem::PemObject;
    let hour = jiff::SignedDuration::from_hours(1);
    let ca = tidewatch_certs::Ca::create("test", hour, jiff::Timestamp::now()).unwrap();
    let der = rustls::pki_types::CertificateDer::from_pem_slice(ca.cert_pem().as_bytes()).unwrap();
    let (renewed_by, not_after) = (jiff::Timestamp::MAX, jiff::Timestamp::MAX);
    let certificate = Arc::from(der.as_ref());
    Runtime { id: "r1".into(), kyma: "harbour".into(), certificate, renewed_by, not_after }
}

fn kyma_event() -> v2::WatchEvent {
    v2::WatchEvent {
        watched: v2::ObjectKey { namespace: "kyma-system".into(), name: "default".into() },
        watched_gvk: v2::GroupVersionKind {
            group: tidewatch_api::names::GROUP.into(),
            version: "v1beta2".into(),
            kind: "Kyma".into(),
        },
    }
}

#[tokio::test(start_paused = true)]
async fn v2_events_are_queued_twice_20_seconds_apart() {
    let host = host();
    let begun = host.engine.queue().now();
    assert_eq!(host.take_v2(&runtime(), OWN_MANAGER, &kyma_event()), Fate::Queued);
    for after in [0, 20] {
        let lease = host.engine.queue().next().await;
        assert_eq!(*lease.key(), WorkKey::Kyma { kyma: "harbour".into() });
        let waited = host.engine.queue().now().saturating_sub(begun);
        // Timers have a granularity of 1 ms.
        assert!(
            waited >= Duration::from_secs(after) && waited < Duration::from_millis(after * 1000 + 10),
            "{waited:?}"
        );
        let [cause] = &lease.triggers[..] else { panic!("{:?}", lease.triggers) };
        assert_eq!(
            matches!(cause, Trigger::SecondLook { object } if object.to_string() == "Kyma.operator.kyma-project.io kyma-system/default"),
            after > 0
        );
        lease.end(Ended::Done);
    }
    let third = tokio::time::timeout(Duration::from_hours(1), host.engine.queue().next()).await;
    assert!(third.is_err(), "twice, not for ever");
}

#[tokio::test]
async fn v2_events_go_to_managers_watching_the_kind() {
    let host = host();
    let deployment = |group: &str| {
        let mut event = kyma_event();
        event.watched_gvk.group = group.into();
        event
    };
    assert_eq!(host.manager("keeper"), Manager::Own);
    assert_eq!(host.manager("nobody"), Manager::Unknown);
    assert_eq!(host.take_v2(&runtime(), "keeper", &deployment("apps")), Fate::Forwarded);
    assert_eq!(host.take_v2(&runtime(), "keeper", &deployment("batch")), Fate::Refused);
    assert_eq!(host.take_v2(&runtime(), "nobody", &deployment("apps")), Fate::Refused);
    assert!(host.engine.queue().inspect(|q| q.ready().all(|(_, n)| n == 0)), "nothing of it is the engine's");
}

#[tokio::test]
async fn each_route_acknowledges_separately() {
    let host = host();
    let deliveries = Deliveries::new(SessionId::from_bits(1));
    let event = |seq: u64, watch: &'static str, group: &'static str| v3::Event {
        seq: Seq(seq),
        watch: watch.into(),
        group: group.into(),
        version: "v1".into(),
        kind: "Thing".into(),
        namespace: "n".into(),
        name: seq.to_string().into(),
        uid: "".into(),
        resource_version: "".into(),
        change: v3::Change::Changed,
        listed: false,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
    };
    let events = vec![
        event(1, "kcp.keeper", "apps"),
        event(2, "kcp.keeper", "batch"),
        event(3, "kcp.gone", "apps"),
        event(4, "of-the-file", "apps"),
    ];
    let awaiting = events.iter().map(|e| e.seq).collect();
    let request = v3::Request { events, awaiting, ..v3::Request::new(Epoch::from_bits(1)) };
    deliveries.receive("r1", &request);
    let fates: Vec<Fate> = request
        .events
        .iter()
        .map(|event| {
            host.take_v3(&runtime(), &request, event, deliveries.ticket("r1", request.epoch, event.seq))
        })
        .collect();
    assert_eq!(fates, [Fate::Forwarded, Fate::Refused, Fate::Refused, Fate::Unowned]);
    let answer = deliveries.answer("r1", request.epoch, &request.awaiting, None);
    let of = |route: &Route| {
        let ack = answer.acks.iter().find(|ack| ack.route == *route);
        ack.map(|ack| (ack.done.ranges().collect::<Vec<_>>(), ack.refused.ranges().collect::<Vec<_>>()))
    };
    assert_eq!(of(&Route::manager("keeper")), Some((vec![], vec![(2, 2)])), "1 is held");
    assert_eq!(of(&Route::engine()), Some((vec![(1, 1), (4, 4)], vec![(2, 3)])));
    assert!(answer.unknown.is_empty());

    // The receiver's own cluster has no certificate to forward: the manager's route is refused, and the engine's is not.
    let own = Runtime { certificate: Arc::from([]), ..runtime() };
    let own_request = v3::Request { events: request.events[..1].to_vec(), ..request.clone() };
    deliveries.receive("own", &own_request);
    let ticket = deliveries.ticket("own", request.epoch, Seq(1));
    assert_eq!(host.take_v3(&own, &own_request, &own_request.events[0], ticket), Fate::Refused);
    let answer = deliveries.answer("own", request.epoch, &[Seq(1)].into_iter().collect(), None);
    let refused = answer.acks.iter().filter(|ack| !ack.refused.is_empty()).map(|ack| &ack.route);
    assert_eq!(refused.collect::<Vec<_>>(), [&Route::manager("keeper")]);
    assert!(answer.unknown.is_empty());

    assert!(matches!(host.lookup("r1"), RuntimeLookup::One { .. }));
    host.ready.store(false, Ordering::Release);
    assert_eq!(host.lookup("r1"), RuntimeLookup::Starting);
}

#[tokio::test]
async fn full_reports_are_queued_behind_user_edits() {
    let host = host();
    let deliveries = Deliveries::new(SessionId::from_bits(1));
    let report = |seq: u64, listed: bool| {
        let event = v3::Event {
            seq: Seq(seq),
            watch: "of-the-file".into(),
            group: tidewatch_api::names::GROUP.into(),
            version: "v1beta2".into(),
            kind: "Kyma".into(),
            namespace: "kyma-system".into(),
            name: "default".into(),
            uid: "".into(),
            resource_version: "".into(),
            change: v3::Change::Changed,
            listed,
            observed_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let awaiting = std::iter::once(event.seq).collect();
        let request = v3::Request { events: vec![event], awaiting, ..v3::Request::new(Epoch::from_bits(1)) };
        deliveries.receive("r1", &request);
        let ticket = deliveries.ticket("r1", request.epoch, Seq(seq));
        assert_eq!(host.take_v3(&runtime(), &request, &request.events[0], ticket), Fate::Queued);
    };
    let ready = |class: Class| {
        host.engine.queue().inspect(|queue| queue.ready().find(|(of, _)| *of == class).map(|(_, n)| n))
    };
    report(1, true);
    assert_eq!((ready(Class::Resync), ready(Class::UserEdit)), (Some(1), Some(0)));
    report(2, false);
    assert_eq!((ready(Class::Resync), ready(Class::UserEdit)), (Some(0), Some(1)), "somebody waits for it");
    report(3, true);
    let lease = host.engine.queue().next().await;
    assert_eq!((lease.class, lease.trigger_count), (Class::UserEdit, 3));
    lease.end(Ended::Done);
}

#[tokio::test]
async fn finished_canaries_prove_the_event_path() {
    let host = host();
    let deliveries = Deliveries::new(SessionId::from_bits(1));
    let event = v3::Event {
        seq: Seq(1),
        watch: v3::CANARY.into(),
        group: "".into(),
        version: "v1".into(),
        kind: "Lease".into(),
        namespace: "".into(),
        name: "canary".into(),
        uid: "".into(),
        resource_version: "".into(),
        change: v3::Change::Changed,
        listed: false,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
    };
    let awaiting = std::iter::once(event.seq).collect();
    let request = v3::Request { events: vec![event], awaiting, ..v3::Request::new(Epoch::from_bits(1)) };
    // A long queue must not cause polls.
    for number in 0..40 {
        let kyma = format!("busy-{number}");
        let push = Push { class: Class::UserEdit, trigger: None, guards: Vec::new() };
        host.engine.queue().push(WorkKey::Kyma { kyma }, push);
    }
    host.paths.register(&[("harbour", "u")]);
    host.received(&runtime(), &request);
    deliveries.receive("r1", &request);
    let ticket = deliveries.ticket("r1", request.epoch, Seq(1));
    assert_eq!(host.take_v3(&runtime(), &request, &request.events[0], ticket), Fate::Queued);
    let staleness = || host.paths.inspect(crate::paths::Paths::staleness).len();
    let mut lease = host.engine.queue().next().await;
    assert_eq!(
        (lease.key().to_string().as_str(), staleness()),
        ("EventPath/harbour", 0),
        "it overtakes what is only work, and queued is not proven"
    );
    for guard in lease.take_guards() {
        guard.finished();
    }
    assert_eq!(staleness(), 1);
    assert!(deliveries.answer("r1", request.epoch, &request.awaiting, None).acks[0].done.contains(Seq(1)));
    lease.end(Ended::Done);
}

/// A full report may follow a restored backup.
#[test]
fn only_a_single_objects_change_carries_a_version() {
    let event = |change, listed| v3::Event {
        seq: Seq(1),
        watch: "w".into(),
        group: "apps".into(),
        version: "v1".into(),
        kind: "Deployment".into(),
        namespace: "n".into(),
        name: "a".into(),
        uid: "u".into(),
        resource_version: "7".into(),
        change,
        listed,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
    };
    let of = |change, listed| version_of(&event(change, listed)).map(|version| format!("{version:?}"));
    let is = format!("{:?}", Version::Is { uid: "u", resource_version: "7" });
    let gone = format!("{:?}", Version::Gone { uid: "u" });
    assert_eq!(of(v3::Change::Changed, false), Some(is));
    assert_eq!(of(v3::Change::Gone, false), Some(gone));
    for unknown in [(v3::Change::Changed, true), (v3::Change::Gone, true), (v3::Change::Resync, false)] {
        assert_eq!(of(unknown.0, unknown.1), None, "{unknown:?}");
    }
}

#[tokio::test]
async fn refusals_are_recorded_only_for_registered_runtimes() {
    let host = host();
    host.paths.register(&[("harbour", "u")]);
    let peer = |id: &str| RefusedPeer {
        reason: "unknown_ca",
        verified: false,
        names: tidewatch_tls::Names {
            common_name: Some(id.to_owned()),
            subject: format!("CN={id}"),
            issuer: "CN=stranger".to_owned(),
            not_after: jiff::Timestamp::MAX,
        },
    };
    host.refused(&peer("nobody"));
    let last = || {
        host.paths.inspect(|paths, now| {
            let view = paths.view("harbour", now).unwrap();
            view.refusals.last().map(|(last, count)| (last.subject.clone(), last.reason, count))
        })
    };
    assert_eq!(last(), None);
    host.refused(&peer("r1"));
    host.refused(&peer("r1"));
    assert_eq!(last(), Some(("CN=r1".to_owned(), "unknown_ca", 2)));
}
