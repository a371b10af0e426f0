//! What becomes of mistakes that are made into attacks: what the default build stops, and what it does not. With
//! `--features hardened` the same of the hardened one. With a library of others,
//! `cargo test -p cairn-c --test attacks -- --ignored --nocapture` tells what that does.

mod common;

use common::{EVERYWHERE, Loading, Outcome, Program, skip_for_stand_in};

/// The process says what is wrong and ends.
const STOPPED: &str = "stopped";
/// The attack has come to nothing, and nobody has noticed.
const HARMLESS: &str = "harmless";
/// The attacker has what was wanted.
const SUCCEEDS: &str = "succeeds";
/// Stopped, harmless or a crash: where chance decides which.
const FOILED: &str = "foiled";

/// Each attack, its end with the default build, and its end with the hardened one.
const ATTACKS: [(&str, &str, &str); 43] = [
    ("link_to_a_place", STOPPED, FOILED),
    ("link_of_another_block", STOPPED, FOILED),
    ("link_in_part", STOPPED, FOILED),
    ("link_to_null", STOPPED, FOILED),
    ("double_free_at_once", STOPPED, STOPPED),
    ("double_free_around_another", STOPPED, STOPPED),
    ("double_free_of_many", STOPPED, STOPPED),
    ("double_free_by_two_threads", STOPPED, STOPPED),
    ("double_free_large", STOPPED, STOPPED),
    ("double_free_by_realloc", STOPPED, STOPPED),
    ("double_free_of_a_new_owners_block", SUCCEEDS, STOPPED),
    ("fake_block_on_the_stack", STOPPED, STOPPED),
    ("fake_block_in_a_block", STOPPED, STOPPED),
    ("fake_span", STOPPED, STOPPED),
    ("never_allocated", STOPPED, STOPPED),
    ("one_byte_beyond", SUCCEEDS, STOPPED),
    ("small_block_by_a_byte", SUCCEEDS, STOPPED),
    ("small_block_by_32_bytes", SUCCEEDS, STOPPED),
    ("small_block_by_a_mib", SUCCEEDS, STOPPED),
    ("medium_block_by_a_byte", SUCCEEDS, STOPPED),
    ("medium_block_by_32_bytes", SUCCEEDS, STOPPED),
    ("medium_block_by_a_mib", SUCCEEDS, FOILED),
    ("large_block_by_a_byte", SUCCEEDS, STOPPED),
    ("large_block_by_32_bytes", SUCCEEDS, STOPPED),
    ("large_block_by_a_mib", SUCCEEDS, STOPPED),
    ("size_of_the_next_block", HARMLESS, HARMLESS),
    ("read_after_free", SUCCEEDS, HARMLESS),
    ("write_after_free", SUCCEEDS, HARMLESS),
    ("read_before_write", SUCCEEDS, HARMLESS),
    ("address_in_a_new_block", HARMLESS, HARMLESS),
    ("type_by_reuse", SUCCEEDS, HARMLESS),
    ("free_of_another_size", STOPPED, STOPPED),
    ("delete_of_another_size", STOPPED, STOPPED),
    ("guess_of_the_next_block", SUCCEEDS, HARMLESS),
    ("overflow_into_metadata", STOPPED, FOILED),
    ("free_in_a_forked_child", HARMLESS, HARMLESS),
    ("double_free_of_a_wiped_block", STOPPED, STOPPED),
    ("double_free_of_a_wiped_block_by_two_threads", STOPPED, FOILED),
    ("write_to_the_head_of_a_free_block", SUCCEEDS, FOILED),
    ("overflow_among_larger_blocks", SUCCEEDS, FOILED),
    ("order_of_reuse", SUCCEEDS, HARMLESS),
    ("type_by_reuse_among_tokens", SUCCEEDS, HARMLESS),
    ("free_of_new", HARMLESS, HARMLESS),
];

fn end_of(outcome: &Outcome) -> &str {
    match outcome.signal() {
        Some(libc::SIGABRT) => STOPPED,
        Some(_) => "crashes",
        None => outcome.stdout.as_str(),
    }
}

#[test]
fn each_attack_ends_as_it_is_told() {
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        let Some(program) = Program::build("attacks.c", loading) else { continue };
        for (attack, default, hardened) in ATTACKS {
            let end = if cfg!(feature = "hardened") { hardened } else { default };
            let outcome = program.run(&[attack]);
            let what = format!("{attack}, {loading:?}: {}\n{}", outcome.status, outcome.stderr);
            // A static program without C++ has no operators.
            let is_there = !attack.starts_with("delete") || loading != Loading::Static;
            let is_as_told = match end {
                FOILED => end_of(&outcome) != SUCCEEDS,
                end => end_of(&outcome) == end,
            };
            assert!(is_as_told || !is_there, "{what}{}", outcome.stdout);
            if end_of(&outcome) == STOPPED {
                assert_eq!(outcome.stderr.lines().count(), 1, "one line is promised: {what}");
                assert!(outcome.stderr.starts_with("cairn: "), "{what}");
            }
        }
    }
}

#[test]
#[ignore = "a table, for comparison: cargo test -p cairn-c --test attacks -- --ignored --nocapture"]
fn table() {
    let with = Program::build("attacks.c", Loading::Preloaded).expect("a program");
    let without = Program::build("attacks.c", Loading::Absent).expect("a program");
    println!("| attack | with the library | the C library |");
    for (attack, ..) in ATTACKS {
        let [with, without] = [&with, &without].map(|program| program.run(&[attack]));
        println!("| {attack} | {} | {} |", end_of(&with), end_of(&without));
    }
}
