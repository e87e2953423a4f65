use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tidewatch_delivery::{
    Tick,
    outbox::{Applied, Key, Observation, Outbox},
};
use tidewatch_wire::{
    Epoch, Route, Seq, SessionId, header_fields, limits,
    v3::{Change, Request, Response},
};

use crate::{assert_round_trip, headers::Headers, request::written};

/// Most that the agent reads of an answer, in bytes.
const MAX_ANSWER: usize = 4 * limits::V3_BODY_BYTES;

/// An answer to `POST /v3/events`, with the header before it that says a part of it, and what an agent's dirty set makes of it.
///
/// # Panics
/// If a promise is broken.
pub fn v3_response(data: &[u8]) {
    let (headers, data) = Headers::split(data);
    if data.len() > MAX_ANSWER {
        return;
    }
    let Ok(response) = serde_json::from_slice::<Response>(data) else { return };
    assert_round_trip(&response);
    assert!(response.unknown.range_count() <= limits::SEQ_RANGES);
    let session = header_fields::session(headers.get(header_fields::SESSION));
    assert!(session.is_none_or(|session| !session.is_nil()));
    // The epoch that its request had in a header: as in a production run, whatever the answer is to.
    let asked = session.map(|_| Epoch::from_bits(5));
    let Some(response) = header_fields::complete(response.clone(), asked, session) else {
        assert!(response.session.is_nil() && session.is_none(), "only an answer without a session is none");
        return;
    };
    assert!(!response.session.is_nil());
    if response.epoch.is_nil() {
        // To a request that named its epoch in the body: none that the agent has.
        return;
    }

    let (mut another, _) = outbox(Epoch::from_bits(u128::MAX));
    if response.epoch != another.epoch() {
        let before = another.clone();
        let applied = another.answered(&response, Tick::ZERO);
        assert_eq!(applied, Applied { ignored: true, ..Applied::default() });
        assert_eq!(another, before, "an answer for another epoch changes nothing");
    }
    let (mut outbox, sent) = outbox(response.epoch);
    answered(&mut outbox, &sent, &response);
    // The same answer again, and after another session's.
    let before = outbox.clone();
    let applied = outbox.answered(&response, Tick::from_secs(3));
    assert!(applied.released.is_empty() && !applied.new_session);
    assert_eq!(outbox, before, "a repeated answer changes nothing");
    if let Some((request, _)) = outbox.next_batch(Tick::from_secs(4)) {
        assert_eq!(request.session, Some(response.session));
        accepted(&request);
    }
    let mut other = response.clone();
    other.session = SessionId::from_bits(u128::MAX);
    let news = other.session != response.session;
    let applied = outbox.answered(&other, Tick::from_secs(5));
    assert_eq!(applied.new_session, news);
    assert!(!news || outbox.dirty().unsent() == outbox.dirty().len(), "another session is told all again");
}

fn answered(outbox: &mut Outbox, sent: &BTreeMap<Seq, Vec<Route>>, response: &Response) {
    let before = outbox.clone();
    let applied = outbox.answered(response, Tick::from_secs(2));
    assert!(!applied.ignored && !applied.new_session);
    assert_eq!(applied.retry_after, response.retry_after_ms.map(Tick::from_millis));

    let said = |route: &Route, seq: Seq| {
        let mut acks = response.acks.iter().filter(|ack| ack.route == *route);
        acks.any(|ack| ack.done.contains(seq) || ack.refused.contains(seq))
    };
    let released: BTreeSet<Seq> = applied.released.iter().map(|released| released.seq).collect();
    assert_eq!(released.len(), applied.released.len(), "each key is let go once");
    for (&seq, routes) in sent {
        let all = routes.iter().all(|route| said(route, seq));
        assert_eq!(released.contains(&seq), all, "let go when, and only when, every route has spoken: {seq}");
    }
    assert!(released.iter().all(|seq| sent.contains_key(seq)), "only what is dirty is let go");
    assert_eq!(outbox.dirty().len(), before.dirty().len() - released.len());
    assert!(applied.to_resend <= outbox.dirty().len() && outbox.dirty().unsent() <= outbox.dirty().len());
    accepted(&outbox.heartbeat());
}

/// A receiver must be able to read it.
fn accepted(request: &Request<'_>) {
    assert_eq!(request.check(), Ok(()));
    assert!(written(request).len() <= limits::V3_BODY_BYTES);
}

/// A dirty set with 8 keys under 3 watches and numbers from 1 to 9: two of one key, some not sent. With it: the
/// numbers that are dirty and who must let them go.
fn outbox(epoch: Epoch) -> (Outbox, BTreeMap<Seq, Vec<Route>>) {
    let (engine, other) = (Route::engine(), Route::manager("other"));
    let watches = [
        ("ours", vec![engine.clone()]),
        ("theirs", vec![other.clone()]),
        ("both", vec![engine.clone(), other.clone()]),
    ];
    let routes = watches.iter().map(|(watch, routes)| ((*watch).to_owned(), routes.clone())).collect();
    let mut outbox = Outbox::new(epoch, routes);
    let mut sent = BTreeMap::new();
    // The key of number 1 changes again as number 7, when the first six were sent.
    for (place, key) in [0, 1, 2, 3, 4, 5, 0, 6, 7].into_iter().enumerate() {
        if place == 6 {
            outbox.next_batch(Tick::from_secs(1));
        }
        let (watch, routes) = &watches[key % watches.len()];
        outbox.observe(observation(watch, key), Tick::from_millis(key as u64));
        sent.insert(Seq(place as u64 + 1), routes.clone());
    }
    sent.remove(&Seq(1));
    (outbox, sent)
}

fn observation(watch: &str, key: usize) -> Observation {
    Observation {
        key: Key { watch: watch.into(), namespace: "n".into(), name: format!("object-{key}").into() },
        group: "".into(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
        change: Change::Changed,
        listed: false,
        at: Timestamp::UNIX_EPOCH,
    }
}
