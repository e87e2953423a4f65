//! See `tidewatch_fuzz::signing_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::signing_request(data));
