//! Allocation tokens: the functions that clang calls under `-fsanitize=alloc-token`, by direct calls.

mod common;

use common::{Loading, passes_in, skip_for_stand_in};

/// A program that calls them names the library when it is linked.
const LINKED: [Loading; 3] = [Loading::Linked, Loading::Static, Loading::StaticPie];

fn pass(source: &str, cases: &[&str]) {
    for case in cases.iter().filter(|_| !skip_for_stand_in()) {
        passes_in(&LINKED, source, &[case]);
    }
}

#[test]
fn the_family_does_what_the_plain_functions_do() {
    let cases = ["every_function", "calloc_gives_zeros", "errors_are_the_plain_ones"];
    pass("tokens.c", &cases);
    pass("tokens.c", &["realloc_keeps_contents", "own_interface"]);
}

#[test]
fn operator_new_does_what_the_plain_forms_do() {
    let cases = ["every_form", "without_handler", "the_handler_is_called_and_may_throw"];
    pass("tokens.cpp", &cases);
    pass("tokens.cpp", &["quiet_forms_call_the_handler"]);
}

/// The new-handler's next attempt, too.
#[test]
#[cfg(feature = "hardened")]
fn quiet_forms_stay_in_their_partition() {
    pass("tokens.cpp", &["quiet_forms_stay_in_their_partition"]);
}

/// What a program's own `delete` frees must come from its own `new`.
#[test]
fn a_program_that_replaces_operator_new_is_asked() {
    if !skip_for_stand_in() {
        passes_in(&[Loading::Linked], "replaced_new.cpp", &["tokens_follow"]);
    }
}
