//! See `tidewatch_fuzz::watch_event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::watch_event(data));
