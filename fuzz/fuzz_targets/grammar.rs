//! See `caracal_fuzz::grammar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::grammar(data));
