//! The process's environment, as the library finds it and changes it: only while it is loaded, and
//! only in place, so that nothing is allocated.

use crate::report::Line;
use crate::settings::{Stats, Text, Whose};
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_void};
use core::fmt::Write;

// What the names of settings begin with, unless whoever links the archive defines it: then theirs
// counts. Hidden, so that each copy in a process has its own.
global_asm!(
    ".pushsection .rodata.cairn_settings_prefix,\"a\"",
    ".hidden cairn_settings_prefix",
    ".weak cairn_settings_prefix",
    ".type cairn_settings_prefix, %object",
    ".size cairn_settings_prefix, 7",
    "cairn_settings_prefix:",
    ".asciz \"CAIRN_\"",
    ".popsection",
);

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
    static cairn_settings_prefix: c_char;
}

/// Longest prefix: room for it, and a name of ours, is kept here and there.
pub(crate) const PREFIX_BYTES_MAX: usize = 32;

/// What the names of settings begin with. An empty one is that of no setting, and so is one that is too long.
pub(crate) fn prefix() -> &'static [u8] {
    // SAFETY: a C string, ours or the embedding program's.
    unsafe { CStr::from_ptr(&raw const cairn_settings_prefix) }.to_bytes()
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

/// What follows the prefix, and the value.
pub(crate) fn cairn_variables() -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    let prefix = prefix();
    let reads = (1..=PREFIX_BYTES_MAX).contains(&prefix.len());
    variables().take_while(move |_| reads).filter_map(move |entry| {
        // SAFETY: entries are C strings; a program that writes over them does so later.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let rest = bytes.strip_prefix(prefix)?;
        let at = rest.iter().position(|&b| b == b'=')?;
        Some((rest.get(..at)?, rest.get(at + 1..)?))
    })
}

/// An entry of the environment that this library owns.
struct Entry(UnsafeCell<[u8; PREFIX_BYTES_MAX + 32]>);

// SAFETY: written once, while the library is loaded.
unsafe impl Sync for Entry {}

static STATS: Entry = Entry(UnsafeCell::new([0; PREFIX_BYTES_MAX + 32]));

/// Puts this process's number behind the request for an account: what it starts shall know that the
/// request was not for them.
pub(crate) fn mark_as_top(stats: Stats, process: u32) {
    let word = if stats.whose == Whose::Everyones { "all" } else { "1" };
    // SAFETY: nobody else has the entry yet.
    let room = unsafe { &mut *STATS.0.get() };
    let prefix = prefix();
    if write!(Line::new(room), "{}STATS={word}:{process}\0", Text(prefix)).is_err() {
        return;
    }
    for place in places() {
        // SAFETY: entries are C strings; the array is the process's to change, and the new entry
        // lives as long as the library, which is not unloaded.
        unsafe {
            let rest = CStr::from_ptr(*place).to_bytes().strip_prefix(prefix);
            if rest.is_some_and(|rest| rest.starts_with(b"STATS=")) {
                *place = STATS.0.get().cast();
            }
        }
    }
}

/// Has the processes below know that the request for a profile was not for them first.
pub(crate) fn mark_as_first_profiled(process: u32) {
    let mut digits = [0; 16];
    // SAFETY: C strings, as a number leaves room for a NUL; as below.
    unsafe {
        let name = full_name("PROFILE_FIRST");
        if write!(Line::new(&mut digits), "{process}").is_ok() {
            libc::setenv(name.as_ptr().cast(), digits.as_ptr().cast(), 1);
        }
    }
}

/// Has the processes below say nothing of the settings.
pub(crate) fn mark_as_warned() {
    // SAFETY: C strings; as long as libraries are loaded with the program, no other thread runs yet.
    unsafe { libc::setenv(full_name("WARNED").as_ptr().cast(), c"1".as_ptr(), 1) };
}

/// A variable's name, with a NUL at its end.
fn full_name(rest: &str) -> [u8; PREFIX_BYTES_MAX + 32] {
    let mut room = [0; PREFIX_BYTES_MAX + 32];
    // Names are short enough for some bytes to stay NUL.
    let _ = write!(Line::new(&mut room), "{}{rest}", Text(prefix()));
    room
}

/// Whether a path is that of what `cairn run` preloads beside the library.
fn is_beside(path: &[u8], own: &[u8]) -> bool {
    let folder = own.len() - behind_last(b'/', own).len();
    let name = path.strip_prefix(own.get(..folder).unwrap_or(&[]));
    name.is_some_and(|name| {
        name.starts_with(b"libcairn-plugins-") && behind_last(b'/', name) == name
    })
}

/// Whether an entry of `LD_PRELOAD` is what the loader has found there: the path, or a name that it has searched for or
/// filled in.
fn leads_to(entry: &[u8], own: &[u8]) -> bool {
    let is_sought = behind_last(b'/', entry) == entry || behind_last(b'$', entry) != entry;
    entry == own || is_sought && behind_last(b'/', entry) == behind_last(b'/', own)
}

/// What is behind the last of these bytes in a path, or all of it.
#[inline(never)]
fn behind_last(byte: u8, path: &[u8]) -> &[u8] {
    let from = path.iter().rposition(|&b| b == byte).map_or(0, |at| at + 1);
    path.get(from..).unwrap_or(&[])
}

/// The path by which the loader has the file that an address lies in.
fn file_of(address: *const c_void) -> Option<&'static CStr> {
    // SAFETY: zero is a value of the struct; the path stays as long as the file, and those that are asked for are not unloaded.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let is_found = libc::dladdr(address, &mut info) != 0 && !info.dli_fname.is_null();
        is_found.then(|| CStr::from_ptr(info.dli_fname))
    }
}

/// The name of this copy's file, if another file serves the process's malloc; or nothing. A copy with names of its own
/// does without where that is the C library.
pub(crate) fn name_beside_another() -> &'static [u8] {
    // Not `malloc`: some programs have a second address for it, and some libraries a function around this copy's.
    // SAFETY: a C string; the flag only looks at what is loaded. In a static program it finds nothing.
    let serving = file_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pvalloc".as_ptr()) });
    if prefix() != b"CAIRN_" && serving == file_of(libc::getauxval as *const c_void) {
        return &[];
    }
    match (serving, file_of(leave_children_alone as *const c_void)) {
        (Some(serving), Some(own)) if serving != own => behind_last(b'/', own.to_bytes()),
        _ => &[],
    }
}

/// Takes this library out of `LD_PRELOAD`, so that children keep their own allocator.
pub(crate) fn leave_children_alone() {
    let Some(own) = file_of(leave_children_alone as *const c_void) else { return };
    let own = own.to_bytes();
    for entry in variables() {
        // SAFETY: as in `cairn_variables`.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let Some(list) = bytes.strip_prefix(b"LD_PRELOAD=") else { continue };
        // Rewritten in place: it only gets shorter.
        let text: *mut u8 = entry.wrapping_add(b"LD_PRELOAD=".len()).cast();
        let mut len = 0;
        for part in list.split(|&b| b == b':' || b == b' ') {
            if part.is_empty() || leads_to(part, own) || is_beside(part, own) {
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
    unsafe { libc::unsetenv(full_name("NO_INHERIT").as_ptr().cast()) };
}
