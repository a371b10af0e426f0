//! The library as a file: what it needs of the system and the processor, how large it is; and its header.

mod common;

use common::{include_dir, library, run, scratch_dir, skip_for_stand_in};
use object::elf::{self, FileHeader64};
use object::endian::LittleEndian;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Object, ObjectSection};
use std::process::Command;

type File<'data> = ElfFile64<'data, LittleEndian>;

fn shared_bytes() -> Vec<u8> {
    std::fs::read(&library().shared).expect("the library is readable")
}

fn parsed(bytes: &[u8]) -> File<'_> {
    File::parse(bytes).expect("an ELF library of 64 bits")
}

/// The dynamic section as tags with their values.
fn dynamic(file: &File) -> Vec<(elf::DynamicTag, u64)> {
    let endian = LittleEndian;
    file.elf_program_headers()
        .iter()
        .find_map(|header| header.dynamic(endian, file.data()).expect("dynamic section"))
        .expect("a dynamic section")
        .iter()
        .map(|entry| (entry.d_tag(endian), entry.d_val(endian)))
        .collect()
}

fn values_of(
    dynamic: &[(elf::DynamicTag, u64)],
    tag: elf::DynamicTag,
) -> impl Iterator<Item = u64> {
    dynamic.iter().filter(move |entry| entry.0 == tag).map(|entry| entry.1)
}

/// Only the C library, which each program has: no libgcc_s, no libpthread, no libstdc++.
#[test]
fn it_needs_only_the_c_library() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let file = parsed(&bytes);
    let dynamic = dynamic(&file);
    let needed = run({
        let mut command = Command::new("readelf");
        command.arg("-dW").arg(&library().shared);
        command
    });
    let needed: Vec<_> = needed.stdout.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert_eq!(values_of(&dynamic, elf::DT_NEEDED).count(), needed.len());
    for line in &needed {
        let is_c_library = line.contains("[libc.so") || line.contains("[ld-linux");
        assert!(is_c_library, "{line}");
    }
    assert_eq!(values_of(&dynamic, elf::DT_RPATH).count(), 0, "no search path");
    assert_eq!(values_of(&dynamic, elf::DT_RUNPATH).count(), 0, "no search path");
}

#[test]
fn its_text_is_not_relocated_and_its_stack_not_executable() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let file = parsed(&bytes);
    let dynamic = dynamic(&file);
    assert_eq!(values_of(&dynamic, elf::DT_TEXTREL).count(), 0);
    let flags = values_of(&dynamic, elf::DT_FLAGS).fold(0, |all, flags| all | flags);
    assert_eq!(flags & elf::DF_TEXTREL.0, 0);
    for header in file.elf_program_headers() {
        let flags = header.p_flags(LittleEndian);
        let is_stack = header.p_type(LittleEndian) == elf::PT_GNU_STACK;
        assert!(!is_stack || (flags & elf::PF_X).0 == 0, "the stack is executable");
        let both = elf::PF_W | elf::PF_X;
        assert!(flags & both != both, "a segment is writable and executable");
    }
}

/// No call stands between `malloc` and its thread's heap; and little of the room that the loader
/// keeps for libraries loaded late is used, so that `dlopen` works.
#[test]
fn its_thread_storage_is_small_and_initial_exec() {
    const TLS_SIZE_BYTES_MAX: u64 = 64;

    if skip_for_stand_in() {
        return;
    }
    let endian = LittleEndian;
    let bytes = shared_bytes();
    let file = parsed(&bytes);
    let tls = file
        .elf_program_headers()
        .iter()
        .find(|header| header.p_type(endian) == elf::PT_TLS)
        .expect("a thread's heap is in thread storage");
    let size = tls.p_memsz(endian);
    assert!(size <= TLS_SIZE_BYTES_MAX, "{size} bytes in each thread");

    let dynamic = dynamic(&file);
    let flags = values_of(&dynamic, elf::DT_FLAGS).fold(0, |all, flags| all | flags);
    assert_ne!(flags & elf::DF_STATIC_TLS.0, 0, "not initial-exec");

    let header = file.elf_header();
    let sections = header.sections(endian, file.data()).expect("sections");
    for section in sections.iter() {
        let Some((relocations, _)) = section.rela(endian, file.data()).expect("relocations") else {
            continue;
        };
        for relocation in relocations {
            let kind = relocation.r_type(endian, false);
            let is_dynamic_model = match FileHeader64::e_machine(header, endian) {
                elf::EM_X86_64 => {
                    matches!(kind, elf::R_X86_64_DTPMOD64 | elf::R_X86_64_TLSDESC)
                }
                elf::EM_AARCH64 => {
                    matches!(kind, elf::R_AARCH64_TLS_DTPMOD | elf::R_AARCH64_TLSDESC)
                }
                machine => {
                    panic!("machine {machine}: its thread storage models are not known here")
                }
            };
            assert!(!is_dynamic_model, "thread storage is found by a call");
        }
    }
}

#[test]
fn it_is_small() {
    // 30 KiB of it are the names for 16 tokens, 26 KiB the heap profile, 7 KiB limits of memory, 4 KiB figures by name;
    // 7 KiB what goes back around survivors, 3 KiB what is let go of while threads wait, 5 KiB what a forked child makes anew.
    const STRIPPED_SIZE_BYTES_MAX: u64 =
        if cfg!(feature = "hardened") { 407 << 10 } else { 372 << 10 };

    if skip_for_stand_in() {
        return;
    }
    let stripped = scratch_dir().join(format!("stripped-{}.so", std::process::id()));
    let status = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&library().shared)
        .status()
        .expect("strip is part of the compiler's tools");
    assert!(status.success());
    let size = std::fs::metadata(&stripped).expect("the stripped library").len();
    std::fs::remove_file(&stripped).expect("it was just written");
    assert!(size <= STRIPPED_SIZE_BYTES_MAX, "{size} bytes");
}

/// What few programs call stands behind what all call: rare.ld names it by modules, and does not notice a new one.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_all_programs_call_is_together() {
    const SIZE_BYTES_MAX: u64 = if cfg!(feature = "hardened") { 140 << 10 } else { 128 << 10 };

    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let file = parsed(&bytes);
    let text = file.section_by_name(".text").expect("code").size();
    assert!(text <= SIZE_BYTES_MAX, "{text} bytes");
    assert!(file.section_by_name(".text.rare").is_some());
}

/// Any C and any C++ compiler mode accepts the header, alone and twice.
#[test]
fn the_header_is_plain_c_and_cxx() {
    let header = include_dir().join("cairn.h");
    for (compiler, language, standard) in [
        ("cc", "c", "-std=c89"),
        ("cc", "c", "-std=c99"),
        ("cc", "c", "-std=c17"),
        ("c++", "c++", "-std=c++98"),
        ("c++", "c++", "-std=c++11"),
        ("c++", "c++", "-std=c++20"),
    ] {
        let output = Command::new(compiler)
            .args([standard, "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            .arg("-include")
            .arg(&header)
            .arg("-include")
            .arg(&header)
            .args(["-x", language, "/dev/null"])
            .output()
            .expect("a C and a C++ compiler are needed");
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {standard}:\n{messages}");
    }
}

/// Each function of the header has its place in one of the manual's pages.
#[test]
fn the_manual_has_each_function() {
    let folder = include_dir().join("../../../docs/man");
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect("the page is there");
    let pages = [page("cairn.3"), page("cairn-heap.3")].concat();
    let header =
        std::fs::read_to_string(include_dir().join("cairn.h")).expect("the header is there");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut count = 0;
    for (at, _) in header.match_indices("cairn_") {
        let end = header[at..].find(|c| !is_part(c)).map_or(header.len(), |length| at + length);
        let is_call = header[end..].starts_with('(') && !header[..at].ends_with(is_part);
        if is_call {
            let name = &header[at..end];
            assert!(pages.contains(&format!("{name}(")), "no page has {name}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

/// What the table of other allocators' calls names is there.
#[test]
fn the_table_of_calls_names_what_there_is() {
    let page = include_dir().join("../../../docs/parity.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let header =
        std::fs::read_to_string(include_dir().join("cairn.h")).expect("the header is there");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names: Vec<&str> =
        page.split(|c| !is_part(c)).filter(|word| word.starts_with("cairn_")).collect();
    assert!(names.len() > 60);
    for name in names {
        let declared = header.split(|c| !is_part(c)).any(|word| word == name);
        assert!(declared, "{name} is not in the header");
    }
}
