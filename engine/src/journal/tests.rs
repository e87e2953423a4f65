use std::{collections::BTreeMap, path::Path};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use kube::client::Body;
use serde_json::json;
use tower::{Layer as _, Service as _, ServiceExt as _};

use super::*;

fn start() -> Start {
    Start::new("test", "1", Timestamp::UNIX_EPOCH, &EngineConfig::default())
}

fn lines(path: &Path) -> Vec<Stamped> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn turn(work: u64) -> Line {
    Line::Turn { work, place: "here".to_owned() }
}

#[tokio::test]
async fn a_record_ends_at_its_limit_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    std::fs::write(&path, "of yesterday").unwrap();
    let (recorder, writer, _recording) = Recorder::create(&path, 2000, start()).unwrap();
    for work in 0..100 {
        recorder.note(turn(work));
    }
    writer.run().await;
    assert!(!recorder.is_open() && std::fs::metadata(&path).unwrap().len() <= 2000);
    let all = lines(&path);
    assert!(matches!(all.first().unwrap().line, Line::Start(_)));
    assert_eq!(all.last().unwrap().line, Line::Full { limit: 2000 });
    assert!(all.len() > 10);
    assert_eq!(std::fs::read_to_string(folder.path().join("record.old")).unwrap(), "of yesterday");
}

#[tokio::test]
async fn what_comes_faster_than_it_is_written_is_a_gap_and_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let (recorder, writer, recording) = Recorder::create(&path, 1 << 30, start()).unwrap();
    let all = 20_000;
    for work in 0..all {
        recorder.note(turn(work));
    }
    let written = tokio::spawn(writer.run());
    while recorder.waits() {
        tokio::task::yield_now().await;
    }
    recorder.note(turn(all));
    drop(recording);
    written.await.unwrap();
    let lines = lines(&path);
    let gaps: u64 = lines.iter().map(|l| if let Line::Gap { lines } = l.line { lines } else { 0 }).sum();
    let turns = lines.iter().filter(|line| matches!(line.line, Line::Turn { .. })).count() as u64;
    assert!(gaps > 0 && gaps + turns == all + 1, "{gaps} {turns}");
    assert_eq!(lines.last().unwrap().line, Line::Closed);
}

#[tokio::test]
async fn calls_of_reconciles_are_recorded_without_secrets_and_arrive_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let (recorder, writer, recording) = Recorder::create(&path, 1 << 20, start()).unwrap();
    let journal = Journal::recording(recorder);
    let answer = json!({"kind": "Secret", "data": {"config": "aHVudGVyMg=="}}).to_string();
    let sent = answer.clone();
    let server = tower::service_fn(move |_: Request<Body>| {
        let answer = answer.clone();
        async move { Ok::<_, tower::BoxError>(Response::new(Full::<bytes::Bytes>::from(answer))) }
    });
    let mut client = journal.tap("kcp").layer(server);
    let mut call = |data: &str| {
        let body = json!({"kind": "Secret", "data": {"config": data}}).to_string();
        let request =
            Request::post("/api/v1/namespaces/a/secrets?x=1").header("authorization", "Bearer hunter2");
        let answer = client.call(request.body(Body::from(body.into_bytes())).unwrap());
        async move {
            #[expect(clippy::disallowed_methods, reason = "the body is limited")]
            let body = Limited::new(answer.await.unwrap().into_body(), 1000).collect().await.unwrap();
            body.to_bytes()
        }
    };
    let (first, second, nobodys) = (call("aHVudGVyMg=="), call("b3RoZXI="), call(""));
    assert_eq!(within(Some(Trace::new(7)), first).await, sent.as_bytes());
    within(Some(Trace::new(7)), second).await;
    assert_eq!(nobodys.await, sent.as_bytes(), "of no reconcile: it passes");
    drop(recording);
    writer.run().await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    let asks: Vec<Ask> = lines(&path)
        .into_iter()
        .filter_map(|l| if let Line::Ask(ask) = l.line { Some(ask) } else { None })
        .collect();
    let [first, second] = &asks[..] else { panic!("{asks:?}") };
    assert_eq!((first.work, first.path.as_str()), (7, "/api/v1/namespaces/a/secrets?x=1"));
    assert!(first.body.is_some() && first.body == second.body, "only the data differs");
    let answers = lines(&path).into_iter().filter(|l| matches!(l.line, Line::Answer { .. })).count();
    assert_eq!(answers, 2);
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let (recorder, writer, recording) = Recorder::create(&path, 1 << 20, start()).unwrap();
    let server = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Full<bytes::Bytes>>, tower::BoxError>>()
    });
    let client = Journal::recording(recorder).tap("kcp").layer(server);
    let call = client.oneshot(Request::get("/x").body(Body::empty()).unwrap());
    let call = tokio::time::timeout(Duration::from_millis(1), call);
    assert!(within(Some(Trace::new(1)), call).await.is_err());
    drop(recording);
    writer.run().await;
    let cut = |line: &Stamped| matches!(line.line, Line::Answer { call: 1, answer: Answer::Cut });
    assert!(lines(&path).iter().any(cut));
}

#[test]
fn each_line_is_read_as_it_was_written() {
    let object = json!({"metadata": {"name": "a"}});
    let event = KcpEvent {
        kind: "Kyma".into(),
        event: KcpChange::InitApply,
        name: "a".into(),
        object: Some(object.clone()),
        error: None,
    };
    let told = RuntimeEvent { runtime: "r".into(), kind: "Kyma".into(), seq: 7, ..RuntimeEvent::default() };
    let ask = Ask {
        call: 1,
        work: 2,
        to: "kcp".into(),
        method: "GET".into(),
        path: "/x".into(),
        body: Some("00".into()),
    };
    let key = WorkName { kind: "Kyma".into(), kyma: "k".into(), name: String::new() };
    let answer = Answer::Status { status: 200, body: Content::Json(object) };
    let all = [
        Line::Start(Box::new(start())),
        Line::Kcp(event),
        Line::Event(Box::new(told)),
        Line::Ask(ask),
        Line::Answer { call: 1, answer },
        Line::Answer { call: 1, answer: Answer::Throttled { retry_after: None } },
        Line::Begin {
            work: 2,
            key,
            class: "retry".into(),
            causes: vec![json!({"type": "start"})],
            count: 1,
            repeats: 2,
        },
        Line::End {
            work: 2,
            outcome: "done".into(),
            message: String::new(),
            next: Some(0.5),
            clock: vec![Timestamp::UNIX_EPOCH],
        },
        Line::Closed,
    ];
    for line in all {
        let stamped = Stamped { at: 1.234, line };
        let text = serde_json::to_string(&stamped).unwrap();
        assert_eq!(serde_json::from_str::<Stamped>(&text).unwrap(), stamped, "{text}");
    }
}

#[test]
fn causes_and_keys_come_back() {
    let key = WorkKey::Manifest { kyma: "k".into(), name: "m".into() };
    assert_eq!(WorkName::from(&key).key(), Some(key.clone()));
    for cause in [
        Cause::Start,
        Cause::retry(&key, "timeout"),
        Cause::Kcp { object: "o".into(), change: "changed" },
        Cause::Mode { mode: "live" },
        Cause::Due { at: Timestamp::UNIX_EPOCH },
        Cause::Event { epoch: "e".into(), seq: 1, watch: "w".into(), object: "o".into() },
    ] {
        let value = serde_json::to_value(&cause).unwrap();
        assert_eq!(serde_json::from_value::<Cause>(value).unwrap(), cause);
    }
    let words: BTreeMap<usize, &str> = (0..3).map(|n| (n, word("one"))).collect();
    assert!(words.values().all(|word| *word == "one"));
}
