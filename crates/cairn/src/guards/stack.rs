//! Owns: which calls have led to a place: stacks by frame pointers.
//! Idea: cairn keeps no frame pointers, so its own frames are searched for the first return address outside of
//!   it; from there on the program's frames lead to each other.
//! Never: touches what it reads: all reads go through the system, which answers where a touch would fault.
//! Threads: any, in a signal's handler too; holds nothing.
//! Checked: tests/guards.rs of the C layer compares stacks with functions.
//! Story: docs/guide/guards.md

use super::machine::{self, Registers, Target};
use crate::sync::{AtomicUsize, Ordering};
use crate::{address_map, os};

/// Calls of a stack that are kept.
pub(super) const FRAMES: usize = 16;
/// Words of a stack that are read at once: more than cairn's own frames take.
const WORDS: usize = 192;
/// Callers that are listed if nobody knows which of them are cairn's own.
const OWN_MAX: usize = 6;
/// A frame that is larger is none.
const FRAME_MAX: usize = 1 << 20;

/// Where cairn's own code is, if it is a library of its own; else both are 0. Relaxed: who does not see it lists
/// cairn's own callers, too.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Finds out where cairn's own code is.
pub(super) fn find_own_code() {
    let here = find_own_code as *const () as usize;
    let range = os::mapped_around(here, |mapped| mapped.range);
    // A program that has cairn inside begins in the same code.
    let range = range.filter(|range| !(range.0..range.1).contains(&os::entry_point()));
    let (start, end) = range.unwrap_or((0, 0));
    OWN[0].store(start, Ordering::Relaxed);
    OWN[1].store(end, Ordering::Relaxed);
}

fn is_own(word: usize) -> bool {
    (OWN[0].load(Ordering::Relaxed)..OWN[1].load(Ordering::Relaxed)).contains(&word)
}

/// Return addresses, the innermost first; 0: no more.
pub(super) type Calls = [usize; FRAMES];

/// A part of a stack, and what is read behind it.
struct Stack {
    from: usize,
    words: [usize; WORDS],
    count: usize,
}

impl Stack {
    fn read(from: usize) -> Stack {
        let mut stack = Stack { from, words: [0; WORDS], count: 0 };
        stack.count = read_words(from, &mut stack.words);
        stack
    }

    fn known(&self) -> impl Iterator<Item = (usize, usize)> {
        self.words.iter().copied().enumerate().take(self.count)
    }

    /// The two words at an address of the stack.
    fn pair(&self, at: usize) -> Option<(usize, usize)> {
        let place = at.wrapping_sub(self.from) / 8;
        if place + 1 < self.count {
            return Some((*self.words.get(place)?, *self.words.get(place + 1)?));
        }
        let mut pair = [0; 2];
        (read_words(at, &mut pair) == 2).then_some((pair[0], pair[1]))
    }

    /// Whether a word is the address behind a call.
    fn is_return(&self, word: usize) -> bool {
        let is_data = word.abs_diff(self.from) < FRAME_MAX
            || address_map::contains(core::ptr::without_provenance(word));
        let mut code = [0; 8];
        !(is_data || word < 1 << 16 || word >> 56 != 0)
            && os::read_own(word - 8, &mut code) == 8
            && machine::is_call(code)
    }

    /// The place of the call that has led into cairn, and where that goes back to: a call that leads
    /// there for sure, or the first of any. What an earlier call has left in between may look like one.
    fn entry(&self) -> Option<(usize, usize)> {
        let is_call = |&(_, word): &(usize, usize)| !is_own(word) && self.is_return(word);
        let leads_here = |&(_, word): &(usize, usize)| is_call_of_own(word);
        let sure = self.known().filter(is_call).find(leads_here);
        sure.or_else(|| self.known().find(is_call))
    }

    /// Whether a frame whose caller's return address stands behind `at` can be at `frame`.
    fn is_frame(&self, at: usize, frame: usize) -> bool {
        frame > at
            && frame - at < FRAME_MAX
            && frame.is_multiple_of(8)
            && self.pair(frame).is_some_and(|(_, back)| self.is_return(back))
    }

    /// Adds where the frame at `frame`, if it is one, and those around it go back to.
    fn follow(&self, calls: &mut Calls, mut count: usize, mut at: usize, mut frame: usize) {
        while count < FRAMES && self.is_frame(at, frame) {
            let Some((next, back)) = self.pair(frame) else { return };
            calls[count] = back;
            count += 1;
            (at, frame) = (frame, next);
        }
    }
}

/// Whether the call in front of `back` leads into cairn's own code, by way of a table or not.
fn is_call_of_own(back: usize) -> bool {
    let mut code = [0; 8];
    if os::read_own(back - 8, &mut code) < 8 {
        return false;
    }
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
pub(super) fn callers(here: Registers) -> Calls {
    let mut calls = [0; FRAMES];
    if here.stack == 0 {
        return calls;
    }
    let stack = Stack::read(here.stack);
    if OWN[1].load(Ordering::Relaxed) == 0 {
        callers_of_all(&stack, here, &mut calls);
        return calls;
    }
    let Some((first, back)) = stack.entry() else { return calls };
    calls[0] = back;
    // The frame pointer is still in its register, or the first that has used it for something else has
    // stored it right below its own return address.
    let stored = |(place, word): (usize, usize)| {
        let is_back = place == first || is_own(word);
        is_back.then(|| stack.words.get(place.wrapping_sub(1)).copied()).flatten()
    };
    let at = here.stack + 8 * first;
    let mut frame = here.frame;
    for candidate in stack.known().take(first + 1).filter_map(stored) {
        if stack.is_frame(at, candidate) {
            frame = candidate;
        }
    }
    stack.follow(&mut calls, 1, at, frame);
    calls
}

/// The same where cairn is a part of the program: its own functions are among them.
fn callers_of_all(stack: &Stack, here: Registers, calls: &mut Calls) {
    let end = if stack.is_frame(here.stack, here.frame) { here.frame } else { usize::MAX };
    let mut count = 0;
    for (place, word) in stack.known() {
        if count == OWN_MAX || here.stack + 8 * place >= end {
            break;
        }
        if stack.is_return(word) {
            calls[count] = word;
            count += 1;
        }
    }
    stack.follow(calls, count, here.stack, here.frame);
}

/// Where a thread has been interrupted, and who has called it there.
#[cold]
#[inline(never)]
pub(super) fn interrupted(instruction: usize, registers: Registers) -> Calls {
    let mut calls = [0; FRAMES];
    if registers.stack == 0 {
        return calls;
    }
    calls[0] = instruction;
    let stack = Stack::read(registers.stack);
    let mut count = 1;
    // A function that has no frame, as memcpy, has its return address on top.
    let around = stack.pair(registers.frame).map(|(_, back)| back);
    if let Some((back, _)) = stack.pair(registers.stack)
        && Some(back) != around
        && stack.is_return(back)
    {
        calls[1] = back;
        count = 2;
    }
    stack.follow(&mut calls, count, registers.stack.wrapping_sub(8), registers.frame);
    calls
}
