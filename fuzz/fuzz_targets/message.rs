//! See `caracal_fuzz::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::message(data));
