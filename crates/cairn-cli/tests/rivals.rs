//! What `cairn run --stats` says of programs that bring an allocator along.

mod common;

use common::{Home, assert_succeeded, display, lacks, skipped, text};
use std::path::PathBuf;
use std::process::Command;

/// Compiles a program or library of C; none if there is no compiler.
fn compiled(home: &Home, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let file = home.file(&format!("{name}.c"), 0o644, source.as_bytes());
    let made = home.path().join(name);
    let output = Command::new("cc").arg(file).args(flags).arg("-o").arg(&made).output();
    let Ok(output) = output else {
        skipped("no C compiler here");
        return None;
    };
    assert_succeeded(&output);
    Some(made)
}

/// The lines in front of the account.
fn said(home: &Home, arguments: &[&str]) -> Vec<String> {
    let output = home.run(&[&["--stats"], arguments].concat());
    assert_succeeded(&output);
    let lines = text(&output.stderr).lines().map(str::to_owned).collect::<Vec<_>>();
    lines.into_iter().take_while(|line| !line.contains("the memory of")).collect()
}

const RIVAL: &str = "
#include <stddef.h>
void *__libc_malloc(size_t), __libc_free(void *);
void *malloc(size_t size) { return __libc_malloc(size); }
void free(void *block) { __libc_free(block); }
int rival_control(int what) { return what; }
int rival_other(int what) { return what; }
";

const USER: &str = "
#include <stdlib.h>
int rival_control(int);
int main(void) { free(malloc(10)); return rival_control(0); }
";

#[test]
fn a_library_keeps_the_names_that_are_not_cairns() {
    let home = Home::new();
    let Some(library) = compiled(&home, "librival.so", RIVAL, &["-shared", "-fPIC"]) else {
        return;
    };
    let rpath = format!("-Wl,-rpath,{}", display(&home.path()));
    let program = compiled(&home, "user", USER, &[display(&library), &rpath]).unwrap();
    let line = "cairn: user is linked with librival.so: cairn serves malloc, free, but not \
                rival_control; see docs/guide/coming-from.md";
    assert_eq!(said(&home, &[display(&program)]), [line]);

    // The interpreter of a script is the program.
    let script = format!("#!{}\n", display(&program));
    let script = home.file("script", 0o755, script.as_bytes());
    assert_eq!(said(&home, &[display(&script)]), [line]);

    // Nobody has asked.
    assert_eq!(text(&home.run(&[&program]).stderr), "");
}

#[test]
fn a_preloaded_library_counts() {
    let home = Home::new();
    let Some(library) = compiled(&home, "librival.so", RIVAL, &["-shared", "-fPIC"]) else {
        return;
    };
    let mut command = home.cairn();
    let output =
        command.env("LD_PRELOAD", library).args(["run", "--stats", "env"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.starts_with("cairn: env is linked with librival.so: cairn serves malloc, free; "),
        "{said}"
    );
}

#[test]
fn a_malloc_inside_the_program_is_not_cairns() {
    let home = Home::new();
    let source =
        format!("{RIVAL}\nint main(void) {{ free(malloc(10)); return rival_control(0); }}\n");
    let Some(program) = compiled(&home, "own", &source, &["-fno-builtin"]) else { return };
    let line = "cairn: own has a malloc of its own: cairn does not serve malloc, free; see \
                docs/guide/coming-from.md";
    assert_eq!(said(&home, &[display(&program)]), [line]);
}

#[test]
fn an_allocator_inside_is_found_by_its_symbols() {
    let home = Home::new();
    let source = "
        #include <stdio.h>
        #include <stdlib.h>
        void *_rjem_malloc(size_t size) { return malloc(size); }
        void _rjem_free(void *block) { free(block); }
        int main(void) { _rjem_free(_rjem_malloc(10)); return 0; }
    ";
    let Some(program) = compiled(&home, "inside", source, &[]) else { return };
    let line = "cairn: inside has an allocator in it: cairn does not serve _rjem_free, \
                _rjem_malloc; see docs/guide/coming-from.md";
    assert_eq!(said(&home, &[display(&program)]), [line]);
    // Without symbols only its messages show it.
    let speaks = source.replace("return 0", r#"return puts("<jemalloc>: what it says") < 0"#);
    let speaks = compiled(&home, "speaks", &speaks, &["-s"]).unwrap();
    let line = "cairn: speaks seems to have jemalloc in it: cairn does not serve what it allocates \
                by that; see docs/guide/coming-from.md";
    assert_eq!(said(&home, &[display(&speaks)]), [line]);
    let stripped = compiled(&home, "stripped", source, &["-s"]).unwrap();
    assert_eq!(said(&home, &[display(&stripped)]), Vec::<String>::new());
}

/// cairn's headers for programs of other allocators are none.
#[test]
fn names_of_cairns_own_headers_are_no_rivals() {
    let home = Home::new();
    let source = "
        #include <mimalloc.h>
        int main(void) { mi_free(mi_malloc(10)); return 0; }
    ";
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../cairn-c/include/cairn/compat");
    let Some(program) = compiled(&home, "ours", source, &["-O0", include]) else { return };
    assert_eq!(said(&home, &[display(&program)]), Vec::<String>::new());
}

#[test]
fn programs_without_one_say_nothing() {
    assert_eq!(said(&Home::new(), &["ls", "/"]), Vec::<String>::new());
    assert_eq!(
        said(&Home::new(), &[env!("CARGO_BIN_EXE_cairn"), "--version"]),
        Vec::<String>::new()
    );
}

#[test]
fn redis_is_linked_with_jemalloc() {
    if lacks("redis-server", "redis-server") {
        return;
    }
    let lines = said(&Home::new(), &["redis-server", "--version"]);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let parts = [
        "redis-server is linked with libjemalloc.so.2",
        "cairn serves malloc, ",
        "but not mallctl",
    ];
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}
