//! Recorded traces, whole files and what is in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::check_trace(bytes));
