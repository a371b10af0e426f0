//! Owns: what no model's system has: threads of the library's own, and memory groups.
//! Idea: what those threads do the models do where they want it.
//! Never: starts a thread of the system's, which no model would schedule.
//! Threads: any.
//! Checked: nothing to check.
//! Story: docs/results/verification.md

use crate::sync::AtomicU32;
use core::ffi::c_void;

/// There are no threads of the library's own: what they do the models do where they want it.
pub fn start_small_thread(
    _stack_size: usize,
    _body: extern "C" fn(*mut c_void) -> *mut c_void,
) -> Option<usize> {
    None
}

pub(crate) fn join_thread(_: usize) {}

pub(crate) fn name_thread(_: &core::ffi::CStr) {}

pub(crate) fn wait_for(_: &AtomicU32, _: u32, _: usize) -> bool {
    false
}

/// There is no group.
pub(crate) struct Group;

impl Group {
    pub(crate) fn find() -> Option<Group> {
        None
    }

    pub(crate) fn used_and_limit(&self) -> Option<(u64, u64)> {
        None
    }
}
