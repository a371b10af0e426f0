//! What becomes of mistakes that are made into attacks: what the default build stops, and what it does not.
//! With a library of others, `cargo test -p cairn-c --test attacks -- --ignored --nocapture` tells what that
//! does.

mod common;

use common::{EVERYWHERE, Loading, Outcome, Program, skip_for_stand_in};

/// The process says what is wrong and ends.
const STOPPED: &str = "stopped";
/// The attack has come to nothing, and nobody has noticed.
const HARMLESS: &str = "harmless";
/// The attacker has what was wanted.
const SUCCEEDS: &str = "succeeds";

/// Each attack, and its end with the default build.
const ATTACKS: [(&str, &str); 34] = [
    ("link_to_a_place", STOPPED),
    ("link_of_another_block", STOPPED),
    ("link_in_part", STOPPED),
    ("link_to_null", STOPPED),
    ("double_free_at_once", STOPPED),
    ("double_free_around_another", STOPPED),
    ("double_free_of_many", STOPPED),
    ("double_free_by_two_threads", STOPPED),
    ("double_free_large", STOPPED),
    ("double_free_by_realloc", STOPPED),
    ("double_free_of_a_new_owners_block", SUCCEEDS),
    ("fake_block_on_the_stack", STOPPED),
    ("fake_block_in_a_block", STOPPED),
    ("fake_span", STOPPED),
    ("never_allocated", STOPPED),
    ("one_byte_beyond", SUCCEEDS),
    ("size_of_the_next_block", HARMLESS),
    ("read_after_free", SUCCEEDS),
    ("write_after_free", SUCCEEDS),
    ("read_before_write", SUCCEEDS),
    ("address_in_a_new_block", HARMLESS),
    ("type_by_reuse", SUCCEEDS),
    ("free_of_another_size", STOPPED),
    ("delete_of_another_size", STOPPED),
    ("guess_of_the_next_block", SUCCEEDS),
    ("overflow_into_metadata", STOPPED),
    ("free_in_a_forked_child", HARMLESS),
    ("double_free_of_a_wiped_block", SUCCEEDS),
    ("double_free_of_a_wiped_block_by_two_threads", SUCCEEDS),
    ("write_to_the_head_of_a_free_block", SUCCEEDS),
    ("overflow_among_larger_blocks", SUCCEEDS),
    ("order_of_reuse", SUCCEEDS),
    ("type_by_reuse_among_tokens", SUCCEEDS),
    ("free_of_new", HARMLESS),
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
        for (attack, end) in ATTACKS {
            let outcome = program.run(&[attack]);
            let what = format!("{attack}, {loading:?}: {}\n{}", outcome.status, outcome.stderr);
            // A static program without C++ has no operators.
            let is_there = !attack.starts_with("delete") || loading != Loading::Static;
            assert!(end_of(&outcome) == end || !is_there, "{what}{}", outcome.stdout);
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
    for (attack, _) in ATTACKS {
        let [with, without] = [&with, &without].map(|program| program.run(&[attack]));
        println!("| {attack} | {} | {} |", end_of(&with), end_of(&without));
    }
}
