use super::*;

fn notice(message: &str) -> Notice {
    Notice::warning(About::Kyma, "VersionDeprecated", message.into())
}

#[tokio::test(start_paused = true)]
async fn repeats_an_equal_event_once_an_hour() {
    let (sent, start) = (SentNotices::default(), Instant::now());
    let (one, other) = (fingerprint("k", &notice("a")), fingerprint("k", &notice("b")));
    assert_eq!(sent.admit(0, one, start), Turn::Now);
    assert_eq!(sent.admit(0, other, start), Turn::Now, "another message is another notice");
    assert_ne!(one, fingerprint("j", &notice("a")), "another Kyma has its own");
    assert_eq!(sent.admit(0, one, start + REPEAT_AFTER / 2), Turn::Sent);
    assert_eq!(sent.admit(0, one, start + REPEAT_AFTER), Turn::Now);
    assert_eq!(sent.admit(0, one, start + REPEAT_AFTER), Turn::Sent);
}

#[tokio::test(start_paused = true)]
async fn one_kymas_event_flood_is_limited_per_kyma() {
    let (sent, start) = (SentNotices::default(), Instant::now());
    let of =
        |kyma: u64, now| (0..1000).filter(|n| sent.admit(kyma, kyma << 32 | n, now) == Turn::Now).count();
    assert_eq!((of(1, start), of(1, start)), (20, 0));
    assert_eq!(of(2, start), 20, "another Kyma");
    assert_eq!(of(1, start + Duration::from_secs(30)), 3, "the postponed notices come next");
    assert_eq!(of(1, start + Duration::from_hours(1)), 20, "a long rest allows no more than a burst");
}

#[tokio::test(start_paused = true)]
async fn events_of_all_kymas_are_rate_limited() {
    let (sent, start) = (SentNotices::default(), Instant::now());
    let of = |now| (0..5000).filter(|kyma| sent.admit(*kyma, *kyma, now) == Turn::Now).count();
    assert_eq!((of(start), of(start)), (1000, 0));
    assert_eq!(of(start + Duration::from_secs(2)), 200);
}

type Calls = std::sync::Arc<Mutex<Vec<String>>>;

/// An engine, a runtime, the calls to KCP and the runtime, and the code of all answers.
fn engine(code: u16) -> (crate::engine::Engine, Gated, Calls, std::sync::Arc<Mutex<u16>>) {
    use crate::reconcile::tests::{engine_on, runtime_on};

    let code = std::sync::Arc::new(Mutex::new(code));
    let answer = {
        let code = std::sync::Arc::clone(&code);
        move || (*code.lock(), serde_json::json!({"metadata": {}, "involvedObject": {}}))
    };
    let calls = Calls::default();
    let (engine, _) = engine_on({
        let (calls, answer) = (std::sync::Arc::clone(&calls), answer.clone());
        move |method, path| {
            calls.lock().push(format!("{method} {path}"));
            answer()
        }
    });
    let runtime = runtime_on({
        let calls = std::sync::Arc::clone(&calls);
        move |path| {
            calls.lock().push(format!("runtime {path}"));
            answer()
        }
    });
    (engine, runtime, calls, code)
}

fn posts(calls: &Calls) -> usize {
    calls.lock().iter().filter(|call| call.contains("POST")).count()
}

#[tokio::test(start_paused = true)]
async fn events_over_the_burst_limit_are_written_later() {
    let (engine, _, calls, _) = engine(201);
    let all: Vec<_> = (0..MAX_PER_CALL + 4).map(|n| notice(&n.to_string())).collect();
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_some(),
        "a reconcile must come again"
    );
    assert_eq!(posts(&calls), MAX_PER_CALL);
    tokio::time::advance(Duration::from_hours(12)).await;
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_none(),
        "all were written before"
    );
    assert_eq!(posts(&calls), 2 * MAX_PER_CALL);
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_none());
    assert_eq!(posts(&calls), 2 * MAX_PER_CALL + 4, "the oldest ones go first");
}

#[tokio::test(start_paused = true)]
async fn one_time_events_are_written_first() {
    let (engine, _, calls, _) = engine(201);
    let mut all: Vec<_> = (0..MAX_PER_CALL).map(|n| notice(&n.to_string())).collect();
    all.push(Notice { reason: UNREPEATED[0], ..notice("unmanaged") });
    let unrepeated = fingerprint("harbour", &all[MAX_PER_CALL]);
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await;
    assert_eq!(
        (posts(&calls), engine.dispatcher.reconcilers.kyma.notifier.sent.last_sent(unrepeated).is_some()),
        (MAX_PER_CALL, true)
    );
}

#[tokio::test(start_paused = true)]
async fn failed_events_are_retried_after_some_minutes() {
    let (engine, _, calls, code) = engine(500);
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await;
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await.is_none(),
        "no recheck for it"
    );
    assert_eq!(posts(&calls), 1);
    *code.lock() = 201;
    tokio::time::advance(RETRY_AFTER).await;
    for _ in 0..2 {
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await;
        assert_eq!(posts(&calls), 2, "written once more, then suppressed");
    }
}

/// A runtime's webhook may reject all Events, or not answer.
#[tokio::test(start_paused = true)]
async fn a_runtime_refusing_events_does_not_block_kcp_events() {
    let (engine, runtime, calls, _) = engine(403);
    let mut all: Vec<_> = (0..2 * MAX_PER_CALL)
        .map(|n| Notice { about: About::RuntimeKyma, ..notice(&n.to_string()) })
        .collect();
    all.push(notice("in KCP"));
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", Some((&runtime, "uid")), &all).await;
    let calls = calls.lock();
    let of = |part: &str| calls.iter().filter(|c| c.ends_with("/events") && c.starts_with(part)).count();
    assert_eq!((of("runtime"), of("POST")), (1, 1), "{calls:?}");
}

#[tokio::test]
async fn audit_events_are_never_dropped() {
    use crate::reconcile::tests::engine_on;

    let code = std::sync::Arc::new(Mutex::new(201));
    let answers = std::sync::Arc::clone(&code);
    let (engine, calls) = engine_on(move |_, _| {
        let code = *answers.lock();
        let body = if code < 300 {
            serde_json::json!({"metadata": {}, "involvedObject": {}})
        } else {
            serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code})
        };
        (code, body)
    });
    let count = 3 * 100;
    for n in 0..count {
        engine
            .dispatcher
            .reconcilers
            .kyma
            .notifier
            .audit("harbour", &[notice(&n.to_string())])
            .await
            .unwrap();
    }
    let posts = || calls.lock().iter().filter(|call| call.starts_with("POST")).count();
    assert_eq!(posts(), count, "however many at the same time");
    for (answer, is_error) in [(409, false), (403, false), (500, true), (429, true)] {
        *code.lock() = answer;
        let written = engine.dispatcher.reconcilers.kyma.notifier.audit("harbour", &[notice("again")]).await;
        assert_eq!(written.is_err(), is_error, "{answer}");
    }
}

#[test]
fn an_event_names_its_object_and_fits() {
    let long = notice(&"ö".repeat(2000));
    let object = reference("Kyma", "kcp-system", "harbour", Some("uid".into()));
    let at = |second| Timestamp::from_second(second).unwrap();
    let first = event(&long, object.clone(), 7, at(7200));
    assert!(first.message.as_ref().unwrap().len() <= MAX_MESSAGE);
    assert_eq!(
        (first.type_.as_deref(), first.reason.as_deref()),
        (Some("Warning"), Some("VersionDeprecated"))
    );
    assert_eq!(first.metadata.namespace.as_deref(), Some("kcp-system"));
    assert_eq!(first.metadata.name, event(&long, object.clone(), 7, at(7300)).metadata.name, "the same hour");
    assert_ne!(first.metadata.name, event(&long, object, 7, at(10_800)).metadata.name);
}

#[tokio::test(start_paused = true)]
async fn an_equal_event_of_another_occasion_is_written() {
    let (engine, _, calls, _) = engine(201);
    let of = |uid: &str| [Notice { occasion: uid.to_owned(), ..notice("unmanaged") }];
    for (uid, written) in [("first", 1), ("first", 1), ("second", 2), ("first", 2)] {
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &of(uid)).await;
        assert_eq!(posts(&calls), written, "{uid}");
    }
}
