//! C++'s operators new and delete, by their mangled names, without a C++ compiler. When there
//! is no memory, the C++ runtime's own new-handler and `bad_alloc` take over: nothing of theirs
//! is imitated, and no exception ever passes through a Rust frame.

use crate::cxx_catch;
use crate::cxx_runtime::{
    self, Form, NO_PARTITION, Operator, allocate, cairn_new_retry, leads_away, new_handler, next,
};
use crate::family::MALLOC_ALIGN;
use cairn::NoMemory;
use core::arch::{asm, global_asm, naked_asm};
use core::ffi::{c_char, c_void};
use core::mem::transmute;

/// The C++ runtime's way out.
struct Throw;

impl NoMemory for Throw {
    #[inline(always)]
    fn answer(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the stub's only contract is its types.
        unsafe { cairn_new_retry(size, align, NO_PARTITION) }
    }
}

// The four operators that the others are defined by. A program may replace any of them, and the others have to follow
// it: what stands in the loader's table under its name. Some have a second name of this library's own, which
// nobody replaces: no loader has to be asked whose they are, which would wait for a plugin's constructors. Where the table has that, no jump of an array form goes through memory: `threadtest` takes 0.92 of the
// time on a Zen 5. For a sized `delete` the same gains nothing.
global_asm!(
    ".globl _Znwm, _Znam, _ZnwmSt11align_val_t, _ZnamSt11align_val_t, _ZdlPv",
    ".type _Znwm, STT_FUNC",
    ".type _Znam, STT_FUNC",
    ".type _ZnwmSt11align_val_t, STT_FUNC",
    ".type _ZnamSt11align_val_t, STT_FUNC",
    ".type _ZdlPv, STT_FUNC",
    ".set _Znwm, {new}",
    ".set _Znam, {new_array}",
    ".set _ZnwmSt11align_val_t, {new_aligned}",
    ".set _ZnamSt11align_val_t, {new_array_aligned}",
    ".set _ZdlPv, {delete}",
    new = sym new,
    new_array = sym new_array,
    new_aligned = sym new_aligned,
    new_array_aligned = sym new_array_aligned,
    delete = sym delete,
);

/// `operator new(size_t)`.
pub(crate) extern "C" fn new(size: usize) -> *mut c_void {
    cairn::allocate_or::<Throw>(size).cast()
}

/// `operator new(size_t, std::align_val_t)`.
pub(crate) extern "C" fn new_aligned(size: usize, align: usize) -> *mut c_void {
    cairn::allocate_aligned_or::<Throw>(size, align).cast()
}

/// `operator delete(void*)`.
pub(crate) unsafe extern "C" fn delete(p: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// `operator delete(void*, std::align_val_t)`.
#[unsafe(export_name = "_ZdlPvSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_aligned(p: *mut c_void, _align: usize) {
    // SAFETY: the caller's contract.
    unsafe { cairn::deallocate(p.cast()) }
}

/// Tail-jumps to a symbol by way of the loader's table.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($symbol:literal) => {
        naked_asm!(concat!("jmp qword ptr [rip + ", $symbol, "@GOTPCREL]"))
    };
}

/// Tail-jumps to a symbol by way of the loader's table.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($symbol:literal) => {
        naked_asm!(
            concat!("adrp x16, :got:", $symbol),
            concat!("ldr x16, [x16, :got_lo12:", $symbol, "]"),
            "br x16",
        )
    };
}

/// The same where the table leads to another function than `$own`; else there.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_home {
    ($symbol:literal, $own:path) => {
        naked_asm!(
            "lea rax, [rip + {own}]",
            concat!("cmp rax, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
            "je {own}",
            concat!("jmp qword ptr [rip + ", $symbol, "@GOTPCREL]"),
            own = sym $own,
        )
    };
}

/// The same where the table leads to another function than `$own`; else there.
#[cfg(target_arch = "aarch64")]
macro_rules! jump_home {
    ($symbol:literal, $own:path) => {
        naked_asm!(
            concat!("adrp x16, :got:", $symbol),
            concat!("ldr x16, [x16, :got_lo12:", $symbol, "]"),
            "adrp x17, {own}",
            "add x17, x17, :lo12:{own}",
            "cmp x16, x17",
            "b.ne 2f",
            "b {own}",
            "2: br x16",
            own = sym $own,
        )
    };
}

/// The address that a symbol has for the program.
#[cfg(target_arch = "x86_64")]
macro_rules! resolved {
    ($symbol:literal) => {{
        let address: *const c_void;
        // SAFETY: reads the loader's table.
        unsafe {
            asm!(
                concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// The address that a symbol has for the program.
#[cfg(target_arch = "aarch64")]
macro_rules! resolved {
    ($symbol:literal) => {{
        let address: *const c_void;
        // SAFETY: reads the loader's table.
        unsafe {
            asm!(
                concat!("adrp {0}, :got:", $symbol),
                concat!("ldr {0}, [{0}, :got_lo12:", $symbol, "]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// `operator new[](size_t)`. What the program's `operator new` throws passes by no Rust frame.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_array(_size: usize) -> *mut c_void {
    jump_home!("_Znwm", new)
}

/// `operator new[](size_t, std::align_val_t)`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_array_aligned(_size: usize, _align: usize) -> *mut c_void {
    jump!("_ZnwmSt11align_val_t")
}

/// `operator delete[](void*)`.
#[unsafe(export_name = "_ZdaPv")]
pub(crate) unsafe extern "C" fn delete_array(p: *mut c_void) {
    // A hardened free is too long to stand here, too.
    let is_home = !cfg!(feature = "hardened") && resolved!("_ZdlPv") == delete as *const c_void;
    // SAFETY: the caller's contract.
    unsafe {
        match is_home {
            true => cairn::deallocate(p.cast()),
            false => delete_by_table(p),
        }
    }
}

/// `operator delete(void*, size_t)`.
#[unsafe(export_name = "_ZdlPvm")]
pub(crate) unsafe extern "C" fn delete_sized(p: *mut c_void, size: usize) {
    if !cairn::has_class_of(p.cast(), size) {
        expect_size(p, size, 1);
    }
    // SAFETY: the caller's contract.
    unsafe { delete_by_table(p) }
}

/// `operator delete[](void*, size_t)`.
#[unsafe(export_name = "_ZdaPvm")]
pub(crate) unsafe extern "C" fn delete_array_sized(p: *mut c_void, size: usize) {
    if !cairn::has_class_of(p.cast(), size) {
        expect_size(p, size, 1);
    }
    // SAFETY: the caller's contract.
    unsafe { delete_array_by_table(p) }
}

// What stands behind the names in this process, where that may be a program's.

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_by_table(_size: usize) -> *mut c_void {
    jump!("_Znwm")
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_array_by_table(_size: usize) -> *mut c_void {
    jump!("_Znam")
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_aligned_by_table(_size: usize, _align: usize) -> *mut c_void {
    jump!("_ZnwmSt11align_val_t")
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn new_array_aligned_by_table(
    _size: usize,
    _align: usize,
) -> *mut c_void {
    jump!("_ZnamSt11align_val_t")
}

#[unsafe(naked)]
unsafe extern "C" fn delete_by_table(_p: *mut c_void) {
    jump!("_ZdlPv")
}

#[unsafe(naked)]
unsafe extern "C" fn delete_array_by_table(_p: *mut c_void) {
    jump!("_ZdaPv")
}

/// `operator delete[](void*, std::align_val_t)`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZdaPvSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_array_aligned(_p: *mut c_void, _align: usize) {
    jump!("_ZdlPvSt11align_val_t")
}

/// `operator delete(void*, size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZdlPvmSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_sized_aligned(p: *mut c_void, size: usize, align: usize) {
    expect_size(p, size, align);
    // SAFETY: the caller's contract.
    unsafe { delete_aligned_by_table(p, align) }
}

/// `operator delete[](void*, size_t, std::align_val_t)`.
#[unsafe(export_name = "_ZdaPvmSt11align_val_t")]
pub(crate) unsafe extern "C" fn delete_array_sized_aligned(
    p: *mut c_void,
    size: usize,
    align: usize,
) {
    expect_size(p, size, align);
    // SAFETY: the caller's contract.
    unsafe { delete_array_aligned_by_table(p, align) }
}

#[unsafe(naked)]
unsafe extern "C" fn delete_aligned_by_table(_p: *mut c_void, _align: usize) {
    jump!("_ZdlPvSt11align_val_t")
}

#[unsafe(naked)]
unsafe extern "C" fn delete_array_aligned_by_table(_p: *mut c_void, _align: usize) {
    jump!("_ZdaPvSt11align_val_t")
}

/// `operator delete(void*, const std::nothrow_t&)`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZdlPvRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_nothrow(_p: *mut c_void, _tag: Tag) {
    jump!("_ZdlPv")
}

/// `operator delete[](void*, const std::nothrow_t&)`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZdaPvRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_array_nothrow(_p: *mut c_void, _tag: Tag) {
    jump!("_ZdaPv")
}

/// `operator delete(void*, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZdlPvSt11align_val_tRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_aligned_nothrow(_p: *mut c_void, _align: usize, _tag: Tag) {
    jump!("_ZdlPvSt11align_val_t")
}

/// `operator delete[](void*, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZdaPvSt11align_val_tRKSt9nothrow_t")]
pub(crate) unsafe extern "C" fn delete_array_aligned_nothrow(
    _p: *mut c_void,
    _align: usize,
    _tag: Tag,
) {
    jump!("_ZdaPvSt11align_val_t")
}

// The nothrow forms: a throwing form whose exception is caught.

pub(crate) type Tag = *const c_char;

/// The throwing forms, as the program has them, and ours.
#[inline(always)]
fn forms() -> [Operator; 4] {
    [
        (resolved!("_Znwm"), new as *const c_void),
        (resolved!("_Znam"), new_array as *const c_void),
        (resolved!("_ZnwmSt11align_val_t"), new_aligned as *const c_void),
        (resolved!("_ZnamSt11align_val_t"), new_array_aligned as *const c_void),
    ]
}

/// Whether the program has a throwing form of its own where ours might be.
#[inline(never)]
pub(crate) fn is_replaced() -> bool {
    forms().iter().any(leads_away)
}

/// The same, and behind them the form of `delete` of each, without a size.
#[cold]
#[inline(never)]
fn all_forms() -> [Operator; 8] {
    let [new, new_array, new_aligned, new_array_aligned] = forms();
    [
        new,
        new_array,
        new_aligned,
        new_array_aligned,
        (resolved!("_ZdlPv"), delete as *const c_void),
        (resolved!("_ZdaPv"), delete_array as *const c_void),
        (resolved!("_ZdlPvSt11align_val_t"), delete_aligned as *const c_void),
        (resolved!("_ZdaPvSt11align_val_t"), delete_array_aligned as *const c_void),
    ]
}

/// Their names.
const ALL_NAMES: &[u8] = b"_Znwm _Znam _ZnwmSt11align_val_t _ZnamSt11align_val_t \
                         _ZdlPv _ZdaPv _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t";

/// As the library starts. Where there are partitions, each `new` asks whether it is replaced. Elsewhere only a `delete` of
/// another size does, and few programs come there.
pub(crate) fn begin() {
    if cfg!(feature = "hardened") {
        cxx_runtime::note_stubs(&all_forms(), ALL_NAMES);
    }
}

/// Ends the process if the block is not one that `operator new` gives for that size and alignment. A program that
/// has operators of its own may give others: nothing is expected of them. In the default build a smaller size will do, a base's
/// say: squid and POV-Ray do that, and every block is freed by its own size.
#[cold]
#[inline(never)]
fn expect_size(p: *mut c_void, size: usize, align: usize) {
    let fits = !cfg!(feature = "hardened")
        && size <= cairn::room(p.cast())
        && p.addr().is_multiple_of(align);
    if fits || cairn::may_have_size(p.cast(), size, align, cairn::Resized::Never) {
        return;
    }
    let all = all_forms();
    cxx_runtime::note_stubs(&all, ALL_NAMES);
    if !all.iter().any(leads_away) {
        cairn::bad_size("operator delete", p.cast());
    }
}

/// Calls the runtime's own definition of a nothrow form.
///
/// # Safety
/// It is of that form.
unsafe fn call_next(
    next: *mut c_void,
    form: Form,
    size: usize,
    align: usize,
    tag: Tag,
) -> *mut c_void {
    type Plain = extern "C" fn(usize, Tag) -> *mut c_void;
    type Aligned = extern "C" fn(usize, usize, Tag) -> *mut c_void;
    match form {
        Form::Plain | Form::Array => {
            // SAFETY: the caller's contract: functions of these forms have this type.
            let next = unsafe { transmute::<*mut c_void, Plain>(next) };
            next(size, tag)
        }
        Form::Aligned | Form::ArrayAligned => {
            // SAFETY: the same.
            let next = unsafe { transmute::<*mut c_void, Aligned>(next) };
            next(size, align, tag)
        }
    }
}

/// What a nothrow form does where ours has no memory, or is not the one to ask: calls the throwing form of the same
/// name if that leads to the program's own, else the new-handler. Null if that throws, or if there is none.
///
/// A runtime that came with a plugin has to catch itself, in its own definitions. They know no partition: what is asked
/// of one has nothing to hope for there.
#[cold]
#[inline(never)]
pub(crate) fn without_throwing(
    form: Form,
    size: usize,
    align: usize,
    tag: Tag,
    partition: usize,
) -> *mut c_void {
    let [plain, array, aligned, array_aligned] = forms();
    // An array form of ours ends in the other one.
    let (throwing, ends_in) = match form {
        Form::Plain => (plain, plain),
        Form::Array => (array, plain),
        Form::Aligned => (aligned, aligned),
        Form::ArrayAligned => (array_aligned, aligned),
    };
    // Nobody asks the loader where that can be avoided: it waits for a plugin's constructors.
    if !cxx_catch::is_linked()
        && let next = next(form)
        && !next.is_null()
    {
        if partition != NO_PARTITION && !is_replaced() {
            return core::ptr::null_mut();
        }
        // SAFETY: the runtime's function of that form.
        return unsafe { call_next(next, form, size, align, tag) };
    }
    if [throwing, ends_in].iter().any(leads_away) {
        // SAFETY: the form has these arguments.
        return unsafe { cxx_catch::call_new(throwing.0, size, align) };
    }
    loop {
        let p = allocate(size, align, partition);
        let handler = new_handler();
        // SAFETY: a new-handler is such a function.
        if !p.is_null() || handler.is_null() || !unsafe { cxx_catch::call(handler) } {
            return p.cast();
        }
    }
}

fn plain_nothrow(form: Form, size: usize, tag: Tag) -> *mut c_void {
    if !is_replaced() {
        let p = cairn::allocate(size);
        if !p.is_null() {
            return p.cast();
        }
    }
    without_throwing(form, size, MALLOC_ALIGN, tag, NO_PARTITION)
}

fn aligned_nothrow(form: Form, size: usize, align: usize, tag: Tag) -> *mut c_void {
    if !is_replaced() {
        let p = cairn::allocate_aligned(size, align);
        if !p.is_null() {
            return p.cast();
        }
    }
    without_throwing(form, size, align, tag, NO_PARTITION)
}

/// `operator new(size_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnwmRKSt9nothrow_t")]
pub(crate) extern "C" fn new_nothrow(size: usize, tag: Tag) -> *mut c_void {
    plain_nothrow(Form::Plain, size, tag)
}

/// `operator new[](size_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnamRKSt9nothrow_t")]
pub(crate) extern "C" fn new_array_nothrow(size: usize, tag: Tag) -> *mut c_void {
    plain_nothrow(Form::Array, size, tag)
}

/// `operator new(size_t, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnwmSt11align_val_tRKSt9nothrow_t")]
pub(crate) extern "C" fn new_aligned_nothrow(size: usize, align: usize, tag: Tag) -> *mut c_void {
    aligned_nothrow(Form::Aligned, size, align, tag)
}

/// `operator new[](size_t, std::align_val_t, const std::nothrow_t&)`.
#[unsafe(export_name = "_ZnamSt11align_val_tRKSt9nothrow_t")]
pub(crate) extern "C" fn new_array_aligned_nothrow(
    size: usize,
    align: usize,
    tag: Tag,
) -> *mut c_void {
    aligned_nothrow(Form::ArrayAligned, size, align, tag)
}
