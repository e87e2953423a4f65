//! Invariants of every external input, as plain functions.
//!
//! Each function passes the bytes to the production parser and asserts: no panic, bounded memory, a stable
//! round trip, and answers that the peer accepts. A violation panics.
//!
//! `fuzz_targets` runs them with libFuzzer; `tests/replay.rs` runs them over the committed corpora.

mod config;
mod event;
mod headers;
mod kubeconfig;
mod request;
mod response;
mod sets;
mod v2;
mod xfcc;

pub use config::{agent_config, watch_set};
pub use event::watch_event;
pub use kubeconfig::kubeconfig;
pub use request::v3_request;
pub use response::v3_response;
pub use sets::seqset;
pub use v2::v2_body;
pub use xfcc::xfcc;

/// Limit on an error message's bytes: it goes into logs, statuses and answers.
const MAX_MESSAGE: usize = 1024;

/// A function with an external input.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus and program.
pub const TARGETS: [(&str, Target); 9] = [
    ("agent_config", agent_config),
    ("kubeconfig", kubeconfig),
    ("seqset", seqset),
    ("v2_body", v2_body),
    ("v3_request", v3_request),
    ("v3_response", v3_response),
    ("watch_event", watch_event),
    ("watch_set", watch_set),
    ("xfcc", xfcc),
];

/// Asserts a bounded single-line message.
fn assert_message(message: &str) {
    assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
    assert!(!message.contains(char::is_control), "a message with control characters: {message:?}");
}

/// Asserts a stable round trip and returns the serialised bytes.
fn assert_round_trip<T>(value: &T) -> Vec<u8>
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq,
{
    let written = serde_json::to_vec(value);
    assert!(written.is_ok(), "what was read can be written");
    let written = written.unwrap_or_default();
    let read = serde_json::from_slice::<T>(&written);
    assert!(read.is_ok_and(|read| read == *value), "what was written is read as the same");
    written
}
