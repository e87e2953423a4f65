//! Limits of the contract. A sender within them is never refused for size.

/// Largest v2 body, in bytes (the Go listener's limit).
pub const V2_BODY_BYTES: usize = 16 * 1024;
/// Largest v3 request body, in bytes.
pub const V3_BODY_BYTES: usize = 1024 * 1024;
/// Most events in a v3 request.
///
/// Together with [`SEQ_RANGES`], 1,000 events of longest names can exceed [`V3_BODY_BYTES`]. So a sender also checks
/// [`crate::v3::Request::json_bound`].
pub const V3_EVENTS: usize = 1_000;
/// Most ranges in a [`crate::SeqSet`].
pub const SEQ_RANGES: usize = 20_000;
/// Longest string in an event, in bytes. Kubernetes names have at most 253 characters.
pub const FIELD_BYTES: usize = 512;
/// Longest poll, in seconds.
pub const POLL_SECONDS: u64 = 25;
/// Longest name of a watch configuration, in bytes.
pub const CONFIGURATION_BYTES: usize = 64;
/// Most blind watches in a request.
pub const WATCHES: usize = 64;
/// Most reconcile times in a request.
pub const RECONCILED: usize = 256;
