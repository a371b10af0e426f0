//! Owns: the tuned constant of this floor: of which spans the hardened build looks at blocks one by one.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of it are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks what half and twice of it do.
//! Story: docs/design/policy.md

/// Hardened: a span of one slice that has fewer blocks is looked at block by block; longer ones always are.
/// Half, twice: not tried.
pub(crate) const FEW_BLOCKS: u16 = 32;
