//! `cairn run --profile` and `cairn profile`: what the program has done comes back with names, in each form; and no file makes
//! the command fail otherwise than by saying so.

mod common;

use common::{Home, assert_refused, assert_succeeded, display, text};
use flate2::read::GzDecoder;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SOURCE: &str = "
#include <stdlib.h>
#ifndef HOW
#define HOW __attribute__((noinline))
#endif
void *kept[20000];
HOW void *keeps(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
__attribute__((noinline)) void *drops(void) { void *p = calloc(3, 1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(void) {
    for (int i = 0; i < 20000; i++) { kept[i] = keeps(); free(drops()); }
    return 0;
}
";

/// A profile of that program.
fn profiled(home: &Home) -> Option<PathBuf> {
    profiled_with(home, &["-O1", "-fno-omit-frame-pointer"])
}

/// The same with other options of the compiler.
fn profiled_with(home: &Home, options: &[&str]) -> Option<PathBuf> {
    let source = home.file("allocates.c", 0o644, SOURCE.as_bytes());
    let program = home.path().join("allocates");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-fno-builtin"]).args(options).arg("-o");
    let compiled = compiler.arg(&program).arg(source).current_dir(home.path()).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        return None;
    }
    Some(profile_of(home, &program))
}

/// A profile of a program.
fn profile_of(home: &Home, program: &Path) -> PathBuf {
    let profile = home.path().join("heap");
    let options = ["--profile", display(&profile), "--profile-rate", "64KiB", "--"];
    let output = home.run(&[&options[..], &[display(program)]].concat());
    assert_succeeded(&output);
    profile
}

fn profile(home: &Home, arguments: &[&str]) -> Output {
    home.cairn().current_dir(home.path()).arg("profile").args(arguments).output().unwrap()
}

/// Within what chance allows in one of 10 million: 306 samples of `keeps` and 916 of `drops` are expected.
fn assert_near(found: f64, expected: f64, share: f64) {
    assert!((found - expected).abs() < share * expected, "{found}, not {expected}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_table_names_functions() {
    let home = Home::new();
    let Some(file) = profiled(&home) else { return };
    let output = profile(&home, &[display(&file)]);
    assert_succeeded(&output);
    assert_eq!(text(&output.stderr), "");
    let table = text(&output.stdout);
    let row = |table: &str, function: &str| {
        let found =
            table.lines().find(|line| line.contains(&format!("  {function} (allocates.c:")));
        let words: Option<Vec<_>> =
            found.map(|line| line.split_whitespace().map(str::to_owned).collect());
        words.unwrap_or_else(|| panic!("no {function} in {table}"))[3].parse::<f64>().unwrap()
    };
    assert_near(row(&table, "keeps"), 20_000.0, 0.3);
    assert!(table.contains("< main (allocates.c:") && !table.contains("drops"), "{table}");
    let allocated = text(&profile(&home, &["--view", "allocated", display(&file)]).stdout);
    assert_near(row(&allocated, "drops"), 20_000.0, 0.18);
}

/// What is inlined is a frame of its own, which debug information alone has.
#[test]
#[cfg(target_arch = "x86_64")]
fn inlined_functions_have_names() {
    let home = Home::new();
    let how = "-DHOW=static inline __attribute__((always_inline))";
    let Some(file) = profiled_with(&home, &["-O1", "-fno-omit-frame-pointer", how]) else { return };
    let table = text(&profile(&home, &[display(&file)]).stdout);
    assert!(table.contains("  keeps (allocates.c:") && table.contains("< main ("), "{table}");
}

const RUST_SOURCE: &[u8] = b"
extern \"C\" { fn malloc(bytes: usize) -> *mut u8; }
#[inline(always)]
fn keeps() -> *mut u8 { unsafe { malloc(1000) } }
#[inline(never)]
fn fills(kept: &mut [*mut u8]) { for block in kept { *block = keeps(); } }
fn main() { fills(&mut [0 as *mut u8; 20000]); }
";

/// The debug information of a program may be in a package beside it, if that is a plain file.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_package_beside_a_program_has_its_names() {
    let home = Home::new();
    let source = home.file("fills.rs", 0o644, RUST_SOURCE);
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    compiler.args(["-g", "-Csplit-debuginfo=packed", "-Cforce-frame-pointers=yes"]);
    let compiled = compiler.arg(source).current_dir(home.path()).output();
    let package = home.path().join("fills.dwp");
    if !compiled.is_ok_and(|output| output.status.success()) || !package.exists() {
        return common::skipped("no compiler of Rust that makes packages");
    }
    let file = profile_of(&home, &home.path().join("fills"));
    let table = || {
        assert_succeeded(&outcome(&home, &file));
        text(&profile(&home, &[display(&file)]).stdout)
    };
    let found = table();
    let lines = ["  fills::keeps (fills.rs:", "< fills::fills (fills.rs:"];
    assert!(lines.iter().all(|line| found.contains(line)), "{found}");
    fs::remove_file(&package).unwrap();
    fifo(&package);
    let found = table();
    assert!(found.contains("  fills::fills") && !found.contains("fills::keeps"), "{found}");
}

/// Debug information may name files to go on in. They are not opened: lines are what the program itself says.
#[test]
#[cfg(target_arch = "x86_64")]
fn files_that_debug_information_names_are_not_opened() {
    let home = Home::new();
    let options = ["-O1", "-fno-omit-frame-pointer", "-gsplit-dwarf"];
    let Some(file) = profiled_with(&home, &options) else { return };
    let files = home.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let named: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "dwo")).collect();
    if named.is_empty() {
        return common::skipped("no C compiler that splits");
    }
    for path in named {
        fs::remove_file(&path).unwrap();
        fifo(&path);
    }
    assert_succeeded(&outcome(&home, &file));
    let table = text(&profile(&home, &[display(&file)]).stdout);
    assert!(table.contains("  keeps (allocates.c:") && table.contains("< main ("), "{table}");
}

/// The tables for exceptions lead to `main`, where the C library says which files have them: glibc from 2.35 on.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_need_no_frame_pointers() {
    let home = Home::new();
    // SAFETY: a name.
    if unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) }.is_null() {
        return common::skipped("an older C library");
    }
    let Some(file) = profiled_with(&home, &["-O2", "-fomit-frame-pointer"]) else { return };
    let table = text(&profile(&home, &[display(&file)]).stdout);
    assert!(table.contains("  keeps (allocates.c:") && table.contains("< main ("), "{table}");
}

/// What was drawn before there were lines behind a site is read still.
#[test]
fn an_older_profile_is_read() {
    let home = Home::new();
    let old =
        b"cairn heap profile 1\nrate 1\ndropped 0\nsite 112 1 10 1000 4 400 1000\nmappings\nend\n";
    let output = profile(&home, &[display(&home.file("heap", 0o644, old))]);
    assert_succeeded(&output);
    assert!(text(&output.stdout).contains("600 B  100.0           6"), "{}", text(&output.stdout));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn lifetimes_are_told() {
    let home = Home::new();
    let Some(file) = profiled(&home) else { return };
    let table = text(&profile(&home, &["--view", "lifetimes", display(&file)]).stdout);
    let row = |function: &str| {
        let row = table.lines().find(|line| line.contains(&format!("  {function} (allocates.c:")));
        let words = row.unwrap_or_else(|| panic!("{table}")).split_whitespace().skip(2);
        words.take(9).map(|word| word.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(row("keeps"), [0, 0, 0, 0, 0, 0, 0, 0, 100]);
    // The system may have been elsewhere meanwhile, now and then.
    assert!(row("drops")[0] >= 98 && row("drops")[8] == 0, "{table}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_are_collapsed() {
    let home = Home::new();
    let Some(file) = profiled(&home) else { return };
    assert_succeeded(&profile(&home, &[display(&file), "--collapsed", "stacks"]));
    let stacks = fs::read_to_string(home.path().join("stacks")).unwrap();
    let line = stacks.lines().find(|line| line.contains(";main;keeps "));
    let bytes = line.unwrap_or_else(|| panic!("{stacks}")).rsplit(' ').next().unwrap();
    assert_near(bytes.parse().unwrap(), 20e6, 0.3);
}

/// A field of a message: its number, and a number or bytes.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let length = 1 + bytes.iter().position(|byte| byte & 1 << 7 == 0).expect("an end");
    let (head, rest) = bytes.split_at(length);
    *bytes = rest;
    head.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (head, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(head)
            }
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn messages(bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    let found = fields(bytes).into_iter().filter(|(number, _)| *number == wanted);
    let bytes = |field| if let Field::Bytes(bytes) = field { bytes } else { panic!("a number") };
    found.map(|(_, field)| bytes(field)).collect()
}

fn number(bytes: &[u8], wanted: u64) -> u64 {
    let found = fields(bytes).into_iter().find(|(number, _)| *number == wanted);
    found.map_or(0, |(_, field)| if let Field::Number(number) = field { number } else { 0 })
}

fn numbers(mut packed: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !packed.is_empty() {
        numbers.push(varint(&mut packed));
    }
    numbers
}

/// The stacks of a profile of pprof's: functions, the innermost first, and six figures.
fn stacks_of(profile: &[u8]) -> Vec<(Vec<String>, Vec<u64>)> {
    let strings = messages(profile, 6);
    let string = |at: u64| text(strings[at as usize]);
    let by_number = |field: u64, wanted: u64| {
        let all = messages(profile, field).into_iter();
        all.into_iter().find(|message| number(message, 1) == wanted).expect("what is referred to")
    };
    let samples = messages(profile, 2).into_iter();
    let samples = samples.map(|sample| {
        let (mut functions, values) = (Vec::new(), numbers(messages(sample, 2)[0]));
        for location in numbers(messages(sample, 1)[0]) {
            let location = by_number(4, location);
            by_number(3, number(location, 2));
            for line in messages(location, 4) {
                functions.push(string(number(by_number(5, number(line, 1)), 2)));
            }
        }
        (functions, values)
    });
    samples.collect()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_pprof_reads_says_the_same() {
    let home = Home::new();
    let Some(file) = profiled(&home) else { return };
    assert_succeeded(&profile(&home, &[display(&file), "--pprof", "heap.pb.gz"]));
    let packed = fs::read(home.path().join("heap.pb.gz")).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    let strings = messages(&bytes, 6);
    let string = |at: u64| text(strings[at as usize]);
    let types = messages(&bytes, 1);
    let types: Vec<_> =
        types.iter().map(|of| string(number(of, 1)) + " " + &string(number(of, 2))).collect();
    let expected = [
        "alloc_objects count",
        "alloc_space bytes",
        "inuse_objects count",
        "inuse_space bytes",
        "peak_space bytes",
        "pinned_space bytes",
    ];
    assert_eq!(types, expected);
    assert_eq!(string(number(&bytes, 14)), "inuse_space");
    assert_eq!(number(&bytes, 12), 64 << 10);
    let mut sums = [[0.0; 6]; 2];
    for (functions, values) in stacks_of(&bytes) {
        let at =
            ["keeps", "drops"].iter().position(|name| functions.first().is_some_and(|f| f == name));
        if let Some(at) = at {
            assert_eq!(functions[1], "main");
            sums[at].iter_mut().zip(values).for_each(|(sum, value)| *sum += value as f64);
        }
    }
    let [keeps, drops] = sums;
    assert_near(keeps[0], 20_000.0, 0.3);
    assert_near(drops[1], 60e6, 0.18);
    assert_eq!((keeps[0], keeps[1]), (keeps[2], keeps[3]));
    assert_eq!((drops[2], drops[3], drops[5]), (0.0, 0.0, 0.0));
    // All of it is live at the end, and on its pages alone; at the peak one of `drops` may have been a sample.
    assert_near(keeps[4], keeps[3], 0.05);
    assert_near(keeps[5], 20_000.0 * 1024.0, 0.35);
}

/// A real viewer opens it, if there is one.
#[test]
#[cfg(target_arch = "x86_64")]
fn go_opens_it() {
    let home = Home::new();
    if common::lacks("go", "golang") {
        return;
    }
    let Some(file) = profiled(&home) else { return };
    assert_succeeded(&profile(&home, &[display(&file), "--pprof", "heap.pb.gz"]));
    let output = Command::new("go")
        .args(["tool", "pprof", "-top", "heap.pb.gz"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert_succeeded(&output);
    let top = text(&output.stdout);
    assert!(top.contains("Type: inuse_space") && top.contains(" keeps"), "{top}");
}

#[test]
fn the_profile_is_not_written_over() {
    let home = Home::new();
    let file = home.file("heap", 0o644, b"cairn heap profile 2\nmappings\nend\n");
    let output = profile(&home, &["heap", "--pprof", display(&file)]);
    assert_refused(&output, 125, &["what is read itself"]);
    // A rate is of no use without a file.
    assert_eq!(home.run(&["--profile-rate", "64KiB", "true"]).status.code(), Some(125));
}

/// Nor what it is compared with, under any name, before it is read.
#[test]
fn the_older_profile_is_not_written_over() {
    let home = Home::new();
    let old = b"cairn heap profile 2\nsite 16 1 5 80 0 0\nmappings\nend\n";
    let file = home.file("old", 0o644, old);
    home.file("heap", 0o644, b"cairn heap profile 2\nmappings\nend\n");
    for form in ["--save", "--pprof", "--collapsed"] {
        for out in ["old", "./old"] {
            let compared = ["heap", "--html", "page", "--compare", "old", form, out];
            assert_refused(&profile(&home, &compared), 125, &["what is read itself"]);
            assert_eq!(fs::read(&file).unwrap(), old, "{form}");
            assert!(!home.path().join("page").exists(), "{form}");
        }
        // Beside it there is room.
        let compared = ["heap", "--html", "page", "--compare", "old", form, "new"];
        assert_succeeded(&profile(&home, &compared));
        assert!(home.path().join("new").exists(), "{form}");
        fs::remove_file(home.path().join("page")).unwrap();
    }
}

// Files that are none, or lie.

/// A pipe, at which whoever opens it waits for the other end.
fn fifo(path: &Path) -> PathBuf {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    path.to_owned()
}

/// What the command says of such a file; it ends by itself, and not by a signal.
fn outcome(home: &Home, file: &Path) -> Output {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(env!("CARGO_BIN_EXE_cairn")).arg("profile").arg(file);
    let output = limited.args(["--pprof", "out"]).current_dir(home.path()).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 125)), "{}", text(&output.stderr));
    output
}

#[test]
fn what_is_no_profile_is_refused() {
    let home = Home::new();
    for (contents, why) in [
        (&b""[..], "its first line"),
        (b"\xff\xfe\x00", "its first line"),
        (b"cairn heap profile 3\n", "its first line"),
        (b"cairn heap profile 2\nrate 1\n", "its end is missing"),
        (b"cairn heap profile 2\nrate -1\nend\n", "line 2"),
        (b"cairn heap profile 2\nsite 0 1 1 1 1 1\nend\n", "line 2"),
        (b"cairn heap profile 2\nsite 16 0 1 1 1 1\nend\n", "line 2"),
        (b"cairn heap profile 2\nsite 16 1 1 1 1 x\nend\n", "line 2"),
        (b"cairn heap profile 2\nsite 16 1 1 1 1 1 zz\nend\n", "line 2"),
        (b"cairn heap profile 2\npeak 1 1\nend\n", "line 2"),
        (b"cairn heap profile 2\nsite 16 1 1 1 0 0\npeak 1\nend\n", "line 3"),
        (b"cairn heap profile 2\nsite 16 1 1 1 0 0\nlived 1 2\nend\n", "line 3"),
        (b"cairn heap profile 2\nsite 16 1 1 1 0 0\npinned x\nend\n", "line 3"),
        (b"cairn heap profile 2\nmappings\n1-2\nend\n", "line 3"),
    ] {
        let file = home.file("heap", 0o644, contents);
        assert_refused(&outcome(&home, &file), 125, &[why]);
    }
    for (path, why) in [("/absent", "No such file"), ("/", "Is a directory")] {
        let output = outcome(&home, Path::new(path));
        assert_refused(&output, 125, &[path, why]);
        assert_eq!(text(&output.stderr).matches(why).count(), 1, "{output:?}");
    }
}

/// What comes through a pipe is read once.
#[test]
fn a_pipe_has_a_profile() {
    let home = Home::new();
    let contents = b"cairn heap profile 2\nrate 1\ndropped 0\nsite 16 1 2 32 0 0\nend\n";
    let file = home.file("heap", 0o644, contents);
    let mut command = home.cairn();
    let piped = |command: &mut Command| {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(contents).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = piped(command.args(["profile", "/dev/stdin"]));
    assert_succeeded(&output);
    assert_eq!(text(&output.stdout), text(&profile(&home, &[display(&file)]).stdout));
    let page = home.path().join("page");
    let compare = ["--html", display(&page), "--compare", "/dev/stdin"];
    let mut command = home.cairn();
    assert_succeeded(&piped(command.args(["profile", display(&file)]).args(compare)));
}

/// Numbers that are too large, and paths that lead to what is no program.
#[test]
fn lies_do_no_harm() {
    let home = Home::new();
    let pipe = fifo(&home.path().join("fifo"));
    let broken = home.file("broken", 0o755, b"\x7fELF\x02\x01\x01 and nothing else");
    // Beside it is no package, either.
    let program = home.file("prog", 0o755, &fs::read("/bin/true").unwrap());
    fifo(&home.path().join("prog.dwp"));
    let max = u64::MAX;
    for path in [
        display(&pipe),
        display(&broken),
        display(&program),
        "/dev/zero",
        "/",
        "/absent",
        "[vdso]",
        "",
    ] {
        let text = format!(
            "cairn heap profile 2\nrate {max}\ndropped {max}\nsite {max} 1 {max} {max} 0 0 {max:x} 0 1\n\
             site 1 {max} {max} {max} {max} 0 1000 1001 ffff\nsite 16 16 0 0 {max} {max} 1fff\nmappings\n\
             1000-2000 r-xp ffffffffffffffff 00:00 0 {path}\n0-{max:x} r-xp 00000000 00:00 {max} {path}\n\
             2000-1000 r-xp 00000000 00:00 0 {path}\nend\n"
        );
        let file = home.file("heap", 0o644, text.as_bytes());
        assert_succeeded(&outcome(&home, &file));
    }
}

/// Bytes of a true profile are changed, or are not there.
#[test]
fn damage_does_no_harm() {
    let home = Home::new();
    let Some(file) = profiled(&home) else { return };
    let whole = fs::read(&file).unwrap();
    let mut random: u64 = 1;
    let mut below = |count: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % count
    };
    for _ in 0..40 {
        let mut damaged = whole.clone();
        for _ in 0..1 + below(5) {
            let at = below(damaged.len());
            damaged[at] = b"0f \n-x\xff"[below(7)];
        }
        damaged.truncate(if below(3) == 0 { below(damaged.len()) } else { damaged.len() });
        fs::write(&file, &damaged).unwrap();
        outcome(&home, &file);
    }
}

/// A profiled program profiles another one: that one is the first of its own.
#[test]
fn a_profile_inside_of_another_one_has_its_name() {
    let home = Home::new();
    let [outer, inner] = ["outer", "inner"].map(|name| home.path().join(name));
    let line = format!("\"$0\" run --profile {} -- true; :", display(&inner));
    let cairn = home.cairn().get_program().to_owned();
    let mut command = home.cairn();
    command.args(["run", "--profile", display(&outer), "--", "sh", "-c", &line]).arg(cairn);
    assert_succeeded(&command.output().unwrap());
    // A shell may end without a word to libraries: the outer one may not be there.
    assert!(inner.exists());
}
