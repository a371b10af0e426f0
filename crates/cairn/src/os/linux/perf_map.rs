//! Owns: what a process tells `perf` of code that it makes while it runs.
//! Idea: runtimes write a file of a known name, and this process is the one that knows its own number and its `/tmp`.
//! Never: allocates, or reads what may be another user's, or is no plain file.
//! Threads: any; holds nothing.
//! Checked: tests/perf_map.rs of the command.
//! Story: docs/guide/profile.md

use super::{File, process_id, system_call};
use crate::os::Message;
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// A larger file is left out: the program waits while it is read.
const BYTES_MAX: i64 = 64 << 20;

/// Gives what `/tmp/perf-PID.map` says, piece by piece.
pub(crate) fn perf_map(mut each: impl FnMut(&[u8])) {
    let mut path = Message::new();
    path.text("/tmp/perf-").number(process_id() as usize).text(".map\0");
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok();
    let Some(file) = path.and_then(|path| File::open_with(path, flags)) else { return };
    if !is_trusted(&file) {
        return;
    }
    // It may be growing.
    let (mut room, mut left) = ([0; 512], BYTES_MAX as usize);
    while let Some(piece) = file.read(&mut room).and_then(|count| room.get(..count))
        && !piece.is_empty()
        && left >= piece.len()
    {
        each(piece);
        left -= piece.len();
    }
}

/// Whether it is a plain file of this user's or root's, and not too large.
fn is_trusted(file: &File) -> bool {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    let at = found.as_mut_ptr().expose_provenance();
    // SAFETY: valid for writing, and written if the call succeeds: the kernel's struct is the C library's.
    let found = unsafe {
        if system_call(libc::SYS_fstat, [file.0, at, 0, 0, 0, 0]) != 0 {
            return false;
        }
        found.assume_init()
    };
    // SAFETY: has no preconditions.
    let user = unsafe { system_call(libc::SYS_geteuid, [0; 6]) }.cast_unsigned();
    let is_own = found.st_uid == 0 || found.st_uid as usize == user;
    found.st_mode & libc::S_IFMT == libc::S_IFREG && is_own && found.st_size <= BYTES_MAX
}
