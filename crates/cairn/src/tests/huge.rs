//! Which large blocks get huge pages. Those of the arena are in `arena`.

use super::alone::alone;
use super::window::flags_at;
use crate::os;
use crate::size_class::SLICE_SIZE;
use crate::sync::Ordering;
use crate::{allocate, deallocate, reallocate};

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
        let resident =
            |block: *mut u8| os::resident(block.map_addr(|at| at & !4095), SLICE_SIZE * 110);
        // A heap that is large enough, of blocks that cannot grow in place. By their size the one that
        // grows comes to lie where it is not looked at: in part it is empty still.
        let held: [_; 20] = core::array::from_fn(|_| allocate(62 * SLICE_SIZE));
        assert_eq!(resident(allocate(110 * SLICE_SIZE)), 0);
        // SAFETY: a live block, not used any more by its old address.
        let grown = unsafe { reallocate(held[3], 96 * SLICE_SIZE) };
        assert!(grown != held[3] && crate::address_map::contains(grown));
        assert!(resident(allocate(110 * SLICE_SIZE)) > 0);
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
            os::allow_huge_pages(page, os::HUGE_PAGE, page);
            flags_at(page).contains(" hg")
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
