//! Stacks by the tables for exceptions: they are those that the C++ runtime finds, of all kinds of functions; damaged tables do
//! no harm.

use crate::os;
use crate::stacks::{has_rule, own_callers};
use std::vec::Vec;

type Context = core::ffi::c_void;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut Context, *mut Context) -> i32,
        all: *mut Context,
    ) -> i32;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
}

extern "C" fn note(context: *mut Context, all: *mut Context) -> i32 {
    // SAFETY: as `runtime_calls` asks for it.
    unsafe { (*all.cast::<Vec<usize>>()).push(_Unwind_GetIP(context)) };
    0
}

/// Return addresses as the runtime finds them.
fn runtime_calls() -> Vec<usize> {
    let mut all = Vec::new();
    // SAFETY: the function gets the vector.
    unsafe { _Unwind_Backtrace(note, (&raw mut all).cast()) };
    all
}

/// Both, from the same function, without the calls below it, which are not the same.
#[inline(never)]
fn compare() {
    let (ours, theirs) = (own_callers(), runtime_calls());
    let ours: Vec<_> = ours.into_iter().take_while(|&call| call != 0).collect();
    let begin =
        ours.iter().find_map(|call| Some((theirs.iter().position(|own| own == call)?, call)));
    let (at, first) = begin.expect("a call that both have found");
    let from = ours.iter().position(|call| call == first).expect("it is there");
    let common = (ours.len() - from).min(theirs.len() - at);
    assert!(common >= 6, "{ours:x?} and {theirs:x?}");
    assert_eq!(ours[from..][..common], theirs[at..][..common]);
}

/// Its frame has a size that the compiler does not know: functions of the C library call back out of it.
#[inline(never)]
fn sorted(depth: usize) {
    extern "C" fn order(_: *const core::ffi::c_void, _: *const core::ffi::c_void) -> i32 {
        compare();
        0
    }
    let mut numbers = std::vec![0_u32; 2 + depth % 3];
    // SAFETY: an array of numbers of 4 bytes.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), numbers.len(), 4, Some(order)) };
}

#[inline(never)]
fn recursive(depth: usize) -> usize {
    let more = [depth; 40];
    if depth % 5 == 4 {
        sorted(depth);
    }
    let below = if depth < 20 { recursive(depth + 1) } else { 0 };
    std::hint::black_box(&more)[depth] + below
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
fn stacks_are_those_of_the_runtime() {
    compare();
    recursive(0);
    std::thread::spawn(|| recursive(3)).join().expect("it ends");
}

/// Whatever stands in a table, a look at it ends, and stays inside.
#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
fn damaged_tables_do_no_harm() {
    os::find_unwind_tables();
    let code = libc::qsort as *const () as usize;
    let found = os::unwind_table(code).expect("the C library has tables");
    let end = os::mapped_around(found.start, |mapped| mapped.range.1).expect("they are mapped");
    let whole: *const u8 = core::ptr::with_exposed_provenance(found.start);
    // SAFETY: mapped for reading, and nobody writes there.
    let whole = unsafe { core::slice::from_raw_parts(whole, end - found.start) };
    // All places in it are told from where they stand.
    let mut copy = whole.to_vec();
    let start = copy.as_ptr().expose_provenance();
    let table = os::UnwindTable { range: (start, start + copy.len()), start };
    let code = code.wrapping_sub(found.start).wrapping_add(start);
    let mut random = 1_u64;
    let mut below = |count: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % count
    };
    let mut found = 0;
    for _ in 0..20_000 {
        let mut damage = Vec::new();
        for nth in below(2)..200 {
            let at = if nth == 0 { below(16) } else { below(copy.len()) };
            damage.push((at, copy[at], below(256) as u8));
        }
        damage.iter().for_each(|&(at, _, byte)| copy[at] = byte);
        found += usize::from(has_rule(&table, code.wrapping_add(below(1 << 16))));
        damage.iter().rev().for_each(|&(at, byte, _)| copy[at] = byte);
    }
    assert!((1000..20_000).contains(&found), "{found}");
}

/// A file may be unloaded while its tables are read.
#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
fn tables_may_go_meanwhile() {
    os::find_unwind_tables();
    let code = libc::qsort as *const () as usize;
    let found = os::unwind_table(code).expect("the C library has tables");
    assert!(has_rule(&found, code));
    let end = os::mapped_around(found.start, |mapped| mapped.range.1).expect("they are mapped");
    let (page, bytes) = (os::page_size(), end - found.start);
    let copy = os::map(os::round_up(bytes, page));
    let start = copy.expose_provenance();
    let table = os::UnwindTable { range: (start, start + bytes), start };
    let code = code.wrapping_sub(found.start).wrapping_add(start);
    let whole: *const u8 = core::ptr::with_exposed_provenance(found.start);
    // SAFETY: mapped for reading, and mapped for this test.
    unsafe { copy.copy_from_nonoverlapping(whole, bytes) };
    assert!(has_rule(&table, code));
    for at in (0..bytes).step_by(page).rev() {
        // SAFETY: this test's, and no reference leads there.
        unsafe { os::release(copy.wrapping_add(at), page) };
        has_rule(&table, code);
    }
    assert!(!has_rule(&table, code), "nothing is left of it");
}

/// As a function signs where it goes back to; processors that do not know that leave it as it is.
#[test]
#[cfg(all(target_arch = "aarch64", not(miri)))]
fn a_signature_is_taken_off() {
    use crate::stacks::machine::unsigned;
    let word = a_signature_is_taken_off as *const () as usize;
    let signed: usize;
    // SAFETY: changes one register.
    unsafe {
        core::arch::asm!("hint #25", inout("x30") word => signed, options(nomem, nostack));
    }
    assert_eq!((unsigned(signed), unsigned(word)), (word, word));
}
