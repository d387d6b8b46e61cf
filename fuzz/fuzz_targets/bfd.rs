//! See `caracal_fuzz::bfd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::bfd(data));
