//! See `caracal_fuzz::attributes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::attributes(data));
