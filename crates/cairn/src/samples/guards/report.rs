//! Owns: what is said of a block that is used as it must not be.
//! Idea: a line that says what, and stacks of who has accessed, freed and allocated it: numbers, which
//!   are made into names elsewhere.
//! Never: allocates or takes a lock: the program may be anywhere.
//! Threads: any, in a signal's handler too.
//! Checked: tests/guards.rs of the C layer.
//! Story: docs/guide/guards.md

use super::bay::{Bay, State, Trace};
use super::{known, offset_of, stride};
use crate::base::{AtomicU32, Ordering};
use crate::os::{self, Message};
use crate::samples::tuning::{BAYS, REPORT_WAITS, SHOWN_PATH_BYTES};
use crate::stacks::{self, Calls, Registers, machine};
use core::ffi::c_void;

/// A thread is reporting, so that reports do not mix. Relaxed: it guards nothing else.
static BUSY: AtomicU32 = AtomicU32::new(0);

/// Looks at faults from now on.
pub(super) fn begin() {
    os::see_faults(fault);
}

fn one_at_a_time(report: impl FnOnce()) {
    let order = Ordering::Relaxed;
    for _ in 0..REPORT_WAITS {
        if BUSY.compare_exchange(0, 1, order, order).is_ok() {
            break;
        }
        os::wait_for(&BUSY, 1, 1);
    }
    report();
    BUSY.store(0, order);
}

/// The block next to an address of the pool, and where the address is.
#[inline(never)]
fn nearest(address: usize) -> Option<(&'static Bay, Where)> {
    let index = offset_of(address)? / stride();
    // A guard page is behind the bay before, too.
    let around = index.saturating_sub(1)..(index + 2).min(BAYS);
    let has_block = |bay: &&Bay| !matches!(bay.state(), State::Unused | State::Taking);
    let bays = around.map(known).filter(has_block);
    bays.map(|bay| (bay, Where::of(address, bay.block()))).min_by_key(|(_, place)| place.far())
}

/// Where an address is, as seen from a block.
#[derive(Clone, Copy)]
enum Where {
    Inside(usize),
    Behind(usize),
    Before(usize),
}

impl Where {
    fn of(address: usize, (start, size): (usize, usize)) -> Where {
        if address < start {
            Where::Before(start - address)
        } else if address - start < size {
            Where::Inside(address - start)
        } else {
            Where::Behind(address - start - size)
        }
    }

    /// How far it is from the block.
    fn far(&self) -> usize {
        match *self {
            Where::Inside(_) => 0,
            Where::Behind(bytes) | Where::Before(bytes) => bytes,
        }
    }
}

/// Adds `8 bytes into a block of 100 bytes`.
#[inline(never)]
fn add_place(line: &mut Message, place: Where, bay: &Bay) {
    let (bytes, relation) = match place {
        Where::Inside(bytes) => (bytes, " into"),
        Where::Behind(bytes) => (bytes, " behind"),
        Where::Before(bytes) => (bytes, " in front of"),
    };
    line.number(bytes).text(if bytes == 1 { " byte" } else { " bytes" }).text(relation);
    line.text(" a block of ").number(bay.block().1).text(" bytes\n");
}

/// Says what is wrong with an access, if it is to the pool. Others' faults take no room of the report's: their handlers may have
/// a small stack.
fn fault(address: usize, context: *const c_void) {
    if offset_of(address).is_some() {
        say_fault(address, context);
    }
}

#[cold]
#[inline(never)]
fn say_fault(address: usize, context: *const c_void) {
    let at = machine::place(context);
    one_at_a_time(|| {
        let Some((bay, place)) = nearest(address) else { return };
        let what = match (bay.state(), place) {
            (State::Freeing | State::Freed, _) => "use after free",
            (_, Where::Before(_)) => "underflow",
            _ => "overflow",
        };
        let access = match at.writes {
            Some(true) => ": write of ",
            Some(false) => ": read of ",
            None => ": access of ",
        };
        let mut line = Message::new();
        line.text("cairn: ").text(what).text(access).address(address).text(", ");
        add_place(&mut line, place, bay);
        os::write_stderr(line.as_bytes());
        let calls = stacks::interrupted(at.registers);
        say_stack("accessed", os::thread_id(), &calls);
        say_history(bay);
    });
}

/// Says what is wrong with a pointer given to `call`, and ends the process, if it is into the pool.
#[cold]
#[inline(never)]
pub(crate) fn misused(call: &str, p: *const u8) {
    let here = machine::registers();
    if offset_of(p.addr()).is_some() {
        accuse(here, call, p);
    }
}

#[inline(never)]
fn accuse(here: Registers, call: &str, p: *const u8) -> ! {
    one_at_a_time(|| {
        let mut line = Message::about(call, p.addr());
        let found = nearest(p.addr());
        match found {
            None => {
                line.text("no block is here\n");
            }
            Some((bay, Where::Inside(0))) if bay.state() != State::Live => {
                line.text("freed already: a block of ").number(bay.block().1).text(" bytes\n");
            }
            Some((bay, place)) => {
                line.text("not the start of a block, but ");
                add_place(&mut line, place, bay);
            }
        }
        os::write_stderr(line.as_bytes());
        say_stack("passed", os::thread_id(), &stacks::callers(here));
        if let Some((bay, _)) = found {
            say_history(bay);
        }
    });
    os::abort();
}

/// Says that the program has written next to a block that it frees, and ends the process.
#[cold]
pub(super) fn damaged(index: usize, call: &str, address: usize) -> ! {
    one_at_a_time(|| {
        let bay = known(index);
        let mut line = Message::about(call, bay.block().0);
        line.text("the program has written ");
        add_place(&mut line, Where::of(address, bay.block()), bay);
        os::write_stderr(line.as_bytes());
        say_history(bay);
    });
    os::abort();
}

/// Says who has freed the block, if somebody has, and who has allocated it.
#[inline(never)]
fn say_history(bay: &Bay) {
    let say = |what, trace: &Trace| {
        let (thread, calls) = trace.look();
        say_stack(what, thread, &calls);
    };
    if bay.state() != State::Live {
        say("freed", &bay.freed);
    }
    say("allocated", &bay.allocated);
}

#[inline(never)]
fn say_stack(what: &str, thread: usize, calls: &Calls) {
    let mut line = Message::new();
    line.text("  ").text(what).text(" by thread ").number(thread).text(":\n");
    os::write_stderr(line.as_bytes());
    for (number, &call) in calls.iter().enumerate() {
        // The first may be an instruction; frame pointers may have led to anything.
        if call == 0 || number > 0 && !stacks::is_return(call) {
            break;
        }
        let mut line = Message::new();
        line.text("    #").number(number).text(" ").address(call);
        os::mapped_around(call, |mapped| {
            let path = mapped.path;
            if !path.is_empty() {
                let shown = path.get(path.len().saturating_sub(SHOWN_PATH_BYTES)..).unwrap_or(path);
                line.text(" ").bytes(shown).text("+").address(call - mapped.base);
            }
        });
        line.text("\n");
        os::write_stderr(line.as_bytes());
    }
}
