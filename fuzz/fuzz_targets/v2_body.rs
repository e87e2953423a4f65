//! See `tidewatch_fuzz::v2_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::v2_body(data));
