//! The library as a file: what it exports, what it needs, how large it is; and its header.

mod common;

use common::{include_dir, library, run, scratch_dir, skip_for_stand_in};
use object::elf::{self, FileHeader64};
use object::endian::LittleEndian;
use object::read::archive::ArchiveFile;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeSet;
use std::process::Command;

type File<'data> = ElfFile64<'data, LittleEndian>;

/// What glibc has, what C23 adds, and each form of the C++ operators.
const ALLOCATION: [&str; 50] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
    "malloc_trim",
    "mallinfo",
    "mallinfo2",
    "malloc_info",
    "malloc_stats",
    "mallopt",
    "cfree",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__libc_valloc",
    "__libc_pvalloc",
    "__libc_mallinfo",
    "__libc_mallopt",
    "__libc_reallocarray",
    "free_sized",
    "free_aligned_sized",
    // operator new: plain, nothrow, aligned, aligned nothrow; then the same for arrays.
    "_Znwm",
    "_ZnwmRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_Znam",
    "_ZnamRKSt9nothrow_t",
    "_ZnamSt11align_val_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
    // operator delete: plain, sized, nothrow, aligned, sized aligned, aligned nothrow; arrays.
    "_ZdlPv",
    "_ZdlPvm",
    "_ZdlPvRKSt9nothrow_t",
    "_ZdlPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t",
    "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    "_ZdaPv",
    "_ZdaPvm",
    "_ZdaPvRKSt9nothrow_t",
    "_ZdaPvSt11align_val_t",
    "_ZdaPvmSt11align_val_t",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// Size feedback for C++, as LLVM knows it.
const SIZED: [&str; 4] = [
    "__size_returning_new",
    "__size_returning_new_aligned",
    "__size_returning_new_hot_cold",
    "__size_returning_new_aligned_hot_cold",
];

/// Our own interface.
const OWN: &[&str] = &[
    "cairn_aligned_alloc_at",
    "cairn_aligned_alloc_at_least",
    "cairn_aligned_alloc_in",
    "cairn_base",
    "cairn_calloc_in",
    "cairn_class_count",
    "cairn_class_size",
    "cairn_count",
    "cairn_free_batch",
    "cairn_good_size",
    "cairn_guard_every",
    "cairn_heap_aligned_alloc",
    "cairn_heap_attach",
    "cairn_heap_calloc",
    "cairn_heap_contains",
    "cairn_heap_delete",
    "cairn_heap_destroy",
    "cairn_heap_detach",
    "cairn_heap_get_stats",
    "cairn_heap_malloc",
    "cairn_heap_malloc_batch",
    "cairn_heap_new",
    "cairn_heap_new_concurrent",
    "cairn_heap_new_in",
    "cairn_heap_new_shared",
    "cairn_heap_new_shared_in",
    "cairn_heap_of",
    "cairn_heap_purge",
    "cairn_heap_realloc",
    "cairn_heap_set_epoch",
    "cairn_heap_set_limits",
    "cairn_heap_set_tag",
    "cairn_heap_tag",
    "cairn_is_active",
    "cairn_malloc_at_least",
    "cairn_malloc_batch",
    "cairn_malloc_in",
    "cairn_on_deferred_free",
    "cairn_owner_thread",
    "cairn_purge",
    "cairn_realloc_in",
    "cairn_recallocarray",
    "cairn_region_end",
    "cairn_region_get_stats",
    "cairn_region_new",
    "cairn_region_purge",
    "cairn_should_move",
    "cairn_stats_json",
    "cairn_stats_print",
    "cairn_thread_allocated",
    "cairn_thread_freed",
    "cairn_thread_idle",
    "cairn_thread_number",
    "cairn_try_expand",
    "cairn_usable_size",
    "cairn_version",
    "cairn_visit",
];

/// What clang calls under `-fsanitize=alloc-token`: all that allocates, with the token behind the
/// arguments, or one of 16 in the name.
fn with_tokens() -> Vec<String> {
    let prefixes = (0..16).map(|token| format!("__alloc_token_{token}_"));
    let prefixes = prefixes.chain(["__alloc_token_".to_owned()]);
    let takes_one = |name: &&&str| {
        let other = ["free", "usable", "trim", "info", "mallopt", "stats", "__libc", "_Zd"];
        !other.iter().any(|part| name.contains(part))
    };
    let names: Vec<_> = ALLOCATION.iter().filter(takes_one).collect();
    assert_eq!(names.len(), 17, "{names:?}");
    prefixes
        .flat_map(|prefix| {
            names.iter().map(move |name| format!("{prefix}{name}")).collect::<Vec<_>>()
        })
        .collect()
}

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

fn exported(file: &File) -> BTreeSet<String> {
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect()
}

#[test]
fn the_shared_library_exports_the_whole_family() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let exported = exported(&parsed(&bytes));
    let missing: Vec<_> = ALLOCATION
        .iter()
        .chain(&SIZED)
        .chain(OWN)
        .filter(|name| !exported.contains(**name))
        .collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    let missing = with_tokens().into_iter().filter(|name| !exported.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "not exported");
}

#[test]
fn the_shared_library_exports_nothing_else() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let (exported, with_tokens) = (exported(&parsed(&bytes)), with_tokens());
    let strange: Vec<_> = exported
        .iter()
        .filter(|name| {
            !ALLOCATION.iter().chain(&SIZED).any(|known| known == name)
                && !name.starts_with("cairn_")
        })
        .filter(|name| !with_tokens.contains(name))
        .collect();
    assert!(strange.is_empty(), "exported without need: {strange:?}");
}

#[test]
fn the_archive_defines_the_whole_family() {
    let Some(path) = library().archive.as_ref().filter(|_| !skip_for_stand_in()) else { return };
    let bytes = std::fs::read(path).expect("the archive is readable");
    let archive = ArchiveFile::parse(bytes.as_slice()).expect("an archive");
    let mut defined = BTreeSet::new();
    for member in archive.members() {
        // A copy: members are not aligned in the archive.
        let data = member.expect("a member").data(bytes.as_slice()).expect("its data").to_vec();
        let Ok(file) = File::parse(data.as_slice()) else { continue };
        for symbol in file.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global()) {
            defined.insert(symbol.name().expect("a name").to_owned());
        }
    }
    let missing: Vec<_> = ALLOCATION
        .iter()
        .chain(&SIZED)
        .chain(OWN)
        .filter(|name| !defined.contains(**name))
        .collect();
    assert!(missing.is_empty(), "not defined: {missing:?}");
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
    // 30 KiB of it are the names for 16 tokens.
    const STRIPPED_SIZE_BYTES_MAX: u64 =
        if cfg!(feature = "hardened") { 390 << 10 } else { 350 << 10 };

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

/// What the header declares is in the library, and the other way round.
#[test]
fn the_header_declares_what_is_exported() {
    let text = std::fs::read_to_string(include_dir().join("cairn.h")).expect("the header");
    let code = text.split("/*").map(|part| part.rsplit("*/").next().unwrap_or_default());
    let code: String = code.collect();
    let declared: BTreeSet<&str> = code
        .split('(')
        .filter_map(|before| before.rsplit([' ', '*', '\n']).next())
        .filter(|name| name.starts_with("cairn_") && !name.ends_with("_inline"))
        .collect();
    assert_eq!(declared, OWN.iter().copied().collect());
    if skip_for_stand_in() {
        return;
    }
    let bytes = shared_bytes();
    let file = parsed(&bytes);
    // Data under our prefix is for those who look into a process from outside.
    let ours: BTreeSet<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .map(|symbol| symbol.name().expect("a name"))
        .filter(|name| name.starts_with("cairn_"))
        .collect();
    assert_eq!(ours, declared, "exported and declared");
}
