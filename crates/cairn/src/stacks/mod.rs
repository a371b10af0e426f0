//! Owns: which calls have led to a place.
//! Idea: the tables that compilers write for exceptions lead from frame to frame, frame pointers where there are none.
//! Never: changes what it reads, or relies on it.
//! Threads: any, in a signal's handler too; holds nothing.
//! Checked: tests/sample/unwind.rs; tests/profile.rs and tests/guards.rs of the C layer compare stacks with functions.
//! Story: docs/guide/profile.md

pub(crate) mod machine;
mod stack;
mod tuning;
mod unwind;

pub(crate) use machine::Registers;
pub(crate) use stack::{Calls, callers, find_callers, find_own_code, interrupted, is_return};
pub(crate) use tuning::FRAMES;
#[cfg(test)]
pub(crate) use {stack::own_callers, unwind::has_rule};
