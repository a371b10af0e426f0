//! Owns: where the tables are by which a file's functions find their callers' frames.
//! Idea: glibc from 2.35 on says it without a lock, in a signal's handler too. Where it does not, there are none.
//! Never: takes the loader's lock, or allocates: it may be asked inside of malloc. So `dlsym` is not asked.
//! Threads: any; holds nothing.
//! Checked: tests/unwind.rs
//! Story: docs/guide/profile.md

use crate::base::{AtomicPtr, Ordering};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

/// The tables of a file that is loaded.
pub(crate) struct UnwindTable {
    /// The file's first address, and the one behind its last.
    pub(crate) range: (usize, usize),
    /// The file's `.eh_frame_hdr`.
    pub(crate) start: usize,
}

/// As glibc's `struct dl_find_object` is on x86-64 and aarch64.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link: *mut c_void,
    table: usize,
    reserved: [u64; 7],
}

type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;

/// A `Find`, or null. Relaxed: it is there or not, and stays so.
static FIND: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Looks for the function in the table of names of the C library's file.
pub(crate) fn find_unwind_tables() {
    let inside = libc::getauxval as *const () as usize;
    let base = super::mapped_around(inside, |mapped| mapped.base);
    // SAFETY: the file of a function that is linked is loaded, and stays.
    let found = base.and_then(|base| unsafe { exported(base, c"_dl_find_object") });
    let found = found.map_or(null_mut(), core::ptr::with_exposed_provenance_mut);
    FIND.store(found, Ordering::Relaxed);
}

/// What a loaded file exports under a name. Formats: the System V ABI, and the hash table of GNU's linker.
///
/// # Safety
/// A file of this machine's kind is loaded from `file` on, and stays.
unsafe fn exported(file: usize, name: &CStr) -> Option<usize> {
    const NAMES: u64 = 5;
    const SYMBOLS: u64 = 6;
    const HASHES: u64 = 0x6fff_fef5;
    let head: *const libc::Elf64_Ehdr = core::ptr::with_exposed_provenance(file);
    // SAFETY: the caller's; what is computed is where the file's own tables say.
    unsafe {
        if !head.read().e_ident.starts_with(b"\x7fELF") {
            return None;
        }
        let parts: *const libc::Elf64_Phdr =
            core::ptr::with_exposed_provenance(file + (*head).e_phoff as usize);
        let parts = core::slice::from_raw_parts(parts, (*head).e_phnum.into());
        let part = |kind| parts.iter().find(|part| part.p_type == kind);
        let (load, dynamic) = (part(libc::PT_LOAD)?, part(libc::PT_DYNAMIC)?);
        // What is added to the addresses in the file: nothing in a program that has its own place.
        let base = (file + load.p_offset as usize).wrapping_sub(load.p_vaddr as usize);
        let entries: *const [u64; 2] =
            core::ptr::with_exposed_provenance(base + dynamic.p_vaddr as usize);
        let [mut names, mut symbols, mut hashes] = [0; 3];
        for nth in 0.. {
            // The loader may have made addresses of them, or not.
            let [tag, value] = *entries.add(nth);
            let place =
                if (value as usize) < file { base + value as usize } else { value as usize };
            match tag {
                0 => break,
                NAMES => names = place,
                SYMBOLS => symbols = place,
                HASHES => hashes = place,
                _ => {}
            }
        }
        if names == 0 || symbols == 0 || hashes == 0 {
            return None;
        }
        let words: *const u32 = core::ptr::with_exposed_provenance(hashes);
        let [buckets, first, bloom] = [0, 1, 2].map(|nth| *words.add(nth) as usize);
        let chains = words.add(4 + 2 * bloom + buckets);
        let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(byte.into());
        let wanted = name.to_bytes().iter().fold(5381, step);
        let mut nth = *words.add(4 + 2 * bloom + wanted as usize % buckets.max(1)) as usize;
        if nth < first {
            return None;
        }
        let symbols: *const libc::Elf64_Sym = core::ptr::with_exposed_provenance(symbols);
        let names: *const c_char = core::ptr::with_exposed_provenance(names);
        loop {
            // The lowest bit says that it is the last one.
            let hash = *chains.add(nth - first);
            let symbol = &*symbols.add(nth);
            let is_name = hash | 1 == wanted | 1
                && CStr::from_ptr(names.add(symbol.st_name as usize)) == name;
            if is_name && symbol.st_shndx != 0 {
                return Some(base + symbol.st_value as usize);
            }
            if hash & 1 != 0 {
                return None;
            }
            nth += 1;
        }
    }
}

/// The tables of the file that has an address, which is on the caller's stack: the file stays loaded meanwhile.
pub(crate) fn unwind_table(address: usize) -> Option<UnwindTable> {
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = MaybeUninit::<Found>::uninit();
    // SAFETY: that function, which takes any address and writes what it has found if it answers 0.
    let found = unsafe {
        let find = core::mem::transmute::<*mut (), Find>(find);
        let answer = find(core::ptr::without_provenance(address), found.as_mut_ptr());
        if answer != 0 {
            return None;
        }
        found.assume_init()
    };
    let is_inside = (found.start..found.end).contains(&found.table);
    is_inside.then_some(UnwindTable { range: (found.start, found.end), start: found.table })
}
