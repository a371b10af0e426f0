//! Forks among the steps: the child has one thread, whatever the others were at. It makes threads, works with them, finds
//! all blocks that it knows of as they were, uses and ends every heap, and says by its status that all was well.

use super::bytes::Bytes;
use super::heaps::{self, Hold};
use super::step::{self, Company, MIN_ALIGN, note, steps};
use super::table::{Held, Table};
use super::world::{self, HEAPS};
use super::{deferred, exchange};
use cairn::HeapId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A program forks no more often: a child takes as long as a short program.
const FORKS_MAX: usize = 3;
/// A child that takes longer hangs.
const CHILD_SECONDS: u32 = 60;

static FORKS: AtomicUsize = AtomicUsize::new(0);

/// A program begins.
pub(super) fn begin() {
    // Relaxed: it bounds, and orders nothing.
    FORKS.store(0, Ordering::Relaxed);
}

/// Whether a simulator runs this: qemu 7.2 does not survive a forked child that starts a thread.
fn is_simulated() -> bool {
    static SIMULATED: OnceLock<bool> = OnceLock::new();
    *SIMULATED.get_or_init(|| std::env::var_os("CAIRN_TEST_SIMULATOR").is_some())
}

/// Forks while two threads more are at work, and waits for the child.
pub(super) fn step(table: &mut Table, bytes: &mut Bytes) {
    let (how, len) = (bytes.number(), bytes.number() % 32);
    let program = bytes.take(4 * len);
    let may = !world::is_child() && !is_simulated();
    if !may || FORKS.fetch_add(1, Ordering::Relaxed) >= FORKS_MAX {
        return;
    }
    table.operations += 1;
    let busy = Busy::begin(how);
    let heritage = world::heritage();
    // SAFETY: the child goes on as a copy of this thread; of the program's locks it takes none that others may hold.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: by default it ends the process.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(CHILD_SECONDS);
        }
        world::enter_child(heritage);
        child(std::mem::replace(table, Table::new(false)), program, how);
    }
    busy.end();
    let mut status = 0;
    // SAFETY: this process's child; `status` is valid for writing.
    while unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR));
    }
    assert_eq!(status, 0, "a forked child ends with that status");
}

/// Threads that work with heaps of their own until they are told to end.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn begin(how: usize) -> Busy {
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let count = [0, 1, 2, 2][how % 4];
        let threads = (0..count).map(|nth| {
            let (stop, begun) = (stop.clone(), begun.clone());
            let work = move || {
                let shared = HeapId::new_shared().expect("memory");
                let mut turn = nth + how / 4;
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: this thread's heap.
                    unsafe { turn_of_work(shared, turn) };
                    turn += 1;
                    begun.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: this thread's, and nothing of it is in use.
                unsafe { shared.destroy() };
            };
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work);
            thread.expect("threads can be made")
        });
        let threads = threads.collect();
        while begun.load(Ordering::Relaxed) < 2 * count {
            std::thread::yield_now();
        }
        Busy { stop, threads }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a panic ends the process");
        }
    }
}

/// A heap comes, gets blocks of a few sizes, and goes.
unsafe fn turn_of_work(shared: HeapId, turn: usize) {
    let size = [16, 48, 400, 3000, 20_000, 100_000][turn % 6];
    // SAFETY: heaps of this thread, which uses their blocks alone.
    unsafe {
        let owned = HeapId::new_owned().expect("memory");
        for heap in [owned, shared] {
            let blocks = [(); 8].map(|()| heap.allocate(size, MIN_ALIGN));
            blocks.iter().for_each(|block| block.write_bytes(0x5a, 16));
            blocks.iter().take(4 + turn % 5).for_each(|&block| cairn::deallocate(block));
            if heap == owned {
                heap.destroy();
            } else {
                blocks.iter().skip(4 + turn % 5).for_each(|&block| cairn::deallocate(block));
            }
        }
        cairn::deallocate(cairn::allocate(size));
    }
}

/// All that a child does.
fn child(mut table: Table, program: &[u8], how: usize) -> ! {
    table.is_away = false;
    verify(&table);
    if how & 16 != 0 {
        table = together(table, program);
    }
    for number in 0..HEAPS {
        use_and_end(&mut table, number, how & 32 << (number % 2) != 0);
    }
    deferred::free_all();
    verify(&table);
    step::free_all(&mut table, how as u8);
    if how & 128 != 0 {
        cairn::purge();
    }
    cairn::check();
    // SAFETY: nothing of the parent's is to be done here.
    unsafe { libc::_exit(0) }
}

fn verify(table: &Table) {
    table.blocks.iter().for_each(Held::verify);
}

/// Two threads take steps, this one and another.
fn together(table: Table, program: &[u8]) -> Table {
    let mut tables = table.split(2, 1);
    let (mut other, mut mine) = (tables.pop().expect("two"), tables.pop().expect("two"));
    let (first, second) = program.split_at(program.len() / 2);
    let (number, second) = (world::new_number(), second.to_vec());
    let work = move || {
        world::set_me(number);
        steps(&mut other, &mut Bytes::new(&second), Company::Together);
        other
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work);
    steps(&mut mine, &mut Bytes::new(first), Company::Together);
    let other = thread.expect("threads can be made").join().expect("a panic ends the process");
    world::gone(number);
    let mut table = Table::merge(vec![mine, other]);
    exchange::clear(&mut table);
    verify(&table);
    table
}

/// A heap allocates, whoever had it in the parent, and ends.
fn use_and_end(table: &mut Table, number: usize, with_blocks: bool) {
    // Attached here, if it is an owned one.
    let hold = Hold::take(number).expect("no other thread has it");
    for size in [16, 200, 1500, 9000, 70_000] {
        for is_zeroed in [false, true] {
            // SAFETY: held.
            let p = unsafe {
                match is_zeroed {
                    true => hold.heap.allocate_zeroed(size, MIN_ALIGN),
                    false => hold.heap.allocate(size, MIN_ALIGN),
                }
            };
            if p.is_null() {
                // SAFETY: held.
                unsafe { heaps::refuses(hold.heap, size, MIN_ALIGN, Company::Alone) };
                continue;
            }
            let held = note(table, p, size, MIN_ALIGN, None);
            is_zeroed.then(|| held.verify_zero());
            held.fill();
            table.put(held);
        }
    }
    hold.give(false);
    // SAFETY: there is one thread, and the blocks that it does not know of nobody uses.
    unsafe { heaps::end(table, number, with_blocks) };
}
