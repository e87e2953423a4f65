//! See `tidewatch_fuzz::seqset`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::seqset(data));
