//! Owns: how near a limit is, and how much of free memory stays then.
//! Idea: what others have of a group is believed a while longer than it is seen: what is untouched now may be touched soon.
//! Never: knows what the limits are, or what counts.
//! Threads: any; holds nothing.
//! Checked: tests/limits/process.rs
//! Story: docs/design/purging.md

// What the guide promises.

/// A limit is near when less than this part of it is left: 7/8 are used.
pub(crate) const NEAR_PART: usize = 8;
/// No free memory stays when less than this part is left: 95 % are used.
const FULL_PART: usize = 20;
/// When less than this part is left, what comes makes as much go, whatever time that takes: an allocation that touches its
/// memory takes longer.
const URGENT_PART: usize = 32;

/// Each purge delay forgets such a part of what the group has had beside, and does not have now. To fill a block of 9 MiB takes
/// several delays while others have the core: where a 16th is forgotten, one process in 40 is ended.
const FORGET_PART: isize = 64;

/// All of the bound of free memory may stay: no limit is near.
pub(crate) const ALL: usize = 64;

/// From how much on a limit of so many bytes is near.
pub(crate) fn near(limit: usize) -> usize {
    limit - limit / NEAR_PART
}

/// How much of its bound free memory may keep, of `ALL`, with so much of a limit used: all until it is near, nothing where it
/// is full but for `FULL_PART`.
#[inline(never)]
pub(crate) fn part(limit: usize, used: usize) -> usize {
    let (near, full) = (near(limit), limit - limit / FULL_PART);
    match used {
        _ if limit == 0 || used < near => ALL,
        _ => (full.saturating_sub(used) / ((full - near) / ALL).max(1)).min(ALL - 1),
    }
}

/// Whether so much is below 13/16 of a limit. Not at the border: a limit that comes and goes is told of once.
#[inline(never)]
pub(crate) fn is_far_from(limit: usize, used: usize) -> bool {
    limit == 0 || used.saturating_add(limit / (2 * NEAR_PART)) < near(limit)
}

/// Bytes by which a limit is so full that what comes must go elsewhere at once; 0: it is not.
pub(crate) fn beyond(limit: usize, used: usize) -> usize {
    match limit {
        0 => 0,
        _ => used.saturating_add(1).saturating_sub(limit - limit / URGENT_PART),
    }
}

/// What is believed of the most that a group has had beside, one more purge delay after it, with so much of it seen.
pub(crate) fn faded(most: isize, seen: isize) -> isize {
    most.saturating_sub(most.saturating_sub(seen) / FORGET_PART)
}
