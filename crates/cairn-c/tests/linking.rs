//! The library beside a program's own functions, and as linkers see it.

mod common;

use common::{
    Loading, Program, clean_environment, include_dir, library, passes_in, run, scratch_dir,
    skip_for_stand_in, source_path,
};
use std::path::PathBuf;
use std::process::Command;

/// A static program cannot do this: two definitions of equal right, as with the C library's own.
#[test]
fn a_program_may_define_malloc_over_the_internal_names() {
    let loadings = [Loading::Absent, Loading::Preloaded, Loading::Linked];
    passes_in(&loadings, "own_malloc.c", &["-"]);
}

/// What a program may define itself is never called by its name, but for the forms of C++ that
/// have to follow one which the program replaces.
#[test]
fn no_exported_function_calls_another_by_name() {
    const FOLLOWED: [&str; 8] = [
        "_Znwm",
        "_ZnwmSt11align_val_t",
        "_Znam",
        "_ZnamSt11align_val_t",
        "_ZdlPv",
        "_ZdlPvSt11align_val_t",
        "_ZdaPv",
        "_ZdaPvSt11align_val_t",
    ];
    if skip_for_stand_in() {
        return;
    }
    let lines = |option: &str| {
        let mut readelf = Command::new("readelf");
        readelf.args(["-W", option]).arg(&library().shared);
        run(readelf).stdout
    };
    // Of a symbol: Num Value Size Type Bind Vis Ndx Name.
    let symbols = lines("--dyn-syms");
    let symbols = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined: Vec<_> = symbols
        .filter(|fields| fields.len() == 8 && fields[3] == "FUNC" && fields[6] != "UND")
        .map(|fields| fields[7].split('@').next().unwrap_or_default().to_owned())
        .collect();
    assert!(defined.iter().any(|name| name == "malloc"), "{defined:?}");
    // Of a relocation: Offset Info Type Value Name + Addend.
    let relocations = lines("-r");
    let by_name = relocations.lines().filter_map(|line| line.split_whitespace().nth(4));
    let by_name = by_name.filter_map(|name| name.split('@').next());
    let by_name: Vec<_> = by_name
        .filter(|name| defined.iter().any(|defined| defined == name) && !FOLLOWED.contains(name))
        .collect();
    assert!(by_name.is_empty(), "called by name: {by_name:?}");
}

/// Compiles with these arguments; the compiler and the linker have nothing to say.
fn compiles_quietly(compiler: &str, source: &str, arguments: &[&str]) -> PathBuf {
    let name = format!("{source}-{}-{}", arguments.concat().replace('/', "-"), std::process::id());
    let path = scratch_dir().join(name);
    let mut command = Command::new(compiler);
    command.arg("-fno-builtin").arg("-I").arg(include_dir()).arg("-o").arg(&path);
    command.arg(source_path(source)).args(&library().archive).args(arguments);
    run(command).assert_quiet_success(&format!("{compiler} {source} {arguments:?}"));
    path
}

#[test]
fn static_programs_link_without_a_word() {
    if skip_for_stand_in() {
        return;
    }
    for (compiler, source) in [("cc", "nothing.c"), ("c++", "cxx.cpp")] {
        for kind in ["-static", "-static-pie"] {
            let path = compiles_quietly(compiler, source, &[kind, "-pthread"]);
            std::fs::remove_file(path).expect("it was just written");
        }
    }
}

fn says_active(mut command: Command) -> String {
    clean_environment(&mut command);
    let outcome = run(command);
    outcome.assert_quiet_success("is_active.c");
    outcome.stdout
}

/// Linked by the weak name, preloaded by dlsym.
#[test]
fn a_program_finds_out_that_it_runs_on_cairn() {
    if skip_for_stand_in() {
        return;
    }
    for loading in [Loading::Preloaded, Loading::Linked, Loading::Static, Loading::StaticPie] {
        let Some(program) = Program::build("is_active.c", loading) else { continue };
        assert_eq!(program.run(&["-"]).stdout, "1\n", "{loading:?}");
    }
    let Some(program) = Program::build("is_active.c", Loading::Absent) else { return };
    assert_eq!(program.run(&["-"]).stdout, "0\n", "without");

    // The archive in a dynamic program, which has its names to itself.
    for kind in ["-pie", "-no-pie"] {
        let path = compiles_quietly("cc", "is_active.c", &[kind]);
        assert_eq!(says_active(Command::new(&path)), "1\n", "{kind}");
        std::fs::remove_file(path).expect("it was just written");
    }
    // Not linked at all, and at a fixed address: the weak name is settled as absent.
    let fixed = scratch_dir().join(format!("is_active-fixed-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-no-pie", "-fno-pie", "-o"]).arg(&fixed).arg(source_path("is_active.c"));
    run(compiler).assert_success("is_active.c, -no-pie");
    assert_eq!(says_active(Command::new(&fixed)), "0\n", "alone");
    let mut preloaded = Command::new(&fixed);
    clean_environment(&mut preloaded);
    preloaded.env("LD_PRELOAD", &library().shared);
    let outcome = run(preloaded);
    assert_eq!(outcome.stdout, "1\n", "preloaded, -no-pie: {}", outcome.stderr);
    std::fs::remove_file(fixed).expect("it was just written");
}

/// A linker leaves out what nothing refers to: all of the family stays that the C library looks for in the program, and the
/// copy is the process's own. The stream, and the line that is longer than its first block, are the C library's.
#[test]
fn no_part_of_the_family_is_left_out() {
    if skip_for_stand_in() {
        return;
    }
    let folder = scratch_dir().join(format!("sections-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let lines = folder.join("lines");
    std::fs::write(&lines, [b'x'; 4096]).expect("a file");
    for kind in ["-pie", "-no-pie", "-static"] {
        let path = compiles_quietly("cc", "line.c", &[kind, "-Wl,--gc-sections"]);
        let mut command = Command::new(&path);
        clean_environment(&mut command);
        command.arg(&lines).env("CAIRN_STATS", "1");
        command.env("CAIRN_STATS_FILE", folder.join("f.json"));
        run(command).assert_quiet_success(kind);
        std::fs::remove_file(folder.join("f.json")).expect("an account under this name");
        std::fs::remove_file(path).expect("it was just written");
    }
    std::fs::remove_dir_all(folder).expect("it is there");
}
