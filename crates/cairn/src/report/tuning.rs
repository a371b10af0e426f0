//! Owns: the tuned constant of this floor: how much statistics look at in one call.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of it are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks what half and twice of it do.
//! Story: docs/guide/statistics.md

/// Pages looked at in one call: 8 MiB, about 50 microseconds. Half, twice: not tried.
pub(crate) const EYES_PAGES: usize = 2048;
