//! See `caracal_fuzz::refresh`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| caracal_fuzz::refresh(data));
