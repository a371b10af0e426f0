//! Who asks the program for more memory of a region: one thread at a time.

use crate::base::sync::{self, touched};
use crate::harness::{ALL, FORKER, Model, check, finish, spawn};
use crate::map::RegionCalls;
use crate::map::region::{self, Grower};

/// Three threads, and what they touch: the lock, and what it guards.
const LOCKED: Model = Model { preemptions: [Some(3), Some(4)], quiet: NUMBERS, ..ALL };
const NUMBERS: sync::Quiet = &[FORKER, ("region/mod.rs", "usize")];

/// What the program does: here only who does it matters.
static INSIDE: u8 = 0;

unsafe extern "C" fn reserve(_: *mut usize, _: *mut ()) -> *mut u8 {
    core::ptr::null_mut()
}

/// A region of the program's: its number and its name.
fn region() -> (usize, usize) {
    region::create(RegionCalls { reserve: Some(reserve), ..RegionCalls::default() }).expect("room")
}

/// The calling thread asks, unless another one does; whether it has.
fn asks(region: usize) -> bool {
    let is_grower = matches!(region::begin_growing(region), Grower::Caller(_));
    if is_grower {
        touched(&raw const INSIDE);
        region::end_growing(region);
    }
    is_grower
}

/// Three threads need memory at once: one after the other is inside the program, and whoever comes alone has its turn.
#[test]
fn one_thread_at_a_time_asks_for_memory() {
    check(LOCKED, |_| {
        let (number, name) = region();
        let others = [(); 2].map(|()| spawn(move || asks(number)));
        let has_asked = asks(number);
        let asked = finish(others);
        assert!(has_asked || asked.contains(&true), "nobody has");
        assert!(asks(number), "nobody asks any more");
        region::end(name, |_, _| ());
    });
}

/// One ends inside the program, or beside it, while two others need memory: who is inside is alone there, and the one that has
/// ended is not there for ever.
#[test]
fn who_ends_inside_the_program_leaves_it() {
    check(LOCKED, |_| {
        let (number, name) = region();
        let ends = spawn(move || {
            if let Grower::Caller(_) = region::begin_growing(number) {
                touched(&raw const INSIDE);
            }
            region::leave();
            false
        });
        let other = spawn(move || asks(number));
        asks(number);
        finish([ends, other]);
        assert!(asks(number), "nobody can ask any more");
        region::end(name, |_, _| ());
    });
}
