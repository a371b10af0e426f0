//! Owns: that this copy of cairn is not unloaded.
//! Idea: threads' ends, fork handlers and threads point into it, and blocks outlive whoever closes it. A library that
//!   lacks the loader's flag for that (`nodelete`) gets it while it is being loaded.
//! Never: runs later: the loader's lock is held by whoever loads it.
//! Threads: the one that loads it.
//! Checked: tests/copies.rs of the C layer
//! Story: docs/design/tls.md

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null;

/// Has the loader never unload this copy. Runs when the loader has made the file ready.
pub(crate) extern "C" fn stay() {
    let mut search = Search { is_first: true, name: null() };
    // SAFETY: the function looks at one file at a time, and gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if search.name.is_null() {
        return;
    }
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the C library's function has this type. It only finds the file again, by the loader's own name for
    // it. It is looked up: a static executable that names it gets a warning of the linker's.
    unsafe {
        let open = libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr());
        if let Some(open) = core::mem::transmute::<*mut c_void, Option<Open>>(open) {
            open(search.name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// The search for the file that this copy is linked into.
struct Search {
    /// The program's own file comes first.
    is_first: bool,
    /// The loader's name for it, if it is a library that may be unloaded.
    name: *const c_char,
}

unsafe extern "C" fn look(file: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    const TO_THE_END: c_int = 0;
    const FOUND: c_int = 1;
    // SAFETY: the loader's description of a file that is loaded, and the caller's search.
    let (file, search) = unsafe { (&*file, &mut *search.cast::<Search>()) };
    if file.dlpi_phdr.is_null() {
        return TO_THE_END;
    }
    // SAFETY: as above.
    let parts = unsafe { core::slice::from_raw_parts(file.dlpi_phdr, file.dlpi_phnum.into()) };
    let start = |part: &libc::Elf64_Phdr| file.dlpi_addr.wrapping_add(part.p_vaddr);
    let own = (stay as extern "C" fn() as *const c_void).addr() as u64;
    let holds = |part: &&libc::Elf64_Phdr| own.wrapping_sub(start(part)) < part.p_memsz;
    let is_programs = core::mem::take(&mut search.is_first);
    if !parts.iter().filter(|part| part.p_type == libc::PT_LOAD).any(|part| holds(&part)) {
        return TO_THE_END;
    }
    let section = parts.iter().find(|part| part.p_type == libc::PT_DYNAMIC);
    // SAFETY: the dynamic section of a file that is loaded.
    if !is_programs && section.is_some_and(|part| unsafe { may_be_unloaded(start(part) as usize) })
    {
        search.name = file.dlpi_name;
    }
    FOUND
}

/// An entry of a dynamic section.
#[repr(C)]
pub(super) struct Entry {
    tag: usize,
    value: usize,
}

impl Entry {
    /// The value of the section's first entry with this tag.
    ///
    /// # Safety
    /// There is a section at this address.
    #[inline(never)]
    pub(super) unsafe fn find(section: usize, tag: usize) -> Option<usize> {
        const DT_NULL: usize = 0;
        let mut at: *const Entry = core::ptr::with_exposed_provenance(section);
        loop {
            // SAFETY: the section ends with the entry that is looked for first.
            match unsafe { at.read() } {
                Entry { tag: DT_NULL, .. } => return None,
                entry if entry.tag == tag => return Some(entry.value),
                _ => at = at.wrapping_add(1),
            }
        }
    }
}

/// Whether the section at this address lacks the flag.
///
/// # Safety
/// There is one.
unsafe fn may_be_unloaded(section: usize) -> bool {
    const DT_FLAGS_1: usize = 0x6fff_fffb;
    const DF_1_NODELETE: usize = 8;
    // SAFETY: as above.
    let flags = unsafe { Entry::find(section, DT_FLAGS_1) };
    flags.is_none_or(|flags| flags & DF_1_NODELETE == 0)
}
