//! Owns: what the hardened build does otherwise than the default one.
//! Idea: a constant in ordinary `if`s: both sides always compile, and the default build has no trace of it.
//! Never: decides at run time.
//! Threads: any; holds nothing.
//! Checked: the unit tests of heaps and spans run in both builds.
//! Story: docs/design/policy.md

/// Whether this is the hardened build: `--features hardened`.
pub(crate) const HARDENED: bool = cfg!(feature = "hardened");

/// What a link is combined with beside the key where it stands at `place`. Hardened, that is the place: else two
/// equal links show that they are, and one can be copied elsewhere.
#[inline(always)]
pub(crate) fn salt(place: usize) -> usize {
    if HARDENED { place.rotate_left(17) } else { 0 }
}
