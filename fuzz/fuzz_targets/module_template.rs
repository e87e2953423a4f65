//! See `tidewatch_fuzz::module_template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::module_template(data));
