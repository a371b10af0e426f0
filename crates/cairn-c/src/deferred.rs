//! The program's function that frees what it has put off: `cairn_on_deferred_free`.

use core::ffi::{c_int, c_void};

/// `void (*)(int force, size_t heartbeat, void *argument)`.
type Call = unsafe extern "C" fn(c_int, usize, *mut c_void);

fn call(force: bool, heartbeat: u64, [call, argument]: [usize; 2]) {
    // SAFETY: `cairn_on_deferred_free` has put a function there, and what it is to be given.
    unsafe {
        let call: Call = core::mem::transmute(core::ptr::with_exposed_provenance::<()>(call));
        call(
            c_int::from(force),
            heartbeat as usize,
            core::ptr::with_exposed_provenance_mut(argument),
        );
    }
}

/// Has a function called now and then inside allocations, or none if it is null.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_on_deferred_free(function: Option<Call>, argument: *mut c_void) {
    let words = [function.map_or(0, |function| function as usize), argument.expose_provenance()];
    let registered: Option<cairn::DeferredFree> = function.map(|_| call as _);
    cairn::on_deferred_free(registered, words);
}
