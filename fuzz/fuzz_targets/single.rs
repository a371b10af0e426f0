//! Programs of one thread.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| cairn_fuzz::single(program));
