//! Others between the library and the C library: tracers, sandboxes, libfaketime. The kernel the library enters
//! itself; what it calls of the C library may come in again, for whoever stands there may allocate.

mod common;

use common::{
    Loading, Program, clean_environment, lacks, library, passes, run, scratch_dir,
    skip_for_stand_in, source_path,
};
use object::{Object, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those in which another library can come first.
const SHARED: [Loading; 2] = [Loading::Preloaded, Loading::Linked];

/// Symbols that are no functions, or that nobody needs to define: the loader's and the C++ runtime's.
const NO_FUNCTIONS: [&str; 11] = [
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "_ZSt15get_new_handlerv",
    "_ZSt17__throw_bad_allocv",
    "__cxa_begin_catch",
    "__cxa_end_catch",
    "__cxa_finalize",
    "__environ",
    "__gmon_start__",
    "__gxx_personality_v0",
    "environ",
];

/// `tests/c/interposers.c` as a library.
fn interposers(name: &str, options: &[&str]) -> PathBuf {
    let path = scratch_dir().join(format!("{name}-{}.so", std::process::id()));
    let output = Command::new("cc")
        // No function of memory may become a call of itself.
        .args(["-shared", "-fPIC", "-O1", "-fno-builtin", "-fno-tree-loop-distribute-patterns"])
        .args(options)
        .arg("-o")
        .args([&path, &source_path("interposers.c")])
        .output()
        .expect("a C compiler is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// Names of the dynamic symbols of a library that are defined there, or not.
fn symbols(path: &Path, is_defined: bool) -> Vec<String> {
    let bytes = std::fs::read(path).expect("the library is readable");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF library");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() != is_defined);
    symbols.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

fn everything_works_under(interposers: &Path) {
    for loading in SHARED {
        let Some(program) = Program::build("interposed.c", loading) else { continue };
        for case in ["everything", "keys_beyond_the_static_ones"] {
            let mut command = program.command(&[case]);
            let mut preload = interposers.as_os_str().to_owned();
            if loading == Loading::Preloaded {
                preload.push(":");
                preload.push(&library().shared);
            }
            command.env("LD_PRELOAD", preload);
            run(command).assert_quiet_success(&format!("{case}, {loading:?}"));
        }
    }
}

#[test]
fn others_may_stand_before_every_function() {
    if !skip_for_stand_in() {
        everything_works_under(&interposers("interposers", &[]));
    }
}

#[test]
fn others_may_allocate_in_every_function() {
    if !skip_for_stand_in() {
        everything_works_under(&interposers("allocating-interposers", &["-DALLOCATES"]));
    }
}

/// A function that the library comes to call is to be added to interposers.c.
#[test]
fn no_function_is_forgotten() {
    if skip_for_stand_in() {
        return;
    }
    let defined = symbols(&interposers("checked-interposers", &[]), true);
    let needed = symbols(&library().shared, false);
    assert!(needed.iter().any(|name| name == "pthread_create"), "{needed:?}");
    let forgotten: Vec<_> = needed
        .iter()
        .filter(|name| !name.is_empty() && !NO_FUNCTIONS.contains(&name.as_str()))
        .filter(|name| !defined.contains(name))
        .collect();
    assert!(forgotten.is_empty(), "nobody stands before {forgotten:?}");
}

/// An allocation of the C library's own inside the arrival of a thread.
#[test]
fn a_thread_may_arrive_where_keys_need_memory() {
    passes("interposed.c", "keys_beyond_the_static_ones");
    passes("interposed.c", "everything");
}

/// libfaketime asks for the time inside `clock_gettime`, and allocates at its start.
#[test]
fn the_time_may_be_faked() {
    if skip_for_stand_in() || lacks("faketime", "faketime") {
        return;
    }
    let mut command = Command::new("faketime");
    command.args(["2001-01-01 10:00:00", "date", "+%Y"]);
    clean_environment(&mut command);
    command.env("LD_PRELOAD", &library().shared);
    let outcome = run(command);
    outcome.assert_quiet_success("faketime");
    assert_eq!(outcome.stdout, "2001\n");
}
