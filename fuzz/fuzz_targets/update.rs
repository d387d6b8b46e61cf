//! See `caracal_fuzz::update`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::update(data));
