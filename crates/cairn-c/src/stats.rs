//! The account that somebody asked for by `CAIRN_STATS`: whose it is to be, where it goes, and
//! that it is written once. What it says is in account.rs; docs/guide/statistics.md tells users.

use crate::account;
use crate::environment;
use crate::environment::prefix;
use crate::report::{Output, process, warn};
use crate::settings::{PATH_BYTES_MAX, Stats, Text, Whose};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The process whose account is asked for, children that it forks not included; 0: nobody's.
static TOP: AtomicU32 = AtomicU32::new(0);
/// All the others' too.
static EVERYONES: AtomicBool = AtomicBool::new(false);
/// The process that has begun to write its account: not a forked child of it.
static WRITER: AtomicU32 = AtomicU32::new(0);

/// Room for digits behind a path, and the zero.
const SUFFIX: usize = 16;

/// The file to write to; empty: standard error.
struct File(UnsafeCell<[u8; PATH_BYTES_MAX]>);

// SAFETY: written only while the library is loaded, before anybody reads.
unsafe impl Sync for File {}

static FILE: File = File(UnsafeCell::new([0; PATH_BYTES_MAX]));

/// Takes note of the request.
pub(crate) fn ask(stats: Stats) {
    let own = process();
    let top = stats.top.unwrap_or(own);
    if stats.whose == Whose::Nobodys {
        return;
    }
    TOP.store(top, Ordering::Relaxed);
    EVERYONES.store(stats.whose == Whose::Everyones, Ordering::Relaxed);
    if stats.top.is_none() {
        environment::mark_as_top(stats, own);
    }
}

/// Takes note of the file. A copy: programs write their titles over the environment.
pub(crate) fn write_to(path: &[u8]) {
    // SAFETY: while the library is loaded nobody else is here; the path is shorter than the room.
    let file = unsafe { &mut *FILE.0.get() };
    for (to, from) in file.iter_mut().zip(path.iter().chain(&[0])) {
        *to = *from;
    }
}

/// What was asked for, in the words of the setting.
pub(crate) fn whose() -> &'static str {
    match (TOP.load(Ordering::Relaxed), EVERYONES.load(Ordering::Relaxed)) {
        (0, _) => "0",
        (_, true) => "all",
        (_, false) => "1",
    }
}

/// The file that was asked for.
pub(crate) fn file() -> &'static [u8] {
    // SAFETY: written only while the library is loaded.
    let file = unsafe { &*FILE.0.get() };
    CStr::from_bytes_until_nul(file).map_or(&[], CStr::to_bytes)
}

/// Whether this process is one whose account is asked for.
pub(crate) fn is_wanted() -> bool {
    let top = TOP.load(Ordering::Relaxed);
    top != 0 && (EVERYONES.load(Ordering::Relaxed) || top == process())
}

/// Writes the account where it was asked for; false if somebody else does, or has.
pub(crate) fn write_once() -> bool {
    let own = process();
    if WRITER.swap(own, Ordering::Relaxed) == own {
        return false;
    }
    let mut out = if file().is_empty() { Output::to_first_stderr() } else { open() };
    account::write_now(&mut out);
    true
}

/// The process goes on after its account.
pub(crate) fn begin_anew() {
    WRITER.store(0, Ordering::Relaxed);
}

/// The file, or standard error if there is no such.
fn open() -> Output {
    let mut room = [0; PATH_BYTES_MAX + SUFFIX];
    let path = expand(file(), &mut room);
    let opened = path.and_then(Output::to_file);
    opened.unwrap_or_else(|| {
        let prefix = Text(prefix());
        warn(format_args!("{prefix}STATS_FILE: cannot write to {}", Text(file())));
        Output::to_first_stderr()
    })
}

/// The path with the process's number for each `%p`. Without one, processes below the first one
/// have their numbers behind it: no file is written by two.
fn expand<'a>(pattern: &[u8], room: &'a mut [u8]) -> Option<&'a CStr> {
    let own = process();
    let mut digits = [0; 10];
    let digits = decimal(own, &mut digits);
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
    if !has_number && own != TOP.load(Ordering::Relaxed) {
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
