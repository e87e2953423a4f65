//! See `tidewatch_fuzz::client_certificate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::client_certificate(data));
