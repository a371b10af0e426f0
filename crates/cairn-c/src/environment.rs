//! The process's environment, as the library finds it and changes it: only while it is loaded, and
//! only in place, so that nothing is allocated.

use crate::report::Line;
use crate::settings::{PREFIX, Stats, Whose};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_void};
use core::fmt::Write;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The places of the environment's entries.
fn places() -> impl Iterator<Item = *mut *mut c_char> {
    // SAFETY: a null-terminated array, or null; nothing else runs while libraries are loaded.
    let mut at = unsafe { environ };
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        let place = at;
        at = at.wrapping_add(1);
        // SAFETY: as above: not behind the null.
        (!unsafe { *place }.is_null()).then_some(place)
    })
}

/// The environment's entries.
fn variables() -> impl Iterator<Item = *mut c_char> {
    // SAFETY: the places are those of the array.
    places().map(|place| unsafe { *place })
}

/// What follows `CAIRN_`, and the value.
pub(crate) fn cairn_variables() -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    variables().filter_map(|entry| {
        // SAFETY: entries are C strings; a program that writes over them does so later.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let rest = bytes.strip_prefix(PREFIX)?;
        let at = rest.iter().position(|&b| b == b'=')?;
        Some((rest.get(..at)?, rest.get(at + 1..)?))
    })
}

/// An entry of the environment that this library owns.
struct Entry(UnsafeCell<[u8; 32]>);

// SAFETY: written once, while the library is loaded.
unsafe impl Sync for Entry {}

static STATS: Entry = Entry(UnsafeCell::new([0; 32]));

/// Puts this process's number behind the request for an account: what it starts shall know that the
/// request was not for them.
pub(crate) fn mark_as_top(stats: Stats, process: u32) {
    let word = if stats.whose == Whose::Everyones { "all" } else { "1" };
    // SAFETY: nobody else has the entry yet.
    let room = unsafe { &mut *STATS.0.get() };
    if write!(Line::new(room), "CAIRN_STATS={word}:{process}\0").is_err() {
        return;
    }
    for place in places() {
        // SAFETY: entries are C strings; the array is the process's to change, and the new entry
        // lives as long as the library, which is not unloaded.
        unsafe {
            if CStr::from_ptr(*place).to_bytes().starts_with(b"CAIRN_STATS=") {
                *place = STATS.0.get().cast();
            }
        }
    }
}

/// Has the processes below say nothing of the settings.
pub(crate) fn mark_as_warned() {
    // SAFETY: C strings; as long as libraries are loaded with the program, no other thread runs yet.
    unsafe { libc::setenv(c"CAIRN_WARNED".as_ptr(), c"1".as_ptr(), 1) };
}

/// Takes this library out of `LD_PRELOAD`, so that children keep their own allocator.
pub(crate) fn leave_children_alone() {
    // SAFETY: zero is a value of the struct; the address is one of this library's.
    let own = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let here = leave_children_alone as *const c_void;
        if libc::dladdr(here, &mut info) == 0 || info.dli_fname.is_null() {
            return;
        }
        CStr::from_ptr(info.dli_fname).to_bytes()
    };
    for entry in variables() {
        // SAFETY: as in `cairn_variables`.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let Some(list) = bytes.strip_prefix(b"LD_PRELOAD=") else { continue };
        // Rewritten in place: it only gets shorter.
        let text: *mut u8 = entry.wrapping_add(b"LD_PRELOAD=".len()).cast();
        let mut len = 0;
        for part in list.split(|&b| b == b':' || b == b' ') {
            if part.is_empty() || part == own {
                continue;
            }
            // SAFETY: the parts kept so far, with separators, are no longer than the list read.
            unsafe {
                if len > 0 {
                    text.add(len).write(b':');
                    len += 1;
                }
                text.add(len).copy_from(part.as_ptr(), part.len());
            }
            len += part.len();
        }
        // SAFETY: at most the place of the old terminator.
        unsafe { text.add(len).write(0) };
        if len == 0 {
            // SAFETY: as long as libraries are loaded with the program, no other thread runs yet.
            unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
        }
        break;
    }
    // SAFETY: as above.
    unsafe { libc::unsetenv(c"CAIRN_NO_INHERIT".as_ptr()) };
}
