//! See `tidewatch_fuzz::watch_set`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::watch_set(data));
