//! The heap profile: the calls, and what `CAIRN_PROFILE` asks for. docs/guide/profile.md tells users.

use crate::destination::{Destination, Rank};
use crate::environment::{self, prefix};
use crate::json::{Pieces, Writer};
use crate::report::{identity, warn, warn_at_end};
use crate::settings::Text;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes from one sample to the next on average, if nobody says.
pub(crate) const RATE: usize = 512 << 10;

/// The file to write at exit.
static FILE: Destination = Destination::none();
/// The first process that has seen the request; 0: nobody has asked.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// The process that has written: not a forked child of it.
static WRITER: AtomicU32 = AtomicU32::new(0);

/// Takes a sample of every so many bytes, on average; 0 bytes: none. 0 if there is no memory for it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_profile_every(bytes: usize) -> c_int {
    c_int::from(cairn::profile_every(bytes))
}

/// The profile as text, given to `writer` piece by piece.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_profile_text(writer: Writer, arg: *mut c_void) {
    let mut out = Pieces::new(writer, arg);
    cairn::write_profile(|piece| out.add(piece));
    out.flush();
}

/// Writes it to a descriptor; 0 if that takes less.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_profile_write(descriptor: c_int) -> c_int {
    let mut place = Place { descriptor, fails: false };
    // SAFETY: the function gets what it asks for.
    unsafe { cairn_profile_text(to_descriptor, (&raw mut place).cast()) };
    c_int::from(!place.fails)
}

struct Place {
    descriptor: c_int,
    fails: bool,
}

unsafe extern "C" fn to_descriptor(place: *mut c_void, text: *const c_char, n: usize) {
    // SAFETY: as `cairn_profile_write` calls it.
    let (place, text) =
        unsafe { (&mut *place.cast::<Place>(), core::slice::from_raw_parts(text.cast::<u8>(), n)) };
    place.fails = place.fails || !cairn::write_all(place.descriptor, text);
}

/// Takes note of the file.
pub(crate) fn write_to(path: &[u8]) {
    FILE.set(path);
}

/// The file that was asked for.
pub(crate) fn file() -> &'static [u8] {
    FILE.path()
}

/// Begins, where a file was asked for; `first` has seen that before this process, or nobody has: 0.
#[cold]
#[inline(never)]
pub(crate) fn begin(rate: usize, first: u32) {
    if !cairn::profile_every(rate) {
        warn(format_args!("{}PROFILE: there is no memory for it", Text(prefix())));
        return;
    }
    let own = identity();
    FIRST.store(if first == 0 { own } else { first }, Ordering::Relaxed);
    if first == 0 {
        environment::mark_as_first_profiled(own);
    }
}

/// Writes the file, once.
// Inlined: most programs do not need the pages of the rest.
#[inline(always)]
pub(crate) fn at_exit() {
    let first = FIRST.load(Ordering::Relaxed);
    if first != 0 {
        write_once(first, identity());
    }
}

#[cold]
#[inline(never)]
fn write_once(first: u32, own: u32) {
    if WRITER.swap(own, Ordering::Relaxed) == own {
        return;
    }
    let rank = if first == own { Rank::First } else { Rank::Below };
    match FILE.open(rank) {
        Some(mut out) => cairn::write_profile(|piece| out.add(piece)),
        None => {
            warn_at_end(format_args!(
                "{}PROFILE: cannot write to {}",
                Text(prefix()),
                Text(file())
            ));
        }
    }
}
