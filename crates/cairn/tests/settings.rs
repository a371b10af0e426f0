//! What a Rust program sets: a constant, and what the environment says.

use cairn::Settings;
use std::path::PathBuf;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: cairn::Cairn = cairn::Cairn;

const OWN: Settings = Settings { purge_delay_ms: 1000, huge_pages: false, ..Settings::DEFAULT };

/// What `work` says, in a process of its own with these variables.
fn said(variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    // A program of another machine starts by way of its simulator.
    let simulator = std::env::var("CAIRN_TEST_SIMULATOR").unwrap_or_default();
    let mut words = simulator.split_whitespace().map(PathBuf::from).chain([program]);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).args(["--ignored", "--exact", "work", "--nocapture"]).env_clear();
    let output = command.envs(variables.iter().copied()).output().expect("it starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "a process of its own"]
fn work() {
    let settings = match std::env::var("TEST_PREFIX") {
        Ok(prefix) => OWN.with_prefix(prefix.leak()),
        Err(_) => OWN.with_environment(),
    };
    match settings {
        Ok(settings) => {
            let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
            let before = threads();
            println!("{settings:?} {}", settings.apply());
            assert_eq!(cairn::purge_delay_ms(), settings.purge_delay_ms);
            println!("{}", if threads() > before { "a thread" } else { "no thread" });
        }
        Err(bad) => println!("{bad}"),
    }
}

#[test]
fn the_constant_is_what_nobody_overrides() {
    let text = said(&[]);
    assert!(
        text.contains("huge_pages: false, purge_delay_ms: 1000, purge_thread: false"),
        "{text}"
    );
    assert!(text.contains("guards: 0 } true") && text.contains("no thread"), "{text}");
}

#[test]
fn the_environment_overrides() {
    let variables =
        [("CAIRN_PURGE_DELAY", "2s"), ("CAIRN_PURGE_THREAD", "1"), ("CAIRN_GUARDS", "4MiB")];
    let text = said(&variables);
    assert!(text.contains("huge_pages: false, purge_delay_ms: 2000, purge_thread: true"), "{text}");
    assert!(text.contains("guards: 4194304 } true") && text.contains("a thread"), "{text}");
}

#[test]
fn what_cannot_be_read_is_named() {
    for (name, value) in [
        ("CAIRN_PURGE_DELAY", "5"),
        ("CAIRN_GUARDS", "10 MB"),
        ("CAIRN_HUGE_PAGES", "yes"),
        ("CAIRN_PURGE_DELAY", "99999999999999999999s"),
    ] {
        let text = said(&[(name, value)]);
        assert!(text.contains(&format!("{name}: the value cannot be read; it is ")), "{text}");
    }
}

#[test]
fn a_prefix_takes_the_place_of_cairns() {
    fn with(prefix: &str, variables: &[(&str, &str)]) -> String {
        said(&[&[("TEST_PREFIX", prefix)], variables].concat())
    }
    let hosts = ("CAIRN_PURGE_DELAY", "5");
    let text = with("APP_CAIRN_", &[hosts, ("APP_CAIRN_PURGE_DELAY", "2s")]);
    assert!(text.contains("purge_delay_ms: 2000"), "{text}");
    let text = with("APP_CAIRN_", &[hosts, ("APP_CAIRN_GUARDS", "x")]);
    assert!(text.contains("APP_CAIRN_GUARDS: the value cannot be read; it is "), "{text}");
    for none in ["", &*"A".repeat(33), &*"A".repeat(100)] {
        let name = format!("{none}PURGE_DELAY");
        let text = with(none, &[hosts, (&*name, "2s")]);
        assert!(text.contains("purge_delay_ms: 1000"), "{none}: {text}");
    }
}
