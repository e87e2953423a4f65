use std::collections::BTreeSet;

use tidewatch_delivery::ledger::{Intake, Ledger, Outcome};
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    header_fields::HeaderFields,
    limits,
    v3::{Request, Response},
};

use crate::{
    assert_message, assert_round_trip,
    headers::Headers,
    sets::{disjoint, within},
};

/// Ledgers of these sizes are told: one that is full at once, and one as large as the listener's.
const CAPACITIES: [usize; 2] = [4, 20_000];

/// A body of `POST /v3/events`, with the headers before it that say a part of it, and what a receiver's ledger makes of it.
///
/// # Panics
/// If a promise is broken.
pub fn v3_request(data: &[u8]) {
    let (headers, data) = Headers::split(data);
    if data.len() > limits::V3_BODY_BYTES {
        return;
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let header_fields = match HeaderFields::read(|name| headers.get(name)) {
        Ok(header_fields) => header_fields,
        Err(error) => return assert_message(&error.to_string()),
    };
    let Ok(mut request) = serde_json::from_str::<Request<'_>>(text) else { return };
    given(&mut request, header_fields);
    assert_eq!(request.clone().into_owned(), request, "what is kept is what was read");
    written(&request);
    assert!(request.awaiting.range_count() <= limits::SEQ_RANGES);
    if let Err(error) = request.check() {
        return assert_message(&error.to_string());
    }
    assert!(request.events.len() <= limits::V3_EVENTS);
    for event in &request.events {
        let fields = [&event.watch, &event.group, &event.version, &event.kind, &event.namespace, &event.name];
        assert!(fields.iter().all(|field| field.len() <= limits::FIELD_BYTES));
        assert!(event.uid.len().max(event.resource_version.len()) <= limits::FIELD_BYTES);
    }
    for capacity in CAPACITIES {
        tell(&request, capacity);
    }
}

/// Gives a request what its headers say, as the receiver does, and sends it again as an agent does.
fn given(request: &mut Request<'_>, header_fields: HeaderFields) {
    let body = request.clone();
    header_fields.clone().give(request);
    assert!(body.epoch.is_nil() || request.epoch == body.epoch, "a body comes before its headers");
    assert!(body.session.is_none() || request.session == body.session);
    let configuration = |of: &Request<'_>| of.health.as_ref().map(|health| health.configuration.clone());
    let said = configuration(&body).filter(|text| !text.is_empty()).or(header_fields.configuration);
    assert_eq!(configuration(request).filter(|text| !text.is_empty()), said.filter(|text| !text.is_empty()));
    let rest = |of: &Request<'_>| Request {
        epoch: Epoch::default(),
        session: None,
        health: None,
        ..of.clone().into_owned()
    };
    assert_eq!(rest(request), rest(&body), "headers say nothing else");

    let mut brief = request.clone();
    let taken = HeaderFields::take(&mut brief);
    let lines: Vec<_> = taken.headers().collect();
    assert!(lines.iter().all(|(_, value)| value.bytes().all(|byte| byte.is_ascii_graphic())));
    let value = |name| lines.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes());
    let read = HeaderFields::read(value);
    assert_eq!(read.as_ref(), Ok(&taken), "what was written into headers is read from them");
    let before = brief.clone();
    read.unwrap_or_default().give(&mut brief);
    assert_eq!(brief, *request, "headers and body together say the same, whichever says what");
    written(&before);
}

/// A request as it is sent, which is read as the same.
pub(crate) fn written(request: &Request<'_>) -> Vec<u8> {
    let written = serde_json::to_vec(request);
    assert!(written.is_ok(), "what was read can be written");
    let written = written.unwrap_or_default();
    let read = serde_json::from_slice::<Request<'_>>(&written);
    assert!(read.is_ok_and(|read| read == *request), "what was written is read as the same");
    written
}

fn tell(request: &Request<'_>, capacity: usize) {
    let session = SessionId::from_bits(7);
    let mut ledger = Ledger::new(session, capacity);
    let fresh = receive(&mut ledger, request, capacity);
    assert!(request.events.is_empty() || !fresh.is_empty(), "an empty ledger takes something");

    // Each event meets another fate; the first of them go to two routes.
    let routes = [Route::engine(), Route::manager("other")];
    for (place, &seq) in fresh.iter().enumerate() {
        for route in routes.iter().take(1 + place % 2) {
            let intake = [Intake::Held, Intake::Done, Intake::Held, Intake::Refused][place % 4];
            ledger.route(request.epoch, seq, route.clone(), intake);
        }
    }
    let response = answer(&mut ledger, request);
    assert!(fresh.iter().all(|&seq| !response.unknown.contains(seq)), "what was just told is known");

    let mut dropped = BTreeSet::new();
    for (place, &seq) in fresh.iter().enumerate().filter(|(place, _)| place % 3 != 0) {
        let outcome = [Outcome::Done, Outcome::Refused, Outcome::Dropped][place % 3];
        for route in &routes {
            ledger.settle(request.epoch, seq, route, outcome);
        }
        if !ledger.knows(request.epoch, seq) {
            assert_eq!(outcome, Outcome::Dropped, "only dropped work is forgotten");
            dropped.insert(seq);
        }
    }
    let response = answer(&mut ledger, request);
    for &seq in &dropped {
        assert_eq!(
            response.unknown.contains(seq),
            request.awaiting.contains(seq),
            "dropped work is asked for"
        );
    }

    // The same once more: only what is not known is new.
    let known: BTreeSet<Seq> = fresh
        .iter()
        .copied()
        .filter(|&seq| request.awaiting.contains(seq) && ledger.knows(request.epoch, seq))
        .collect();
    let again = receive(&mut ledger, request, capacity);
    assert!(again.iter().all(|seq| !known.contains(seq)), "a repeated request repeats no work");
    answer(&mut ledger, request);

    // Nothing is awaited any more, and other epochs come: what was told does not stay for ever.
    for bits in 1..=3 {
        let other = Request {
            epoch: Epoch::from_bits(bits),
            events: request.events.iter().take(8).cloned().collect(),
            ..request.clone()
        };
        receive(&mut ledger, &other, capacity);
        answer(&mut ledger, &other);
    }
    let nothing = Request { events: Vec::new(), awaiting: SeqSet::new(), ..request.clone() };
    assert!(receive(&mut ledger, &nothing, capacity).is_empty());
    let response = answer(&mut ledger, &nothing);
    assert!(response.acks.is_empty() && response.unknown.is_empty());
}

/// Tells the ledger and returns the numbers that are new to it.
fn receive(ledger: &mut Ledger, request: &Request<'_>, capacity: usize) -> Vec<Seq> {
    let received = ledger.receive(request);
    assert!(received.fresh.is_sorted_by(|a, b| a < b), "each event once, in order");
    let fresh: Vec<Seq> =
        received.fresh.iter().filter_map(|&index| request.events.get(index)).map(|e| e.seq).collect();
    assert_eq!(fresh.len(), received.fresh.len(), "only events of the request");
    assert_eq!(fresh.iter().collect::<BTreeSet<_>>().len(), fresh.len(), "each number once");
    assert!(fresh.len() <= capacity);
    assert!(fresh.iter().all(|&seq| ledger.knows(request.epoch, seq)));
    let all = request.events.iter().all(|event| ledger.knows(request.epoch, event.seq));
    assert_eq!(all, !received.overloaded, "what does not fit is said");
    // Two epochs are remembered.
    assert!(ledger.held() <= 2 * capacity);
    fresh
}

fn answer(ledger: &mut Ledger, request: &Request<'_>) -> Response {
    let awaiting = &request.awaiting;
    let response = ledger.answer(request.epoch, awaiting);
    let news = ledger.has_changes(request.epoch, awaiting);
    assert_eq!(news, !(response.acks.is_empty() && response.unknown.is_empty()));
    assert_eq!(response.epoch, request.epoch);
    assert!(within(&response.unknown, awaiting), "only what is awaited is asked for");
    for ack in &response.acks {
        for verdict in [&ack.done, &ack.refused] {
            assert!(within(verdict, awaiting), "only what is awaited is acknowledged");
            assert!(disjoint(verdict, &response.unknown), "what is unknown has no verdict");
        }
        assert!(disjoint(&ack.done, &ack.refused), "one verdict for each number");
    }
    // The agent must be able to read it.
    let written = assert_round_trip(&response);
    assert!(written.len() <= 4 * limits::V3_BODY_BYTES);
    response
}
