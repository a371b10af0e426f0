//! Allocation tokens: what clang makes of allocations under `-fsanitize=alloc-token`. A token stands for the
//! type that is allocated, and leads to a partition of the heap.
//!
//! There are two conventions: the token is the last argument, or, with `-fsanitize-alloc-token-fast-abi`, a
//! part of the name. What may go wrong goes as with the plain functions (`family`, `cxx`). Blocks are freed
//! by the plain names.

use crate::cxx::{self, Tag};
use crate::cxx_runtime::{Form, NO_PARTITION, cairn_new_retry};
use crate::family::{self, MALLOC_ALIGN};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

/// The partition of a token. Without `-falloc-token-max` tokens are hashes of a whole word, of which clang sets
/// the top bit for types that contain pointers: they stay apart from the others.
#[inline(always)]
const fn partition(token: usize) -> usize {
    const HALF: usize = cairn::PARTITIONS / 2;
    match token >> 32 {
        0 => token % cairn::PARTITIONS,
        _ => token % HALF + (token >> 63) * HALF,
    }
}

fn told(p: *mut u8) -> *mut c_void {
    if p.is_null() { family::no_memory() } else { p.cast() }
}

// Each of the functions, with a partition.

#[inline(never)]
fn malloc(size: usize, partition: usize) -> *mut c_void {
    told(cairn::allocate_in(partition, size, MALLOC_ALIGN))
}

#[inline(never)]
fn calloc(count: usize, size: usize, partition: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => told(cairn::allocate_zeroed_in(partition, bytes, MALLOC_ALIGN)),
        None => family::no_memory(),
    }
}

#[inline(never)]
unsafe fn realloc(p: *mut c_void, size: usize, partition: usize) -> *mut c_void {
    if size == 0 && !p.is_null() {
        // SAFETY: `p` is not null: so it is a block, and the caller's to give up.
        unsafe { cairn::deallocate_named(p.cast(), "realloc") };
        return null_mut();
    }
    // SAFETY: null or a block that nobody uses after this, as the core asks.
    told(unsafe { cairn::reallocate_in(partition, p.cast(), size, MALLOC_ALIGN) })
}

unsafe fn reallocarray(p: *mut c_void, count: usize, size: usize, partition: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the same promise about `p`.
        Some(bytes) => unsafe { realloc(p, bytes, partition) },
        None => family::no_memory(),
    }
}

unsafe fn posix_memalign(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
    partition: usize,
) -> c_int {
    let make = |size, align| cairn::allocate_in(partition, size, align);
    // SAFETY: the caller's contract.
    unsafe { family::placed(out, align, size, make) }
}

fn memalign(align: usize, size: usize, partition: usize) -> *mut c_void {
    match family::whole_alignment(align) {
        Some(align) => told(cairn::allocate_in(partition, size, align)),
        None => null_mut(),
    }
}

fn aligned_alloc(align: usize, size: usize, partition: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        family::set_errno(libc::EINVAL);
        return null_mut();
    }
    memalign(align, size, partition)
}

fn valloc(size: usize, partition: usize) -> *mut c_void {
    memalign(family::page_size(), size, partition)
}

fn pvalloc(size: usize, partition: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(family::page_size()) {
        Some(bytes) => valloc(bytes, partition),
        None => family::no_memory(),
    }
}

/// A program that has an operator of its own may give blocks that only its own delete can free: it is
/// called then, by name, as for any `new`.
fn new(size: usize, partition: usize) -> *mut c_void {
    if cxx::is_replaced() {
        // SAFETY: `operator new` has this type.
        return unsafe { cxx::new_by_table(size) };
    }
    made(size, MALLOC_ALIGN, partition)
}

fn new_array(size: usize, partition: usize) -> *mut c_void {
    if cxx::is_replaced() {
        // SAFETY: `operator new[]` has this type.
        return unsafe { cxx::new_array_by_table(size) };
    }
    made(size, MALLOC_ALIGN, partition)
}

fn new_aligned(size: usize, align: usize, partition: usize) -> *mut c_void {
    if cxx::is_replaced() {
        // SAFETY: this form has this type.
        return unsafe { cxx::new_aligned_by_table(size, align) };
    }
    made(size, align, partition)
}

fn new_array_aligned(size: usize, align: usize, partition: usize) -> *mut c_void {
    if cxx::is_replaced() {
        // SAFETY: this form has this type.
        return unsafe { cxx::new_array_aligned_by_table(size, align) };
    }
    made(size, align, partition)
}

/// Ends in a tail call: no exception passes through a frame of Rust's.
#[inline(never)]
fn made(size: usize, align: usize, partition: usize) -> *mut c_void {
    let p = cairn::allocate_in(partition, size, align);
    if p.is_null() {
        // SAFETY: the stub's only contract is its types.
        return unsafe { cairn_new_retry(size, align, partition) }.cast();
    }
    p.cast()
}

fn new_nothrow(size: usize, tag: Tag, partition: usize) -> *mut c_void {
    nothrow(Form::Plain, size, MALLOC_ALIGN, tag, partition)
}

fn new_array_nothrow(size: usize, tag: Tag, partition: usize) -> *mut c_void {
    nothrow(Form::Array, size, MALLOC_ALIGN, tag, partition)
}

fn new_aligned_nothrow(size: usize, align: usize, tag: Tag, partition: usize) -> *mut c_void {
    nothrow(Form::Aligned, size, align, tag, partition)
}

fn new_array_aligned_nothrow(size: usize, align: usize, tag: Tag, partition: usize) -> *mut c_void {
    nothrow(Form::ArrayAligned, size, align, tag, partition)
}

/// From the partition, also after the new-handler; or from the program's own operators.
#[inline(never)]
fn nothrow(form: Form, size: usize, align: usize, tag: Tag, partition: usize) -> *mut c_void {
    if !cxx::is_replaced() {
        let p = cairn::allocate_in(partition, size, align);
        if !p.is_null() {
            return p.cast();
        }
    }
    // The default build has no partitions that a block could leave.
    let partition = if cfg!(feature = "hardened") { partition } else { NO_PARTITION };
    cxx::without_throwing(form, size, align, tag, partition)
}

// The names. Macros, because one convention has a name for each token, and all of them are alike.

/// Exports a function above: its name behind a prefix, its arguments, the token, which may be an argument.
macro_rules! export {
    (
        $prefix:literal $name:literal
        $function:ident($($arg:ident: $type:ty),*) -> $result:ty,
        $token:expr $(, $last:ident)?
    ) => {
        const _: () = {
            #[unsafe(export_name = concat!($prefix, $name))]
            unsafe extern "C" fn named($($arg: $type,)* $($last: usize)?) -> $result {
                #[allow(unused_unsafe, reason = "some of the functions are safe")]
                // SAFETY: the caller's contract is that of the plain function.
                unsafe { $function($($arg,)* partition($token)) }
            }
        };
    };
}

/// Exports all functions behind a prefix.
macro_rules! family {
    ($prefix:literal, $token:expr $(, $last:ident)?) => {
        export!($prefix "malloc" malloc(size: usize) -> *mut c_void, $token $(, $last)?);
        export!($prefix "calloc" calloc(count: usize, size: usize) -> *mut c_void, $token $(, $last)?);
        export!($prefix "realloc" realloc(p: *mut c_void, size: usize) -> *mut c_void, $token $(, $last)?);
        export!(
            $prefix "reallocarray"
            reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "posix_memalign"
            posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int, $token $(, $last)?
        );
        export!($prefix "memalign" memalign(align: usize, size: usize) -> *mut c_void, $token $(, $last)?);
        export!(
            $prefix "aligned_alloc"
            aligned_alloc(align: usize, size: usize) -> *mut c_void, $token $(, $last)?
        );
        export!($prefix "valloc" valloc(size: usize) -> *mut c_void, $token $(, $last)?);
        export!($prefix "pvalloc" pvalloc(size: usize) -> *mut c_void, $token $(, $last)?);
        export!($prefix "_Znwm" new(size: usize) -> *mut c_void, $token $(, $last)?);
        export!($prefix "_Znam" new_array(size: usize) -> *mut c_void, $token $(, $last)?);
        export!(
            $prefix "_ZnwmSt11align_val_t"
            new_aligned(size: usize, align: usize) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "_ZnamSt11align_val_t"
            new_array_aligned(size: usize, align: usize) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "_ZnwmRKSt9nothrow_t"
            new_nothrow(size: usize, tag: Tag) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "_ZnamRKSt9nothrow_t"
            new_array_nothrow(size: usize, tag: Tag) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "_ZnwmSt11align_val_tRKSt9nothrow_t"
            new_aligned_nothrow(size: usize, align: usize, tag: Tag) -> *mut c_void, $token $(, $last)?
        );
        export!(
            $prefix "_ZnamSt11align_val_tRKSt9nothrow_t"
            new_array_aligned_nothrow(size: usize, align: usize, tag: Tag) -> *mut c_void,
            $token $(, $last)?
        );
    };
}

family!("__alloc_token_", token, token);
// As many as there are partitions: -falloc-token-max=16.
family!("__alloc_token_0_", 0);
family!("__alloc_token_1_", 1);
family!("__alloc_token_2_", 2);
family!("__alloc_token_3_", 3);
family!("__alloc_token_4_", 4);
family!("__alloc_token_5_", 5);
family!("__alloc_token_6_", 6);
family!("__alloc_token_7_", 7);
family!("__alloc_token_8_", 8);
family!("__alloc_token_9_", 9);
family!("__alloc_token_10_", 10);
family!("__alloc_token_11_", 11);
family!("__alloc_token_12_", 12);
family!("__alloc_token_13_", 13);
family!("__alloc_token_14_", 14);
family!("__alloc_token_15_", 15);

// For programs that choose partitions themselves.

/// malloc(3) from a partition.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_malloc_in(partition: c_uint, size: usize) -> *mut c_void {
    malloc(size, partition as usize % cairn::PARTITIONS)
}

/// calloc(3) from a partition.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_calloc_in(
    partition: c_uint,
    count: usize,
    size: usize,
) -> *mut c_void {
    calloc(count, size, partition as usize % cairn::PARTITIONS)
}

/// aligned_alloc(3) from a partition.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_aligned_alloc_in(
    partition: c_uint,
    align: usize,
    size: usize,
) -> *mut c_void {
    aligned_alloc(align, size, partition as usize % cairn::PARTITIONS)
}

/// realloc(3); a block that has to move goes to the partition.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_realloc_in(
    partition: c_uint,
    p: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: what realloc(3) asks of its caller is asked here.
    unsafe { realloc(p, size, partition as usize % cairn::PARTITIONS) }
}
