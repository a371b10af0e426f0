//! Owns: the tuned constants of this floor: how much statistics look at in one call.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of it are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks what half and twice of it do.
//! Story: docs/guide/statistics.md

/// Pages looked at in one call: 8 MiB, about 50 microseconds. Half, twice: not tried.
pub(crate) const EYES_PAGES: usize = 2048;

/// Sites for which live samples are gone through at once: 2 KiB of stack. With half of it a profile of 65,536 sites and
/// 262,144 live samples goes through them 512 times, with twice of it 128 times.
pub(crate) const PINNED_SITES: usize = 256;
