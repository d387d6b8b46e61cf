//! See `caracal_fuzz::open`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::open(data));
