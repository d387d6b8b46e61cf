//! See `caracal_fuzz::selector`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::selector(data));
