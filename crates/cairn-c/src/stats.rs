//! The account that somebody asked for by `CAIRN_STATS`: whose it is to be, where it goes, and
//! that it is written once. What it says is in account.rs, or the core; docs/guide/statistics.md tells users.

use crate::account;
use crate::destination::{Destination, Rank};
use crate::environment;
use crate::environment::prefix;
use crate::report::{Output, identity, warn_at_end};
use crate::settings::{Stats, Text, Whose};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The process whose account is asked for, children that it forks not included; 0: nobody's.
static TOP: AtomicU32 = AtomicU32::new(0);
/// All the others' too.
static EVERYONES: AtomicBool = AtomicBool::new(false);
/// The process that has begun to write its account: not a forked child of it.
static WRITER: AtomicU32 = AtomicU32::new(0);
/// The one that has. Relaxed: nobody reads what was written.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// The file to write to; none: standard error.
static FILE: Destination = Destination::none();

/// Takes note of the request.
pub(crate) fn ask(stats: Stats) {
    let own = identity();
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

/// Takes note of the file.
pub(crate) fn write_to(path: &[u8]) {
    FILE.set(path);
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
    FILE.path()
}

/// Whether this process is one whose account is asked for.
pub(crate) fn is_wanted() -> bool {
    let top = TOP.load(Ordering::Relaxed);
    top != 0 && (EVERYONES.load(Ordering::Relaxed) || top == identity())
}

/// Writes the account where it was asked for; false if somebody else does, or has.
pub(crate) fn write_once() -> bool {
    let own = identity();
    if WRITER.swap(own, Ordering::Relaxed) == own {
        return false;
    }
    if let Some(out) = if file().is_empty() { None } else { open() } {
        write(out);
    } else if let Some(mut out) = Output::to_first_stderr() {
        account::write_now(&mut out);
    }
    WRITTEN.store(own, Ordering::Relaxed);
    true
}

/// Whether this process's account stands where it was asked for.
pub(crate) fn is_written() -> bool {
    WRITTEN.load(Ordering::Relaxed) == identity()
}

/// The process goes on after its account.
pub(crate) fn begin_anew() {
    WRITTEN.store(0, Ordering::Relaxed);
    WRITER.store(0, Ordering::Relaxed);
}

/// The file; None, with a word about it, if it cannot be made.
fn open() -> Option<Output> {
    let is_top = identity() == TOP.load(Ordering::Relaxed);
    let out = FILE.open(if is_top { Rank::First } else { Rank::Below });
    if out.is_none() {
        let prefix = Text(prefix());
        warn_at_end(format_args!("{prefix}STATS_FILE: cannot write to {}", Text(file())));
    }
    out
}

/// Writes it in the form that the file's name says; the account in words if it says none.
fn write(mut out: Output) {
    if file().ends_with(b".json") {
        cairn::write_json(|piece| out.add(piece));
        out.add(b"\n");
    } else if file().ends_with(b".prom") {
        cairn::write_prometheus(|piece| out.add(piece));
    } else {
        account::write_now(&mut out);
    }
}
