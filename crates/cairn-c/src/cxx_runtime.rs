//! What operator new asks of the C++ runtime when there is no memory: its new-handler, and the throw of
//! `bad_alloc`. Found by name, for the runtime may be linked, loaded later, or not there at all.

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

// Allocates again and again as long as there is a new-handler to call, then throws. The frame
// is described to the unwinder, because the handler may throw through it; it is gone before
// `std::__throw_bad_alloc` is entered.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.cairn_new_retry,\"ax\",@progbits",
    ".hidden cairn_new_retry",
    ".globl cairn_new_retry",
    ".type cairn_new_retry, @function",
    "cairn_new_retry:", // rdi: size, rsi: alignment, rdx: partition
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "2:",
    "call {handler}",
    "test rax, rax",
    "jz 3f",
    "call rax",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
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
    "cairn_new_retry:", // x0: size, x1: alignment, x2: partition
    ".cfi_startproc",
    "stp x29, x30, [sp, #-48]!",
    ".cfi_def_cfa_offset 48",
    ".cfi_offset x29, -48",
    ".cfi_offset x30, -40",
    "stp x0, x1, [sp, #16]",
    "str x2, [sp, #32]",
    "2:",
    "bl {handler}",
    "cbz x0, 3f",
    "blr x0",
    "ldp x0, x1, [sp, #16]",
    "ldr x2, [sp, #32]",
    "bl {allocate}",
    "cbz x0, 2b",
    ".cfi_remember_state",
    "ldp x29, x30, [sp], #48",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    "3:",
    ".cfi_restore_state",
    "bl {thrower}",
    "mov x16, x0",
    "ldp x29, x30, [sp], #48",
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
    pub(crate) fn cairn_new_retry(size: usize, align: usize, partition: usize) -> *mut u8;
}

// References that may stay unresolved: the runtime's functions if they are linked in, or were
// loaded with the program; dlsym knows nothing of those in a static executable.
global_asm!(
    ".pushsection .data.rel.ro.cairn_runtime,\"aw\"",
    ".p2align 3",
    ".hidden cairn_runtime",
    ".globl cairn_runtime",
    ".type cairn_runtime, %object",
    ".size cairn_runtime, 16",
    ".weak _ZSt15get_new_handlerv",
    ".weak _ZSt17__throw_bad_allocv",
    "cairn_runtime:",
    ".8byte _ZSt15get_new_handlerv",
    ".8byte _ZSt17__throw_bad_allocv",
    ".popsection",
);

unsafe extern "C" {
    static cairn_runtime: [*mut c_void; 2];
}

/// Finds a function of the C++ runtime; null if there is none in this process.
fn runtime(linked: usize, name: &CStr) -> *mut c_void {
    // SAFETY: the table is constant once the library is loaded.
    unsafe {
        // Volatile: the loader fills the table in.
        if let Some(entry) = (&raw const cairn_runtime).as_ref().and_then(|t| t.get(linked))
            && let found = (&raw const *entry).read_volatile()
            && !found.is_null()
        {
            return found;
        }
        find_beyond(libc::RTLD_DEFAULT, name)
    }
}

/// Finds a function of the C++ runtime in the loader's order, from `place` on, or in a runtime that is out of the global scope,
/// as it came with a plugin; null if there is none.
#[cold]
#[inline(never)]
pub(crate) fn find_beyond(place: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the names are C strings; the C library's function has this type; the flags only look at what is loaded.
    unsafe {
        let found = libc::dlsym(place, name.as_ptr());
        if !found.is_null() {
            return found;
        }
        // Looked up: a static executable that names dlopen gets a warning of the linker's for it.
        type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
        let open = libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr());
        let Some(open) = core::mem::transmute::<*mut c_void, Option<Open>>(open) else {
            return core::ptr::null_mut();
        };
        for library in [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"] {
            let handle = open(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
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
pub(crate) extern "C" fn new_handler() -> *mut c_void {
    let get = runtime(0, c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return get;
    }
    // SAFETY: the C++ runtime's function of this name has this type.
    let get: extern "C" fn() -> *mut c_void = unsafe { core::mem::transmute(get) };
    get()
}

/// `std::__throw_bad_alloc`.
extern "C" fn thrower() -> *mut c_void {
    let throw = runtime(1, c"_ZSt17__throw_bad_allocv");
    if throw.is_null() {
        crate::report::line(b"cairn: operator new: out of memory, and no C++ runtime to tell\n");
        // SAFETY: abort has no preconditions.
        unsafe { libc::abort() }
    }
    throw
}

/// What `operator new` names that knows no type.
pub(crate) const NO_PARTITION: usize = usize::MAX;

pub(crate) extern "C" fn allocate(size: usize, align: usize, partition: usize) -> *mut u8 {
    match partition {
        NO_PARTITION => cairn::allocate_aligned(size, align),
        partition => cairn::allocate_in(partition, size, align),
    }
}

/// The nothrow forms of `new`.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Plain,
    Array,
    Aligned,
    ArrayAligned,
}

/// The runtime's own definition of a nothrow form, or null.
pub(crate) fn next(form: Form) -> *mut c_void {
    let name = match form {
        Form::Plain => c"_ZnwmRKSt9nothrow_t",
        Form::Array => c"_ZnamRKSt9nothrow_t",
        Form::Aligned => c"_ZnwmSt11align_val_tRKSt9nothrow_t",
        Form::ArrayAligned => c"_ZnamSt11align_val_tRKSt9nothrow_t",
    };
    find_beyond(libc::RTLD_NEXT, name)
}

/// An operator's address as the program has it, and ours.
pub(crate) type Operator = (*const c_void, *const c_void);

/// Whatever address the program has of an operator is ours, or a stub's in a program at a fixed address, which has one where
/// it takes the address. A stub leads to what the first file defines, in the loader's order: all of those lead here. False until
/// somebody has looked. Relaxed, like the next: who sees it late takes a stub for another operator.
static ALL_LEAD_HERE: AtomicBool = AtomicBool::new(false);
/// Somebody has looked, or is about to.
static HAS_LOOKED: AtomicBool = AtomicBool::new(false);

/// Whether the program has another operator in the place of ours, as far as is known.
#[inline(always)]
pub(crate) fn leads_away((now, own): &Operator) -> bool {
    now != own && !ALL_LEAD_HERE.load(Ordering::Relaxed)
}

/// Takes note, once, whether all these lead here. `names` are theirs, with a space between two.
#[cold]
pub(crate) fn note_stubs(operators: &[Operator], names: &[u8]) {
    if !HAS_LOOKED.swap(true, Ordering::Relaxed) {
        let leads_here = |(&(now, own), name): (&Operator, _)| {
            now == own || cairn::first_defined(name) == Some(own.addr())
        };
        let is_all = operators.iter().zip(names.split(|&byte| byte == b' ')).all(leads_here);
        ALL_LEAD_HERE.store(is_all, Ordering::Relaxed);
    }
}
