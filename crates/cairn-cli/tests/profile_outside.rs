//! `cairn profile` of a process that runs, and of a core file: nothing is prepared, and what was on before stays so.

mod common;

use cairn_sight::profile::{HeapProfile, View};
use common::core_file;
use common::inspected::{Running, compiled, start};
use common::{Home, assert_refused, assert_succeeded, display, text};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// It maps a file that its first argument names, and makes its second one its root.
const SOURCE: &[u8] = b"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
void *kept[1000];
__attribute__((noinline)) void *early(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
__attribute__((noinline)) void *keeps(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
__attribute__((noinline)) void *drops(void) { void *p = malloc(3000); __asm__(\"\" ::: \"memory\"); return p; }
int main(int argc, char **argv)
{
    if (argc > 1) {
        int file = open(argv[1], O_RDWR | O_CREAT, 0600);
        if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
    }
    if (argc > 2 && (chroot(argv[2]) || chdir(\"/\"))) return 1;
    for (int i = 0; i < 1000; i++) early();
    puts(\"ready\");
    fflush(stdout);
    for (int i = 0;; i = (i + 1) % 1000) {
        free(kept[i]);
        kept[i] = keeps();
        for (int n = 0; n < 10; n++) free(drops());
        if (i % 100 == 0) usleep(1000);
    }
}
";

/// It allocates while there is the file that its first argument names, and says when it begins to and when it stops. It samples
/// itself as soon as there is the one that its second argument names, and says so.
const BY_FILE: &[u8] = b"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void *kept[1000];
__attribute__((noinline)) void *keeps(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(int argc, char **argv)
{
    for (int i = 0, was_busy = 0;; i = (i + 1) % 1000) {
        if (argc > 2 && access(argv[2], F_OK) == 0) {
            int (*every)(size_t) = (int (*)(size_t))dlsym(RTLD_DEFAULT, \"cairn_profile_every\");
            puts(every && every(32 << 10) ? \"called\" : \"failed\");
            argc = 2;
        }
        int is_busy = access(argv[1], F_OK) == 0;
        if (is_busy != was_busy) puts(is_busy ? \"busy\" : \"idle\");
        fflush(stdout);
        was_busy = is_busy;
        if (is_busy) {
            free(kept[i]);
            kept[i] = keeps();
        } else {
            usleep(1000);
        }
    }
}
";

/// That program, on cairn, with an option of `cairn run` or none.
fn running(home: &Home, options: &[&str]) -> Option<Running> {
    running_with(home, options, &[])
}

/// The same with arguments.
fn running_with(home: &Home, options: &[&str], arguments: &[&OsStr]) -> Option<Running> {
    let program = compiled(home, SOURCE, &["-g", "-fno-omit-frame-pointer"])?;
    let mut command = home.cairn();
    command.current_dir(home.path()).arg("run").args(options);
    Some(start(command.args(["--", display(&program)]).args(arguments)))
}

fn profile(home: &Home, target: &str, options: &[&str]) -> Output {
    let mut command = home.cairn();
    command.current_dir(home.path()).args(["profile", target]).args(options).output().unwrap()
}

#[track_caller]
fn assert_is_profiled(home: &Home, process: &Running) -> Output {
    let pid = process.0.id().to_string();
    let mut output = profile(home, &pid, &["--seconds", "1", "--rate", "64KiB"]);
    // On a busy machine the program may hardly run in one second.
    for _ in 0..20 {
        assert_succeeded(&output);
        if text(&output.stdout).contains("keeps (program.c:") {
            break;
        }
        output = profile(home, &pid, &["--seconds", "1", "--rate", "64KiB"]);
    }
    let table = text(&output.stdout);
    assert!(table.contains("keeps (program.c:"), "{table}");
    output
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_is_sampled_for_a_while() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    let while_on = ["--seconds", "1", "--rate", "64KiB"];
    for _ in 0..2 {
        let output = profile(&home, &pid, &while_on);
        assert_succeeded(&output);
        let table = text(&output.stdout);
        assert!(table.contains("keeps (program.c:"), "{table}");
        assert!(table.contains("sampled for 1 s"), "{table}");
        // What was there before is not in it.
        assert!(!table.contains("early"), "{table}");
    }
    // It is off again.
    let before = text(&profile(&home, &pid, &["--seconds", "0", "--save", "one"]).stdout);
    assert_eq!(before, "");
    let all = [&while_on[..], &["--view", "allocated"]].concat();
    let table = text(&profile(&home, &pid, &all).stdout);
    assert!(table.contains("drops (program.c:"), "{table}");
    // What is saved says the same as what is read.
    let saved = [&while_on[..], &["--save", "saved"]].concat();
    assert_succeeded(&profile(&home, &pid, &saved));
    drop(process);
    let table = text(&profile(&home, "saved", &[]).stdout);
    assert!(table.contains("keeps (program.c:"), "{table}");
    assert!(text(&profile(&home, "saved", &["--view", "pinned"]).stdout).contains("keeps"));
}

/// In a container a process sees files that are not there outside.
#[test]
#[cfg(target_arch = "x86_64")]
fn files_are_found_as_the_process_sees_them() {
    if !common::is_root() {
        return common::skipped("only root makes a file system of its own for a process");
    }
    let home = Home::new();
    let Some(program) = compiled(&home, SOURCE, &["-g", "-fno-omit-frame-pointer"]) else { return };
    let inside = home.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let cairn = home.cairn();
    let script =
        "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/hidden\" && exec \"$3\" run -- \"$1/hidden\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.args([&inside, &program, &PathBuf::from(cairn.get_program())]);
    command.env("HOME", home.path());
    let process = start(&mut command);
    assert!(!inside.join("hidden").exists());
    let output = assert_is_profiled(&home, &process);
    assert!(!text(&output.stderr).contains("another build"), "{}", text(&output.stderr));
}

/// A file that is mapped may have a name that is no UTF-8.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_name_in_any_bytes_takes_no_other_names() {
    let home = Home::new();
    let latin = OsStr::from_bytes(b"caf\xe9");
    let Some(process) = running_with(&home, &[], &[latin]) else { return };
    assert!(home.path().join(latin).exists());
    assert_is_profiled(&home, &process);
    // Its own name is saved as it is, and what is saved is read.
    let pid = process.0.id().to_string();
    let saved = ["--seconds", "1", "--rate", "64KiB", "--save", "saved"];
    assert_succeeded(&profile(&home, &pid, &saved));
    let saved = std::fs::read(home.path().join("saved")).unwrap();
    let has = |name: &[u8]| saved.windows(name.len()).any(|bytes| bytes == name);
    assert!(has(b"/caf\xe9\n") && has(b"/program\n"), "{}", text(&saved));
    drop(process);
    let table = text(&profile(&home, "saved", &[]).stdout);
    assert!(table.contains("keeps (program.c:"), "{table}");
}

/// As after an upgrade.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_library_without_a_name_is_found() {
    if !common::is_root() {
        return common::skipped("only root can read what is mapped of a file without a name");
    }
    let home = Home::new();
    let library = home.library();
    let Some(process) = running(&home, &[]) else { return };
    std::fs::remove_file(&library).unwrap();
    assert_is_profiled(&home, &process);
}

/// As servers do: from its root the names of its files lead nowhere.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_that_has_left_its_root_is_found() {
    if !common::is_root() {
        return common::skipped("only root can leave its root");
    }
    let home = Home::new();
    let inside = home.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let file = home.path().join("heap");
    // On before the process leaves: the library finds whole stacks by what it reads in /proc.
    let options = ["--profile", display(&file), "--profile-rate", "64KiB"];
    let arguments = ["/dev/zero", display(&inside)].map(OsStr::new);
    let Some(process) = running_with(&home, &options, &arguments) else { return };
    let root = std::fs::read_link(format!("/proc/{}/root", process.0.id())).unwrap();
    assert_eq!(root, inside);
    assert_is_profiled(&home, &process);
    let pid = process.0.id().to_string();
    let output = home.cairn().args(["guards", &pid, "1MiB"]).output().unwrap();
    assert_succeeded(&output);
    assert!(text(&output.stdout).starts_with("guards are on: "), "{}", text(&output.stdout));
}

/// Who has switched it on keeps it on, and nobody has to wait.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_is_on_stays_on() {
    let home = Home::new();
    let file = home.path().join("heap");
    let options = ["--profile", display(&file), "--profile-rate", "64KiB"];
    let Some(process) = running(&home, &options) else { return };
    let pid = process.0.id().to_string();
    for _ in 0..2 {
        let begin = Instant::now();
        let output = profile(&home, &pid, &["--rate", "1MiB"]);
        assert_succeeded(&output);
        assert!(text(&output.stderr).contains("--rate has no effect"), "{output:?}");
        assert!(begin.elapsed() < Duration::from_secs(25), "it has waited");
        let table = text(&output.stdout);
        assert!(table.contains("early (program.c:") && table.contains("keeps"), "{table}");
    }
}

/// A command that profiles a process until it is ended.
fn profiling(home: &Home, pid: &str, options: &[&str]) -> Child {
    let mut command = home.cairn();
    command.current_dir(home.path()).args(["profile", pid]).args(options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until it has asked the process and lets time pass, or has ended.
fn until_it_waits(child: &mut Child) {
    let place = format!("/proc/{}/syscall", child.id());
    let call = format!("{} ", libc::SYS_rt_sigtimedwait);
    let waits = || fs::read_to_string(&place).is_ok_and(|now| now.starts_with(&call));
    while child.try_wait().unwrap().is_none() && !waits() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ended(child: Child) -> Output {
    // It may have ended.
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::TERM,
    );
    let output = child.wait_with_output().unwrap();
    assert_succeeded(&output);
    output
}

/// What another command has switched off is so, even if the process has not followed.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_is_being_switched_off_is_not_on() {
    let home = Home::new();
    let flags = ["-g", "-fno-omit-frame-pointer"];
    let Some(program) = compiled(&home, BY_FILE, &flags) else { return };
    let busy = home.path().join("busy");
    File::create(&busy).unwrap();
    let mut command = home.cairn();
    let mut process = start(command.arg("run").arg(program).arg(&busy));
    let pid = process.0.id().to_string();
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let has_been_asked = |output: &Output| text(&output.stderr).contains("has been asked");
    // The process is idle when the command ends. On a busy machine it may not have been switched on by then.
    for _ in 0..20 {
        let mut first = profiling(&home, &pid, &["--seconds", "1000", "--rate", "64KiB"]);
        until_it_waits(&mut first);
        fs::remove_file(&busy).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "idle");
        if !has_been_asked(&ended(first)) {
            break;
        }
        File::create(&busy).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "busy");
    }
    let mut second = profiling(&home, &pid, &["--rate", "32KiB"]);
    until_it_waits(&mut second);
    std::thread::sleep(Duration::from_secs(1));
    let second = ended(second);
    assert!(text(&second.stdout).contains(", sampled for 0 s"), "{second:?}");
    assert!(has_been_asked(&second), "{second:?}");
    assert!(text(&second.stderr).contains("the process has not followed"), "{second:?}");
    File::create(&busy).unwrap();
    assert_is_profiled(&home, &process);
}

/// Of two at once one ends first, and the other one says what that has done to it.
#[test]
fn who_is_switched_off_by_another_says_so() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    let options = ["--seconds", "1000", "--rate", "64KiB"];
    let mut first = profiling(&home, &pid, &options);
    until_it_waits(&mut first);
    let mut second = profiling(&home, &pid, &options);
    until_it_waits(&mut second);
    let [first, second] = [first, second].map(|command| text(&ended(command).stderr));
    let switched_off = "sampling was switched off or changed meanwhile";
    assert!(!first.contains(switched_off), "{first}");
    assert!(second.contains(switched_off), "{second}");
}

/// What the program itself has asked for meanwhile stays on.
#[test]
fn what_the_program_asks_for_stays_on() {
    let home = Home::new();
    let Some(program) = compiled(&home, BY_FILE, &[]) else { return };
    let [busy, own] = ["busy", "own"].map(|name| home.path().join(name));
    File::create(&busy).unwrap();
    let mut command = home.cairn();
    let mut process = start(command.arg("run").arg(program).arg(&busy).arg(&own));
    let pid = process.0.id().to_string();
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let mut first = profiling(&home, &pid, &["--seconds", "1000", "--rate", "64KiB"]);
    until_it_waits(&mut first);
    File::create(&own).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "called");
    let first = text(&ended(first).stderr);
    assert!(first.contains("sampling was switched off or changed meanwhile"), "{first}");
    // Else it would sample for a while.
    let second = text(&profile(&home, &pid, &[]).stdout);
    assert!(second.contains("sampled since its start, by a call"), "{second}");
}

/// A signal ends the while, not the answer, and leaves nothing on.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_interrupted_one_answers() {
    let home = Home::new();
    let Some(process) = running(&home, &[]) else { return };
    let pid = process.0.id().to_string();
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::QUIT] {
        let mut command = home.cairn();
        command.args(["profile", &pid, "--seconds", "1000", "--rate", "64KiB"]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let number = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(number, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_succeeded(&output);
        assert!(text(&output.stdout).contains("keeps (program.c:"), "{}", text(&output.stdout));
    }
    // Sampled already it would answer at once, of the start.
    let table = text(&profile(&home, &pid, &["--seconds", "1"]).stdout);
    assert!(table.contains("sampled for 1 s"), "{table}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_core_file_has_the_profile() {
    let home = Home::new();
    let file = home.path().join("heap");
    let options = ["--profile", display(&file), "--profile-rate", "16KiB"];
    let Some(process) = running(&home, &options) else { return };
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    drop(process);
    for option in [["--seconds", "1"], ["--rate", "1KiB"]] {
        assert_refused(&profile(&home, "core", &option), 125, &[option[0], "it is for a process"]);
    }
    let output = profile(&home, "core", &[]);
    assert_succeeded(&output);
    assert!(text(&output.stdout).contains("early (program.c:"), "{}", text(&output.stdout));
    // It says which build has run, which is not there any more.
    std::fs::copy("/bin/true", home.path().join("program")).unwrap();
    let output = profile(&home, "core", &[]);
    assert!(text(&output.stdout).contains("  program+0x"), "{output:?}");
    assert!(text(&output.stderr).contains("/program is another build"), "{}", text(&output.stderr));
    let length = core.metadata().unwrap().len();
    for part in [length / 2, length / 100, 4096, 100] {
        std::fs::File::options().write(true).open(&core).unwrap().set_len(part).unwrap();
        let output = profile(&home, "core", &[]);
        assert!(output.status.success() || output.status.code() == Some(125), "{part}");
    }
}

/// Of 20,000 blocks of 4,200 bytes in full spans each keeps its own bytes, whoever counts them.
#[test]
#[cfg(target_arch = "x86_64")]
fn blocks_of_full_spans_pin_their_own_bytes() {
    let home = Home::new();
    let source = b"
        #include <stdio.h>
        #include <stdlib.h>
        static void *kept[20000];
        int main(void)
        {
            for (int i = 0; i < 20000; i++) kept[i] = malloc(4200);
            puts(\"ready\");
            fflush(stdout);
            getchar();
        }
    ";
    let Some(program) = compiled(&home, source, &[]) else { return };
    let file = home.path().join("heap");
    let options = ["--profile", display(&file), "--profile-rate", "16KiB"];
    let mut process = start(home.cairn().arg("run").args(options).arg(program));
    let pid = process.0.id().to_string();
    assert_succeeded(&profile(&home, &pid, &["--seconds", "0", "--save", "outside"]));
    drop(process.0.stdin.take());
    process.0.wait().unwrap();
    let each = |name: &str| {
        let profile = HeapProfile::read(&home.path().join(name)).unwrap();
        let [pinned, live] = [View::Pinned, View::Live].map(|view| profile.sum(view));
        assert!((15_000.0..25_000.0).contains(&live.objects), "{name}: {}", live.objects);
        pinned.bytes / live.objects
    };
    let [inside, outside] = ["heap", "outside"].map(each);
    // It is rounded up to its size class.
    assert!((4200.0..5600.0).contains(&inside), "{inside}");
    assert!((inside - outside).abs() < 100.0, "{inside} is not {outside}");
}

#[test]
fn what_cannot_be_is_said() {
    let home = Home::new();
    let other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    let pid = other.0.id().to_string();
    assert_refused(&profile(&home, &pid, &[]), 125, &["no cairn in it"]);
    drop(other);
    assert_refused(&profile(&home, &pid, &[]), 125, &["no process", &pid]);
    assert_refused(&profile(&home, "./absent", &[]), 125, &["./absent: "]);
    assert!(!profile(&home, "1", &["--rate", "0"]).status.success());
    // What only a process can do is not asked of a file.
    home.file("heap", 0o644, b"cairn heap profile 2\nmappings\nend\n");
    for option in [["--seconds", "1"], ["--rate", "1KiB"]] {
        assert_refused(&profile(&home, "heap", &option), 125, &[option[0], "it is for a process"]);
    }
    assert_succeeded(&profile(&home, "heap", &[]));
}
