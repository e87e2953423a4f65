//! See `tidewatch_fuzz::xfcc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::xfcc(data));
