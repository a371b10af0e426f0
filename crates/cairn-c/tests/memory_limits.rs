//! Limits of the process's memory: by the environment, by call, and those of memory cgroups.

mod common;

use common::group::Group;
use common::{EVERYWHERE, Outcome, Program, run, skip_for_stand_in, skipped};

const MIB: usize = 1 << 20;

/// Runs a case in all loadings with these variables.
fn in_environment(source: &str, case: &str, settings: &[(&str, &str)], check: fn(&Outcome, &str)) {
    if skip_for_stand_in() {
        return;
    }
    // A static program of C++ has its exceptions elsewhere, and one of C cannot end a thread.
    let unwinds = source.ends_with(".cpp") || case == "ends_inside";
    let loadings = if unwinds { &EVERYWHERE[..2] } else { &EVERYWHERE };
    for &loading in loadings {
        let Some(program) = Program::build(source, loading) else { continue };
        let mut command = program.command(&[case]);
        command.envs(settings.iter().copied());
        check(&run(command), &format!("{case} {settings:?}, {loading:?}"));
    }
}

const LIMIT: [(&str, &str); 1] = [("CAIRN_MEMORY_LIMIT", "64M")];

#[test]
fn allocations_fail_at_the_hard_limit() {
    in_environment("memory_limits.c", "stops", &LIMIT, Outcome::assert_quiet_success);
}

#[test]
fn what_cannot_be_had_is_refused_at_once() {
    let limit = [("CAIRN_MEMORY_LIMIT", "4G")];
    in_environment("memory_limits.c", "refuses", &limit, Outcome::assert_quiet_success);
}

#[test]
fn a_forked_child_has_the_limit_too() {
    in_environment("memory_limits.c", "child_stops", &LIMIT, Outcome::assert_quiet_success);
}

#[test]
fn operator_new_fails_as_ever() {
    in_environment("memory_limits_new.cpp", "throws", &LIMIT, Outcome::assert_quiet_success);
}

#[test]
fn programs_set_limits_and_are_told() {
    in_environment("memory_limits.c", "calls", &[], Outcome::assert_quiet_success);
}

#[test]
fn a_thread_may_end_in_the_programs_function() {
    in_environment("memory_limits.c", "ends_inside", &[], Outcome::assert_quiet_success);
}

#[test]
fn they_are_shown() {
    let settings = [
        ("CAIRN_MEMORY_LIMIT", "2G"),
        ("CAIRN_MEMORY_SOFT_LIMIT", "1536MiB"),
        ("CAIRN_SHOW_CONFIG", "1"),
        ("CAIRN_STATS", "1"),
    ];
    in_environment("nothing.c", "", &settings, |outcome, what| {
        outcome.assert_success(what);
        for said in ["CAIRN_MEMORY_LIMIT=2147483648", "2.0 GiB  hard, 1.5 GiB soft"] {
            assert!(outcome.stderr.contains(said), "{what}: {}", outcome.stderr);
        }
    });
    let settings = [("CAIRN_MEMORY_SOFT_LIMIT", "2G"), ("CAIRN_MEMORY_LIMIT", "1G")];
    in_environment("nothing.c", "", &settings, |outcome, what| {
        let said = "CAIRN_MEMORY_SOFT_LIMIT: it is more than CAIRN_MEMORY_LIMIT";
        assert!(outcome.status.success() && outcome.stderr.contains(said), "{what}");
    });
}

/// 50 MiB are in use, and as much is freed and taken again elsewhere: without limits 97 MiB are resident, and the process is
/// ended. The limit is its own group's, or that of the one around it.
#[test]
fn a_process_lives_in_a_small_group() {
    // Hardened, what is in use takes 9 MiB more.
    const LIMIT: usize = if cfg!(feature = "hardened") { 86 * MIB } else { 72 * MIB };
    if skip_for_stand_in() {
        return;
    }
    for loading in EVERYWHERE {
        for (nth, limits) in [[LIMIT, LIMIT], [1 << 30, LIMIT]].into_iter().enumerate() {
            let Some(group) = Group::new(&format!("lives-{nth}-{loading:?}")) else {
                assert!(skipped("no memory cgroup can be made"));
                return;
            };
            group.limit(&group.outer, limits[nth]);
            group.limit(&group.inner, limits[0].min(limits[1]));
            let Some(program) = Program::build("memory_limits.c", loading) else { continue };
            let mut command = program.command(&["lives", "50"]);
            group.put(&mut command);
            run(command).assert_quiet_success(&format!("{limits:?}, {loading:?}"));
        }
    }
}

/// As in a sandbox that refuses to say anything of groups, or where nobody shall be asked.
#[test]
fn it_works_without_asking() {
    let settings = [("CAIRN_MEMORY_SOFT_LIMIT", "never")];
    in_environment("memory_limits.c", "lives", &settings, Outcome::assert_quiet_success);
}
