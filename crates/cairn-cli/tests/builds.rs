//! A profile knows which builds of files were mapped: names come from no other, and a viewer is told which they were.

mod common;

use common::inspected::start;
use common::{Home, assert_succeeded, display, text};
use flate2::read::GzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Goes on for ever with an argument.
const SOURCE: &str = "
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void *kept[20000];
__attribute__((noinline)) void *FUNCTION(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(int count, char **arguments) {
    for (int i = 0; i < 20000; i++) kept[i] = FUNCTION();
    puts(\"ready\");
    fflush(stdout);
    if (count > 1) for (;;) pause();
    return 0;
}
";

/// Builds the program with such a function, in the place of another.
fn build(home: &Home, function: &str) -> Option<PathBuf> {
    let source = home.file("allocates.c", 0o644, SOURCE.as_bytes());
    let (program, name) = (home.path().join("allocates"), format!("-DFUNCTION={function}"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-fno-omit-frame-pointer", "-fno-builtin", "-Wl,--build-id=sha1"]);
    let compiled = compiler.arg(name).arg("-o").arg(&program).arg(source).output();
    compiled.is_ok_and(|output| output.status.success()).then_some(program)
}

/// Runs the program to its end; its profile.
fn profiled(home: &Home, program: &Path) -> PathBuf {
    let profile = home.path().join("heap");
    let options = ["--profile", display(&profile), "--profile-rate", "64KiB", "--"];
    assert_succeeded(&home.run(&[&options[..], &[display(program)]].concat()));
    profile
}

fn profile(home: &Home, arguments: &[&str]) -> Output {
    home.cairn().current_dir(home.path()).arg("profile").args(arguments).output().unwrap()
}

/// The number of the program's build that the profile has.
fn number(profile: &Path) -> String {
    let text = fs::read_to_string(profile).unwrap();
    let builds = text.lines().skip_while(|line| *line != "builds");
    let mut builds = builds.take_while(|line| *line != "names");
    let line = builds.find(|line| line.ends_with("/allocates"));
    line.and_then(|line| line.split_once(' ')).unwrap_or_else(|| panic!("{text}")).0.to_owned()
}

/// Writes another build over the program: the file stays the same one of its folder.
fn replace(home: &Home, program: &Path) {
    let old = home.path().join("old");
    fs::rename(program, &old).unwrap();
    let other = build(home, "another").expect("it was built before");
    let bytes = fs::read(&other).unwrap();
    fs::remove_file(other).unwrap();
    fs::rename(old, program).unwrap();
    fs::write(program, bytes).unwrap();
}

const OTHER_BUILD: &str =
    "/allocates is another build than the process has run, or not there: its calls have no names\n";

#[track_caller]
fn assert_unnamed(output: &Output) {
    assert_succeeded(output);
    let (table, told) = (text(&output.stdout), text(&output.stderr));
    assert!(table.contains("  allocates+0x"), "{table}");
    assert!(!table.contains("another") && !table.contains("holds"), "{table}");
    assert!(told.ends_with(OTHER_BUILD) && told.lines().count() == 1, "{told}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn another_build_gives_no_names() {
    let home = Home::new();
    let Some(program) = build(&home, "holds") else { return };
    let file = profiled(&home, &program);
    let before = profile(&home, &[display(&file)]);
    assert!(text(&before.stdout).contains("  holds (allocates.c:"), "{}", text(&before.stdout));
    assert_eq!(text(&before.stderr), "");

    // The same build in another file of that name.
    let copy = home.path().join("copy");
    fs::copy(&program, &copy).unwrap();
    fs::rename(&copy, &program).unwrap();
    let again = profile(&home, &[display(&file)]);
    assert_eq!((&again.stdout, text(&again.stderr)), (&before.stdout, String::new()));

    replace(&home, &program);
    assert_unnamed(&profile(&home, &[display(&file)]));
    assert_succeeded(&profile(&home, &[display(&file), "--save", "saved"]));
    assert_unnamed(&profile(&home, &["saved"]));
    fs::remove_file(&program).unwrap();
    assert_unnamed(&profile(&home, &["saved"]));
    // Both sides of a page are told of.
    let page = profile(&home, &["saved", "--html", "page", "--compare", display(&file)]);
    assert_succeeded(&page);
    assert_eq!(text(&page.stderr).matches(OTHER_BUILD).count(), 2, "{}", text(&page.stderr));
    let page = fs::read_to_string(home.path().join("page")).unwrap();
    assert!(page.contains("allocates+0x") && !page.contains("\"another\""));
}

/// A process whose file is replaced while it runs, by a rename, as packages are.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_knows_what_it_runs() {
    let home = Home::new();
    let Some(program) = build(&home, "holds") else { return };
    let mut command = home.cairn();
    command.args(["run", "--profile", "heap", "--profile-rate", "64KiB"]);
    let running = start(command.current_dir(home.path()).arg(&program).arg("wait"));
    let pid = running.0.id().to_string();
    let copy = home.path().join("copy");
    fs::copy(&program, &copy).unwrap();
    assert_succeeded(&profile(&home, &[&pid, "--save", "saved"]));
    assert_eq!(number(&home.path().join("saved")).len(), 40);
    let now = profile(&home, &["saved"]);
    assert!(text(&now.stdout).contains("  holds (allocates.c:"), "{}", text(&now.stdout));

    // The system calls it deleted; the same build is there again.
    fs::rename(&copy, &program).unwrap();
    let again = profile(&home, &[&pid]);
    assert!(text(&again.stdout).contains("  holds (allocates.c:"), "{}", text(&again.stdout));
    assert_eq!(text(&again.stderr), "");

    replace(&home, &program);
    assert_unnamed(&profile(&home, &["saved"]));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn viewers_are_told_the_build_that_has_run() {
    let home = Home::new();
    let Some(program) = build(&home, "holds") else { return };
    let file = profiled(&home, &program);
    let number = number(&file);
    replace(&home, &program);
    assert_succeeded(&profile(&home, &[display(&file), "--pprof", "heap.pb.gz"]));
    let packed = fs::read(home.path().join("heap.pb.gz")).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    let has = |wanted: &str| bytes.windows(wanted.len()).any(|part| part == wanted.as_bytes());
    assert!(has(&number) && has("allocates+0x") && !has("another"));
}

/// What was written before there were numbers has names as it had, and damaged numbers are told.
#[test]
#[cfg(target_arch = "x86_64")]
fn older_and_damaged_profiles() {
    let home = Home::new();
    let Some(program) = build(&home, "holds") else { return };
    let file = profiled(&home, &program);
    let whole = fs::read_to_string(&file).unwrap();
    let (head, rest) = whole.split_once("\nbuilds\n").expect("numbers");
    let names = &rest[rest.find("names\n").expect("names")..];
    fs::write(&file, format!("{head}\n{names}")).unwrap();
    let older = profile(&home, &[display(&file)]);
    assert!(text(&older.stdout).contains("  holds (allocates.c:"), "{}", text(&older.stdout));
    assert_eq!(text(&older.stderr), "");
    for damage in ["one", "xx /a", " /a", &format!("{} /a", "0".repeat(200))] {
        fs::write(&file, format!("{head}\nbuilds\n{damage}\n{names}")).unwrap();
        let line = head.lines().count() + 2;
        let damaged = profile(&home, &[display(&file)]);
        common::assert_refused(&damaged, 125, &[&format!("line {line} makes no sense")]);
    }
}
