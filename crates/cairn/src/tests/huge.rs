//! Which large blocks get huge pages. Those of the arena are in `arena`.

use super::alone::alone;
use super::reservation::flags_at;
use crate::base::{HARDENED, Ordering, SLICE_SIZE};
use crate::slices::{Memory, Use, arena};
use crate::{allocate, deallocate, os, reallocate, thread};

const MIB: usize = 1 << 20;

/// Huge pages come to blocks that will be filled, as far as those before them tell.
#[test]
fn blocks_that_will_be_filled_get_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let is_huge = |block: *mut u8| flags_at(block).contains(" hg");
        let fill = |block: *mut u8, size: usize| {
            // SAFETY: a live block of that size.
            (0..size).step_by(4096).for_each(|at| unsafe { block.add(at).write(1) });
        };
        // Nothing is known, or that the last one is not filled.
        let first = allocate(40 * MIB);
        assert!(!is_huge(first));
        let second = allocate(40 * MIB);
        assert!(!is_huge(second));
        // A good part is not all.
        fill(second, 14 * MIB);
        let third = allocate(40 * MIB);
        assert!(!is_huge(third));
        fill(third, 40 * MIB);
        let huge = allocate(40 * MIB);
        assert!(is_huge(huge) && huge.addr() % (2 * MIB) < 4096);
        // The program touches it first.
        assert_eq!(os::resident(huge.map_addr(|at| at & !4095), 40 * MIB), 0);
        // Where the last one has gone, what is known stays; up to twice the size.
        // SAFETY: a live block, used no more.
        unsafe { deallocate(huge) };
        crate::purge();
        let longer = allocate(80 * MIB);
        assert!(is_huge(longer));
        // SAFETY: as above.
        unsafe { deallocate(longer) };
        crate::purge();
        assert!(!is_huge(allocate(81 * MIB)));
        // That one is not filled: all starts anew.
        let other = allocate(33 * MIB);
        assert!(!is_huge(other));
        // What grows has been filled.
        // SAFETY: a live block.
        let grown = unsafe { reallocate(other, 60 * MIB) };
        assert!(is_huge(grown));
        crate::tests::check();
    });
}

/// A run that grows, and is copied for it, has been filled: others of up to twice its size will be.
#[test]
fn growing_is_evidence() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let is_huge = |block: *mut u8| flags_at(block).contains(" hg");
        let held = [allocate(6 * MIB), allocate(6 * MIB)];
        assert!(!is_huge(held[0]));
        // SAFETY: a live block, not used any more by its old address.
        let grown = unsafe { reallocate(held[0], 17 * MIB) };
        assert!(is_huge(grown));
        let next = allocate(12 * MIB);
        assert!(is_huge(next));
        // Freed, it is like any other room.
        // SAFETY: a live block, used no more.
        unsafe { deallocate(next) };
        crate::purge();
        assert!(!is_huge(next));
        crate::tests::check();
    });
}

/// Makes `count` blocks (block, size) and writes a byte in each: how many bytes of them are resident.
fn touched(count: usize, make: impl Fn(usize) -> (*mut u8, usize)) -> usize {
    let blocks: std::vec::Vec<_> = (0..count)
        .map(|nth| {
            let (block, size) = make(nth);
            // SAFETY: a live block of that size.
            unsafe { block.add(size / 3).write(1) };
            (block, size)
        })
        .collect();
    let page = os::page_size();
    let resident =
        |(block, size): (*mut u8, usize)| os::resident(block.map_addr(|at| at & !(page - 1)), size);
    blocks.into_iter().map(resident).sum()
}

fn filled(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: a live block of that size.
    (0..size).step_by(4096).for_each(|at| unsafe { block.add(at).write(1) });
    block
}

/// What cairn itself makes resident, or writes, is no evidence of use, and zeroed blocks are not
/// filled by cairn: of a hundred that hold a byte each hardly anything is resident.
#[test]
fn zeroed_blocks_cost_what_is_used() {
    for huge in [true, false] {
        alone(|| {
            os::HUGE_PAGES.store(huge, Ordering::Relaxed);
            filled(allocate(20 * MIB), 20 * MIB);
            let resident = touched(100, |_| (crate::allocate_zeroed(20 * MIB), 20 * MIB));
            // Hardened, each has a page more at its end.
            let most = if HARDENED { 8 * MIB } else { 4 * MIB };
            assert!(resident <= most, "{} MiB", resident / MIB);
            // Nor if those before have been freed, and are zeroed by hand.
            // SAFETY: a live block, used no more.
            unsafe { deallocate(filled(allocate(20 * MIB), 20 * MIB)) };
            let resident = touched(100, |_| (crate::allocate_zeroed(20 * MIB), 20 * MIB));
            assert!(resident <= 24 * MIB, "{} MiB", resident / MIB);
            crate::tests::check();
        });
    }
}

/// A large heap of small blocks, so that huge pages may be asked for; then large blocks that are filled,
/// and some that are not.
#[test]
fn untouched_blocks_cost_nothing() {
    alone(|| {
        let _spans: std::vec::Vec<_> = (0..40 << 10).map(|_| allocate(1024)).collect();
        for nth in 0..20 {
            let size = (16 + nth % 15) * MIB;
            // SAFETY: a live block, used no more.
            unsafe { deallocate(filled(allocate(size), size)) };
        }
        crate::purge();
        let resident =
            touched(60, |nth| ((allocate((16 + nth % 15) * MIB)), (16 + nth % 15) * MIB));
        assert!(resident <= 4 * MIB, "{} MiB", resident / MIB);
        crate::tests::check();
    });
}

/// One that takes too long stops the asking for a while, twice as long as the last time; one that
/// does not ends that.
#[test]
fn slow_huge_pages_are_not_asked_for_again_soon() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        let mapped = os::map(8 * os::HUGE_PAGE);
        let first = mapped.wrapping_add(mapped.addr().wrapping_neg() % os::HUGE_PAGE);
        let ask = |nth: usize| {
            let page = first.wrapping_add(nth * os::HUGE_PAGE);
            if os::wants_huge_pages() {
                // SAFETY: mapped for this.
                unsafe { os::use_huge_page(page) };
            }
            os::allow_huge_pages(page, os::HUGE_PAGE) && flags_at(page).contains(" hg")
        };
        let (pause, resume) = (&os::PAUSE_NS, &os::RESUME_NS);
        os::SLOW_NS.store(0, Ordering::Relaxed);
        assert!(!ask(0));
        let once = pause.load(Ordering::Relaxed);
        assert!(once > 0 && resume.load(Ordering::Relaxed) > once);
        resume.store(0, Ordering::Relaxed);
        assert!(!ask(1));
        assert!(pause.load(Ordering::Relaxed) >= 2 * once);
        // Within the pause nothing is asked for, however fast it might be.
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        resume.store(u64::MAX, Ordering::Relaxed);
        assert!(!ask(2));
        resume.store(0, Ordering::Relaxed);
        assert!(ask(3));
        assert_eq!(pause.load(Ordering::Relaxed), 0);
    });
}

/// A purge is regretted, too, if a huge page is put where the purged memory was.
#[test]
fn a_huge_page_for_purged_memory_is_a_regret() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        assert!(thread::start());
        let slices = |mib: usize| mib * MIB / SLICE_SIZE;
        let take = |mib, used| arena::take_run(slices(mib), used).expect("there is memory");
        take(20, Use::Filled);
        let later = take(12, Use::Filled);
        let burst = take(20, Use::Filled);
        arena::release(burst.index, slices(20), Memory::Written);
        let purged = arena::counts().purged;
        assert!(purged > 0, "much at once goes at once");
        assert!(take(8, Use::Backed).backed);
        // More than a quarter of what is in use, but less than twice what was needed again.
        arena::release(later.index, slices(12), Memory::Written);
        assert_eq!(arena::counts().purged, purged);
        crate::check();
    });
}

/// A sampled small block, which stands alone, says nothing of large ones: the one before it is looked at when it is filled.
#[test]
fn samples_are_no_evidence() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    alone(|| {
        os::SLOW_NS.store(u64::MAX, Ordering::Relaxed);
        let is_huge = |block: *mut u8| flags_at(block).contains(" hg");
        let fill = |block: *mut u8| {
            // SAFETY: a live block of that size.
            (0..40 * MIB).step_by(4096).for_each(|at| unsafe { block.add(at).write(1) });
        };
        fill(allocate(40 * MIB));
        let huge = allocate(40 * MIB);
        assert!(is_huge(huge));
        assert!(!crate::large::allocate_at(100, 128, 0).block.is_null());
        fill(huge);
        assert!(is_huge(allocate(40 * MIB)));
    });
}
