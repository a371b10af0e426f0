//! Owns: which calls have led to a place: stacks by the tables for exceptions, or by frame pointers.
//! Idea: rules lead from frame to frame, out of cairn and on. Where there are none, cairn's own frames are searched for the
//!   first return address outside of it; from there on frames lead to each other.
//! Never: touches what may not be there: of a stack, what is in use for sure. The system reads the rest, and answers where a touch
//!   would fault.
//! Threads: any, in a signal's handler too; holds nothing.
//! Checked: tests/guards.rs and tests/profile.rs of the C layer compare stacks with functions.
//! Story: docs/guide/guards.md

use crate::base::{AtomicUsize, Ordering};
use crate::stacks::machine::{self, Registers, Target};
use crate::stacks::tuning::{
    FRAME_MAX, FRAMES, OWN_CALLERS_MAX, OWN_CALLS, OWN_WORDS, STACK_WORDS,
};
use crate::stacks::unwind;
use crate::{map::address_map, os};
use core::ops::Range;

/// Where cairn's own code is, if it is a library of its own; else both are 0. Relaxed: who does not see it lists
/// cairn's own callers, too.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Finds out where cairn's own code is, and whether there are rules.
pub(crate) fn find_own_code() {
    if machine::HAS_TABLES {
        os::find_unwind_tables();
    }
    let here = find_own_code as *const () as usize;
    let range = os::mapped_around(here, |mapped| mapped.range);
    // A program that has cairn inside begins in the same code.
    let range = range.filter(|range| !(range.0..range.1).contains(&os::entry_point()));
    let (start, end) = range.unwrap_or((0, 0));
    let is_high = os::entry_point() >= HIGH;
    LOWEST.store(if is_high { HIGH } else { 1 << 16 }, Ordering::Relaxed);
    OWN[0].store(start, Ordering::Relaxed);
    OWN[1].store(end, Ordering::Relaxed);
}

/// Code is not below. Where the system has put the program to a random place, it is high, as libraries are, and
/// small numbers need not be looked at.
static LOWEST: AtomicUsize = AtomicUsize::new(0);
const HIGH: usize = 1 << 40;

fn is_own(word: usize) -> bool {
    (OWN[0].load(Ordering::Relaxed)..OWN[1].load(Ordering::Relaxed)).contains(&word)
}

/// Return addresses, the innermost first; 0: no more.
pub(crate) type Calls = [usize; FRAMES];

/// A part of a stack, and what is read behind it.
struct Stack {
    from: usize,
    words: [usize; STACK_WORDS],
    count: usize,
    /// What of it is in use for sure; empty: nobody knows.
    used: Range<usize>,
}

impl Stack {
    /// The stack of the caller, from its stack pointer on. What is in use is read at once, which saves a call of the
    /// system's; if that is too little, as any other.
    fn of_caller(from: usize) -> Stack {
        let mut stack = Stack::at(from);
        stack.used = from..used_end(from);
        if stack.used.len() / size_of::<usize>() < OWN_WORDS {
            stack.read_any();
        } else {
            // SAFETY: it is in use.
            unsafe { stack.read_used() };
        }
        stack
    }

    /// Nothing is read yet.
    fn at(from: usize) -> Stack {
        Stack { from, words: [0; STACK_WORDS], count: 0, used: 0..0 }
    }

    fn read(from: usize) -> Stack {
        let mut stack = Stack::at(from);
        stack.read_any();
        stack
    }

    /// Reads on from an address. What has led there may be wrong: a function that changes stacks by itself
    /// has rules, too, which lead beyond the end of the new one.
    #[inline(never)]
    fn read_on(&mut self, from: usize) {
        self.from = from;
        if self.used.contains(&from) && self.used.end - from >= 2 * size_of::<usize>() {
            // SAFETY: it is in use.
            unsafe { self.read_used() };
        } else {
            self.read_any();
        }
    }

    #[inline(never)]
    fn read_any(&mut self) {
        self.count = read_words(self.from, &mut self.words);
    }

    /// The rest of what is in use.
    ///
    /// # Safety
    /// `from` is there.
    unsafe fn read_used(&mut self) {
        self.count = ((self.used.end - self.from) / size_of::<usize>()).min(STACK_WORDS);
        let place: *const usize = core::ptr::with_exposed_provenance(self.from);
        for (at, word) in self.words.iter_mut().enumerate().take(self.count) {
            // SAFETY: the caller's.
            *word = unsafe { machine::read_word(place.add(at)) };
        }
    }

    fn known(&self) -> impl Iterator<Item = (usize, usize)> {
        let words = self.words.iter().map(|&word| machine::unsigned(word));
        words.enumerate().take(self.count)
    }

    /// The two words at an address of the stack, which is read on there if need be.
    #[inline(never)]
    fn pair(&mut self, at: usize) -> Option<(usize, usize)> {
        let mut place = at.wrapping_sub(self.from) / 8;
        if place + 1 >= self.count {
            self.read_on(at);
            place = 0;
        }
        let [first, second] = [*self.words.get(place)?, *self.words.get(place + 1)?];
        (self.count >= 2).then_some((first, machine::unsigned(second)))
    }

    /// Whether a word can be an address in code: it is none in the stack or the reservation.
    #[inline(never)]
    fn can_be_code(&self, word: usize) -> bool {
        let is_data = word.abs_diff(self.from) < FRAME_MAX
            || address_map::contains(core::ptr::without_provenance(word));
        !is_data && (LOWEST.load(Ordering::Relaxed)..1 << 48).contains(&word)
    }

    /// The place of the call that has led into cairn, and where that goes back to: a call that leads
    /// there for sure, or the first of any. What an earlier call has left in between may look like one.
    #[inline(never)]
    fn entry(&self) -> Option<(usize, usize)> {
        let is = |wanted: usize| {
            move |&(_, word): &(usize, usize)| {
                !is_own(word) && self.can_be_code(word) && verdict(word) & wanted == wanted
            }
        };
        self.known().find(is(LEADS_HERE)).or_else(|| self.known().find(is(IS_RETURN)))
    }

    /// Whether a frame around what stands at `at` can be at `frame`.
    fn is_frame(&self, at: usize, frame: usize) -> bool {
        frame > at && frame - at < FRAME_MAX && frame.is_multiple_of(8)
    }

    /// The same, and it goes back to behind a call.
    #[inline(never)]
    fn is_sure_frame(&mut self, at: usize, frame: usize) -> bool {
        let Some((_, back)) = self.is_frame(at, frame).then(|| self.pair(frame)).flatten() else {
            return false;
        };
        self.can_be_code(back) && is_return(back)
    }

    /// Goes from frame to frame by rules, and where there are none by what the code says. How many calls outside of cairn that
    /// has brought.
    #[inline(never)]
    fn unwind(&mut self, here: Registers, calls: &mut [usize]) -> usize {
        let Registers { mut instruction, stack: mut at, mut frame } = here;
        let mut count = 0;
        for _ in 0..calls.len() + OWN_CALLS {
            let known = unwind::rule(instruction);
            let rule = match known {
                Some(unwind::Rule::OUTERMOST) => break,
                Some(rule) => rule,
                None if count > 0 => rule_of_code(instruction + 1),
                None => break,
            };
            let base = if rule.by_frame { frame } else { at };
            let up = base.wrapping_add(8 * rule.up);
            if !self.is_frame(at, up) {
                break;
            }
            if rule.saved > 0 {
                let Some((saved, _)) = self.pair(up - 8 * rule.saved) else { break };
                frame = saved;
            }
            let Some((_, back)) = self.pair(up - 2 * size_of::<usize>()) else { break };
            // Libraries may lie right behind a stack: how far away it is says nothing where a rule has led.
            let is_code = match known {
                Some(_) => (1 << 16..1 << 48).contains(&back),
                None => self.can_be_code(back),
            };
            if !is_code {
                break;
            }
            if !is_own(back) {
                calls[count] = back;
                count += 1;
                if count == calls.len() {
                    break;
                }
            }
            // The call is in front of where it goes back to, perhaps the last of its function.
            (instruction, at) = (back - 1, up);
        }
        count
    }

    /// Adds where the frame at `frame`, if it is one, and those around it go back to. Whether that is code is
    /// asked when somebody wants to see it.
    #[inline(never)]
    fn follow(&mut self, calls: &mut [usize], mut count: usize, mut at: usize, mut frame: usize) {
        while count < calls.len() && self.is_frame(at, frame) {
            let Some((next, back)) = self.pair(frame) else { return };
            if !self.can_be_code(back) {
                return;
            }
            calls[count] = back;
            count += 1;
            (at, frame) = (frame, next);
        }
    }
}

/// Up to where a stack is in use for sure, from the stack pointer on: to the end of the page; on the first thread's stack, to its
/// end. Where other threads' stacks end, nobody says.
fn used_end(from: usize) -> usize {
    let end = os::first_stack_end();
    let is_first = from < end && end - from < FRAME_MAX;
    if is_first { end } else { os::round_up(from + 1, os::page_size()) }
}

/// How to go on from code without a rule, behind a call: code that is made at run time, for one. It says itself how far above the
/// return address is, as trampolines do, or else has a frame pointer.
#[inline(never)]
fn rule_of_code(back: usize) -> unwind::Rule {
    let mut code = [0; 5];
    let is_there = os::read_own(back, &mut code) == code.len();
    match machine::words_to_caller(code).filter(|_| is_there) {
        Some(up) => unwind::Rule { by_frame: false, up, saved: 0 },
        None => unwind::Rule { by_frame: true, up: 2, saved: 2 },
    }
}

/// What is known of words that may be return addresses, by the word: the word, and two bits below it. Code
/// does not change; to look at it takes a system call. Relaxed: each is complete.
static VERDICTS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// It is the address behind a call.
const IS_RETURN: usize = 1;
/// The call leads into cairn's own code.
const LEADS_HERE: usize = 2;

#[inline(never)]
fn verdict(word: usize) -> usize {
    let place = VERDICTS.get((word ^ word >> 8) % VERDICTS.len()).unwrap_or(&VERDICTS[0]);
    let known = place.load(Ordering::Relaxed);
    if known >> 2 == word {
        return known & 3;
    }
    let mut code = [0; 8];
    let is_return = os::read_own(word.wrapping_sub(8), &mut code) == 8 && machine::is_call(code);
    let leads_here = is_return && is_call_of_own(code, word);
    let verdict = usize::from(is_return) * IS_RETURN + usize::from(leads_here) * LEADS_HERE;
    place.store(word << 2 | verdict, Ordering::Relaxed);
    verdict
}

/// Whether a word is the address behind a call.
pub(crate) fn is_return(word: usize) -> bool {
    (LOWEST.load(Ordering::Relaxed)..1 << 48).contains(&word) && verdict(word) & IS_RETURN != 0
}

/// Whether the call with which `code`, in front of `back`, ends leads into cairn's own code, by way of a table or not.
fn is_call_of_own(code: [u8; 8], back: usize) -> bool {
    match machine::call_target(code, back) {
        Target::Code(start) if !is_own(start) => {
            let mut code = [0; 16];
            let known = os::read_own(start, &mut code) == 16;
            known && is_own(content(machine::jump_target(code, start)))
        }
        target => is_own(content(target)),
    }
}

/// Where a target leads in the end; 0: that is not known.
fn content(target: Target) -> usize {
    let mut word = [0];
    match target {
        Target::Code(start) => start,
        Target::Word(at) if read_words(at, &mut word) == 1 => word[0],
        _ => 0,
    }
}

/// Reads words at any address; how many could be read.
#[inline(never)]
fn read_words(at: usize, words: &mut [usize]) -> usize {
    // SAFETY: words are bytes.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words))
    };
    os::read_own(at, bytes) / size_of::<usize>()
}

/// Who has called cairn.
#[cold]
#[inline(never)]
pub(crate) fn callers(here: Registers) -> Calls {
    let mut calls = [0; FRAMES];
    find_callers(here, &mut calls);
    calls
}

/// Who has called a test, and this.
#[cfg(test)]
#[inline(never)]
pub(crate) fn own_callers() -> Calls {
    os::find_unwind_tables();
    callers(machine::registers())
}

/// The same into `calls`, which are zeros.
#[inline(never)]
pub(crate) fn find_callers(here: Registers, calls: &mut [usize]) {
    if here.stack == 0 {
        return;
    }
    let mut stack = Stack::of_caller(here.stack);
    if stack.unwind(here, calls) > 0 {
        return;
    }
    stack = Stack::of_caller(here.stack);
    if OWN[1].load(Ordering::Relaxed) == 0 {
        return callers_of_all(&mut stack, here, calls);
    }
    let Some((first, back)) = stack.entry() else { return };
    calls[0] = back;
    // The frame pointer is still in its register, or the first that has used it for something else has
    // stored it right below its own return address: the outermost counts.
    let at = here.stack + 8 * first;
    let mut frame = here.frame;
    for place in (1..=first).rev() {
        let (word, stored) = (stack.words[place], stack.words[place - 1]);
        if (place == first || is_own(word)) && stack.is_sure_frame(at, stored) {
            frame = stored;
            break;
        }
        if stack.from != here.stack {
            // A look at a frame far away.
            stack = Stack::of_caller(here.stack);
        }
    }
    if stack.is_sure_frame(at, frame) {
        stack.follow(calls, 1, at, frame);
    }
}

/// The same where cairn is a part of the program: its own functions are among them.
#[inline(never)]
fn callers_of_all(stack: &mut Stack, here: Registers, calls: &mut [usize]) {
    let is_frame = stack.is_frame(here.stack, here.frame);
    let end = if is_frame { here.frame } else { usize::MAX };
    let most = OWN_CALLERS_MAX * calls.len() / FRAMES;
    let mut count = 0;
    for (place, word) in stack.known() {
        if count == most || here.stack + 8 * place >= end {
            break;
        }
        if stack.can_be_code(word) && is_return(word) {
            calls[count] = word;
            count += 1;
        }
    }
    stack.follow(calls, count, here.stack, here.frame);
}

/// Where a thread has been interrupted, and who has called it there.
#[cold]
#[inline(never)]
pub(crate) fn interrupted(registers: Registers) -> Calls {
    let mut calls = [0; FRAMES];
    if registers.stack == 0 {
        return calls;
    }
    calls[0] = registers.instruction;
    let mut stack = Stack::read(registers.stack);
    if stack.unwind(registers, &mut calls[1..]) > 0 {
        return calls;
    }
    stack = Stack::read(registers.stack);
    let mut count = 1;
    // A function that has no frame, as memcpy, has its return address on top.
    let top = machine::unsigned(stack.words[0]);
    let around = stack.pair(registers.frame).map(|(_, back)| back);
    if Some(top) != around && stack.can_be_code(top) && is_return(top) {
        calls[1] = top;
        count = 2;
    }
    stack.follow(&mut calls, count, registers.stack.wrapping_sub(8), registers.frame);
    calls
}
