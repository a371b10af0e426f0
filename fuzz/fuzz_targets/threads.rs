//! Programs of several threads.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| cairn_fuzz::threads(program));
