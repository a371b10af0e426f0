//! Limits of the process's memory: what counts, what is refused, what goes near them, and who is told.

use super::super::alone::alone;
use super::super::heaps::{Other, crowd};
use super::super::large::{MIB, free, usable};
use crate::base::nearness::{ALL, faded, is_far_from};
use crate::base::{HARDENED, SLICE_SIZE};
use crate::os::{self, Group, fault};
use crate::slices::limit::Why;
use crate::slices::{arena, limit};
use crate::{
    Heap, Resized, allocate, allocate_zeroed, check, may_have_size, on_low_memory, purge,
    reallocate, set_memory_limits, thread,
};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::vec::Vec;

/// Sets a hard limit alone: nobody asks a group.
fn set_hard(bytes: usize) {
    assert!(set_memory_limits(limit::NO_GROUP, bytes));
}

/// Blocks of `size` until there is no memory.
fn fill(size: usize) -> Vec<*mut u8> {
    core::iter::from_fn(|| Some(allocate(size)).filter(|block| !block.is_null())).collect()
}

#[test]
fn blocks_of_all_sizes_stop_at_the_hard_limit() {
    alone(|| {
        set_hard(40 * MIB);
        for size in [16, 100, 3000, 60_000, 100_000, MIB, 16 * MIB] {
            let blocks = fill(size);
            let held: usize = blocks.iter().map(|&block| usable(block)).sum();
            let counted = arena::counted();
            assert!(counted <= 40 * MIB, "{size}: {counted}");
            let least = if HARDENED { 24 } else { 36 };
            assert!(size == 16 * MIB || held >= least * MIB, "{size}: {held}");
            assert!(allocate(size).is_null() && allocate_zeroed(size).is_null());
            blocks.into_iter().for_each(free);
            check();
        }
        // And without one.
        set_hard(0);
        let blocks: Vec<_> = (0..100).map(|_| allocate(MIB)).collect();
        assert!(arena::counted() > 100 * MIB);
        blocks.into_iter().for_each(free);
    });
}

#[test]
fn what_is_free_goes_before_a_request_fails() {
    alone(|| {
        set_hard(64 * MIB);
        for _ in 0..3 {
            // Dirty slices, free spans, blocks set aside: all of it serves a mapping.
            fill(1000).into_iter().for_each(free);
            let mapped = allocate(56 * MIB);
            assert!(!mapped.is_null(), "{}", arena::counted());
            free(mapped);
            fill(200_000).into_iter().for_each(free);
        }
        check();
    });
}

#[test]
fn mappings_count_as_they_come_grow_and_go() {
    alone(|| {
        set_hard(100 * MIB);
        let before = arena::counted();
        let mut block = allocate(40 * MIB);
        let second = allocate(40 * MIB);
        assert!(!block.is_null() && !second.is_null() && allocate(40 * MIB).is_null());
        assert!((80..82).contains(&((arena::counted() - before) / MIB)));
        // SAFETY: live blocks of those sizes.
        unsafe {
            block.write(7);
            assert!(reallocate(block, 70 * MIB).is_null(), "with the other one it is too much");
            assert!(block.read() == 7 && usable(block) >= 40 * MIB, "the block stays whole");
            free(second);
            block = reallocate(block, 70 * MIB);
            assert!(!block.is_null() && block.read() == 7);
            assert!(arena::counted() >= 70 * MIB);
            block = reallocate(block, 34 * MIB);
            assert!(!block.is_null() && arena::counted() < 60 * MIB);
        }
        free(block);
        assert_eq!(arena::counted(), before);
    });
}

#[test]
fn what_is_reserved_is_taken_back_where_the_system_refuses() {
    alone(|| {
        set_hard(200 * MIB);
        free(allocate(1));
        for nth in 0.. {
            let before = limit::mapped();
            fault::arm(nth, true);
            let mut block = allocate(40 * MIB);
            if !block.is_null() {
                // SAFETY: a live block.
                let grown = unsafe { reallocate(block, 90 * MIB) };
                block = if grown.is_null() { block } else { grown };
            }
            let reached = fault::disarm();
            let counted = limit::mapped() - before;
            assert_eq!(counted > 0, !block.is_null());
            if !block.is_null() {
                assert!((40..120).contains(&(counted / MIB)), "{nth}: {counted}");
                free(block);
            }
            assert_eq!(limit::mapped(), before, "{nth}");
            if !reached {
                break;
            }
        }
    });
}

#[test]
fn a_block_that_cannot_grow_stays_whole() {
    alone(|| {
        set_hard(40 * MIB);
        for size in [1000, 50_000, 300_000, 3 * MIB] {
            let blocks = fill(size);
            for &block in blocks.iter().step_by(1 + blocks.len() / 100) {
                // SAFETY: a live block of that size.
                unsafe {
                    block.write_bytes(0x5a, size);
                    assert!(reallocate(block, 30 * MIB).is_null());
                    assert!((0..size).all(|at| block.add(at).read() == 0x5a));
                }
            }
            blocks.into_iter().for_each(free);
        }
    });
}

#[test]
fn threads_together_keep_the_hard_limit() {
    const LIMIT: usize = 48 * MIB;
    static MOST: AtomicUsize = AtomicUsize::new(0);
    alone(|| {
        set_hard(LIMIT);
        let work = |nth: usize| {
            for round in 0..30 {
                let size = [100, 5000, 150_000, 33 * MIB][(nth + round) % 4];
                let blocks = fill(size);
                MOST.fetch_max(arena::counted(), Ordering::Relaxed);
                blocks.into_iter().for_each(free);
            }
        };
        let threads: Vec<_> = (0..4).map(|nth| std::thread::spawn(move || work(nth))).collect();
        // Their ends are waited for, too, in which their heaps go.
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert!(MOST.load(Ordering::Relaxed) <= LIMIT, "{MOST:?}");
        check();
    });
}

#[test]
fn heaps_of_the_programs_keep_it() {
    alone(|| {
        set_hard(40 * MIB);
        let heap = Heap::new().expect("memory");
        let small = super::fill(&heap, 1000);
        let large = super::fill(&heap, 200_000);
        assert!(small.len() > 25_000 && large.len() < 40 && arena::counted() <= 40 * MIB);
        small.into_iter().chain(large).for_each(free);
        drop(heap);
        assert!(!allocate(16 * MIB).is_null());
    });
}

#[test]
fn near_the_soft_limit_less_stays() {
    alone(|| {
        assert!(!set_memory_limits(2, 1) && set_memory_limits(100 * MIB, 0));
        let dirty = || arena::counts().dirty * crate::base::SLICE_SIZE;
        // Far from it a burst leaves some.
        let part: Vec<_> = (0..500).map(|_| allocate(100_000)).collect();
        let spare: Vec<_> = (0..50).map(|_| allocate(100_000)).collect();
        spare.into_iter().for_each(free);
        let far = dirty();
        assert!(far >= 3 * MIB, "{far}");
        // At 95 % it does not, whenever time comes round.
        let rest: Vec<_> = (0..470).map(|_| allocate(100_000)).collect();
        assert!(arena::counted() > 95 * MIB);
        let extra: Vec<_> = (0..20).map(|_| allocate(100_000)).collect();
        extra.into_iter().for_each(free);
        let since = os::now_ns();
        while dirty() > 0 && os::now_ns() < since + 5_000_000_000 {
            arena::follow_limits();
        }
        assert_eq!(dirty(), 0);
        part.into_iter().chain(rest).for_each(free);
        purge();
    });
}

#[test]
fn purges_near_a_limit_have_their_share_of_the_time() {
    alone(|| {
        assert!(set_memory_limits(64 * MIB, 0));
        let blocks: Vec<_> = (0..620).map(|_| allocate(100_000)).collect();
        assert!(arena::counted() > 61 * MIB);
        let (began, mut purging) = (os::now_ns(), 0);
        // Each free is more than what may stay.
        while os::now_ns() < began + 300_000_000 {
            let block = allocate(200_000);
            let before = (os::now_ns(), arena::counts().purged);
            // SAFETY: a live block of that size.
            unsafe { block.write_bytes(1, 200_000) };
            free(block);
            if arena::counts().purged > before.1 {
                purging += 1;
            }
        }
        // A purge of 200 KB takes 5 us at least, and what is needed again each time had better stay.
        assert!((1..=1000).contains(&purging), "{purging}");
        blocks.into_iter().for_each(free);
    });
}

#[test]
fn the_program_is_told() {
    static NEAR: AtomicUsize = AtomicUsize::new(0);
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static SPARE: AtomicUsize = AtomicUsize::new(0);
    fn told(size: usize, words: [usize; 2]) {
        assert!(!INSIDE.swap(true, Ordering::Relaxed) && words == [7, 8]);
        let count = if size == 0 { &NEAR } else { &FAILED };
        count.fetch_add(1, Ordering::Relaxed);
        if size > 0 {
            let spare = SPARE.swap(0, Ordering::Relaxed);
            free(core::ptr::with_exposed_provenance_mut(spare));
        }
        // It may allocate, and fail.
        free(allocate(100));
        free(allocate(60 * MIB));
        INSIDE.store(false, Ordering::Relaxed);
    }
    alone(|| {
        set_hard(50 * MIB);
        on_low_memory(Some(told), [7, 8]);
        SPARE.store(allocate(8 * MIB).expose_provenance(), Ordering::Relaxed);
        let blocks = fill(3000);
        assert_eq!((NEAR.load(Ordering::Relaxed), FAILED.load(Ordering::Relaxed)), (1, 2));
        assert!(blocks.len() * 3000 > if HARDENED { 30 } else { 45 } * MIB, "the spare serves");
        assert!(allocate(20 * MIB).is_null() && FAILED.load(Ordering::Relaxed) == 3);
        blocks.into_iter().for_each(free);
        purge();
        arena::follow_limits();
        // Again, by large blocks.
        let blocks = fill(MIB);
        assert!(NEAR.load(Ordering::Relaxed) == 2 && blocks.len() > 30);
        on_low_memory(None, [0; 2]);
        blocks.into_iter().for_each(free);
    });
}

/// Who allocates from heaps alone comes by, too. A heap's own limit makes nobody short of memory.
#[test]
fn who_uses_heaps_is_told() {
    static NEAR: AtomicUsize = AtomicUsize::new(0);
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    fn told(size: usize, _: [usize; 2]) {
        let count = if size == 0 { &NEAR } else { &FAILED };
        count.fetch_add(1, Ordering::Relaxed);
    }
    let counts = || (NEAR.load(Ordering::Relaxed), FAILED.load(Ordering::Relaxed));
    alone(|| {
        assert!(set_memory_limits(50 * MIB, 1 << 30));
        on_low_memory(Some(told), [0; 2]);
        let mut limited = Heap::new().expect("memory");
        assert!(limited.set_limits(0, 100_000, None, [0; 2]));
        while !limited.allocate(100, 16).is_null() {}
        assert_eq!(counts(), (0, 0));
        limited.destroy();
        for (nth, size) in [3000, MIB].into_iter().enumerate() {
            let heap = Heap::new().expect("memory");
            while arena::counted() < 48 * MIB {
                assert!(!heap.allocate(size, 16).is_null());
            }
            assert_eq!(counts(), (nth + 1, 0));
            heap.destroy();
            purge();
            arena::follow_limits();
        }
        on_low_memory(None, [0; 2]);
    });
}

/// What a group has of files is asked for where the limit would not be far with what has come; one that has come near is far
/// again below 13/16 of it, whatever part of that is the process's.
#[test]
fn far_is_a_part_of_the_limit() {
    let is_far = |limit, used| is_far_from(limit * MIB, used * MIB);
    assert!(is_far(1024, 831) && !is_far(1024, 832) && !is_far(1024, 2000) && is_far(0, 2000));
    assert!(!is_far(2048, 100 + 1650), "of 1792, most of it others'");
    assert!(is_far(1024, 720) && !is_far(1024, 720 + 200), "a large block comes");
}

/// Allocations do not fail while another thread is inside the program's function: they wait for what that gives back, and none of
/// them calls it for memory that is there by then.
#[test]
fn allocations_wait_for_the_function_of_another_thread() {
    static HELD: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    alone(|| {
        set_hard(40 * MIB);
        let gives_back = |size, _| {
            if size > 0 && CALLS.fetch_add(1, Ordering::SeqCst) == 0 {
                sleep_ms(40);
                HELD.lock().expect("no panic").drain(..).for_each(free_at);
            }
        };
        on_low_memory(Some(gives_back), [0; 2]);
        let others: Vec<_> = (0..8).map(|_| Other::with_heap()).collect();
        *HELD.lock().expect("no panic") = fill_to(30 * MIB);
        let inside = std::thread::spawn(|| fill_to(15 * MIB).into_iter().for_each(free_at));
        while !crate::thread::low_memory::is_inside() {
            std::thread::yield_now();
        }
        let count =
            || _ = SERVED.fetch_add(usize::from(!allocate(100_000).is_null()), Ordering::SeqCst);
        others.iter().for_each(|other| other.begins(count));
        others.into_iter().for_each(Other::leaves);
        inside.join().expect("no panic");
        assert_eq!([&SERVED, &CALLS].map(|of| of.load(Ordering::SeqCst)), [8, 1]);
        on_low_memory(None, [0; 2]);
        check();
    });
}

/// Who takes the function back finds it over; who registers another one does not wait for that.
#[test]
fn a_function_that_is_taken_back_is_over() {
    static STATE: AtomicUsize = AtomicUsize::new(0);
    static LOCK: Mutex<()> = Mutex::new(());
    alone(|| {
        set_hard(40 * MIB);
        let slow = |size, _| {
            if size > 0 {
                STATE.store(1, Ordering::SeqCst);
                sleep_ms(50);
                STATE.store(2, Ordering::SeqCst);
            }
        };
        on_low_memory(Some(slow), [0; 2]);
        let fails = || {
            let held = fill_to(45 * MIB);
            held.into_iter().filter(|&block| block > 0).for_each(free_at);
        };
        let others = [(); 3].map(|()| std::thread::spawn(fails));
        while STATE.load(Ordering::SeqCst) != 1 {
            std::thread::yield_now();
        }
        {
            let _held = LOCK.lock().expect("no panic");
            on_low_memory(Some(|_, _| drop(LOCK.lock().expect("no panic"))), [0; 2]);
            assert_ne!(STATE.load(Ordering::SeqCst), 1);
        }
        on_low_memory(None, [0; 2]);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        check();
    });
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

fn free_at(block: usize) {
    free(core::ptr::with_exposed_provenance_mut(block));
}

/// Blocks of 100,000 bytes, of so many together.
fn fill_to(bytes: usize) -> Vec<usize> {
    (0..bytes / 100_000).map(|_| allocate(100_000).expose_provenance()).collect()
}

/// A group in a folder, with a limit of so many MiB; what says how many it has, and how many of those are files.
fn group(limit: usize) -> (PathBuf, impl Fn(usize, usize)) {
    let folder = std::env::temp_dir().join(std::format!("cairn-group-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let inside = folder.clone();
    let has = move |mib: usize, files: usize| {
        let write = |name: &str, text: std::string::String| {
            std::fs::write(inside.join(name), text).expect("a file")
        };
        write("memory.max", std::format!("{}\n", limit * MIB));
        write("memory.current", std::format!("{}\n", mib * MIB));
        write("memory.stat", std::format!("anon 1\nactive_file {}\n", files * MIB));
    };
    (folder, has)
}

/// The purge thread is told of the limit that there is, however low.
#[test]
fn a_small_group_is_near_its_own_limit() {
    alone(|| {
        let (folder, has) = group(32);
        has(30, 0);
        Group::set(&folder);
        let found = limit::look(20 * MIB, Why::Watch).expect("a group");
        assert_eq!((found.used, found.limit), (30 << 20, 32 << 20));
        // It looks often: no heap goes through all its spans each time.
        let before = os::settled_notices();
        thread::purge::relieve();
        let after = os::settled_notices();
        assert!(after != before && !os::are_thorough(before, after));
        // What it has of files goes by itself.
        has(30, 25);
        let found = limit::look(20 * MIB, Why::Watch).expect("a group");
        assert_eq!((found.used, found.limit), (5 << 20, 32 << 20));
        let before = os::settled_notices();
        thread::purge::relieve();
        assert_eq!(os::settled_notices(), before);
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// What counts, and has never been touched, is taken again: the group has it then, though nothing more counts.
#[test]
fn what_is_touched_late_makes_as_much_go() {
    alone(|| {
        let (folder, has) = group(160);
        let blocks = fill_to(150 * MIB);
        let (kept, freed) = blocks.split_at(blocks.len() - 250);
        freed.iter().for_each(|&block| free_at(block));
        let counted = arena::counted();
        has(100, 0);
        Group::set(&folder);
        limit::look(counted, Why::Watch);
        has(counted / MIB - 40, 0);
        limit::look(counted, Why::Watch);
        let dirty = arena::counts().dirty * SLICE_SIZE;
        assert!(limit::share(counted) == ALL && dirty > 20 * MIB, "{dirty} of {counted}");
        has(158, 0);
        let again = fill_to(10 * MIB);
        let left = arena::counts().dirty * SLICE_SIZE;
        assert!(left < 10 * MIB, "{left} of {dirty}");
        kept.iter().chain(&again).for_each(|&block| free_at(block));
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// While a group is far from its limit nobody asks how much of what it has is page cache. That is not believed to stay once
/// somebody has asked.
#[test]
fn files_do_not_count_near_a_limit() {
    alone(|| {
        let (folder, has) = group(1024);
        has(820, 800);
        Group::set(&folder);
        let looked = |counted: usize| {
            limit::look(counted * MIB, Why::Watch);
            limit::share(counted * MIB)
        };
        assert_eq!(looked(20), ALL);
        has(940, 800);
        assert_eq!(looked(140), ALL, "of 140 MiB that are no files");
        let found = limit::look(140 * MIB, Why::Watch).expect("a group");
        assert_eq!(found.used, 140 << 20, "for the purge thread, too");
        // Far again; the files go while nobody asks for them.
        has(820, 800);
        assert_eq!(looked(20), ALL);
        has(160, 0);
        assert_eq!(looked(140), ALL);
        has(820, 800);
        assert_eq!(looked(20), ALL);
        has(940, 100);
        assert_eq!(looked(800), ALL, "of 840 MiB");
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// A group that takes its time: what it has is read from a pipe, and comes when what is called here has been under way for a while.
fn slow_group() -> (PathBuf, impl Fn(&mut dyn FnMut())) {
    use std::io::Write;
    let folder = std::env::temp_dir().join(std::format!("cairn-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("memory.max"), "1073741824\n").expect("a file");
    let used = folder.join("memory.current");
    let path = std::ffi::CString::new(used.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    Group::set(&folder);
    let answer = move |meanwhile: &mut dyn FnMut()| {
        let mut file = std::fs::OpenOptions::new().write(true).open(&used).expect("it is read");
        meanwhile();
        sleep_ms(100);
        file.write_all(b"900000000\n").expect("a reader");
    };
    (folder, answer)
}

/// Waits for a thread that may look at such a group: the purge thread looks, too, and may have got its answer.
fn answered<T>(folder: &Path, looks: std::thread::JoinHandle<T>) -> T {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    // Who reads an answer now gets no second one.
    let has_ended = (0..200).any(|_| {
        sleep_ms(10);
        looks.is_finished()
    });
    while !has_ended && !looks.is_finished() {
        // Without a reader there is nothing to open.
        let mut file = std::fs::OpenOptions::new();
        let file =
            file.write(true).custom_flags(libc::O_NONBLOCK).open(folder.join("memory.current"));
        file.into_iter().for_each(|mut file| _ = file.write_all(b"900000000\n"));
        sleep_ms(10);
    }
    looks.join().expect("no panic")
}

/// Who says that nobody shall ask the group has the last word, whatever a look that is under way finds.
#[test]
fn a_look_under_way_finds_no_limit_that_is_gone() {
    alone(|| {
        let (folder, answer) = slow_group();
        let looks = std::thread::spawn(|| limit::look(20 * MIB, Why::Watch).is_some());
        // The look reads what is written here, and the file's end comes after the limits.
        let mut sets = None;
        answer(&mut || {
            sets = Some(std::thread::spawn(|| set_memory_limits(limit::NO_GROUP, 0)));
        });
        assert!(answered(&folder, sets.expect("it was called")));
        answered(&folder, looks);
        assert_eq!(limit::group_most(), 0);
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// Who needs memory waits for no look of another's.
#[test]
fn growth_waits_for_no_look() {
    alone(|| {
        let (folder, answer) = slow_group();
        let looks = std::thread::spawn(|| limit::look(20 * MIB, Why::Watch).is_some());
        let mut is_over = false;
        answer(&mut || {
            let grows = std::thread::spawn(|| limit::look(20 * MIB, Why::Growth(1)).is_some());
            is_over = (0..50).any(|_| {
                sleep_ms(100);
                grows.is_finished()
            });
        });
        assert!(is_over && answered(&folder, looks));
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// Nor for two of them, which take turns: the end of the first is not the end of both.
#[test]
fn growth_waits_for_no_look_that_has_waited() {
    alone(|| {
        let (folder, answer) = slow_group();
        let looks = |why| std::thread::spawn(move || limit::look(20 * MIB, why).is_some());
        let (first, mut second) = (looks(Why::Watch), None);
        answer(&mut || {
            second = Some(looks(Why::Time));
            sleep_ms(200);
        });
        first.join().expect("no panic");
        let mut is_over = false;
        answer(&mut || {
            let grows = looks(Why::Growth(1));
            is_over = (0..50).any(|_| {
                sleep_ms(100);
                grows.is_finished()
            });
        });
        assert!(is_over && answered(&folder, second.expect("it was called")));
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    });
}

/// A block of 9 MiB comes, and is filled while others have the core: what it makes untouched for some purge delays is in no
/// group, and will be.
#[test]
fn what_is_untouched_for_a_moment_is_not_believed() {
    const MIB: isize = 1 << 20;
    let after =
        |delays: usize| (0..delays).fold(MIB, |most, _| faded(most, -9 * MIB).max(-9 * MIB));
    assert!(after(5) > 0);
    assert!(after(1000) < -8 * MIB, "what stays untouched is");
}

/// Whether a purge has been made just before, and whether anything comes, does not matter.
#[test]
fn what_is_free_leads_away_from_a_limit_that_is_all_but_reached() {
    alone(|| {
        let blocks: Vec<_> = (0..400).map(|_| allocate(150_000)).collect();
        for &block in &blocks[..50] {
            free(block);
        }
        for &block in &blocks[50..55] {
            let (counted, dirty) = (arena::counted(), arena::counts().dirty * SLICE_SIZE);
            // So much is over the line.
            let (limit, over) = (counted + counted / 33, counted / 500);
            assert!(dirty > 4 * over, "{dirty} of {counted}");
            assert!(set_memory_limits(limit, 0));
            free(block);
            assert!(arena::counted() < limit - limit / 32, "{counted}: {}", arena::counted());
        }
        assert!(set_memory_limits(limit::NO_GROUP, 0));
        blocks[55..].iter().for_each(|&block| free(block));
        check();
    });
}

/// Nor is one while the system refuses it: another thread sees nothing of it.
#[test]
fn what_the_system_refuses_never_counts() {
    static DONE: AtomicBool = AtomicBool::new(false);
    alone(|| {
        assert!(set_memory_limits(1 << 30, 0));
        let mapped = allocate(40 * MIB);
        let most = arena::counted() + MIB;
        let other = std::thread::spawn(|| {
            for _ in 0..20_000 {
                assert!(allocate(1 << 62).is_null());
            }
            DONE.store(true, Ordering::Relaxed);
        });
        while !DONE.load(Ordering::Relaxed) {
            assert!(arena::counted() < most);
        }
        other.join().expect("no panic");
        // SAFETY: a live block.
        assert!(unsafe { reallocate(mapped, 1 << 62) }.is_null());
        assert!(arena::counted() < most);
        free(mapped);
        check();
    });
}

/// It fails whatever is free: nothing goes, and nobody is told of a limit that is near.
#[test]
fn a_request_that_cannot_be_is_no_growth() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    fn told(_: usize, _: [usize; 2]) {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }
    alone(|| {
        assert!(set_memory_limits(1 << 30, 0));
        on_low_memory(Some(told), [0; 2]);
        assert!(allocate(1 << 62).is_null());
        (0..1000).for_each(|nth| free(allocate(nth)));
        on_low_memory(None, [0; 2]);
        assert_eq!(TOLD.load(Ordering::Relaxed), 0);
    });
}

/// What grows by moving its pages, too: near the limit nothing that is free stays, and somebody is told.
#[test]
fn a_mapping_that_grows_is_growth() {
    alone(|| {
        assert!(set_memory_limits(100 * MIB, 0));
        let held: Vec<_> = (0..300).map(|_| allocate(100_000)).collect();
        let spare: Vec<_> = (0..60).map(|_| allocate(100_000)).collect();
        spare.into_iter().for_each(free);
        let block = allocate(33 * MIB);
        assert!(arena::counts().dirty * SLICE_SIZE >= 3 * MIB);
        // SAFETY: a live block.
        let block = unsafe { reallocate(block, 50 * MIB) };
        assert!(!block.is_null() && arena::counted() > 85 * MIB);
        assert!(arena::counts().dirty * SLICE_SIZE < MIB, "{}", arena::counts().dirty);
        held.into_iter().chain([block]).for_each(free);
    });
}

/// In its place a block needs less than beside it: it grows there when the program has freed what it can do without.
#[test]
fn a_block_grows_in_place_at_the_limit() {
    static SPARE: AtomicUsize = AtomicUsize::new(0);
    fn told(size: usize, _: [usize; 2]) {
        if size > 0 {
            free(core::ptr::with_exposed_provenance_mut(SPARE.swap(0, Ordering::Relaxed)));
        }
    }
    alone(|| {
        set_hard(100 * MIB);
        let held: Vec<_> = (0..240).map(|_| allocate(100_000)).collect();
        SPARE.store(allocate(8 * MIB).expose_provenance(), Ordering::Relaxed);
        let block = allocate(60 * MIB);
        assert!(!block.is_null());
        on_low_memory(Some(told), [0; 2]);
        // SAFETY: a live block.
        unsafe {
            block.write(7);
            let grown = reallocate(block, 70 * MIB);
            assert!(!grown.is_null() && grown.read() == 7);
            on_low_memory(None, [0; 2]);
            held.into_iter().chain([grown]).for_each(free);
        }
        check();
    });
}

/// Where a block cannot grow in its place for want of neighbours, nobody is told that memory runs short: it moves.
#[test]
fn who_moves_tells_nobody() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    fn told(size: usize, _: [usize; 2]) {
        TOLD.fetch_add(usize::from(size > 0), Ordering::Relaxed);
    }
    alone(|| {
        set_hard(64 * MIB);
        let held: Vec<_> = (0..360).map(|_| allocate(150_000)).collect();
        let spare: Vec<_> = (0..45).map(|_| allocate(150_000)).collect();
        spare.into_iter().for_each(free);
        on_low_memory(Some(told), [0; 2]);
        // SAFETY: a live block.
        let grown = unsafe { reallocate(held[100], 3_500_000) };
        assert!(!grown.is_null());
        assert_eq!(TOLD.load(Ordering::Relaxed), 0);
        on_low_memory(None, [0; 2]);
    });
}

/// A block that shrinks where there is no memory for a smaller one stays, and is freed by either size.
#[test]
fn who_shrinks_keeps_the_block_where_memory_is_short() {
    alone(|| {
        set_hard(40 * MIB);
        for size in [1000, 100_000] {
            let blocks = fill(size);
            let (least, last) = (fill(16), blocks[blocks.len() - 1]);
            // SAFETY: live blocks.
            unsafe {
                last.write(7);
                let small = reallocate(last, 10);
                assert!(small == last && small.read() == 7, "{size}");
                assert!(may_have_size(small, 10, 16, Resized::Perhaps));
                assert!(!may_have_size(small, 10, 16, Resized::Never));
                assert!(reallocate(blocks[0], 2 * size).is_null());
            }
            blocks.into_iter().chain(least).for_each(free);
            purge();
        }
        set_hard(0);
        let mut heap = Heap::new().expect("memory");
        assert!(heap.set_limits(0, 2048, None, [0; 2]));
        let block = heap.allocate(1000, 16);
        while !heap.allocate(10, 16).is_null() {}
        // SAFETY: a live block of the heap's.
        assert_eq!(unsafe { heap.id().reallocate(block, 10, 16) }, block);
        // Where there is memory, blocks become smaller as before.
        assert!(heap.set_limits(0, 0, None, [0; 2]));
        let block = heap.allocate(1000, 16);
        // SAFETY: as above.
        assert_ne!(unsafe { heap.id().reallocate(block, 10, 16) }, block);
        heap.destroy();
        check();
    });
}

/// Who has no descriptor left cannot look at the group now, but later.
#[test]
fn a_look_that_fails_for_want_of_descriptors_is_not_the_last() {
    alone(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: structs of this function's.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
            let none = libc::rlimit { rlim_cur: 0, ..limit };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
            limit::look(64 * MIB, Why::Time);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        }
        assert!(limit::may_have_group());
    });
}

/// Who has no heap yet is served as others are.
#[test]
fn a_thread_without_a_heap_tells_of_a_shortage() {
    static HELD: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    fn told(size: usize, _: [usize; 2]) {
        if size > 0 {
            TOLD.fetch_add(1, Ordering::Relaxed);
            let all = core::mem::take(&mut *HELD.lock().expect("nobody panics"));
            all.into_iter().map(core::ptr::with_exposed_provenance_mut).for_each(free);
        }
    }
    alone(|| {
        crowd();
        let other = Other::new();
        set_hard(60 * MIB);
        HELD.lock().expect("as above").reserve(100_000);
        HELD.lock().expect("as above").extend(fill(1000).iter().map(|at| at.expose_provenance()));
        on_low_memory(Some(told), [0; 2]);
        let block = other.allocates(3000, 1)[0];
        on_low_memory(None, [0; 2]);
        assert!(TOLD.load(Ordering::Relaxed) > 0 && !block.is_null());
        free(block);
        other.leaves();
        check();
    });
}
