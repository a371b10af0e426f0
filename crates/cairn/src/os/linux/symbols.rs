//! Owns: what loaded files define under a name.
//! Idea: a file's own tables say it, without the loader. Formats: the System V ABI, and the hash table of GNU's linker.
//! Never: allocates; believes that the loader has made addresses of what stands in a file, or that it has not.
//! Threads: any; `first_defined` takes the loader's lock for its list of files.
//! Checked: tests/unwind.rs; the clock's own test; tests/cxx.rs of the C layer
//! Story: docs/design/systems.md

use super::machine::SHORT_HASHES;
use super::no_unload::Entry;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::with_exposed_provenance;
use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

/// What a file defines under a name.
///
/// # Safety
/// A file of this machine's kind is loaded from `file` on, and stays.
#[inline(never)]
pub(super) unsafe fn defined_in(file: usize, name: &CStr) -> Option<usize> {
    // SAFETY: the caller's; the head says where the list of parts is.
    unsafe {
        let head = &*with_exposed_provenance::<Elf64_Ehdr>(file);
        if !head.e_ident.starts_with(b"\x7fELF") {
            return None;
        }
        let parts = with_exposed_provenance::<Elf64_Phdr>(file + head.e_phoff as usize);
        let parts = core::slice::from_raw_parts(parts, head.e_phnum.into());
        let load = part(parts, libc::PT_LOAD)?;
        let base = (file + load.p_offset as usize).wrapping_sub(load.p_vaddr as usize);
        defined(base, parts, name.to_bytes())
    }
}

/// What the first file that defines it does, in the loader's order: what names lead to, but where a program at a fixed address
/// has a stub. `name` is without the zero behind it.
#[cold]
#[inline(never)]
pub fn first_defined(name: &[u8]) -> Option<usize> {
    let mut search = (name, None);
    // SAFETY: the function looks at one file at a time, and gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn look(file: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a file that is loaded, and the caller's search.
    unsafe {
        let (file, search) = (&*file, &mut *search.cast::<(&[u8], Option<usize>)>());
        if !file.dlpi_phdr.is_null() {
            let parts = core::slice::from_raw_parts(file.dlpi_phdr, file.dlpi_phnum.into());
            search.1 = defined(file.dlpi_addr as usize, parts, search.0);
        }
        c_int::from(search.1.is_some())
    }
}

fn part(parts: &[Elf64_Phdr], kind: u32) -> Option<&Elf64_Phdr> {
    parts.iter().find(|part| part.p_type == kind)
}

/// What a file of those parts defines. `base` is what is added to the addresses in it: nothing in a program that has its own
/// place.
///
/// # Safety
/// The file is loaded.
#[inline(never)]
unsafe fn defined(base: usize, parts: &[Elf64_Phdr], name: &[u8]) -> Option<usize> {
    const DT_HASH: usize = 4;
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    const DT_GNU_HASH: usize = 0x6fff_fef5;
    let section = base.wrapping_add(part(parts, libc::PT_DYNAMIC)?.p_vaddr as usize);
    // SAFETY: the tables are where the file says.
    unsafe {
        // With a sign: an old kernel's library has addresses that are higher than any place.
        let place = |value: usize| match (value as isize) < base as isize {
            true => base.wrapping_add(value),
            false => value,
        };
        let table = |tag| Entry::find(section, tag).map(place);
        let symbols = with_exposed_provenance::<Elf64_Sym>(table(DT_SYMTAB)?);
        let names = table(DT_STRTAB)?;
        let is_it = |nth: u32| {
            let symbol = &*symbols.add(nth as usize);
            let at = with_exposed_provenance(names + symbol.st_name as usize);
            symbol.st_shndx != 0 && CStr::from_ptr(at).to_bytes() == name
        };
        let nth = match table(DT_GNU_HASH) {
            Some(hashes) => by_hash(hashes, name, is_it)?,
            None if SHORT_HASHES => {
                let count = with_exposed_provenance::<u32>(table(DT_HASH)?).add(1).read();
                (0..count).find(|&nth| is_it(nth))?
            }
            None => return None,
        };
        Some(base.wrapping_add((*symbols.add(nth as usize)).st_value as usize))
    }
}

/// The symbol of a name's hash that `is_it`, by a table of GNU's kind.
///
/// # Safety
/// There is one.
#[inline(always)]
unsafe fn by_hash(table: usize, name: &[u8], is_it: impl Fn(u32) -> bool) -> Option<u32> {
    let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(byte.into());
    let wanted = name.iter().fold(5381, step);
    let table = with_exposed_provenance::<u32>(table);
    // SAFETY: the head says how long the parts behind it are: a filter of words, buckets, and a chain for each.
    unsafe {
        let [buckets, first, filter, _] = table.cast::<[u32; 4]>().read();
        let bucket = table.add(4 + 2 * filter as usize);
        let chains = bucket.add(buckets as usize);
        let mut nth = bucket.add(wanted.checked_rem(buckets)? as usize).read();
        loop {
            // The lowest bit says that it is the last one.
            let hash = chains.add(nth.checked_sub(first)? as usize).read();
            if hash | 1 == wanted | 1 && is_it(nth) {
                return Some(nth);
            }
            if hash & 1 != 0 {
                return None;
            }
            nth += 1;
        }
    }
}
