//! Sequenced batches and explicit acknowledgements: `POST /v3/events`.
//!
//! A request says what changed and which numbers the agent still waits for; the answer says which of
//! those are done, refused, or not known to this session (and must be sent again). Both directions
//! are idempotent: any request and any answer may be lost, repeated or reordered.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Epoch, Route, Seq, SeqSet, SessionId, limits};

/// The path of the endpoint.
pub const PATH: &str = "/v3/events";

/// What an agent sends: a batch of changes, a poll for acknowledgements, or both empty as a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The agent's run.
    pub epoch: Epoch,
    /// The receiver session of the last answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Changes, at most [`limits::V3_EVENTS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// Every number that was sent (in this request or before) and is not let go yet.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub awaiting: SeqSet,
    /// Whether to answer only when there is an acknowledgement to give, or after
    /// [`limits::POLL_SECONDS`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub poll: bool,
}

/// One change of one object. It says that something happened, not what the object looks like now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its number.
    pub seq: Seq,
    /// The configured watch that saw it.
    pub watch: String,
    /// API group, empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// API version that was watched.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Namespace, empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object's uid, empty if it was not known (a deletion found by a list).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The resourceVersion at which it was seen, opaque.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// What the agent saw.
    pub change: Change,
    /// When, on the agent's clock.
    pub observed_at: Timestamp,
}

/// What happened to an object, as far as a watch can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// It appeared, or a watched part of it differs, or it entered the label selector.
    Changed,
    /// It is gone, or it left the label selector.
    Gone,
}

/// What the receiver answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// The epoch this answer is for; an answer for another epoch is ignored.
    pub epoch: Epoch,
    /// The receiver's session.
    pub session: SessionId,
    /// Verdicts on awaited numbers, per route.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acks: Vec<RouteAck>,
    /// Awaited numbers that this session does not know: send them again.
    #[serde(default, skip_serializing_if = "SeqSet::is_empty")]
    pub unknown: SeqSet,
    /// Overload: wait this long before the next batch, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
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
    /// An event has no name, version or kind.
    #[error("event {seq}: `{field}` is empty")]
    FieldEmpty {
        /// The event's number.
        seq: Seq,
        /// The field.
        field: &'static str,
    },
}

impl Request {
    /// Checks the limits that JSON parsing alone does not.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.events.len() > limits::V3_EVENTS {
            return Err(RequestError::TooManyEvents(self.events.len()));
        }
        for event in &self.events {
            let fields = [
                ("watch", &event.watch, true),
                ("group", &event.group, false),
                ("version", &event.version, true),
                ("kind", &event.kind, true),
                ("namespace", &event.namespace, false),
                ("name", &event.name, true),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Event {
        Event {
            seq: Seq(1),
            watch: "kyma".into(),
            group: "operator.kyma-project.io".into(),
            version: "v1beta2".into(),
            kind: "Kyma".into(),
            namespace: "kyma-system".into(),
            name: name.into(),
            uid: String::new(),
            resource_version: "7".into(),
            change: Change::Changed,
            observed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn request(events: Vec<Event>) -> Request {
        Request { epoch: Epoch::from_bits(1), session: None, events, awaiting: SeqSet::new(), poll: false }
    }

    #[test]
    fn a_heartbeat_is_small() {
        let text = serde_json::to_string(&request(vec![])).unwrap();
        assert_eq!(text, r#"{"epoch":"00000000-0000-0000-0000-000000000001"}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request(vec![]));
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
    fn a_full_batch_of_the_longest_names_fits_the_body_limit() {
        let mut longest = event(&"n".repeat(253));
        longest.namespace = "s".repeat(63);
        longest.uid = "u".repeat(36);
        longest.watch = "w".repeat(63);
        longest.group = "g".repeat(100);
        let body = serde_json::to_vec(&request(vec![longest; limits::V3_EVENTS])).unwrap();
        assert!(body.len() < limits::V3_BODY_BYTES, "{} bytes", body.len());
    }
}
