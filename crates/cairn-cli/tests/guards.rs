//! `cairn guards`: a process that runs gets guards and loses them, and what cannot be is said in a line.

mod common;

use common::{Home, NOBODY, assert_refused, assert_succeeded, display, is_root, text};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const SIGSEGV: i32 = 11;

/// A program that allocates and frees, and reads a freed block for as long as that is no fault.
const READS_AFTER_FREE: &[u8] = b"
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    (void)argv;
    for (;;) {
        char *blocks[200];
        for (int i = 0; i < 200; i++) blocks[i] = malloc(100);
        for (int i = 0; i < 200; i++) {
            free(blocks[i]);
            if (argc > 1) (void)*(volatile char *)blocks[i];
        }
        usleep(10);
    }
}
";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program on cairn, or without it.
fn start(home: &Home, on_cairn: bool, arguments: &[&str]) -> Option<Running> {
    start_beside(home, on_cairn, arguments, "")
}

/// The same with other libraries preloaded.
fn start_beside(home: &Home, on_cairn: bool, arguments: &[&str], preload: &str) -> Option<Running> {
    start_program(home, on_cairn, READS_AFTER_FREE, arguments, preload)
}

/// The same of another program.
fn start_program(
    home: &Home,
    on_cairn: bool,
    source: &[u8],
    arguments: &[&str],
    preload: &str,
) -> Option<Running> {
    let source = home.file("program.c", 0o644, source);
    let program = home.path().join("program");
    let mut cc = Command::new("cc");
    let compiled = cc.args(["-fno-builtin", "-w", "-o"]).arg(&program).arg(source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        common::skipped("no C compiler");
        return None;
    }
    let mut command = Command::new(&program);
    if on_cairn {
        command = home.cairn();
        command.args(["run", display(&program)]);
    }
    command.env("LD_PRELOAD", preload);
    let child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    // Until it has become the program, has the library, and maps nothing more: others may be on their way.
    let maps = format!("/proc/{}/maps", child.id());
    let is_there =
        |maps: &str| maps.contains(display(&program)) && (!on_cairn || maps.contains("/libcairn-"));
    let mut before = String::new();
    for _ in 0..1000 {
        let now = std::fs::read_to_string(&maps).unwrap_or_default();
        if is_there(&now) && now == before {
            break;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(Running(child))
}

fn guards(home: &Home, process: &Running, bytes: &[&str]) -> Output {
    let pid = process.0.id().to_string();
    home.cairn().args(["guards", &pid]).args(bytes).output().unwrap()
}

#[test]
fn guards_come_and_go() {
    let home = Home::new();
    let Some(process) = start(&home, true, &[]) else { return };
    for (bytes, said) in [
        (&["1KiB"][..], "guards are on: one allocation in every 1024 bytes\n"),
        (&["off"], "guards are off\n"),
        (&["0"], "guards are off\n"),
        (&[], "guards are on: one allocation in every 10485760 bytes\n"),
    ] {
        let output = guards(&home, &process, bytes);
        assert_succeeded(&output);
        assert_eq!(text(&output.stdout), said);
    }
}

/// As after an upgrade: the library that runs has no name any more, or its name is another file's.
#[test]
fn a_library_without_a_name_is_switched() {
    if !is_root() {
        return common::skipped("only root can read what is mapped of a file without a name");
    }
    for is_replaced in [false, true] {
        let home = Home::new();
        let library = home.library();
        let Some(process) = start(&home, true, &[]) else { return };
        if is_replaced {
            let newer = home.file("newer.so", 0o644, b"another one");
            fs::rename(newer, &library).unwrap();
        } else {
            fs::remove_file(&library).unwrap();
        }
        let output = guards(&home, &process, &["1KiB"]);
        assert_succeeded(&output);
        assert_eq!(text(&output.stdout), "guards are on: one allocation in every 1024 bytes\n");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_said() {
    let home = Home::new();
    let Some(process) = start(&home, true, &[]) else { return };
    let mut command = home.cairn();
    command.args(["guards", &process.0.id().to_string()]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command.stdout(full).output().unwrap();
    assert_refused(&output, 125, &["No space left"]);
}

/// A second copy, and what only looks like one.
#[test]
fn each_copy_in_a_process_is_switched() {
    let home = Home::new();
    let other = home.file("other.so", 0o644, &std::fs::read(home.library()).unwrap());
    let source = home.file("newer.c", 0o644, b"const char cairn_header[128] = \"CAIRNHDR\\377\";");
    let newer = home.path().join("newer.so");
    let mut cc = Command::new("cc");
    let compiled = cc.args(["-shared", "-fPIC", "-o"]).arg(&newer).arg(source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        common::skipped("no C compiler");
        return;
    }
    let preload = format!("{}:{}", display(&newer), display(&other));
    let Some(process) = start_beside(&home, true, &[], &preload) else { return };
    let output = guards(&home, &process, &["1MiB"]);
    assert_refused(&output, 125, &[display(&newer), "another version of cairn"]);
    let said = text(&output.stdout);
    assert!(said.contains("guards are on: one allocation in every 1048576 bytes"), "{said}");
    let lines = said.lines().filter(|line| line.starts_with('/')).count();
    assert_eq!(lines, 2, "{said}");
}

#[test]
fn a_process_that_errs_is_caught() {
    let home = Home::new();
    let Some(mut process) = start(&home, true, &["reads"]) else { return };
    std::thread::sleep(Duration::from_millis(100));
    assert!(process.0.try_wait().unwrap().is_none(), "nobody notices without guards");
    // It may be over before it is known that it has begun.
    guards(&home, &process, &["1KiB"]);
    let status = process.0.wait().unwrap();
    assert_eq!(status.signal(), Some(SIGSEGV));
    let mut said = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.starts_with("cairn: use after free: "), "{said}");
}

#[test]
fn what_cannot_be_is_said() {
    let home = Home::new();
    let Some(other) = start(&home, false, &[]) else { return };
    let output = guards(&home, &other, &[]);
    assert_refused(&output, 125, &[&other.0.id().to_string(), "no cairn in it"]);
    let gone = other.0.id().to_string();
    drop(other);
    let output = home.cairn().args(["guards", &gone]).output().unwrap();
    assert_refused(&output, 125, &["no process", &gone]);
    let output = home.cairn().args(["guards", "1", "some"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("10MiB, or off"));
}

/// A program that ends when it is asked for guards.
const ENDS_WHEN_ASKED: &[u8] = b"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>
int main(void)
{
    const char *header = dlsym(RTLD_DEFAULT, \"cairn_header\");
    const volatile uint64_t *asked = *(const volatile uint64_t *const *)(header + 104);
    while (!*asked) usleep(100);
    return 0;
}
";

#[test]
fn an_end_meanwhile_is_said() {
    let home = Home::new();
    let Some(process) = start_program(&home, true, ENDS_WHEN_ASKED, &[], "") else { return };
    let pid = process.0.id().to_string();
    let output = guards(&home, &process, &[]);
    let message = text(&output.stderr);
    assert_refused(&output, 125, &[&format!("process {pid} has ended")]);
    assert!(!message.contains("buffer"), "{message}");
    // Nobody has waited for it yet.
    let output = guards(&home, &process, &[]);
    assert_refused(&output, 125, &[&pid, "has ended"]);
}

#[test]
fn it_takes_the_rights_of_a_debugger() {
    if !is_root() {
        common::skipped("only root can become another user");
        return;
    }
    let home = Home::new();
    let Some(process) = start(&home, true, &[]) else { return };
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let cairn = home.file("cairn", 0o755, &std::fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
    let mut command = Command::new(cairn);
    command.args(["guards", &process.0.id().to_string()]).uid(NOBODY).gid(NOBODY);
    let output = command.output().unwrap();
    assert_refused(&output, 125, &["not permitted", "debugger"]);
}
