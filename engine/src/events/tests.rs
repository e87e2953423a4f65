use super::*;

fn notice(message: &str) -> Notice {
    Notice::warning(About::Kyma, "VersionDeprecated", message.into())
}

#[tokio::test(start_paused = true)]
async fn the_same_is_said_once_an_hour() {
    let (told, start) = (Told::default(), Instant::now());
    let (one, other) = (fingerprint("k", &notice("a")), fingerprint("k", &notice("b")));
    assert_eq!(told.admit(0, one, start), Turn::Now);
    assert_eq!(told.admit(0, other, start), Turn::Now, "another text is another notice");
    assert_ne!(one, fingerprint("j", &notice("a")), "another Kyma has its own");
    assert_eq!(told.admit(0, one, start + ONCE_IN / 2), Turn::Told);
    assert_eq!(told.admit(0, one, start + ONCE_IN), Turn::Now);
    assert_eq!(told.admit(0, one, start + ONCE_IN), Turn::Told);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_is_told_later_and_leaves_room_for_others() {
    let (told, start) = (Told::default(), Instant::now());
    let of =
        |kyma: u64, now| (0..1000).filter(|n| told.admit(kyma, kyma << 32 | n, now) == Turn::Now).count();
    assert_eq!((of(1, start), of(1, start)), (20, 0));
    assert_eq!(of(2, start), 20, "another Kyma");
    assert_eq!(of(1, start + Duration::from_secs(30)), 3, "those that were left out come next");
    assert_eq!(of(1, start + Duration::from_hours(1)), 20, "a long rest brings no more at once");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_all_is_slowed_down() {
    let (told, start) = (Told::default(), Instant::now());
    let of = |now| (0..5000).filter(|kyma| told.admit(*kyma, *kyma, now) == Turn::Now).count();
    assert_eq!((of(start), of(start)), (1000, 0));
    assert_eq!(of(start + Duration::from_secs(2)), 200);
}

type Heard = std::sync::Arc<Mutex<Vec<String>>>;

/// An engine, a runtime, the calls to KCP and the runtime, and the code of all answers.
fn engine(code: u16) -> (crate::engine::Engine, Gated, Heard, std::sync::Arc<Mutex<u16>>) {
    use crate::reconcile::tests::{engine_on, runtime_on};

    let code = std::sync::Arc::new(Mutex::new(code));
    let answer = {
        let code = std::sync::Arc::clone(&code);
        move || (*code.lock(), serde_json::json!({"metadata": {}, "involvedObject": {}}))
    };
    let heard = Heard::default();
    let (engine, _) = engine_on({
        let (heard, answer) = (std::sync::Arc::clone(&heard), answer.clone());
        move |method, path| {
            heard.lock().push(format!("{method} {path}"));
            answer()
        }
    });
    let runtime = runtime_on({
        let heard = std::sync::Arc::clone(&heard);
        move |path| {
            heard.lock().push(format!("runtime {path}"));
            answer()
        }
    });
    (engine, runtime, heard, code)
}

fn posts(heard: &Heard) -> usize {
    heard.lock().iter().filter(|call| call.contains("POST")).count()
}

#[tokio::test(start_paused = true)]
async fn those_for_which_there_is_no_room_are_told_a_moment_later_also_when_hours_lie_between() {
    let (engine, _, heard, _) = engine(201);
    let all: Vec<_> = (0..AT_ONCE + 4).map(|n| notice(&n.to_string())).collect();
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_some(),
        "somebody has to look again"
    );
    assert_eq!(posts(&heard), AT_ONCE);
    tokio::time::advance(Duration::from_hours(12)).await;
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_none(),
        "all of them were told"
    );
    assert_eq!(posts(&heard), 2 * AT_ONCE);
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await.is_none());
    assert_eq!(posts(&heard), 2 * AT_ONCE + 4, "those that were told longest ago");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_come_again_is_told_first() {
    let (engine, _, heard, _) = engine(201);
    let mut all: Vec<_> = (0..AT_ONCE).map(|n| notice(&n.to_string())).collect();
    all.push(Notice { reason: ONCE[0], ..notice("given up") });
    let once = fingerprint("harbour", &all[AT_ONCE]);
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &all).await;
    assert_eq!(
        (posts(&heard), engine.dispatcher.reconcilers.kyma.notifier.told.last(once).is_some()),
        (AT_ONCE, true)
    );
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_written_is_tried_again_after_some_minutes() {
    let (engine, _, heard, code) = engine(500);
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await;
    assert!(
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await.is_none(),
        "nobody polls for it"
    );
    assert_eq!(posts(&heard), 1);
    *code.lock() = 201;
    tokio::time::advance(FAILED_FOR).await;
    for _ in 0..2 {
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &[notice("a")]).await;
        assert_eq!(posts(&heard), 2, "once more, and then it was told");
    }
}

/// A runtime's webhook may reject all Events, or not answer.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_takes_no_events_is_tried_with_one_and_keeps_nothing_from_kcp() {
    let (engine, runtime, heard, _) = engine(403);
    let mut all: Vec<_> =
        (0..2 * AT_ONCE).map(|n| Notice { about: About::RuntimeKyma, ..notice(&n.to_string()) }).collect();
    all.push(notice("in KCP"));
    engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", Some((&runtime, "uid")), &all).await;
    let heard = heard.lock();
    let of = |part: &str| heard.iter().filter(|c| c.ends_with("/events") && c.starts_with(part)).count();
    assert_eq!((of("runtime"), of("POST")), (1, 1), "{heard:?}");
}

#[tokio::test]
async fn what_has_to_be_told_is_never_left_out() {
    use crate::reconcile::tests::engine_on;

    let code = std::sync::Arc::new(Mutex::new(201));
    let answers = std::sync::Arc::clone(&code);
    let (engine, heard) = engine_on(move |_, _| {
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
    let told = || heard.lock().iter().filter(|call| call.starts_with("POST")).count();
    assert_eq!(told(), count, "however many at once");
    for (answer, holds_up) in [(409, false), (403, false), (500, true), (429, true)] {
        *code.lock() = answer;
        let told = engine.dispatcher.reconcilers.kyma.notifier.audit("harbour", &[notice("again")]).await;
        assert_eq!(told.is_err(), holds_up, "{answer}");
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
async fn the_same_words_of_another_occasion_are_told() {
    let (engine, _, heard, _) = engine(201);
    let of = |uid: &str| [Notice { occasion: uid.to_owned(), ..notice("given up") }];
    for (uid, told) in [("first", 1), ("first", 1), ("second", 2), ("first", 2)] {
        engine.dispatcher.reconcilers.kyma.notifier.notify("harbour", None, &of(uid)).await;
        assert_eq!(posts(&heard), told, "{uid}");
    }
}
