//! Accesses that guards notice: what the report says, whose stacks are in it, and how the program ends.

mod common;

use common::{
    EVERYWHERE, Loading, Outcome, Program, clean_environment, library, run, scratch_dir,
    skip_for_stand_in,
};
use std::process::Command;

/// Runs a case with this setting, in each loading.
fn guarded(case: &str, setting: Option<&str>, check: impl Fn(Loading, &Outcome, &str)) {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("guards.c", loading) else { continue };
        let mut command = program.command(&[case]);
        command.envs(setting.map(|value| ("CAIRN_GUARDS", value)));
        let outcome = run(command);
        let what = format!("{case}, {loading:?}: {}\n{}", outcome.status, outcome.stderr);
        check(loading, &outcome, &what);
    }
}

/// A stack of a report: what happened, in which thread, and in which functions.
struct Stack {
    what: String,
    thread: usize,
    functions: Vec<String>,
}

/// The reports: each one's first line, and its stacks. Whatever else is said is a report without any.
fn reports(outcome: &Outcome) -> Vec<(String, Vec<Stack>)> {
    let places: Vec<(&str, usize)> = outcome
        .stdout
        .lines()
        .filter_map(|line| line.split_once(" 0x"))
        .map(|(name, at)| (name, usize::from_str_radix(at, 16).expect("an address")))
        .collect();
    let name_of = |line: &str| {
        let at = line.split_once("0x").and_then(|(_, rest)| rest.split(' ').next());
        let at = at.and_then(|at| usize::from_str_radix(at, 16).ok()).expect("an address");
        let inside = |&&(_, start): &&(&str, usize)| start <= at && at < start + 64;
        let found = places.iter().filter(inside).max_by_key(|(_, start)| start);
        found.map_or("?", |(name, _)| name).to_owned()
    };
    let mut reports: Vec<(String, Vec<Stack>)> = Vec::new();
    for line in outcome.stderr.lines() {
        let last = reports.last_mut().map(|(_, stacks)| stacks);
        if line.starts_with("    #") {
            let stack = last.and_then(|stacks| stacks.last_mut()).expect("a stack");
            stack.functions.push(name_of(line));
        } else if let Some((what, thread)) =
            line.strip_prefix("  ").and_then(|line| line.split_once(" by thread "))
        {
            let thread = thread.trim_end_matches(':').parse().expect("a number");
            let stack = Stack { what: what.to_owned(), thread, functions: Vec::new() };
            last.expect("a report").push(stack);
        } else {
            reports.push((line.to_owned(), Vec::new()));
        }
    }
    reports
}

/// Expects one report with these words in its first line and these stacks: what, and the innermost
/// function. In a static program cairn's own functions are around it.
fn expect(
    what: &str,
    loading: Loading,
    outcome: &Outcome,
    words: &[&str],
    stacks: &[(&str, &str)],
) {
    let reports = reports(outcome);
    assert_eq!(reports.len(), 1, "one report: {what}");
    let (line, found) = &reports[0];
    assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {what}");
    let named: Vec<_> = found.iter().map(|stack| stack.what.as_str()).collect();
    assert_eq!(named, stacks.iter().map(|(what, _)| *what).collect::<Vec<_>>(), "{what}");
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    for (stack, (_, function)) in found.iter().zip(stacks) {
        let found = match loading {
            Loading::Static => stack.functions.iter().any(|name| name == function),
            _ => stack.functions.first().is_some_and(|name| name == function),
        };
        assert!(found, "{} in {function}: {what}", stack.what);
        assert!(stack.functions.len() > 2, "the callers of {function}: {what}");
    }
}

fn expect_report(case: &str, signal: i32, words: &[&str], stacks: &[(&str, &str)]) {
    guarded(case, Some("1"), |loading, outcome, what| {
        assert_eq!(outcome.signal(), Some(signal), "{what}");
        expect(what, loading, outcome, words, stacks);
    });
}

const ACCESS: &str = if cfg!(target_arch = "x86_64") { "write of " } else { "access of " };
const READ: &str = if cfg!(target_arch = "x86_64") { "read of " } else { "access of " };

#[test]
fn overflow() {
    let stacks = |function| [("accessed", function), ("allocated", "allocates")];
    let words = ["cairn: overflow: ", ACCESS, " 0 bytes behind a block of 112 bytes"];
    expect_report("overflow_write", libc::SIGSEGV, &words, &stacks("writes"));
    let words = ["cairn: overflow: ", READ, " 10 bytes behind a block of 4096 bytes"];
    expect_report("overflow_read", libc::SIGSEGV, &words, &stacks("reads"));
}

#[test]
fn underflow() {
    let words = ["cairn: underflow: ", ACCESS, " 1 byte in front of a block of 100 bytes"];
    let stacks = [("accessed", "writes"), ("allocated", "allocates")];
    expect_report("underflow", libc::SIGSEGV, &words, &stacks);
}

#[test]
fn use_after_free() {
    let stacks =
        |function| [("accessed", function), ("freed", "frees"), ("allocated", "allocates")];
    let words = ["cairn: use after free: ", READ, " 8 bytes into a block of 100 bytes"];
    expect_report("read_after_free", libc::SIGSEGV, &words, &stacks("reads"));
    let words = ["cairn: use after free: ", ACCESS, " 0 bytes into a block of 65520 bytes"];
    expect_report("write_after_free", libc::SIGSEGV, &words, &stacks("writes"));
}

/// The access is in a function without a frame: its caller is there, too.
#[test]
fn use_after_free_by_the_c_library() {
    guarded("copy_after_free", Some("1"), |_, outcome, what| {
        assert_eq!(outcome.signal(), Some(libc::SIGSEGV), "{what}");
        let (line, stacks) = &reports(outcome)[0];
        assert!(line.starts_with("cairn: use after free: "), "{what}");
        assert!(!cfg!(target_arch = "x86_64") || stacks[0].functions.len() > 3, "{what}");
    });
}

#[test]
fn misuse_of_free_and_realloc() {
    let stacks = |function| [("passed", function), ("freed", "frees"), ("allocated", "allocates")];
    let words = ["cairn: free(0x", "): freed already: a block of 100 bytes"];
    expect_report("double_free", libc::SIGABRT, &words, &stacks("frees"));
    let words = ["cairn: realloc(0x", "): freed already: a block of 100 bytes"];
    expect_report("realloc_freed", libc::SIGABRT, &words, &stacks("resizes"));
    let words = ["cairn: free(0x", "not the start of a block, but 16 bytes into a block of 100"];
    let stacks = [("passed", "frees"), ("allocated", "allocates")];
    expect_report("free_inside", libc::SIGABRT, &words, &stacks);
}

#[test]
fn writes_on_the_block_s_own_pages() {
    let stacks = [("freed", "frees"), ("allocated", "allocates")];
    let words = ["cairn: free(0x", "the program has written 0 bytes behind a block of 100 bytes"];
    expect_report("write_behind", libc::SIGABRT, &words, &stacks);
    let words = ["cairn: free(0x", "has written 3 bytes in front of a block of 112 bytes"];
    expect_report("write_in_front", libc::SIGABRT, &words, &stacks);
}

#[test]
fn threads_are_told_apart() {
    guarded("freed_by_a_thread", Some("1"), |_, outcome, what| {
        assert_eq!(outcome.signal(), Some(libc::SIGSEGV), "{what}");
        let (_, stacks) = &reports(outcome)[0];
        assert_eq!(stacks.len(), 3, "{what}");
        assert_eq!(stacks[0].thread, stacks[2].thread, "{what}");
        assert_ne!(stacks[0].thread, stacks[1].thread, "{what}");
    });
}

#[test]
fn reports_of_many_threads_are_whole() {
    guarded("accessed_by_threads", Some("1"), |_, outcome, what| {
        assert_eq!(outcome.signal(), Some(libc::SIGSEGV), "{what}");
        let (line, stacks) = &reports(outcome)[0];
        assert!(line.starts_with("cairn: use after free: "), "{what}");
        assert_eq!(stacks.len(), 3, "{what}");
    });
}

#[test]
fn a_forked_child_goes_on() {
    guarded("in_a_child", Some("1"), |_, outcome, what| {
        outcome.assert_success(what);
        assert_eq!(reports(outcome).len(), 1, "{what}");
    });
}

#[test]
fn the_program_s_handler_is_kept() {
    guarded("handler_before", None, |_, outcome, what| {
        assert_eq!(outcome.status.code(), Some(42), "{what}");
        let reports = reports(outcome);
        assert!(reports[0].0.starts_with("cairn: use after free: "), "{what}");
        assert_eq!(reports[1].0, "handled", "{what}");
    });
    guarded("handler_after", Some("1"), |_, outcome, what| {
        assert_eq!(outcome.status.code(), Some(42), "{what}");
        assert_eq!(outcome.stderr, "handled\n", "{what}");
    });
    guarded("handler_leaves", None, |_, outcome, what| {
        outcome.assert_success(what);
        assert_eq!(reports(outcome).len(), 3, "{what}");
    });
    guarded("handler_has_room", None, |_, outcome, what| outcome.assert_quiet_success(what));
}

#[test]
fn other_faults_are_the_program_s() {
    for case in ["other_fault", "sent_signal"] {
        guarded(case, Some("1"), |_, outcome, what| {
            assert_eq!(outcome.signal(), Some(libc::SIGSEGV), "{what}");
            assert!(outcome.stderr.is_empty(), "{what}");
        });
    }
}

#[test]
fn what_is_guarded_stays_so_when_it_ends() {
    let stacks = [("accessed", "reads"), ("freed", "off"), ("allocated", "allocates")];
    guarded("off", Some("1"), |_, outcome, what| {
        assert_eq!(outcome.signal(), Some(libc::SIGSEGV), "{what}");
        assert_eq!(reports(outcome)[0].1.len(), stacks.len(), "{what}");
    });
}

#[test]
fn guarded_blocks_are_blocks() {
    guarded("is_a_block", Some("1"), |_, outcome, what| outcome.assert_quiet_success(what));
}

#[test]
fn threads_at_work() {
    for setting in ["1", "1000", "64KiB"] {
        guarded("threads_at_work", Some(setting), |_, outcome, what| {
            outcome.assert_quiet_success(what);
        });
    }
}

#[test]
fn memory_is_bounded() {
    let resident = |outcome: &Outcome| -> usize {
        let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("resident "));
        line.and_then(|bytes| bytes.parse().ok()).expect("a number")
    };
    if skip_for_stand_in() {
        return;
    }
    let Some(program) = Program::build("guards.c", Loading::Preloaded) else { return };
    let off = resident(&program.run(&["many_blocks"]));
    let mut command = program.command(&["many_blocks"]);
    command.env("CAIRN_GUARDS", "1000");
    let on = resident(&run(command));
    assert!(on <= off + (1 << 20), "{on} bytes with guards, {off} without");
}

/// A function of the C library may have its address in a program that has its own place.
#[test]
fn a_program_in_its_own_place_has_guards() {
    const SOURCE: &str = "#include <stdlib.h>\n#include <sys/auxv.h>\nunsigned long (*volatile get)(unsigned long) = getauxval;\n\
        int main(void) { for (int n = 0; n < 1000; n++) free(malloc(100)); return get(6) == 0; }\n";
    if skip_for_stand_in() {
        return;
    }
    let program = scratch_dir().join(format!("fixed-{}", std::process::id()));
    let source = program.with_extension("c");
    std::fs::write(&source, SOURCE).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-no-pie", "-fno-pie", "-o"]).args([&program, &source]);
    run(compiler).assert_success("fixed.c");
    let mut command = Command::new(&program);
    clean_environment(&mut command);
    command.env("LD_PRELOAD", &library().shared).env("CAIRN_GUARDS", "100");
    run(command).assert_success("a program in its own place");
    for path in [program, source] {
        std::fs::remove_file(path).expect("it was just written");
    }
}
