//! See `tidewatch_fuzz::agent_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::agent_config(data));
