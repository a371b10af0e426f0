//! The file that a setting names: kept while the library is loaded, made when there is something to write.

use crate::environment::name_beside_another;
use crate::report::{Output, may_write, process};
use crate::settings::PATH_BYTES_MAX;
use core::cell::UnsafeCell;
use core::ffi::CStr;

/// Room for a file's name and digits behind a path, and the zero.
const SUFFIX: usize = 256 + 16;

/// What this copy of cairn has behind its paths, as another serves the process's malloc; empty: nothing. The loader has the
/// name of the program's file where the program may write over it.
static COPY: Destination = Destination::none();

/// Its path; empty: none.
pub(crate) struct Destination(UnsafeCell<[u8; PATH_BYTES_MAX]>);

// SAFETY: written only while the library is loaded, before anybody reads.
unsafe impl Sync for Destination {}

/// Whether this process is the first that has seen the setting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    First,
    Below,
}

/// Looks whether this copy is the one that the process allocates from.
#[cold]
#[inline(never)]
pub(crate) fn note_copy() {
    COPY.set(name_beside_another());
}

impl Destination {
    /// None yet.
    pub(crate) const fn none() -> Self {
        Self(UnsafeCell::new([0; PATH_BYTES_MAX]))
    }

    /// Takes note of a path. A copy: programs write their titles over the environment.
    #[inline(never)]
    pub(crate) fn set(&self, path: &[u8]) {
        // SAFETY: while the library is loaded nobody else is here; the path is shorter than the room.
        let file = unsafe { &mut *self.0.get() };
        for (to, from) in file.iter_mut().zip(path.iter().chain(&[0])) {
            *to = *from;
        }
    }

    /// The path.
    #[inline(never)]
    pub(crate) fn path(&self) -> &[u8] {
        // SAFETY: written only while the library is loaded.
        let file = unsafe { &*self.0.get() };
        CStr::from_bytes_until_nul(file).map_or(&[], CStr::to_bytes)
    }

    /// Makes the file anew; None if that cannot be.
    pub(crate) fn open(&self, rank: Rank) -> Option<Output> {
        let mut room = [0; PATH_BYTES_MAX + SUFFIX];
        Output::to_file(expand(self.path(), rank, &mut room)?)
    }
}

/// Whether a file of that path can probably be made or written; not if there is none.
#[inline(never)]
pub(crate) fn seems_possible(path: &[u8]) -> bool {
    let directory = match path.iter().rposition(|&byte| byte == b'/') {
        Some(end) => path.get(..=end).unwrap_or(path),
        None => b".",
    };
    !path.is_empty() && (is_writable(path) || is_writable(directory))
}

#[inline(never)]
fn is_writable(path: &[u8]) -> bool {
    let mut room = [0; PATH_BYTES_MAX];
    let Some(start) = room.get_mut(..path.len()) else { return false };
    start.copy_from_slice(path);
    CStr::from_bytes_until_nul(&room).is_ok_and(may_write)
}

/// The path with the process's number for each `%p`. Behind it are the name of a copy that is not the process's own
/// and, without a number in the path, those of processes below the first one: no file is written by two,
/// but for copies whose files have one name, and those that find their own malloc alone (RTLD_DEEPBIND).
fn expand<'a>(pattern: &[u8], rank: Rank, room: &'a mut [u8]) -> Option<&'a CStr> {
    let mut digits = [0; 10];
    let digits = decimal(process(), &mut digits);
    let mut end = 0;
    let mut add = |bytes: &[u8]| -> Option<()> {
        room.get_mut(end..end + bytes.len())?.copy_from_slice(bytes);
        end += bytes.len();
        Some(())
    };
    let mut rest = pattern;
    let mut has_number = false;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
        add(rest.get(..at)?)?;
        add(digits)?;
        rest = rest.get(at + 2..)?;
        has_number = true;
    }
    add(rest)?;
    let copy = COPY.path();
    if !copy.is_empty() {
        add(b".")?;
        add(copy)?;
    }
    if !has_number && rank == Rank::Below {
        add(b".")?;
        add(digits)?;
    }
    add(&[0])?;
    CStr::from_bytes_until_nul(room).ok()
}

/// A number's digits.
fn decimal(mut number: u32, room: &mut [u8; 10]) -> &[u8] {
    let mut start = room.len();
    for digit in room.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        start -= 1;
        if number == 0 {
            break;
        }
    }
    room.get(start..).unwrap_or(&[])
}
