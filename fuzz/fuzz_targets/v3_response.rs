//! See `tidewatch_fuzz::v3_response`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::v3_response(data));
