//! What large blocks cost that hardly hold anything, blocks at far alignments, a steady loop; what is
//! known of a block's address; forks under handlers that are older than ours.

mod common;

use common::{
    Loading, Program, library, passes_in, run, scratch_dir, skip_for_stand_in, source_path,
};
use std::collections::HashSet;
use std::process::Command;

fn passes_with(case: &str, huge_pages: &str) {
    let program = Program::build("mended.c", Loading::Preloaded).expect("no archive is needed");
    let mut command = program.command(&[case]);
    command.env("CAIRN_HUGE_PAGES", huge_pages);
    run(command).assert_quiet_success(&format!("{case}, huge pages {huge_pages}"));
}

#[test]
fn zeroed_blocks_cost_what_is_used() {
    passes_with("zeroed_blocks", "1");
    passes_with("zeroed_blocks", "0");
}

#[test]
fn untouched_blocks_cost_nothing() {
    passes_with("untouched_blocks", "1");
    passes_with("untouched_blocks", "0");
}

#[test]
fn far_alignments_take_no_mapping_each() {
    passes_in(&[Loading::Preloaded], "mended.c", &["far_alignments"]);
}

#[test]
fn a_steady_loop_gives_back() {
    passes_in(&[Loading::Preloaded], "mended.c", &["steady_loop", "steady_small_loop"]);
}

/// The window has 25 bits to itself, its metadata 21 more: in 200 processes hardly two are the same.
#[test]
fn addresses_are_not_known() {
    const PROCESSES: usize = 200;
    if skip_for_stand_in() {
        return;
    }
    let program = Program::build("mended.c", Loading::Linked).expect("no archive is needed");
    let mut seen: [HashSet<usize>; 4] = Default::default();
    for _ in 0..PROCESSES {
        let outcome = program.run(&["addresses"]);
        outcome.assert_quiet_success("addresses");
        let hex = |word: &str| usize::from_str_radix(word.trim_start_matches("0x"), 16);
        let words = outcome.stdout.split_whitespace().map(|word| hex(word).expect("an address"));
        let [small, large, descriptors, heaps] = words.collect::<Vec<_>>()[..] else {
            panic!("{}", outcome.stdout)
        };
        let told = [small, large, small.wrapping_sub(descriptors), small.wrapping_sub(heaps)];
        seen.iter_mut().zip(told).for_each(|(seen, value)| _ = seen.insert(value));
    }
    for (seen, what) in seen.iter().zip(["small", "large", "to descriptors", "to heaps"]) {
        assert!(seen.len() >= PROCESSES - 2, "{what}: {} of {PROCESSES}", seen.len());
    }
}

/// A library's constructor has registered fork handlers for a lock, under which threads allocate large
/// blocks: forks neither wait for ever nor break the child.
#[test]
fn fork_handlers_may_be_older_than_ours() {
    let path = scratch_dir().join(format!("older-handlers-{}.so", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-fno-builtin", "-o"]).arg(&path);
    compiler.arg(source_path("older_handlers_library.c"));
    assert!(compiler.status().expect("a C compiler is needed").success());
    let program =
        Program::build("older_handlers.c", Loading::Preloaded).expect("no archive is needed");
    let mut command = program.command(&["forks_end"]);
    // Constructors run from the last to the first.
    command.env("LD_PRELOAD", format!("{}:{}", library().shared.display(), path.display()));
    run(command).assert_quiet_success("forks_end");
    std::fs::remove_file(path).expect("it was made above");
}
