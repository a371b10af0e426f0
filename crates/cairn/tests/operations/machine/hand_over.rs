//! Threads that come and go among the steps. One takes steps, more of them when its destructors run: an early one, whose key
//! is older than the allocator's, and a late one, which finds the thread's heap gone. What it has left attached, another
//! thread attaches.

use super::bytes::Bytes;
use super::step::{Company, steps};
use super::table::Table;
use super::{contest, fork, told, world};
use std::cell::Cell;
use std::sync::OnceLock;

/// A step in which something is handed on.
pub(super) fn step(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let kind = bytes.number() % 8;
    if table.trace {
        eprintln!("  hand over, kind {kind}");
    }
    match kind {
        0 | 1 => errand(table, bytes, company),
        2 => fork::step(table, bytes),
        3 => told::provoke(table, bytes, company),
        4 => contest::small(table, bytes, company),
        5 => contest::large(table, bytes, company),
        6 => contest::private(table, bytes),
        _ => contest::left_attached(table, bytes),
    }
}

/// What a thread does when it ends.
type Will = Box<dyn FnOnce()>;

/// When a destructor runs.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// First before the allocator's own, which gives up the thread's heap, and then after it.
    Early,
    /// After it.
    Late,
}

thread_local! { static IS_LATE: Cell<bool> = const { Cell::new(false) } }

/// Whether the calling thread may have given up its heap.
pub(super) fn is_late() -> bool {
    IS_LATE.get()
}

extern "C" fn execute_early(wills: *mut libc::c_void) {
    // SAFETY: what `leave` has stored, once.
    let mut wills = unsafe { Box::from_raw(wills.cast::<Vec<Will>>()) };
    if let Some(will) = wills.pop() {
        will();
    }
    IS_LATE.set(true);
    if !wills.is_empty() {
        leave(When::Early, *wills);
    }
}

extern "C" fn execute_late(wills: *mut libc::c_void) {
    IS_LATE.set(true);
    // SAFETY: as above.
    let wills = unsafe { Box::from_raw(wills.cast::<Vec<Will>>()) };
    wills.into_iter().for_each(|will| will());
}

/// The keys, made when this is first called: before the allocator's are, then.
fn keys() -> [libc::pthread_key_t; 2] {
    static KEYS: OnceLock<[libc::pthread_key_t; 2]> = OnceLock::new();
    let key = |destructor| {
        let mut key = 0;
        // SAFETY: `key` is valid for writing.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(destructor)) }, 0);
        key
    };
    *KEYS.get_or_init(|| {
        let early = key(execute_early);
        // Destructors run in the order of the keys: now the allocator's are made.
        // SAFETY: allocated here.
        unsafe { cairn::deallocate(cairn::allocate(1)) };
        [early, key(execute_late)]
    })
}

/// To be called before anything is allocated.
pub(super) fn prepare() {
    keys();
}

/// Leaves something to be done when the calling thread ends: early ones are done one in a round, the last one first.
pub(super) fn leave(when: When, wills: Vec<Will>) {
    let key = keys()[when as usize];
    // SAFETY: the key exists; the destructor takes the box back.
    let set = unsafe { libc::pthread_setspecific(key, Box::into_raw(Box::new(wills)).cast()) };
    assert_eq!(set, 0);
}

/// The table, which goes to one thread and comes back.
#[derive(Clone, Copy)]
struct Lent(*mut Table);

// SAFETY: who lends it waits until the thread has ended.
unsafe impl Send for Lent {}

impl Lent {
    fn steps(self, bytes: &[u8], company: Company) {
        // SAFETY: as above.
        steps(unsafe { &mut *self.0 }, &mut Bytes::new(bytes), company);
    }
}

/// A thread begins, takes some steps, and ends with others.
fn errand(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (head, rest) = (bytes.number(), bytes.number());
    let parts =
        [head % 16, head / 16, rest % 16, rest / 16].map(|len| bytes.take(4 * len).to_vec());
    if table.is_away {
        return;
    }
    table.is_away = true;
    let (lent, number) = (Lent(table), world::new_number());
    let work = move || {
        world::set_me(number);
        let [first, early, again, late] = parts;
        lent.steps(&first, company);
        let will = |bytes: Vec<u8>| -> Will { Box::new(move || lent.steps(&bytes, company)) };
        leave(When::Early, vec![will(again), will(early)]);
        leave(When::Late, vec![will(late)]);
    };
    // Joined here, with its destructors.
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work);
    thread.expect("threads can be made").join().expect("a panic ends the process");
    world::gone(number);
    table.is_away = false;
}
