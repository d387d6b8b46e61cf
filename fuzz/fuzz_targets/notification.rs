//! See `caracal_fuzz::notification`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::notification(data));
