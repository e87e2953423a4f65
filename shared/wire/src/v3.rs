//! Sequenced batches and explicit acknowledgements: `POST /v3/events`.
//!
//! A request says what changed and which numbers the agent still waits for; the answer says which of
//! those are done, refused, or not known to this session (and must be sent again). Both directions
//! are idempotent: any request and any answer may be lost, repeated or reordered.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Epoch, Route, Seq, SeqSet, SessionId, limits};

/// The path of the endpoint.
pub const PATH: &str = "/v3/events";

/// The name of the watch on the agent's own canary object. It says nothing about the runtime: its way is the message.
pub const CANARY: &str = "tidewatch-canary";

/// What an agent sends: a batch of changes, a poll for acknowledgements, or both empty as a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// The agent's run. Nil in a body whose headers say it, see [`standing`](crate::standing).
    #[serde(default, skip_serializing_if = "Epoch::is_nil")]
    pub epoch: Epoch,
    /// The receiver session of the last answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The highest [`Response::mark`] of that session.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mark: u64,
    /// What an agent that has just started claims to be reconciled, until that is answered. It sends no
    /// event before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// The digest stored last covers every number up to and including this one, and nothing was observed
    /// since: what a [`Resume`] of this epoch may claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<u64>,
    /// How the agent's watches stand; sent with each sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Of the keys let go since the last request, how long each took from its first unreconciled change, in
    /// milliseconds; at most [`limits::RECONCILED`]. A sample for metrics: a lost request loses its figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reconciled_ms: Vec<u32>,
    /// Changes, at most [`limits::V3_EVENTS`].
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event<'a>>,
    /// Every number that was sent (in this request or before) and is not let go yet.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub awaiting: SeqSet,
    /// Whether to answer only when there is an acknowledgement to give, or after
    /// [`limits::POLL_SECONDS`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub poll: bool,
}

/// What the digest that an agent found at its start says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// The newest receiver session that acknowledged any of it.
    pub session: SessionId,
    /// The run of the agent that stored it.
    pub epoch: Epoch,
    /// The last number it covers.
    pub serial: u64,
}

/// How an agent's watches stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Which configuration of watches is in use: [`configuration`] of the text that is at work, empty without one;
    /// at most [`limits::CONFIGURATION_BYTES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub configuration: String,
    /// The configured watches that would not notice a change now; the first [`limits::WATCHES`] of more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<String>,
}

/// One change of one object. It says that something happened, not what the object looks like now.
///
/// A receiver's is borrowed from the body that it was read from: most of its strings are compared and forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event<'a> {
    /// Its number.
    pub seq: Seq,
    /// The configured watch that saw it.
    #[serde(borrow)]
    pub watch: Cow<'a, str>,
    /// API group, empty for the core group.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub group: Cow<'a, str>,
    /// API version that was watched.
    #[serde(borrow)]
    pub version: Cow<'a, str>,
    /// Kind.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    /// Namespace, empty for cluster-scoped objects.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub namespace: Cow<'a, str>,
    /// Name, empty only in a [`Change::Resync`].
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub name: Cow<'a, str>,
    /// The object's uid, empty if it was not known (a deletion found by a list).
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub uid: Cow<'a, str>,
    /// The resourceVersion at which it was seen, opaque.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub resource_version: Cow<'a, str>,
    /// What the agent saw.
    pub change: Change,
    /// It comes from a report of everything that is there, whether or not anybody has changed it: it can wait until
    /// after what somebody has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed: bool,
    /// When, on the agent's clock.
    pub observed_at: Timestamp,
}

impl Event<'_> {
    /// The same, borrowing nothing.
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

/// What happened to an object, as far as a watch can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// It appeared, or a watched part of it differs, or it entered the label selector.
    Changed,
    /// It is gone, or it left the label selector.
    Gone,
    /// Any object of this watch may have changed or gone while nobody watched, and those that are gone
    /// cannot be named. Such an event has neither namespace nor name.
    Resync,
}

/// What the receiver answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// The epoch this answer is for; an answer for another epoch is ignored. Nil in a body that answers a request with
    /// its epoch in a header.
    #[serde(default, skip_serializing_if = "Epoch::is_nil")]
    pub epoch: Epoch,
    /// The receiver's session. Nil in the same case; the header [`SESSION`](crate::standing::SESSION) says it.
    #[serde(default, skip_serializing_if = "SessionId::is_nil")]
    pub session: SessionId,
    /// How far the control plane remembers this session: a number that is recorded there, and rises after work was
    /// acknowledged. A control plane that knows of a lower one was restored from a backup.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mark: u64,
    /// Verdicts on awaited numbers, per route.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acks: Vec<RouteAck>,
    /// Awaited numbers that this session does not know: send them again.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub unknown: SeqSet,
    /// Overload: wait this long before the next batch, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What is older, or reported only because everything is ([`Event::listed`]), has to wait for its turn. What changes now is
    /// taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<Older>,
    /// Nothing that the agent believes to be reconciled can be relied on: it reports every object again.
    /// Repeated until the agent speaks of this session; an agent obeys it once for each session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resync: bool,
}

impl Response {
    /// An answer that says nothing.
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

/// What has to take turns, and when the next one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Older {
    /// What was observed before this, by the agent's clock: the receiver's session began then, by its own.
    pub than: Timestamp,
    /// Wait this long with it, in milliseconds.
    pub after_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Verdicts of one route. A number in neither set is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteAck {
    /// The route that speaks.
    pub route: Route,
    /// A reconcile that could see the change has finished.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub done: SeqSet,
    /// The change is not wanted (unknown watch, not allowed); let it go.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub refused: SeqSet,
}

/// Why a parsed request breaks the contract.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// Neither the body nor a header names an epoch.
    #[error("there is no `epoch`")]
    NoEpoch,
    /// More than [`limits::V3_EVENTS`] events.
    #[error("{0} events in one request; send at most {limit}", limit = limits::V3_EVENTS)]
    TooManyEvents(usize),
    /// A string is longer than [`limits::FIELD_BYTES`].
    #[error("event {seq}: `{field}` is longer than {limit} bytes", limit = limits::FIELD_BYTES)]
    FieldTooLong {
        /// The event's number.
        seq: Seq,
        /// The field.
        field: &'static str,
    },
    /// A list of the request, or a string in it, is longer than the contract allows.
    #[error("`{0}` is longer than the contract allows")]
    TooLong(&'static str),
    /// An event names an object though its change says that it cannot.
    #[error("event {0}: a resync names no object")]
    ResyncWithName(Seq),
    /// An event has no name, version or kind.
    #[error("event {seq}: `{field}` is empty")]
    FieldEmpty {
        /// The event's number.
        seq: Seq,
        /// The field.
        field: &'static str,
    },
}

impl Request<'_> {
    /// A request that says only that the agent lives.
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

    /// The same, borrowing nothing.
    #[must_use]
    pub fn into_owned(self) -> Request<'static> {
        let Self { epoch, session, mark, resume, digest, health, reconciled_ms, events, awaiting, poll } =
            self;
        let events = events.into_iter().map(Event::into_owned).collect();
        Request { epoch, session, mark, resume, digest, health, reconciled_ms, events, awaiting, poll }
    }

    /// Checks the limits that JSON parsing alone does not.
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
        if let Some(Health { configuration, blind }) = &self.health {
            if configuration.len() > limits::CONFIGURATION_BYTES {
                return Err(RequestError::TooLong("health.configuration"));
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

/// What [`Health::configuration`] says of a `ConfigMap`'s text: 32 hexadecimal digits, the same for the same text in
/// every process. Not a secure hash: it tells what has changed, not who has changed it.
#[must_use]
pub fn configuration(text: &str) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

#[cfg(test)]
mod tests {
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
    fn without_an_epoch_there_is_no_request() {
        let read = serde_json::from_str::<Request<'_>>("{}").unwrap();
        assert_eq!(read.check(), Err(RequestError::NoEpoch));
        assert_eq!(serde_json::to_string(&read).unwrap(), "{}");
    }

    #[test]
    fn limits_are_checked() {
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
    fn only_a_resync_names_nothing() {
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
    fn what_goes_with_a_heartbeat_is_limited() {
        let heartbeat = || request(vec![]);
        let health = |configuration: &str, blind: Vec<String>| Request {
            health: Some(Health { configuration: configuration.into(), blind }),
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
            Request { reconciled_ms: vec![1; limits::RECONCILED + 1], ..heartbeat() },
        ] {
            assert!(matches!(bad.check(), Err(RequestError::TooLong(_))));
        }
    }

    #[test]
    fn bodies_of_the_first_agents_and_receivers_are_understood() {
        let epoch = r#""epoch":"00000000-0000-0000-0000-000000000001""#;
        let session = r#""session":"00000000-0000-0000-0000-000000000002""#;
        let text = format!("{{{epoch},{session},\"later\":1}}");
        let request: Request<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!((request.resume, request.digest, request.health), (None, None, None));
        let answer: Response = serde_json::from_str(&format!("{{{epoch},{session}}}")).unwrap();
        assert_eq!(answer, Response::new(Epoch::from_bits(1), SessionId::from_bits(2)));
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
            }),
            ..request(vec![longest; limits::V3_EVENTS])
        };
        let body = serde_json::to_vec(&full).unwrap();
        assert!(body.len() < limits::V3_BODY_BYTES, "{} bytes", body.len());
    }
}
