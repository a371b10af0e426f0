//! `cairn top`: programs on cairn are seen as they run, on a terminal and through a pipe; the terminal is given back as
//! it was; what cannot be read is said.

mod common;

use common::inspected::{Running, assert_near, compiled, number, start};
use common::terminal::{Terminal, is_marked, line_of, pair};
use common::{Home, NOBODY, assert_refused, assert_succeeded, display, is_root, skipped, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// So many blocks of 1,000 bytes, and as many more each time that a line is read.
const HOLDS: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    char line[10];
    do {
        for (int i = 0; i < atoi(argv[1]); i++) memset(malloc(1000), 1, 1000);
        puts(\"ready\");
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin));
}
";

fn holding(home: &Home, program: &Path, build: &[&str], blocks: &str) -> Running {
    start(home.cairn().arg("run").args(build).arg(program).arg(blocks))
}

fn pid(process: &Running) -> u32 {
    process.0.id()
}

fn once(home: &Home, pids: &[u32]) -> Value {
    let mut command = home.cairn();
    command.args(["top", "--once", "--json"]).args(pids.iter().map(u32::to_string));
    let output = command.output().unwrap();
    assert_succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn process(seen: &Value, pid: u32) -> &Value {
    let all = seen["processes"].as_array().unwrap();
    all.iter().find(|process| process["pid"] == pid).unwrap_or_else(|| panic!("no {pid}: {seen}"))
}

/// The part of a process that is a size class.
fn part(process: &Value, size: u64) -> &Value {
    process["parts"].as_array().unwrap().iter().find(|part| part["size"] == size).unwrap()
}

#[test]
fn every_process_on_cairn_is_seen() {
    let home = Home::new();
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let processes = [(&[][..], "20000"), (&["--hardened"], "10000")]
        .map(|(build, blocks)| (holding(&home, &program, build, blocks), blocks));
    let seen = once(&home, &[]);
    for (running, blocks) in &processes {
        let known = process(&seen, pid(running));
        let live = blocks.parse::<u64>().unwrap() * 1024;
        assert_near(number(&known["heap"]["live"]), live, 2);
        assert_near(number(&known["heap"]["resident"]), live, 10);
        let parts = known["parts"].as_array().unwrap();
        for figure in ["live", "cached", "free", "holes", "returned", "resident", "waste"] {
            let sum: u64 = parts.iter().map(|part| number(&part[figure])).sum();
            assert_eq!(sum, number(&known["heap"][figure]), "{figure}");
        }
        let class = part(known, 1024);
        assert_near(number(&class["blocks"]), live / 1024, 2);
        assert!(known["live_per_second"].is_null(), "one look has no rate");
        assert!(known["allocated"].is_null(), "it has no heap profile");
    }
    let hardened =
        processes.each_ref().map(|(running, _)| &process(&seen, pid(running))["hardened"]);
    assert_eq!(hardened, [&Value::Bool(false), &Value::Bool(true)]);
}

#[test]
fn what_is_linked_statically_is_seen() {
    let home = Home::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/lib/libcairn.a");
    if !archive.is_file() {
        return skipped("no libcairn.a; `cargo xtask library` builds it");
    }
    let Some(program) = compiled(&home, HOLDS, &["-static", display(&archive)]) else { return };
    let running = start(Command::new(program).arg("5000"));
    let seen = once(&home, &[]);
    assert_near(number(&process(&seen, pid(&running))["heap"]["live"]), 5000 << 10, 2);
}

/// A pipe gets a table at each interval, with rates from the second on.
#[test]
fn a_pipe_gets_tables() {
    let home = Home::new();
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let mut running = holding(&home, &program, &[], "3000");
    let mut command = home.cairn();
    command.args(["top", "--json", "--interval", "0.2", &pid(&running).to_string()]);
    let mut top = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    std::io::Write::write_all(running.0.stdin.as_mut().unwrap(), b"\n").unwrap();
    let grows = (0..50).map(|_| next()).find(|seen| {
        seen["processes"][0]["live_per_second"].as_f64().is_some_and(|rate| rate > 100_000.0)
    });
    let live = |seen: &Value| number(&seen["processes"][0]["heap"]["live"]);
    let grows = grows.unwrap();
    assert!(live(&grows) > live(&first));
    // So it does in the size class.
    let class = part(&grows["processes"][0], 1024);
    assert!(class["live_per_second"].as_f64().unwrap() > 100_000.0, "{class}");
    assert!(class["resident_per_second"].as_f64().unwrap() > 100_000.0, "{class}");
    assert!(class["allocated_per_second"].is_null(), "it has no heap profile");
    assert!(part(&first["processes"][0], 1024)["live_per_second"].is_null());
    drop(top);
    let top = |arguments: &[&str]| {
        let output = home.cairn().arg("top").args(arguments).output().unwrap();
        assert_succeeded(&output);
        text(&output.stdout)
    };
    let all = top(&["--once"]);
    assert!(all.starts_with("    PID PROGRAM"), "{all}");
    assert!(all.lines().any(|line| line.trim().starts_with(&pid(&running).to_string())), "{all}");
    let one = top(&["--once", &pid(&running).to_string()]);
    assert!(one.starts_with("BLOCKS OF") && one.contains("\n1024 bytes"), "{one}");
    let number = pid(&running);
    assert_eq!(once(&home, &[number, number])["processes"].as_array().unwrap().len(), 1);
    let twice = top(&["--once", &number.to_string(), &number.to_string()]);
    assert!(twice.starts_with("BLOCKS OF"), "{twice}");
}

/// What is allocated and freed at once grows nothing. A heap profile counts it.
#[test]
fn what_is_allocated_in_a_second_is_seen() {
    let home = Home::new();
    let Some(program) = compiled(&home, TURNS_OVER, &[]) else { return };
    let profile = home.path().join("profile");
    let options = ["--profile", display(&profile), "--profile-rate", "64KiB"];
    let running = start(home.cairn().arg("run").args(options).arg(program));
    let mut command = home.cairn();
    command.args(["top", "--json", "--interval", "0.5", &pid(&running).to_string()]);
    let mut top = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let seen = lines.take(20).map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let rate = |of: &Value| of["allocated_per_second"].as_f64();
    // It does what it can of 20 MiB a second, all of it of one size.
    let rates = seen.filter_map(|seen| {
        let process = &seen["processes"][0];
        Some((rate(process)?, rate(part(process, 1024))?))
    });
    let rates: Vec<_> = rates.take(4).collect();
    let mean = rates.iter().map(|rates| rates.0).sum::<f64>() / rates.len() as f64;
    assert!((2e6..3e7).contains(&mean), "{rates:?}");
    assert!(rates.iter().all(|(all, class)| *class <= *all && *class > 0.95 * all), "{rates:?}");
}

const TURNS_OVER: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
    puts(\"ready\");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 200; i++) free(malloc(1000));
        usleep(10000);
    }
}
";

/// What can be done on a terminal.
#[test]
fn a_terminal_shows_what_is_chosen() {
    let home = Home::new();
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let mut all = ["9000", "6000", "3000"].map(|blocks| holding(&home, &program, &[], blocks));
    let [large, middle, small] = all.each_ref().map(pid);
    let mut command = home.cairn();
    command.args(["top", "-i", "0.2"]).args(all.iter().map(|one| pid(one).to_string()));
    let mut terminal = Terminal::start(&mut command, 24, 100);
    let in_order = |order: [u32; 3]| {
        move |screen: &vt100::Screen| {
            let lines = order.map(|pid| line_of(screen, pid));
            lines[0].is_some() && lines[0] < lines[1] && lines[1] < lines[2]
        }
    };
    let chosen = |pid: u32| {
        move |screen: &vt100::Screen| {
            line_of(screen, pid).is_some_and(|line| is_marked(screen, line, &pid.to_string()))
        }
    };
    terminal.wait("by what is resident", in_order([large, middle, small]));
    terminal.wait("the first is chosen", chosen(large));
    terminal.press("\x1b[B");
    terminal.wait("the second is chosen", chosen(middle));
    // It stays chosen wherever it goes.
    terminal.press("\x1b[Bi");
    terminal.wait("the other way round", in_order([small, middle, large]));
    terminal.wait("the smallest is chosen", chosen(small));
    terminal.press("\x1b[D\x1b[D");
    terminal.wait("by number", |screen| is_marked(screen, 1, "PID"));
    let mut numbers = [large, middle, small];
    numbers.sort_unstable_by(|one, other| other.cmp(one));
    terminal.wait("by number, the largest first", in_order(numbers));
    terminal.wait("it stays chosen", chosen(small));
    // In, and out again.
    terminal.press("\r");
    terminal.wait_for(&format!("process {small}"));
    terminal.wait_for("1024 bytes");
    terminal.press("\x1b[C\x1b[C");
    terminal.wait("a column further", |screen| is_marked(screen, 1, "WASTE"));
    terminal.press("\x1b");
    terminal.wait("out again", chosen(small));
    // One that ends is gone, and that is said.
    drop(std::mem::replace(&mut all[0], holding(&home, &program, &[], "1")));
    terminal.wait("gone", |screen| line_of(screen, large).is_none());
    terminal.wait_for(&format!("process {large} has ended"));
    // However narrow it is, the column that is chosen is there. A key at the very moment of the signal would wait for the
    // next one, in crossterm.
    terminal.press("\x1b[C\x1b[C\x1b[C\x1b[C");
    terminal.wait("a wide one", |screen| is_marked(screen, 1, "WASTE"));
    terminal.resize(10, 42);
    terminal.wait("a narrow terminal", |screen| is_marked(screen, 1, "WASTE"));
    terminal.resize(3, 10);
    terminal.wait("a tiny one", |screen| screen.contents().ends_with("Up Down se"));
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
}

/// One process is shown by size class from the start, and when it ends, that is said.
#[test]
fn one_process_is_looked_into() {
    let home = Home::new();
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let running = holding(&home, &program, &[], "3000");
    let mut command = home.cairn();
    command.args(["top", "-i", "0.2", &pid(&running).to_string()]);
    let mut terminal = Terminal::start(&mut command, 24, 100);
    terminal.wait_for("1024 bytes");
    let number = pid(&running);
    drop(running);
    terminal.wait_for("The process has ended");
    terminal.press("\x1b");
    terminal.wait_for("PROGRAM");
    terminal.wait_for(&format!("process {number} has ended"));
    terminal.press("\x03");
    assert_eq!(terminal.end().code(), Some(0));
}

/// A signal ends it as it ends others, and the terminal is given back first.
#[test]
fn a_signal_leaves_no_garbage() {
    let home = Home::new();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut terminal = Terminal::start(home.cairn().arg("top"), 24, 100);
        terminal.wait_for("PROGRAM");
        let pid = rustix::process::Pid::from_child(&terminal.running.0);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(terminal.end().signal(), Some(signal.as_raw()));
    }
}

/// A terminal that goes without a signal, as one does that is no session's, ends it, too.
#[test]
fn it_ends_with_its_terminal() {
    let home = Home::new();
    let (far, near) = pair();
    let mut command = home.cairn();
    command.arg("top").env("TERM", "xterm");
    command.stdin(near().unwrap()).stdout(near().unwrap()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    drop(command);
    // It has begun.
    assert!(rustix::io::read(&far, &mut [0; 100]).unwrap() > 0);
    drop(far);
    let begin = Instant::now();
    while running.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ctrl-Z gives the terminal back to the shell, and what goes on takes it again.
#[test]
fn it_can_be_put_aside() {
    let home = Home::new();
    let cairn = home.cairn();
    let mut shell = Command::new("sh");
    shell.args(["-c", "set -m; \"$0\" top; echo put aside; read line; fg; exit 3"]);
    shell.arg(cairn.get_program()).env("HOME", home.path());
    let mut terminal = Terminal::start(&mut shell, 24, 100);
    terminal.wait_for("PROGRAM");
    terminal.press("\x1a");
    terminal.wait_for("put aside");
    terminal.wait("the first screen", |screen| !screen.alternate_screen());
    terminal.press("\r");
    terminal.wait("taken again", vt100::Screen::alternate_screen);
    terminal.wait_for("PROGRAM");
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(3));
}

#[test]
fn the_guide_names_each_field() {
    let home = Home::new();
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let running = holding(&home, &program, &[], "1");
    let seen = once(&home, &[pid(&running)]);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/inspect.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let one = &seen["processes"][0];
    for object in [&seen, one, &one["heap"], &one["parts"][0]] {
        for field in object.as_object().unwrap().keys() {
            assert!(guide.contains(&format!("`{field}`")), "{field}");
        }
    }
}

#[test]
fn what_cannot_be_seen_is_said() {
    let home = Home::new();
    let top = |arguments: &[&str]| home.cairn().arg("top").args(arguments).output().unwrap();
    let other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(100));
    let number = pid(&other).to_string();
    assert_refused(&top(&["--once", &number]), 125, &["sleep: no cairn in it"]);
    drop(other);
    assert_refused(&top(&["--once", &number]), 125, &["no process", &number]);
    let refused = top(&["--interval", "0"]);
    assert!(text(&refused.stderr).contains("from 0.1 to 3600"), "{refused:?}");
    // There is no second look.
    assert_eq!(top(&["--once", "--interval", "2"]).status.code(), Some(125));
    let help = top(&["--help"]);
    assert!(text(&help.stdout).contains("Examples:"));
    if !is_root() {
        return skipped("only root can become another user");
    }
    let Some(program) = compiled(&home, HOLDS, &[]) else { return };
    let running = holding(&home, &program, &[], "1");
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let cairn = home.file("cairn", 0o755, &std::fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
    let as_nobody = |arguments: &[&str]| {
        Command::new(&cairn).arg("top").args(arguments).uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let all = as_nobody(&["--once"]);
    assert_succeeded(&all);
    assert!(text(&all.stdout).contains("processes may not be read: "), "{all:?}");
    let one = as_nobody(&["--once", &pid(&running).to_string()]);
    assert_refused(&one, 125, &["program: not permitted: ", "CAP_SYS_PTRACE"]);
    let mut as_root = Command::new("setpriv");
    as_root.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]).arg(&cairn);
    let without = as_root.args(["top", "--once", &pid(&running).to_string()]).output();
    match without {
        Ok(output) => {
            assert_refused(&output, 125, &["--cap-add SYS_PTRACE"]);
            assert!(!text(&output.stderr).contains("sudo"), "{output:?}");
        }
        Err(_) => skipped("no setpriv"),
    }
    // Many have the same reason.
    let others = [(); 6].map(|()| holding(&home, &program, &[], "1"));
    let many: Vec<_> = others.iter().map(|other| pid(other).to_string()).collect();
    let many: Vec<_> = ["--once"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_refused(&as_nobody(&many), 125, &[" and 1 more: not permitted: "]);
}
