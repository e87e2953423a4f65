//! See `tidewatch_fuzz::component_descriptor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::component_descriptor(data));
