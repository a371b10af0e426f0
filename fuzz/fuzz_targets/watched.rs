//! Programs of several threads, while those who watch allocations come and go.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| cairn_fuzz::watched(program));
