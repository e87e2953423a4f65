//! Limits that both ends keep. They are part of the contract: a sender that stays within them is
//! never refused for size.

/// Largest body of a v2 event, in bytes (the Go listener's limit).
pub const V2_BODY_BYTES: usize = 16 * 1024;
/// Largest body of a v3 request, in bytes.
pub const V3_BODY_BYTES: usize = 1024 * 1024;
/// Most events in one v3 request. 1,000 events of the longest legal names stay below [`V3_BODY_BYTES`]; with
/// [`SEQ_RANGES`] beside them they need not, so a sender looks at the bytes as well ([`crate::v3::Request::json_bound`]).
pub const V3_EVENTS: usize = 1_000;
/// Most ranges in one [`crate::SeqSet`].
pub const SEQ_RANGES: usize = 20_000;
/// Longest accepted string in an event (a namespace and a name have at most 253 characters each).
pub const FIELD_BYTES: usize = 512;
/// How long the receiver keeps a poll open when there is nothing to say, in seconds.
pub const POLL_SECONDS: u64 = 25;
/// Longest name of a configuration of watches.
pub const CONFIGURATION_BYTES: usize = 64;
/// Most blind watches that one request names.
pub const WATCHES: usize = 64;
/// Most figures of finished reconciles in one request.
pub const RECONCILED: usize = 256;
