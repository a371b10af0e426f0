//! What real-time programs ask: no page faults after the start. docs/guide/real-time.md

mod common;

use common::{EVERYWHERE, Program, is_root, passes, run, skip_for_stand_in, skipped};

/// What there may be of page faults, where there are 100,000 otherwise. Hardened, guard pages come and go with spans.
const FAULTS_MAX: &str = if cfg!(feature = "hardened") { "1000" } else { "20" };

/// Runs a case wherever the library is, with that purge delay if any.
fn has_few_faults(case: &str, delay: Option<&str>) {
    for loading in EVERYWHERE {
        let Some(program) = Program::build("real_time.c", loading) else { continue };
        let mut command = program.command(&[case]);
        command.env("TEST_FAULTS_MAX", FAULTS_MAX);
        delay.into_iter().for_each(|delay| _ = command.env("CAIRN_PURGE_DELAY", delay));
        run(command).assert_quiet_success(&format!("{case}, {loading:?}"));
    }
}

#[test]
fn what_mallopt_asks_for_is_done() {
    has_few_faults("by_mallopt", None);
}

#[test]
fn it_ends_when_the_program_says_so() {
    if !skip_for_stand_in() {
        passes("real_time.c", "ends");
    }
}

#[test]
fn locked_memory_stays() {
    if !is_root() && skipped("only root may lock this much") {
        return;
    }
    has_few_faults("locked", None);
    has_few_faults("locked_on_fault", None);
}

#[test]
fn the_setting_means_the_same() {
    if skip_for_stand_in() {
        return;
    }
    has_few_faults("by_setting", Some("never"));
    for loading in EVERYWHERE {
        let Some(program) = Program::build("real_time.c", loading) else { continue };
        let mut command = program.command(&["nothing"]);
        command.env("CAIRN_PURGE_DELAY", "never").env("CAIRN_SHOW_CONFIG", "1");
        assert!(run(command).stderr.contains("PURGE_DELAY=never\n"), "{loading:?}");
    }
}
