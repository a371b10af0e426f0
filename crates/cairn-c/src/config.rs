//! The environment: read once, when the library is loaded; not at all in set-uid programs.
//! docs/configuration.md has the table.

use crate::purge_thread;
use crate::report::{self, Stderr, warn};
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Runs before the program's own constructors, usually; of a static program's, before those
/// with a priority too.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn() = start;

/// Runs after the program's exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

static PRINT_AT_EXIT: AtomicBool = AtomicBool::new(false);
static PURGE_THREAD: AtomicBool = AtomicBool::new(false);

/// Reads a value and applies it; false if it makes no sense.
type Apply = fn(&[u8]) -> bool;

/// The settings, by name.
const SETTINGS: [(&[u8], Apply); 6] = [
    (b"STATS", |value| switch(value, |on| PRINT_AT_EXIT.store(on, Ordering::Relaxed))),
    (b"SHOW_CONFIG", |value| switch(value, |_| ())),
    (b"NO_INHERIT", |value| switch(value, |_| ())),
    (b"HUGE_PAGES", |value| switch(value, |on| cairn::HUGE_PAGES.store(on, Ordering::Relaxed))),
    (b"PURGE_DELAY", |value| match milliseconds(value) {
        Some(ms) => {
            cairn::set_purge_delay_ms(ms);
            true
        }
        None => false,
    }),
    (b"PURGE_THREAD", |value| switch(value, |on| PURGE_THREAD.store(on, Ordering::Relaxed))),
];

extern "C" fn start() {
    // Nothing is reserved here: a program may limit its own address space before it allocates.
    cairn::see_forks();
    // SAFETY: getauxval has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let mut show = false;
    let mut no_inherit = false;
    for (key, value) in cairn_variables() {
        match SETTINGS.iter().find(|(name, _)| *name == key) {
            None => warn(format_args!("unknown setting CAIRN_{}", Text(key))),
            Some((_, apply)) => {
                if !apply(value) {
                    warn(format_args!("CAIRN_{}: cannot read `{}`", Text(key), Text(value)));
                }
                show |= key == b"SHOW_CONFIG" && value == b"1";
                no_inherit |= key == b"NO_INHERIT" && value == b"1";
            }
        }
    }
    if show {
        print_config(no_inherit);
    }
    if no_inherit {
        leave_children_alone();
    }
    // Last: the environment is changed while there is one thread.
    if PURGE_THREAD.load(Ordering::Relaxed) && !purge_thread::begin() {
        warn(format_args!("CAIRN_PURGE_THREAD: no thread can be started"));
    }
}

extern "C" fn end() {
    if PRINT_AT_EXIT.load(Ordering::Relaxed) {
        report::print_ledger();
    }
}

fn print_config(no_inherit: bool) {
    let mut out = Stderr::new();
    let flag = |on| u8::from(on);
    // Stderr's writes do not fail.
    let _ = writeln!(
        out,
        "cairn {} configuration\nCAIRN_STATS={}\nCAIRN_SHOW_CONFIG=1\nCAIRN_NO_INHERIT={}\n\
         CAIRN_HUGE_PAGES={}\nCAIRN_PURGE_DELAY={}ms\n\
         CAIRN_PURGE_THREAD={}",
        env!("CARGO_PKG_VERSION"),
        flag(PRINT_AT_EXIT.load(Ordering::Relaxed)),
        flag(no_inherit),
        flag(cairn::HUGE_PAGES.load(Ordering::Relaxed)),
        cairn::purge_delay_ms(),
        flag(PURGE_THREAD.load(Ordering::Relaxed)),
    );
}

fn switch(value: &[u8], apply: fn(bool)) -> bool {
    match value {
        b"1" => apply(true),
        b"0" | b"" => apply(false),
        _ => return false,
    }
    true
}

/// A time with a unit: `250ms`, `1s`, `0`.
fn milliseconds(value: &[u8]) -> Option<usize> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = value.split_at_checked(digits)?;
    let number: usize = core::str::from_utf8(number).ok()?.parse().ok()?;
    match unit {
        b"ms" => Some(number),
        b"s" => number.checked_mul(1000),
        b"" if number == 0 => Some(0),
        _ => None,
    }
}

/// Bytes of the environment, shown as far as they are text.
struct Text<'a>(&'a [u8]);

impl core::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(core::str::from_utf8(self.0).unwrap_or("?"))
    }
}

/// The environment's entries.
fn variables() -> impl Iterator<Item = *mut c_char> {
    // SAFETY: a null-terminated array, or null; nothing else runs while libraries are loaded.
    let mut at = unsafe { environ };
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: as above; entries up to the null are C strings.
        let entry = unsafe { *at };
        at = at.wrapping_add(1);
        (!entry.is_null()).then_some(entry)
    })
}

/// What follows `CAIRN_`, and the value.
fn cairn_variables() -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    variables().filter_map(|entry| {
        // SAFETY: entries are C strings that live as long as the process.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let rest = bytes.strip_prefix(b"CAIRN_")?;
        let at = rest.iter().position(|&b| b == b'=')?;
        Some((rest.get(..at)?, rest.get(at + 1..)?))
    })
}

/// Takes this library out of `LD_PRELOAD`, so that children keep their own allocator.
fn leave_children_alone() {
    // SAFETY: zero is a value of the struct; the address is one of this library's.
    let own = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(start as *const libc::c_void, &mut info) == 0 || info.dli_fname.is_null() {
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
