//! Owns: the tuned constants of this floor: how far a stack is read, and what of it is kept.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/guide/profile.md

/// Calls of a stack that are kept. Half, twice: not tried.
pub(crate) const FRAMES: usize = 16;
/// Words of a stack that are read at once: more than cairn's own frames take. Half, twice: not tried.
pub(crate) const STACK_WORDS: usize = 192;
/// Words of it that cairn's own frames take, mostly. Half, twice: not tried.
pub(crate) const OWN_WORDS: usize = 80;
/// Callers of `FRAMES` that are listed if nobody knows which of them are cairn's own. Half, twice: not tried.
pub(crate) const OWN_CALLERS_MAX: usize = 6;
/// A frame of more bytes is none. Half, twice: not tried.
pub(crate) const FRAME_MAX: usize = 1 << 20;

/// Rules of unwinding that are kept: 32 KiB, of which only what is used becomes resident. Half, twice: g++ with a sample in
/// every 16 KiB takes as long.
pub(crate) const RULES: usize = 1 << 12;
/// Calls inside cairn that are walked through on the way to the program's. With half of it all stacks of g++ come out of
/// cairn, too; twice costs as much.
pub(crate) const OWN_CALLS: usize = 24;
