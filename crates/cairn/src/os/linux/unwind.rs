//! Owns: where the tables are by which a file's functions find their callers' frames.
//! Idea: glibc from 2.35 on says it without a lock, in a signal's handler too. Where it does not, there are none.
//! Never: takes the loader's lock, or allocates: it may be asked inside of malloc. So `dlsym` is not asked.
//! Threads: any; holds nothing.
//! Checked: tests/unwind.rs
//! Story: docs/guide/profile.md

use super::symbols::defined_in;
use crate::base::{AtomicPtr, Ordering};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

/// The tables of a file that is loaded.
pub(crate) struct UnwindTable {
    /// The file's first address, and the one behind its last.
    pub(crate) range: (usize, usize),
    /// The file's `.eh_frame_hdr`.
    pub(crate) start: usize,
}

/// As glibc's `struct dl_find_object` is on x86-64 and aarch64.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link: *mut c_void,
    table: usize,
    reserved: [u64; 7],
}

type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;

/// A `Find`, or null. Relaxed: it is there or not, and stays so.
static FIND: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Looks for the function in the table of names of the C library's file.
pub(crate) fn find_unwind_tables() {
    let inside = libc::getauxval as *const () as usize;
    let base = super::mapped_around(inside, |mapped| mapped.base);
    // SAFETY: the file of a function that is linked is loaded, and stays.
    let found = base.and_then(|base| unsafe { defined_in(base, c"_dl_find_object") });
    let found = found.map_or(null_mut(), core::ptr::with_exposed_provenance_mut);
    FIND.store(found, Ordering::Relaxed);
}

/// The tables of the file that has an address. Another thread may unload it as soon as this is said.
pub(crate) fn unwind_table(address: usize) -> Option<UnwindTable> {
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = MaybeUninit::<Found>::uninit();
    // SAFETY: that function, which takes any address and writes what it has found if it answers 0.
    let found = unsafe {
        let find = core::mem::transmute::<*mut (), Find>(find);
        let answer = find(core::ptr::without_provenance(address), found.as_mut_ptr());
        if answer != 0 {
            return None;
        }
        found.assume_init()
    };
    let is_inside = (found.start..found.end).contains(&found.table);
    is_inside.then_some(UnwindTable { range: (found.start, found.end), start: found.table })
}
