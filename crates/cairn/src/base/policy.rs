//! Owns: what the hardened build does otherwise than the default one.
//! Idea: a type that is chosen here: both always compile, and no build has a trace of the other one's.
//! Never: decides at run time.
//! Threads: any; holds nothing.
//! Checked: the unit tests run in both builds; tests/attacks.rs of the C layer.
//! Story: docs/design/policy.md

/// Whether this is the hardened build: `--features hardened`.
pub(crate) const HARDENED: bool = cfg!(feature = "hardened");

/// Bytes of a block that the program does not get.
pub(crate) const CANARY_BYTES: usize = in_hardened(0, 8);

/// How many kinds of objects can be told apart: a block of one is no block of another one later.
pub(crate) const PARTITIONS: usize = 16;

/// What a constant is in the default build, and in the hardened one.
pub(crate) const fn in_hardened<T: Copy>(default: T, hardened: T) -> T {
    if HARDENED { hardened } else { default }
}

/// What a type is in the default build, and in the hardened one.
pub(crate) type InHardened<D, H> = <Build<HARDENED> as Choice>::Of<D, H>;

/// A build: the hardened one, or the default one.
pub(crate) struct Build<const IS_HARDENED: bool>;

/// Which of two types a build has.
pub(crate) trait Choice {
    /// The first in the default build, the second in the hardened one.
    type Of<D, H>;
}

impl Choice for Build<false> {
    type Of<D, H> = D;
}

impl Choice for Build<true> {
    type Of<D, H> = H;
}

/// What a link is combined with beside the key where it stands at `place`. Hardened, that is the place: else two
/// equal links show that they are, and one can be copied elsewhere.
#[inline(always)]
pub(crate) fn salt(place: usize) -> usize {
    if HARDENED { place.rotate_left(17) } else { 0 }
}

/// The signature of a link that stands at `place`. The rotation between the two products keeps a change of some
/// bits from showing in those bits alone.
#[inline(always)]
pub(crate) fn signature(link: usize, place: usize, key: usize) -> usize {
    let odd = key << 1 | 1;
    let mixed = (link.rotate_left(24) ^ place ^ key.rotate_left(32)).wrapping_mul(odd);
    (mixed.rotate_left(32) ^ key).wrapping_mul(odd)
}
