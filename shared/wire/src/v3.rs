//! Sequenced batches and acknowledgements: `POST /v3/events`.
//!
//! A request has changes and awaited numbers. The answer has the numbers done, refused, or unknown to the session (to
//! resend). Both are idempotent: they may be lost, repeated or reordered.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Epoch, Route, Seq, SeqSet, SessionId, limits};

/// Path of the endpoint.
pub const PATH: &str = "/v3/events";

/// Watch name of the agent's canary object. Its arrival proves the path.
pub const CANARY: &str = "tidewatch-canary";

/// A batch, a poll, or an empty heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// The agent's run. Nil if in a header ([`header_fields`](crate::header_fields)).
    #[serde(default, skip_serializing_if = "Epoch::is_nil")]
    pub epoch: Epoch,
    /// Receiver session of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Highest [`Response::mark`] of that session.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mark: u64,
    /// Claim of a starting agent, until answered. No event is sent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// Serial that a [`Resume`] may claim: the stored digest covers it, and nothing was observed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<u64>,
    /// State of the watches, with each sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Times from the first unreconciled change to acknowledgement, in milliseconds; at most [`limits::RECONCILED`]. A sample for
    /// metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reconciled_ms: Vec<u32>,
    /// Changes, at most [`limits::V3_EVENTS`].
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event<'a>>,
    /// Sent numbers without acknowledgement, including this request's.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub awaiting: SeqSet,
    /// Whether to delay the answer until an acknowledgement, or [`limits::POLL_SECONDS`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub poll: bool,
}

/// Claim on the digest found at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// Latest receiver session that acknowledged any of it.
    pub session: SessionId,
    /// Run that stored it.
    pub epoch: Epoch,
    /// Last covered number.
    pub serial: u64,
}

/// State of the agent's watches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// [`configuration`] of the active watch configuration, or empty; at most [`limits::CONFIGURATION_BYTES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub configuration: String,
    /// Configured watches that miss changes at present; the first [`limits::WATCHES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<String>,
    /// [`configuration`] of the CA file (PEM) that the agent uses for the receiver, or empty; at most [`limits::CONFIGURATION_BYTES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trust: String,
    /// Identifies the installation of the agent, as its installer gave it; at most [`limits::CONFIGURATION_BYTES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub installation: String,
}

/// A change of an object, without its content. It borrows from the body, since most strings are only compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event<'a> {
    /// Its number.
    pub seq: Seq,
    /// The configured watch.
    #[serde(borrow)]
    pub watch: Cow<'a, str>,
    /// API group; empty for core.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub group: Cow<'a, str>,
    /// Watched API version.
    #[serde(borrow)]
    pub version: Cow<'a, str>,
    /// Kind.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    /// Namespace; empty if cluster-scoped.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub namespace: Cow<'a, str>,
    /// Name; empty only in a [`Change::Resync`].
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub name: Cow<'a, str>,
    /// Uid; empty if unknown (a deletion found by a list).
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub uid: Cow<'a, str>,
    /// Observed resourceVersion, opaque.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub resource_version: Cow<'a, str>,
    /// Observed change.
    pub change: Change,
    /// Part of a full report: lower priority.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed: bool,
    /// Time on the agent's clock.
    pub observed_at: Timestamp,
}

impl Event<'_> {
    /// Converts to owned strings.
    #[must_use]
    pub fn into_owned(self) -> Event<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Event {
            seq: self.seq,
            watch: owned(self.watch),
            group: owned(self.group),
            version: owned(self.version),
            kind: owned(self.kind),
            namespace: owned(self.namespace),
            name: owned(self.name),
            uid: owned(self.uid),
            resource_version: owned(self.resource_version),
            change: self.change,
            listed: self.listed,
            observed_at: self.observed_at,
        }
    }
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// New, changed in a watched part, or newly selected by label.
    Changed,
    /// Deleted, or no longer selected by label.
    Gone,
    /// Any object of the watch may have changed or gone unobserved, so the event has no name.
    Resync,
}

/// Answer of the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// Epoch of the request. Nil if the request had it in a header. Other epochs are ignored.
    #[serde(default, skip_serializing_if = "Epoch::is_nil")]
    pub epoch: Epoch,
    /// The receiver's session. Nil in that case: see [`SESSION`](crate::header_fields::SESSION).
    #[serde(default, skip_serializing_if = "SessionId::is_nil")]
    pub session: SessionId,
    /// Progress of the session recorded in KCP; rises after acknowledgements. A lower record means a restored KCP.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mark: u64,
    /// Verdicts on awaited numbers, per route.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acks: Vec<RouteAck>,
    /// Awaited numbers to resend, unknown to this session.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub unknown: SeqSet,
    /// On overload: delay before the next batch, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Older events and full reports ([`Event::listed`]) take turns. Fresh changes are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<Older>,
    /// Report every object again: the reconciled state is unreliable.
    ///
    /// Repeated until the agent sends this session. An agent obeys once per session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resync: bool,
}

impl Response {
    /// An empty answer.
    #[must_use]
    pub fn new(epoch: Epoch, session: SessionId) -> Self {
        Self {
            epoch,
            session,
            mark: 0,
            acks: Vec::new(),
            unknown: SeqSet::new(),
            retry_after_ms: None,
            older: None,
            resync: false,
        }
    }
}

/// Turn of older events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Older {
    /// Start of the receiver's session, on its clock. Events observed before, on the agent's clock, are older.
    pub than: Timestamp,
    /// Delay, in milliseconds.
    pub after_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Verdicts of one route. Other numbers are held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteAck {
    /// The route.
    pub route: Route,
    /// Numbers with a finished reconcile that observed the change.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub done: SeqSet,
    /// Unwanted changes (unknown watch, not allowed): release them.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub refused: SeqSet,
}

/// Violation of the contract.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// No epoch in body or header.
    #[error("there is no `epoch`")]
    NoEpoch,
    /// More than [`limits::V3_EVENTS`] events.
    #[error("{0} events in one request; send at most {limit}", limit = limits::V3_EVENTS)]
    TooManyEvents(usize),
    /// A string above [`limits::FIELD_BYTES`].
    #[error("event {seq}: `{field}` is longer than {limit} bytes", limit = limits::FIELD_BYTES)]
    FieldTooLong {
        /// Event number.
        seq: Seq,
        /// Field.
        field: &'static str,
    },
    /// A list or string above its limit.
    #[error("`{0}` is longer than the contract allows")]
    TooLong(&'static str),
    /// A resync that names an object.
    #[error("event {0}: a resync names no object")]
    ResyncWithName(Seq),
    /// An event without name, version or kind.
    #[error("event {seq}: `{field}` is empty")]
    FieldEmpty {
        /// Event number.
        seq: Seq,
        /// Field.
        field: &'static str,
    },
}

impl Request<'_> {
    /// An empty request.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            session: None,
            mark: 0,
            resume: None,
            digest: None,
            health: None,
            reconciled_ms: Vec::new(),
            events: Vec::new(),
            awaiting: SeqSet::new(),
            poll: false,
        }
    }

    /// Converts to owned strings.
    #[must_use]
    pub fn into_owned(self) -> Request<'static> {
        let Self { epoch, session, mark, resume, digest, health, reconciled_ms, events, awaiting, poll } =
            self;
        let events = events.into_iter().map(Event::into_owned).collect();
        Request { epoch, session, mark, resume, digest, health, reconciled_ms, events, awaiting, poll }
    }

    /// Checks limits that parsing does not.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.epoch.is_nil() {
            return Err(RequestError::NoEpoch);
        }
        if self.events.len() > limits::V3_EVENTS {
            return Err(RequestError::TooManyEvents(self.events.len()));
        }
        if self.reconciled_ms.len() > limits::RECONCILED {
            return Err(RequestError::TooLong("reconciledMs"));
        }
        if let Some(Health { configuration, blind, trust, installation }) = &self.health {
            if configuration.len() > limits::CONFIGURATION_BYTES {
                return Err(RequestError::TooLong("health.configuration"));
            }
            if trust.len() > limits::CONFIGURATION_BYTES {
                return Err(RequestError::TooLong("health.trust"));
            }
            if installation.len() > limits::CONFIGURATION_BYTES {
                return Err(RequestError::TooLong("health.installation"));
            }
            if blind.len() > limits::WATCHES || blind.iter().any(|name| name.len() > limits::FIELD_BYTES) {
                return Err(RequestError::TooLong("health.blind"));
            }
        }
        for event in &self.events {
            let resync = event.change == Change::Resync;
            if resync && !(event.name.is_empty() && event.namespace.is_empty()) {
                return Err(RequestError::ResyncWithName(event.seq));
            }
            let fields = [
                ("watch", &event.watch, true),
                ("group", &event.group, false),
                ("version", &event.version, true),
                ("kind", &event.kind, true),
                ("namespace", &event.namespace, false),
                ("name", &event.name, !resync),
                ("uid", &event.uid, false),
                ("resourceVersion", &event.resource_version, false),
            ];
            for (field, value, required) in fields {
                if value.len() > limits::FIELD_BYTES {
                    return Err(RequestError::FieldTooLong { seq: event.seq, field });
                }
                if required && value.is_empty() {
                    return Err(RequestError::FieldEmpty { seq: event.seq, field });
                }
            }
        }
        Ok(())
    }
}

/// Hash of a text for [`Health::configuration`] and [`Health::trust`]: 32 hexadecimal digits, stable across processes, not
/// secure.
#[must_use]
pub fn configuration(text: &str) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(name: &str) -> Event<'static> {
        Event {
            seq: Seq(1),
            watch: "kyma".into(),
            group: "operator.kyma-project.io".into(),
            version: "v1beta2".into(),
            kind: "Kyma".into(),
            namespace: "kyma-system".into(),
            name: name.to_owned().into(),
            uid: "".into(),
            resource_version: "7".into(),
            change: Change::Changed,
            listed: false,
            observed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn request(events: Vec<Event<'static>>) -> Request<'static> {
        Request { events, ..Request::new(Epoch::from_bits(1)) }
    }

    #[test]
    fn a_heartbeat_is_small() {
        let text = serde_json::to_string(&request(vec![])).unwrap();
        assert_eq!(text, r#"{"epoch":"00000000-0000-0000-0000-000000000001"}"#);
        assert_eq!(serde_json::from_str::<Request<'_>>(&text).unwrap(), request(vec![]));
    }

    #[test]
    fn a_request_needs_an_epoch() {
        let read = serde_json::from_str::<Request<'_>>("{}").unwrap();
        assert_eq!(read.check(), Err(RequestError::NoEpoch));
        assert_eq!(serde_json::to_string(&read).unwrap(), "{}");
    }

    #[test]
    fn request_limits_are_checked() {
        assert_eq!(request(vec![event("default")]).check(), Ok(()));
        assert_eq!(
            request(vec![event("")]).check(),
            Err(RequestError::FieldEmpty { seq: Seq(1), field: "name" })
        );
        let long = "x".repeat(limits::FIELD_BYTES + 1);
        assert_eq!(
            request(vec![event(&long)]).check(),
            Err(RequestError::FieldTooLong { seq: Seq(1), field: "name" })
        );
        let many = vec![event("a"); limits::V3_EVENTS + 1];
        assert_eq!(request(many).check(), Err(RequestError::TooManyEvents(limits::V3_EVENTS + 1)));
    }

    #[test]
    fn only_a_resync_has_no_name() {
        let nameless = |change, name: &str, namespace: &str| Event {
            change,
            namespace: namespace.to_owned().into(),
            ..event(name)
        };
        assert_eq!(request(vec![nameless(Change::Resync, "", "")]).check(), Ok(()));
        for (name, namespace) in [("default", ""), ("", "kyma-system")] {
            let bad = request(vec![nameless(Change::Resync, name, namespace)]);
            assert_eq!(bad.check(), Err(RequestError::ResyncWithName(Seq(1))));
        }
        assert!(request(vec![nameless(Change::Gone, "", "")]).check().is_err());
        let text = serde_json::to_string(&nameless(Change::Resync, "", "")).unwrap();
        assert!(text.contains(r#""change":"resync""#) && !text.contains("name\""), "{text}");
        assert_eq!(serde_json::from_str::<Event<'_>>(&text).unwrap().change, Change::Resync);
    }

    #[test]
    fn heartbeat_fields_are_limited() {
        let heartbeat = || request(vec![]);
        let health = |configuration: &str, blind: Vec<String>| Request {
            health: Some(Health { configuration: configuration.into(), blind, ..Health::default() }),
            ..heartbeat()
        };
        assert_eq!(
            health(&"c".repeat(limits::CONFIGURATION_BYTES), vec!["w".into(); limits::WATCHES]).check(),
            Ok(())
        );
        for bad in [
            health(&"c".repeat(limits::CONFIGURATION_BYTES + 1), vec![]),
            health("c", vec!["w".into(); limits::WATCHES + 1]),
            health("c", vec!["w".repeat(limits::FIELD_BYTES + 1)]),
            Request {
                health: Some(Health {
                    trust: "t".repeat(limits::CONFIGURATION_BYTES + 1),
                    ..Health::default()
                }),
                ..heartbeat()
            },
            Request { reconciled_ms: vec![1; limits::RECONCILED + 1], ..heartbeat() },
        ] {
            assert!(matches!(bad.check(), Err(RequestError::TooLong(_))));
        }
    }

    #[test]
    fn bodies_of_the_first_versions_are_understood() {
        let epoch = r#""epoch":"00000000-0000-0000-0000-000000000001""#;
        let session = r#""session":"00000000-0000-0000-0000-000000000002""#;
        let text = format!("{{{epoch},{session},\"later\":1}}");
        let request: Request<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!((request.resume, request.digest, request.health), (None, None, None));
        let answer: Response = serde_json::from_str(&format!("{{{epoch},{session}}}")).unwrap();
        assert_eq!(answer, Response::new(Epoch::from_bits(1), SessionId::from_bits(2)));
    }

    /// A neighbour of the next version sends them.
    #[test]
    fn unknown_fields_are_ignored_at_every_level() {
        fn with_unknown_fields(value: &mut Value) {
            match value {
                Value::Object(fields) => {
                    fields.values_mut().for_each(with_unknown_fields);
                    fields.insert("ofTheNextVersion".into(), json!({"nested": [1, null, "text"]}));
                }
                Value::Array(items) => items.iter_mut().for_each(with_unknown_fields),
                _ => {}
            }
        }
        let (epoch, session) = (Epoch::from_bits(1), SessionId::from_bits(2));
        let mut request = Request {
            resume: Some(Resume { session, epoch, serial: 1 }),
            health: Some(Health { trust: "t".into(), installation: "i".into(), ..Health::default() }),
            ..request(vec![event("default")])
        };
        request.awaiting.insert(Seq(1));
        let mut newer = serde_json::to_value(&request).unwrap();
        with_unknown_fields(&mut newer);
        let text = newer.to_string();
        assert_eq!(text.matches("ofTheNextVersion").count(), 4, "{text}");
        assert_eq!(serde_json::from_str::<Request<'_>>(&text).unwrap(), request);

        let done = std::iter::once(Seq(1)).collect();
        let answer = Response {
            acks: vec![RouteAck { route: Route::engine(), done, refused: SeqSet::new() }],
            older: Some(Older { than: Timestamp::UNIX_EPOCH, after_ms: 1 }),
            ..Response::new(epoch, session)
        };
        let mut newer = serde_json::to_value(&answer).unwrap();
        with_unknown_fields(&mut newer);
        assert_eq!(serde_json::from_value::<Response>(newer).unwrap(), answer);
    }

    #[test]
    fn a_full_batch_of_the_longest_names_fits_the_body_limit() {
        let mut longest = event(&"n".repeat(253));
        longest.namespace = "s".repeat(63).into();
        longest.uid = "u".repeat(36).into();
        longest.watch = "w".repeat(63).into();
        longest.group = "g".repeat(100).into();
        let full = Request {
            reconciled_ms: vec![u32::MAX; limits::RECONCILED],
            health: Some(Health {
                configuration: "c".repeat(limits::CONFIGURATION_BYTES),
                blind: vec!["w".repeat(63); limits::WATCHES],
                trust: "t".repeat(limits::CONFIGURATION_BYTES),
                installation: "i".repeat(limits::CONFIGURATION_BYTES),
            }),
            ..request(vec![longest; limits::V3_EVENTS])
        };
        let body = serde_json::to_vec(&full).unwrap();
        assert!(body.len() < limits::V3_BODY_BYTES, "{} bytes", body.len());
    }
}
