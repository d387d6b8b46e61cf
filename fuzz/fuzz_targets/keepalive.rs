//! See `caracal_fuzz::keepalive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::keepalive(data));
