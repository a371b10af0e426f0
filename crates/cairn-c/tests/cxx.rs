//! The C++ allocation functions, and the library under C++ programs.

mod common;

use common::{
    Loading, clean_environment, library, passes, passes_in, run, scratch_dir, skip_for_stand_in,
    source_path,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn every_form_of_new_goes_with_every_form_of_delete() {
    passes("cxx.cpp", "every_form");
    passes("cxx.cpp", "smaller_sizes");
}

#[test]
fn new_and_malloc_share_a_heap() {
    passes("cxx.cpp", "one_heap_with_malloc");
}

#[test]
fn without_a_handler_new_throws_bad_alloc() {
    passes("cxx.cpp", "without_handler");
}

#[test]
fn the_new_handler_is_called_until_it_gives_up() {
    passes("cxx.cpp", "handler_is_called_until_it_gives_up");
}

#[test]
fn the_new_handler_may_throw() {
    passes("cxx.cpp", "handler_may_throw");
    passes("cxx.cpp", "handler_may_throw_in_nothrow_forms");
    passes_in(&[Loading::StaticPie], "cxx.cpp", &["handler_may_throw_in_nothrow_forms"]);
}

#[test]
fn new_succeeds_when_the_handler_frees_memory() {
    passes("cxx.cpp", "handler_frees_memory");
}

#[test]
fn a_shortage_of_small_blocks_is_survived() {
    passes("cxx.cpp", "shortage_of_small_blocks");
}

#[test]
fn containers_work() {
    passes("cxx.cpp", "containers");
}

#[test]
fn memory_resources_work() {
    passes("cxx.cpp", "memory_resources");
}

#[test]
fn exceptions_work_in_threads() {
    passes("cxx.cpp", "exceptions_in_threads");
}

/// Not static: there the linker sees two definitions of equal right.
#[test]
fn a_program_may_replace_operator_new() {
    passes_in(&[Loading::Preloaded, Loading::Linked], "replaced_new.cpp", &["program_wins"]);
}

#[test]
fn sized_and_array_forms_follow_plain_ones() {
    let loadings = [Loading::Absent, Loading::Preloaded, Loading::Linked];
    passes_in(&loadings, "replaced_plain.cpp", &["other_forms_follow"]);
    passes_in(&loadings, "replaced_plain.cpp", &["exceptions_pass"]);
}

/// Here allocators that are preloaded usually fail: their other forms go past the program's.
#[test]
fn forms_that_are_not_replaced_call_those_that_are() {
    let loadings = [Loading::Preloaded, Loading::Linked];
    passes_in(&loadings, "replaced_new.cpp", &["other_forms_follow"]);
}

/// Those that do not throw catch what the program's throw.
#[test]
fn quiet_forms_follow_those_that_throw() {
    let loadings = [Loading::Preloaded, Loading::Linked];
    passes_in(&loadings, "replaced_plain.cpp", &["quiet_forms_follow"]);
    passes_in(&loadings, "replaced_array.cpp", &["quiet_forms_follow"]);
}

/// Who takes an operator's address has not replaced it: sizes are checked as in other programs.
#[test]
fn a_stub_of_a_program_at_a_fixed_address_is_no_operator_of_its_own() {
    if skip_for_stand_in() {
        return;
    }
    for is_linked in [false, true] {
        let path = at_a_fixed_address(&[], is_linked.then_some(&*library().shared));
        let mut command = Command::new(&path);
        clean_environment(&mut command);
        let preloaded = (!is_linked).then_some(("LD_PRELOAD", &library().shared));
        command.envs(preloaded);
        let folder = library().shared.parent().expect("a folder");
        command.env("LD_LIBRARY_PATH", folder);
        let outcome = run(command);
        let what = format!("linked: {is_linked}, {}: {}", outcome.status, outcome.stderr);
        assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{what}");
        assert!(outcome.stderr.contains("operator delete"), "{what}");
        std::fs::remove_file(path).expect("it was just written");
    }
}

/// Nor where a library that comes first has operators of its own, or only one: the program's stubs lead there.
#[test]
fn a_stub_that_leads_to_another_library_is_another_operator() {
    if skip_for_stand_in() {
        return;
    }
    // Both kinds of a table in which a library's names are looked for.
    for table in ["-Wl,--hash-style=gnu", "-Wl,--hash-style=sysv"] {
        goes_ahead(&[table], &["-DTAKES_BOTH"]);
        goes_ahead(&[table, "-DNEW_ALONE"], &[]);
    }
}

/// Runs `fixed_address.cpp` as a program with a library of its own operators in front of this one.
fn goes_ahead(library_flags: &[&str], program_flags: &[&str]) {
    let counting = scratch_dir().join(format!("libcounting-{}.so", std::process::id()));
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-fno-builtin", "-DLIBRARY", "-o"]);
    compiler.arg(&counting).args(library_flags).arg(source_path("fixed_address.cpp"));
    run(compiler).assert_success("the library");
    let path = at_a_fixed_address(program_flags, None);
    let mut command = Command::new(&path);
    clean_environment(&mut command);
    let first = format!("{} {}", counting.display(), library().shared.display());
    command.env("LD_PRELOAD", first);
    let what = format!("a delete of a size that the library has changed: {library_flags:?}");
    run(command).assert_success(&what);
    for file in [path, counting] {
        std::fs::remove_file(file).expect("it was just written");
    }
}

/// Builds `fixed_address.cpp`, with a library perhaps.
fn at_a_fixed_address(flags: &[&str], library: Option<&Path>) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, nth) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = scratch_dir().join(format!("fixed-address-{process}-{nth}"));
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-no-pie", "-fno-pie", "-o"]).arg(&path);
    compiler.args(flags).arg(source_path("fixed_address.cpp")).args(library);
    run(compiler).assert_success("fixed_address.cpp");
    path
}
