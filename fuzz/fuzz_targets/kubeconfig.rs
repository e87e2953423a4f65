//! See `tidewatch_fuzz::kubeconfig`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewatch_fuzz::kubeconfig(data));
