//! Code that a program makes while it runs has names in its profile: those that it tells `perf`. Stacks lead through it and on.

#![cfg(target_arch = "x86_64")]

mod common;

use common::inspected::{compiled, start};
use common::{Home, assert_succeeded, display, skipped, text};
use std::fs;
use std::process::{Command, Output};

/// Two trampolines in anonymous memory, one without a frame pointer, around functions without frame pointers.
const SOURCE: &[u8] = b"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
typedef void *(*work)(int);
typedef void *(*trampoline)(int, work);
/* sub rsp, 8; call rsi; add rsp, 8; ret. push rbp; mov rbp, rsp; call rsi; pop rbp; ret. */
static const unsigned char bare[] = {0x48, 0x83, 0xec, 8, 0xff, 0xd6, 0x48, 0x83, 0xc4, 8, 0xc3};
static const unsigned char framed[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3};
static trampoline one, other;
static void *kept[20000];
__attribute__((noinline)) void *innermost(int n) { void *p = malloc(1000); memset(p, n, 9); return p; }
__attribute__((noinline)) void *inner(int n) { void *p = other(n, innermost); __asm__(\"\" ::: \"memory\"); return p; }
__attribute__((noinline)) void *outer(int n) { void *p = one(n, inner); __asm__(\"\" ::: \"memory\"); return p; }
int main(int count, char **arguments)
{
    char name[64];
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, bare, sizeof bare);
    memcpy(code + 64, framed, sizeof framed);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    one = (trampoline)code;
    other = (trampoline)(code + 64);
    sprintf(name, \"/tmp/perf-%d.map\", (int)getpid());
    FILE *map = fopen(name, \"w\");
    fprintf(map, \"%p 100 all of it\\nnonsense\\n%p %zx py::bare:/a b.py\\n\", code, code, sizeof bare);
    fprintf(map, \"%lx %zx JS:*framed\\nend of nothing\\nhalf\", (long)(code + 64), sizeof framed);
    fclose(map);
    for (int i = 0; i < 20000; i++) kept[i] = outer(i);
    if (count > 2) memset(kept, 0, sizeof kept);
    puts(name);
    fflush(stdout);
    if (count > 2) for (;;) pause();
    if (count > 1) for (int i = 0;; i = (i + 1) % 20000) {
        free(kept[i]);
        kept[i] = outer(i);
        if (i % 100 == 0) usleep(1000);
    }
}
";
const STACK: &str = ";main;outer;py::bare:/a b.py;inner;JS:*framed;innermost ";

fn profile(home: &Home, target: &str, options: &[&str]) -> Output {
    let mut command = home.cairn();
    command.current_dir(home.path()).args(["profile", target]).args(options).output().unwrap()
}

fn stacks(home: &Home, target: &str) -> String {
    assert_succeeded(&profile(home, target, &["--collapsed", "stacks"]));
    fs::read_to_string(home.path().join("stacks")).unwrap()
}

/// Whether stacks need frame pointers: before glibc 2.35.
fn has_no_tables() -> bool {
    // SAFETY: a name.
    let is_old = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) }.is_null();
    if is_old {
        skipped("an older C library");
    }
    is_old
}

#[test]
fn trampolines_have_names() {
    let home = Home::new();
    let Some(program) = compiled(&home, SOURCE, &["-O2", "-fomit-frame-pointer"]) else { return };
    if has_no_tables() {
        return;
    }
    let heap = home.path().join("heap");
    let rate = ["--profile-rate", "64KiB"];
    let output =
        home.run(&[&["--profile", display(&heap)], &rate[..], &["--", display(&program)]].concat());
    assert_succeeded(&output);
    // The profile has them with it.
    fs::remove_file(text(&output.stdout).trim()).unwrap();
    let found = stacks(&home, "heap");
    assert!(found.contains(STACK), "{found}");

    // And what is read from a process that runs, and is kept.
    let mut command = home.cairn();
    command.args(["run", "--", display(&program), "on"]);
    let process = start(&mut command);
    let pid = process.0.id().to_string();
    let options = ["--seconds", "1", "--rate", "64KiB", "--save", "saved"];
    assert_succeeded(&profile(&home, &pid, &options));
    drop(process);
    fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    let found = stacks(&home, "saved");
    assert!(found.contains(STACK), "{found}");
}

/// What is lost has them, too.
#[test]
fn lost_blocks_have_names() {
    let home = Home::new();
    let Some(program) = compiled(&home, SOURCE, &["-O2", "-fomit-frame-pointer"]) else { return };
    if has_no_tables() {
        return;
    }
    let mut command = home.cairn();
    command.current_dir(home.path()).args(["run", "--profile", "heap", "--profile-rate", "64KiB"]);
    let process = start(command.arg("--").arg(&program).args(["on", "lost"]));
    let pid = process.0.id().to_string();
    let output = home.cairn().args(["leaks", &pid]).output().unwrap();
    drop(process);
    let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
    let told = text(&output.stdout);
    let names = ["by innermost\n", "< JS:*framed\n", "< inner\n", "< py::bare:/a b.py\n"];
    let places = names.map(|name| told.find(name));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{told}");
}

/// Python tells them from 3.12 on, whether it is built with frame pointers or not.
#[test]
fn functions_of_python_have_names() {
    let home = Home::new();
    let names = ["python3", "python3.12", "python3.13", "python3.14"];
    let can = |name: &&&str| {
        let code = "import sys, sysconfig as s\n\
                    sys.exit(sys.version_info < (3, 12) or not s.get_config_var('PY_HAVE_PERF_TRAMPOLINE'))";
        let mut command = Command::new(name);
        command.args(["-c", code]).output().is_ok_and(|ran| ran.status.success())
    };
    let Some(python) = names.iter().find(can) else {
        return skipped("no python3 from 3.12 on with trampolines");
    };
    if has_no_tables() {
        return;
    }
    let code = "import os\ndef makes(): return [bytes(1000) for _ in range(20000)]\n\
                def asks(): return makes()\nkept = asks()\nprint(os.getpid())\n";
    let source = home.file("app.py", 0o644, code.as_bytes());
    let options = ["--profile", "heap", "--profile-rate", "64KiB", "--", python, "-X", "perf"];
    let output = home.run(&[&options[..], &[display(&source)]].concat());
    assert_succeeded(&output);
    let _ = fs::remove_file(format!("/tmp/perf-{}.map", text(&output.stdout).trim()));
    let options = ["--view", "allocated", "--collapsed", "stacks"];
    assert_succeeded(&profile(&home, "heap", &options));
    let found = fs::read_to_string(home.path().join("stacks")).unwrap();
    let places = ["py::<module>", "py::asks", "py::makes"].map(|name| found.find(name));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{found}");
}
