//! Owns: how much memory the process may have: the limits, what counts beside slices, and what its memory cgroup has.
//! Idea: what would go beyond the hard limit is refused where slices or mappings come; the nearer the soft one is, the less
//!   free memory stays.
//! Never: takes a lock of the arena's, or gives memory back itself.
//! Threads: any; one looks at the group at a time, holding nothing that a fast path waits for.
//! Checked: tests/memory_limits.rs; the C layer's limits in cgroups.
//! Story: docs/design/purging.md

use crate::base::nearness::{ALL, NEAR_PART, beyond, faded, is_far_from, near, part};
use crate::base::{Apart, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::os::{self, Group};

/// After a purge near a limit none is made for so many times the processor time that it took: 1 % of a core.
const REST_NEAR: u64 = 99;
/// The same where no free memory is to stay: 10 %.
const REST_FULL: u64 = 9;
/// Twice as long each time in a row that half of what a purge gave back has been taken again before the next one, so often:
/// page faults cost many times what a purge does.
const DOUBLINGS_MAX: usize = 6;
/// Bytes. A group with a lower limit counts as one with this.
const GROUP_LEAST: usize = 64 << 20;
/// Bytes that count before anybody looks for a group: small processes make no calls for it.
pub(crate) const LOOK_FROM: usize = 32 << 20;

/// A group is looked at whenever this part of it has come at least: three times from near its limit until it is urgent.
const LOOK_PART: usize = 4 * NEAR_PART;

// Relaxed throughout: who sees a change late follows late. What must be exact, `MAPPED` against the hard limit, changes under
// the arena's lock while there is one.

/// Bytes that may count at most; 0: no limit.
static HARD: AtomicUsize = AtomicUsize::new(0);
/// Bytes within which the program wants to stay; 0: what the group says, `NO_GROUP`: nobody asks the group.
static SOFT: AtomicUsize = AtomicUsize::new(0);
/// Bytes of mappings that blocks have.
static MAPPED: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));
/// Bytes of runs that count as used, and have gone.
static GONE: AtomicUsize = AtomicUsize::new(0);
/// What the group may have; 0: no group is known that has a limit.
static GROUP_MOST: AtomicUsize = AtomicUsize::new(0);
/// What it had at the last look beside what counts here, without what had come just then. It wraps: other untouched memory
/// counts, and the group does not have it.
static SEEN: AtomicUsize = AtomicUsize::new(0);
/// The most that it has been, slowly forgotten: what is untouched for a moment may be touched without anybody's looking.
static BESIDE: AtomicUsize = AtomicUsize::new(0);
/// That is page cache, too: the group has been far from its limit, and nobody has asked how much of it there is.
static HAS_FILES: AtomicBool = AtomicBool::new(false);
/// When so much counts, somebody looks at the group, or when so much has come since the last look: what counts may have fallen.
static LOOK_AT: AtomicUsize = AtomicUsize::new(LOOK_FROM);
static COME: AtomicUsize = AtomicUsize::new(0);
/// While less than this counts, neither a look is due nor a limit near.
static WATCH_FROM: Apart<AtomicUsize> = Apart(AtomicUsize::new(LOOK_FROM));
/// When the next purge near a limit may begin; `u64::MAX`: one is under way.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
/// Bytes that the last such purge has given back, and those taken since.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// How many of the last ones in a row were for nothing.
static DOUBLINGS: AtomicUsize = AtomicUsize::new(0);
/// A limit is near, and that has been noted.
static NEAR: AtomicBool = AtomicBool::new(false);
/// Nobody has told the program of it yet.
static PENDING: AtomicBool = AtomicBool::new(false);

/// So many look at the group, or wait for their turn.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// As a soft limit: none, and nobody asks the group.
pub(crate) const NO_GROUP: usize = usize::MAX;

/// Sets both limits, in bytes. False, and nothing is done, if the soft one is the larger.
#[inline(never)]
pub(crate) fn set(soft: usize, hard: usize) -> bool {
    if hard > 0 && soft > hard && soft != NO_GROUP {
        return false;
    }
    // A look that is under way would set again what is cleared here.
    let _held = (soft == NO_GROUP).then(Group::hold);
    HARD.store(hard, Ordering::Relaxed);
    SOFT.store(soft, Ordering::Relaxed);
    if soft == NO_GROUP {
        GROUP_MOST.store(0, Ordering::Relaxed);
    }
    LOOK_AT.store(if soft == NO_GROUP { usize::MAX } else { LOOK_FROM }, Ordering::Relaxed);
    judge_watch();
    true
}

/// The limits that have been set: the soft one, the hard one.
pub(crate) fn get() -> [usize; 2] {
    [SOFT.load(Ordering::Relaxed), hard()]
}

/// The hard limit; 0: there is none.
#[inline(always)]
pub(crate) fn hard() -> usize {
    HARD.load(Ordering::Relaxed)
}

/// The limit of the process's own, soft or hard, whichever is lower; 0: there is none.
#[inline(never)]
fn own() -> usize {
    match get() {
        [0 | NO_GROUP, hard] => hard,
        [soft, _] => soft,
    }
}

/// What the group may have, at least `GROUP_LEAST`; 0: none is known.
pub(crate) fn group_most() -> usize {
    GROUP_MOST.load(Ordering::Relaxed)
}

/// Bytes of mappings.
pub(crate) fn mapped() -> usize {
    MAPPED.0.load(Ordering::Relaxed)
}

/// A mapping has so many bytes more.
pub(crate) fn add_mapped(bytes: usize) {
    MAPPED.0.fetch_add(bytes, Ordering::Relaxed);
}

/// It has so many less, or could not have them.
pub(crate) fn take_mapped(bytes: usize) {
    MAPPED.0.fetch_sub(bytes, Ordering::Relaxed);
}

/// Bytes that count as used, and have gone.
pub(crate) fn gone() -> usize {
    GONE.load(Ordering::Relaxed)
}

/// So many more have.
pub(crate) fn add_gone(bytes: usize) {
    GONE.fetch_add(bytes, Ordering::Relaxed);
}

/// So many are about to come back. Under the arena's lock, which the hard limit is kept by.
pub(crate) fn take_gone(bytes: usize) {
    GONE.fetch_sub(bytes, Ordering::Relaxed);
}

/// Whether anybody has to look more closely when so much counts.
#[inline(always)]
pub(crate) fn is_watched(counted: usize) -> bool {
    counted >= WATCH_FROM.0.load(Ordering::Relaxed)
}

/// What the group has when so much counts here, and `beside` else.
fn of_group(counted: usize, beside: &AtomicUsize) -> usize {
    counted.saturating_add_signed(beside.load(Ordering::Relaxed).cast_signed())
}

#[inline(never)]
fn judge_watch() {
    let mut from = LOOK_AT.load(Ordering::Relaxed);
    let (own, most) = (own(), group_most());
    if own > 0 {
        from = from.min(near(own));
    }
    if most > 0 {
        // What is untouched may be touched without any growth: it is no reason to watch later.
        let beside = BESIDE.load(Ordering::Relaxed).cast_signed().max(0).unsigned_abs();
        from = from.min(near(most).saturating_sub(beside));
    }
    WATCH_FROM.0.store(from, Ordering::Relaxed);
}

/// How much of its bound free memory may keep, of `ALL`, when so much counts.
pub(crate) fn share(counted: usize) -> usize {
    least_part(counted, &BESIDE)
}

/// The same, with so much beside it in the group.
#[inline(never)]
fn least_part(counted: usize, beside: &AtomicUsize) -> usize {
    part(own(), counted).min(part(group_most(), of_group(counted, beside)))
}

/// Whether no limit is near any more, when so much counts.
pub(crate) fn is_far(counted: usize) -> bool {
    is_far_from(own(), counted) && is_far_from(group_most(), of_group(counted, &BESIDE))
}

/// Whether the program is to be told, when so much counts: what is untouched does not make a group short of memory.
pub(crate) fn is_short(counted: usize) -> bool {
    least_part(counted, &SEEN) < ALL
}

/// Bytes by which one of them is so full that what comes must go elsewhere at once; 0: none is.
#[inline(never)]
pub(crate) fn excess(counted: usize) -> usize {
    beyond(own(), counted).max(beyond(group_most(), of_group(counted, &BESIDE)))
}

/// Whether the group has to be looked at, now that so much counts.
pub(crate) fn must_look(counted: usize) -> bool {
    let (most, come) = (group_most(), COME.load(Ordering::Relaxed));
    counted >= LOOK_AT.load(Ordering::Relaxed) || most > 0 && come >= most / LOOK_PART
}

/// Why somebody looks at the group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A purge delay is over.
    Time,
    /// The purge thread looks, perhaps many times in one.
    Watch,
    /// So many bytes more count than before, and nobody has touched them.
    Growth(usize),
}

/// Looks at the group, unless more has come and somebody does already; what it has, but for files where they matter, and may have.
#[inline(never)]
pub(crate) fn look(counted: usize, why: Why) -> Option<os::GroupUse> {
    if get()[0] == NO_GROUP {
        return None;
    }
    // Who needs memory does not wait for another's look; who comes once in a delay does.
    let goes = LOOKING.fetch_add(1, Ordering::Relaxed) == 0 || !matches!(why, Why::Growth(_));
    let found = if goes { follow_group(counted, why) } else { None };
    // A fork in a signal's handler may have come in between.
    let _ = LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    judge_watch();
    found
}

/// Asks the group for something; None if there is none, or if nobody may.
pub(crate) fn with_group<T>(ask: impl FnOnce(&Group) -> T) -> Option<T> {
    (get()[0] != NO_GROUP).then(Group::known)?.as_ref()?.as_ref().map(ask)
}

fn follow_group(counted: usize, why: Why) -> Option<os::GroupUse> {
    let mut known = Group::known();
    if get()[0] == NO_GROUP {
        return None;
    }
    let group = known.as_ref().and_then(Option::as_ref);
    let Some(found) = group.and_then(Group::usage) else {
        // Without a group nobody looks again; one whose limit has gone may get another, or the process be in another one.
        let (again, is_hidden) = (counted.saturating_mul(2).max(LOOK_FROM), Group::is_hidden());
        let next = if group.is_none() && !is_hidden { usize::MAX } else { again };
        LOOK_AT.store(next, Ordering::Relaxed);
        // What was known may be true still.
        if !is_hidden {
            Group::find_again(&mut known);
            GROUP_MOST.store(0, Ordering::Relaxed);
        }
        return None;
    };
    COME.store(0, Ordering::Relaxed);
    let come = if let Why::Growth(bytes) = why { bytes } else { 0 };
    let touched = counted.saturating_sub(come);
    let own = usize::try_from(found.limit).unwrap_or(usize::MAX);
    let most = own.max(GROUP_LEAST);
    let used = usize::try_from(found.used).unwrap_or(usize::MAX);
    let has_files = is_far_from(own, used.saturating_add(come));
    // What it has of files goes by itself.
    let files = if has_files { None } else { group.and_then(Group::files) };
    let used = used.saturating_sub(usize::try_from(files.unwrap_or(0)).unwrap_or(usize::MAX));
    GROUP_MOST.store(most, Ordering::Relaxed);
    // The group has so much beside what counts here.
    let seen = used.wrapping_sub(touched).cast_signed();
    SEEN.store(seen.cast_unsigned(), Ordering::Relaxed);
    // What may have been files is not believed: of those nobody knows how many are there still.
    let had_files = HAS_FILES.swap(has_files, Ordering::Relaxed);
    let before = if had_files { seen } else { BESIDE.load(Ordering::Relaxed).cast_signed() };
    let believed = if why == Why::Time { faded(before, seen) } else { before }.max(seen);
    BESIDE.store(believed.cast_unsigned(), Ordering::Relaxed);
    let step = (near(most).saturating_sub(used) / 2).max(most / LOOK_PART);
    LOOK_AT.store(touched.saturating_add(step), Ordering::Relaxed);
    Some(os::GroupUse { used: used as u64, limit: found.limit })
}

/// Whether anybody knows of a group with a limit, or has not looked yet.
pub(crate) fn may_have_group() -> bool {
    LOOK_AT.load(Ordering::Relaxed) != usize::MAX
}

/// One purge near a limit, whose time counts.
pub(crate) struct Turn {
    /// Of the thread's processor time: while others have the core, no purge takes any.
    began_cpu_ns: u64,
    rest: u64,
}

impl Turn {
    /// Begins one; None if the last one has taken so long that it is too early, or if one is under way.
    pub(crate) fn begin(share: usize) -> Option<Turn> {
        let next = NEXT_NS.load(Ordering::Relaxed);
        let rest = REST_FULL + (REST_NEAR - REST_FULL) * share as u64 / ALL as u64;
        let order = Ordering::Relaxed;
        let is_due =
            os::now_ns() >= next && NEXT_NS.compare_exchange(next, u64::MAX, order, order).is_ok();
        is_due.then(|| Turn { began_cpu_ns: os::cpu_ns(), rest: rest << judge_last() })
    }

    /// So many bytes have gone.
    pub(crate) fn end(self, given: usize) {
        GIVEN.store(given, Ordering::Relaxed);
    }
}

/// So many bytes are taken that were not there, and so many that count already; how many of both the group may not have yet.
pub(crate) fn note_taken(counted: usize, bytes: usize, reused: usize) -> usize {
    let hollow = SEEN.load(Ordering::Relaxed).cast_signed().min(0).unsigned_abs();
    // Only where the group would be near its limit with all that counts: within one of the process's own nothing else counts.
    let reused = if part(group_most(), counted) < ALL { reused.min(hollow) } else { 0 };
    TAKEN.fetch_add(bytes, Ordering::Relaxed);
    COME.fetch_add(bytes + reused, Ordering::Relaxed);
    bytes + reused
}

/// Whether the last purge was for nothing; how often the next rest is doubled.
fn judge_last() -> usize {
    let given = GIVEN.swap(0, Ordering::Relaxed);
    let is_regretted = TAKEN.swap(0, Ordering::Relaxed) >= given / 2 && given > 0;
    let before = DOUBLINGS.load(Ordering::Relaxed);
    let now = if is_regretted { (before + 1).min(DOUBLINGS_MAX) } else { before.saturating_sub(1) };
    DOUBLINGS.store(now, Ordering::Relaxed);
    now
}

impl Drop for Turn {
    fn drop(&mut self) {
        let took = os::cpu_ns().saturating_sub(self.began_cpu_ns);
        let next = os::now_ns().saturating_add(took.saturating_mul(self.rest));
        NEXT_NS.store(next, Ordering::Relaxed);
    }
}

/// A limit is near. True if it has become so just now.
pub(crate) fn note_near() -> bool {
    let is_new = !is_near() && !NEAR.swap(true, Ordering::Relaxed);
    PENDING.fetch_or(is_new, Ordering::Relaxed);
    is_new
}

/// Whether one is, for all that is known.
#[inline(always)]
pub(crate) fn is_near() -> bool {
    NEAR.load(Ordering::Relaxed)
}

/// None is, for all that is known.
pub(crate) fn note_far() {
    NEAR.store(false, Ordering::Relaxed);
}

/// Whether the program has to be told that a limit is near.
#[inline(always)]
pub(crate) fn is_pending() -> bool {
    PENDING.load(Ordering::Relaxed)
}

/// Whether the caller is the one who tells it.
pub(crate) fn take_pending() -> bool {
    is_pending() && PENDING.swap(false, Ordering::Relaxed)
}

/// In a forked child, before it has a second thread: nobody looks, or purges. The child may be in another group soon.
pub(crate) fn settle_in_child() {
    Group::forget_in_child();
    LOOK_AT.store(if get()[0] == NO_GROUP { usize::MAX } else { LOOK_FROM }, Ordering::Relaxed);
    judge_watch();
    LOOKING.store(0, Ordering::Relaxed);
    NEXT_NS.store(0, Ordering::Relaxed);
}
