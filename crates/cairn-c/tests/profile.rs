//! The heap profile: what the environment asks for and what the calls give, compared with what the program has done.

mod common;

use common::{EVERYWHERE, Loading, Program, run, scratch_dir, skip_for_stand_in};
use std::fs;
use std::path::{Path, PathBuf};

const RATE: f64 = (64 << 10) as f64;

/// A folder with nothing in it.
fn empty_folder(name: &str) -> PathBuf {
    let folder = scratch_dir().join(format!("profile-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a folder");
    folder
}

/// A line of a profile: its numbers, and where it was allocated.
struct Site {
    numbers: Vec<f64>,
    calls: Vec<usize>,
}

fn sites(text: &str) -> Vec<Site> {
    assert!(text.contains("\ndropped 0\n") && text.ends_with("end\n"), "{text}");
    let site = |line: &str| {
        let words: Vec<_> = line.strip_prefix("site ")?.split(' ').collect();
        let (numbers, calls) = words.split_at(6);
        let call = |word: &&str| usize::from_str_radix(word, 16).expect("an address");
        let number = |word: &&str| word.parse().expect("a number");
        Some(Site {
            numbers: numbers.iter().map(number).collect(),
            calls: calls.iter().map(call).collect(),
        })
    };
    text.lines().filter_map(site).collect()
}

/// A function as the program says it: its name, where it is, blocks allocated and live.
fn functions(said: &str) -> Vec<(&str, usize, [f64; 2])> {
    let function = |line: &'_ str| -> Option<_> {
        let mut words = line.split(' ');
        let (name, at) = (line.split(' ').next()?, words.nth(1)?.strip_prefix("0x")?);
        let at = usize::from_str_radix(at, 16).ok()?;
        let mut count = || words.next()?.parse().ok();
        Some((at, [count()?, count()?], name.len()))
    };
    let found = said.lines().filter_map(|line| Some((line, function(line)?)));
    found.map(|(line, (at, counts, length))| (&line[..length], at, counts)).collect()
}

/// Compares them: within what chance allows in one of 10 million.
fn compare(said: &str, text: &str, what: &str) {
    let (functions, sites) = (functions(said), sites(text));
    assert!(!functions.is_empty(), "{what}");
    // In a static program cairn's own functions are in front.
    let function_of = |site: &Site| {
        site.calls.iter().find_map(|call| {
            let before = functions.iter().filter(|(_, start, _)| start <= call);
            let (_, start, _) = before.max_by_key(|(_, start, _)| start)?;
            (call - start < 64).then_some(*start)
        })
    };
    for &(name, start, counts) in functions.iter().filter(|(_, _, counts)| counts[0] >= 0.0) {
        let is_its = |site: &&Site| function_of(site) == Some(start);
        let (mut estimates, mut variances) = ([0.0; 2], [0.0; 2]);
        for site in sites.iter().filter(is_its) {
            let [weighed, rate, allocated, _, freed, _] = site.numbers[..] else {
                panic!("{what}")
            };
            assert_eq!(rate, RATE);
            let chance = 1.0 - (-weighed / rate).exp();
            for (at, samples) in [allocated, allocated - freed].into_iter().enumerate() {
                estimates[at] += samples / chance;
                variances[at] = counts[at] * (1.0 - chance) / chance;
            }
        }
        for at in 0..2 {
            let off = (estimates[at] - counts[at]).abs();
            let (estimate, count) = (estimates[at], counts[at]);
            assert!(off <= 5.4 * variances[at].sqrt(), "{name}: {estimate}, not {count}; {what}");
        }
    }
}

fn profiled(program: &Program, case: &str, path: &Path) -> std::process::Command {
    let mut command = program.command(&[case]);
    command.env("CAIRN_PROFILE", path).env("CAIRN_PROFILE_RATE", "64KiB");
    command
}

#[test]
#[cfg(target_arch = "x86_64")]
fn it_names_who_has_allocated() {
    if skip_for_stand_in() {
        return;
    }
    let folder = empty_folder("named");
    let path = folder.join("profile");
    for loading in EVERYWHERE {
        let Some(program) = Program::build("profile.c", loading) else { continue };
        let outcome = run(profiled(&program, "allocates", &path));
        outcome.assert_quiet_success(&format!("{loading:?}"));
        let text = fs::read_to_string(&path).expect("a profile");
        compare(&outcome.stdout, &text, &format!("{loading:?}"));
        fs::remove_file(&path).expect("it is there");
    }
    fs::remove_dir(folder).expect("it is empty");
}

/// The system tells nothing of a process by its own number when its first thread has ended.
#[test]
fn the_first_thread_may_end_before_others() {
    if skip_for_stand_in() {
        return;
    }
    let folder = empty_folder("leaves");
    let path = folder.join("profile");
    let Some(program) = Program::build("profile.c", Loading::Preloaded) else { return };
    run(profiled(&program, "main_thread_leaves", &path)).assert_quiet_success("it leaves");
    let text = fs::read_to_string(&path).expect("a profile");
    let [mappings, builds] =
        ["\nmappings\n", "\nbuilds\n"].map(|part| text.find(part).expect(part));
    assert!(text[mappings..builds].contains("profile-c"), "{}", &text[mappings..]);
    assert!(text[builds..].lines().count() > 3, "{}", &text[builds..]);
    fs::remove_dir_all(folder).expect("it is there");
}

/// A forked child has what was live, and frees it; whoever execs begins anew. None writes another's file.
#[test]
fn each_process_writes_a_file_of_its_own() {
    if skip_for_stand_in() {
        return;
    }
    let folder = empty_folder("forks");
    let Some(program) = Program::build("profile.c", Loading::Preloaded) else { return };
    let outcome = run(profiled(&program, "forks", &folder.join("profile")));
    outcome.assert_quiet_success("forks");
    let files = fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file"));
    let mut names: Vec<_> =
        files.map(|file| file.file_name().into_string().expect("text")).collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    let text = |name: &String| fs::read_to_string(folder.join(name)).expect("a profile");
    #[cfg(target_arch = "x86_64")]
    compare(&outcome.stdout, &text(&names[0]), "the parent");
    let live = |text: &str| {
        let live = |site: &Site| site.numbers[2] - site.numbers[4];
        let of_100 = |site: &Site| site.numbers[0] == 112.0;
        sites(text).iter().filter(|site| of_100(site)).map(live).sum::<f64>()
    };
    assert!(names[1..].iter().all(|name| live(&text(name)) == 0.0), "what a child has freed");
    fs::remove_dir_all(folder).expect("it is there");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_gets_it_by_calls() {
    if skip_for_stand_in() {
        return;
    }
    for loading in [Loading::Linked, Loading::Static] {
        let Some(program) = Program::build("profile.c", loading) else { continue };
        let outcome = program.run(&["calls"]);
        outcome.assert_quiet_success(&format!("{loading:?}"));
        let (said, text) = outcome.stdout.split_once("cairn heap profile 2\n").expect("a profile");
        compare(said, text, &format!("{loading:?}"));
    }
}

/// A function that changes stacks by itself has rules that lead beyond the end of the new one, where another thread's memory
/// comes and goes.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_lies_behind_a_stack_may_go() {
    if skip_for_stand_in() {
        return;
    }
    let Some(program) = Program::build("profile.c", Loading::Linked) else { return };
    program.run(&["neighbours_go"]).assert_quiet_success("neighbours go");
}

#[test]
fn a_file_that_cannot_be_made_is_told_of() {
    if skip_for_stand_in() {
        return;
    }
    let Some(program) = Program::build("profile.c", Loading::Preloaded) else { return };
    let outcome = run(profiled(&program, "nothing", Path::new("/absent/profile")));
    outcome.assert_success("nothing");
    assert_eq!(outcome.stderr, "cairn: CAIRN_PROFILE: cannot write to /absent/profile\n");
}
