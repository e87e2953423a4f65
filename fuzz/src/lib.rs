//! What must hold for every input from outside, as plain functions.
//!
//! Each function takes the bytes that a peer, a runtime or a user has sent, gives them to the code that reads them in
//! production, and asserts what must be true of whatever comes out: no panic, memory bounded by the stated limits, the
//! same value after writing and reading again, answers that the other end accepts. A broken promise is a panic.
//!
//! The programs in `fuzz_targets` hand these functions to libFuzzer; `tests/replay.rs` runs them over the committed corpora.

mod client_certificate;
mod component_descriptor;
mod config;
mod event;
mod headers;
mod kubeconfig;
mod module_template;
mod request;
mod response;
mod sets;
mod signing_request;
mod v2;
mod xfcc;

pub use client_certificate::client_certificate;
pub use component_descriptor::component_descriptor;
pub use config::{agent_config, watch_set};
pub use event::watch_event;
pub use kubeconfig::kubeconfig;
pub use module_template::module_template;
pub use request::v3_request;
pub use response::v3_response;
pub use sets::seqset;
pub use signing_request::signing_request;
pub use v2::v2_body;
pub use xfcc::xfcc;

use client_certificate::certificate_of_pem;

/// Longest message about a broken input, in bytes: it goes into logs, statuses and answers.
const MAX_MESSAGE: usize = 1024;

/// A function that takes an input from outside.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its corpus and of its program too.
pub const TARGETS: [(&str, Target); 13] = [
    ("agent_config", agent_config),
    ("client_certificate", client_certificate),
    ("component_descriptor", component_descriptor),
    ("kubeconfig", kubeconfig),
    ("module_template", module_template),
    ("seqset", seqset),
    ("signing_request", signing_request),
    ("v2_body", v2_body),
    ("v3_request", v3_request),
    ("v3_response", v3_response),
    ("watch_event", watch_event),
    ("watch_set", watch_set),
    ("xfcc", xfcc),
];

/// A message that people read on one line of a log.
fn assert_message(message: &str) {
    assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
    assert!(!message.contains(char::is_control), "a message with control characters: {message:?}");
}

/// Asserts that a value is the same after it was written and read again, and returns what was written.
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
