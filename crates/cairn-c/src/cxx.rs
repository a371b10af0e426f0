//! C++'s operators new and delete, by their mangled names, without a C++ compiler. When there
//! is no memory, the C++ runtime's own new-handler and `bad_alloc` take over: nothing of theirs
//! is imitated, and no exception ever passes through a Rust frame.

use cairn::NoMemory;
use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_void};

// Allocates again and again as long as there is a new-handler to call, then throws. The frame
// is described to the unwinder, because the handler may throw through it; it is gone before
// `std::__throw_bad_alloc` is entered.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.cairn_new_retry,\"ax\",@progbits",
    ".hidden cairn_new_retry",
    ".globl cairn_new_retry",
    ".type cairn_new_retry, @function",
    "cairn_new_retry:", // rdi: size, rsi: alignment
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "2:",
    "call {handler}",
    "test rax, rax",
    "jz 3f",
    "call rax",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "call {allocate}",
    "test rax, rax",
    "jz 2b",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    "3:",
    ".cfi_adjust_cfa_offset 24",
    "call {thrower}",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "jmp rax",
    ".cfi_endproc",
    ".size cairn_new_retry, . - cairn_new_retry",
    ".popsection",
    handler = sym new_handler,
    allocate = sym allocate,
    thrower = sym thrower,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.cairn_new_retry,\"ax\",%progbits",
    ".hidden cairn_new_retry",
    ".globl cairn_new_retry",
    ".type cairn_new_retry, %function",
    "cairn_new_retry:", // x0: size, x1: alignment
    ".cfi_startproc",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "stp x0, x1, [sp, #16]",
    "2:",
    "bl {handler}",
    "cbz x0, 3f",
    "blr x0",
    "ldp x0, x1, [sp, #16]",
    "bl {allocate}",
    "cbz x0, 2b",
    ".cfi_remember_state",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    "3:",
    ".cfi_restore_state",
    "bl {thrower}",
    "mov x16, x0",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "br x16",
    ".cfi_endproc",
    ".size cairn_new_retry, . - cairn_new_retry",
    ".popsection",
    handler = sym new_handler,
    allocate = sym allocate,
    thrower = sym thrower,
);

unsafe extern "C" {
    fn cairn_new_retry(size: usize, align: usize) -> *mut u8;
}

/// Finds a function of the C++ runtime; null if there is none in this process.
fn runtime(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; flags only look at what is loaded.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if !found.is_null() {
            return found;
        }
        // Out of the global scope if it came with a plugin.
        for library in [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"] {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if !handle.is_null() {
                let found = libc::dlsym(handle, name.as_ptr());
                if !found.is_null() {
                    return found;
                }
            }
        }
    }
    core::ptr::null_mut()
}

/// `std::get_new_handler()`: the function to call when there is no memory, or null.
extern "C" fn new_handler() -> *mut c_void {
    let get = runtime(c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return get;
    }
    // SAFETY: the C++ runtime's function of this name has this type.
    let get: extern "C" fn() -> *mut c_void = unsafe { core::mem::transmute(get) };
    get()
}

/// `std::__throw_bad_alloc`.
extern "C" fn thrower() -> *mut c_void {
    let throw = runtime(c"_ZSt17__throw_bad_allocv");
    if throw.is_null() {
        crate::report::line(b"cairn: operator new: out of memory, and no C++ runtime to tell\n");
        // SAFETY: abort has no preconditions.
        unsafe { libc::abort() }
    }
    throw
}

extern "C" fn allocate(size: usize, align: usize) -> *mut u8 {
    cairn::allocate_aligned(size, align)
}

/// The runtime's own nothrow operator catches what a new-handler throws.
#[cold]
fn nothrow(name: &CStr, size: usize, align: usize, tag: *const c_char) -> *mut c_void {
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if next.is_null() || new_handler().is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the next definitions of these names are the C++ runtime's; the aligned one takes
    // an argument more, which the plain one's convention ignores only if told apart here.
    unsafe {
        if align == 0 {
            let next: extern "C" fn(usize, *const c_char) -> *mut c_void =
                core::mem::transmute(next);
            next(size, tag)
        } else {
            let next: extern "C" fn(usize, usize, *const c_char) -> *mut c_void =
                core::mem::transmute(next);
            next(size, align, tag)
        }
    }
}

/// The C++ runtime's way out.
struct Throw;

impl NoMemory for Throw {
    #[inline(always)]
    fn answer(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the stub's only contract is its types.
        unsafe { cairn_new_retry(size, align) }
    }
}

#[inline(always)]
fn throwing(size: usize) -> *mut c_void {
    cairn::allocate_or::<Throw>(size).cast()
}

#[inline(always)]
fn throwing_aligned(size: usize, align: usize) -> *mut c_void {
    cairn::allocate_aligned_or::<Throw>(size, align).cast()
}

/// `operator new(size_t)`.
#[unsafe(export_name = "_Znwm")]
pub(crate) extern "C" fn new(size: usize) -> *mut c_void {
    throwing(size)
}

/// `operator new[](size_t)`.
#[unsafe(export_name = "_Znam")]
pub(crate) extern "C" fn new_array(size: usize) -> *mut c_void {
    throwing(size)
}

/// `operator new(size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZnwmSt11align_val_t")]
pub(crate) extern "C" fn new_aligned(size: usize, align: usize) -> *mut c_void {
    throwing_aligned(size, align)
}

/// `operator new[](size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZnamSt11align_val_t")]
pub(crate) extern "C" fn new_array_aligned(size: usize, align: usize) -> *mut c_void {
    throwing_aligned(size, align)
}

/// `operator new(size_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnwmRKSt9nothrow_t")]
pub(crate) extern "C" fn new_nothrow(size: usize, tag: *const c_char) -> *mut c_void {
    match cairn::allocate(size) {
        p if p.is_null() => nothrow(c"_ZnwmRKSt9nothrow_t", size, 0, tag),
        p => p.cast(),
    }
}

/// `operator new[](size_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnamRKSt9nothrow_t")]
pub(crate) extern "C" fn new_array_nothrow(size: usize, tag: *const c_char) -> *mut c_void {
    match cairn::allocate(size) {
        p if p.is_null() => nothrow(c"_ZnamRKSt9nothrow_t", size, 0, tag),
        p => p.cast(),
    }
}

/// `operator new(size_t, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnwmSt11align_val_tRKSt9nothrow_t")]
pub(crate) extern "C" fn new_aligned_nothrow(
    size: usize,
    align: usize,
    tag: *const c_char,
) -> *mut c_void {
    match allocate(size, align) {
        p if p.is_null() => nothrow(c"_ZnwmSt11align_val_tRKSt9nothrow_t", size, align, tag),
        p => p.cast(),
    }
}

/// `operator new[](size_t, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnamSt11align_val_tRKSt9nothrow_t")]
pub(crate) extern "C" fn new_array_aligned_nothrow(
    size: usize,
    align: usize,
    tag: *const c_char,
) -> *mut c_void {
    match allocate(size, align) {
        p if p.is_null() => nothrow(c"_ZnamSt11align_val_tRKSt9nothrow_t", size, align, tag),
        p => p.cast(),
    }
}

// Every form of delete is free: sizes and alignments are known from the pointer.

/// `operator delete(void*)`.
#[unsafe(export_name = "_ZdlPv")]
pub(crate) unsafe extern "C" fn delete(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*)`.
#[unsafe(export_name = "_ZdaPv")]
pub(crate) unsafe extern "C" fn delete_array(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, size_t)`.
#[unsafe(export_name = "_ZdlPvm")]
pub(crate) unsafe extern "C" fn delete_sized(p: *mut c_void, _size: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*, size_t)`.
#[unsafe(export_name = "_ZdaPvm")]
pub(crate) unsafe extern "C" fn delete_array_sized(p: *mut c_void, _size: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, std::align_val_t)`.
#[unsafe(export_name = "_ZdlPvSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_aligned(p: *mut c_void, _align: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*, std::align_val_t)`.
#[unsafe(export_name = "_ZdaPvSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_array_aligned(p: *mut c_void, _align: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZdlPvmSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_sized_aligned(p: *mut c_void, _size: usize, _align: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*, size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZdaPvmSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_array_sized_aligned(
    p: *mut c_void,
    _size: usize,
    _align: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZdlPvRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_nothrow(p: *mut c_void, _tag: *const c_char) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZdaPvRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_array_nothrow(p: *mut c_void, _tag: *const c_char) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZdlPvSt11align_val_tRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_aligned_nothrow(
    p: *mut c_void,
    _align: usize,
    _tag: *const c_char,
) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete[](void*, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZdaPvSt11align_val_tRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_array_aligned_nothrow(
    p: *mut c_void,
    _align: usize,
    _tag: *const c_char,
) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}
