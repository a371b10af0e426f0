//! `cairn inspect`: the account of a process whose heap is known, alive and as a core file; and what cannot be is said
//! in a line.

mod common;

use common::core_file;
use common::inspected::{Running, account, assert_near, compiled, number, start, steps};
use common::{Home, NOBODY, assert_refused, assert_succeeded, display, is_root, skipped, text};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 200,000 blocks of which every 40th survives, blocks of their own, and threads that sleep with caches.
const KNOWN: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 8, BLOCKS = 200000 };
static char *blocks[BLOCKS];
static void *sleeper(void *arg)
{
    void *some[64];
    for (int i = 0; i < 64; i++) some[i] = malloc(1000);
    for (int i = 0; i < 64; i++) free(some[i]);
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(100), 1, 100);
    for (int i = 0; i < BLOCKS; i++) if (i % 40) free(blocks[i]);
    memset(malloc(10 << 20), 1, 10 << 20);
    memset(malloc(64 << 20), 1, 32 << 20);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, sleeper, &barrier);
    }
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";

fn known(home: &Home, build: &[&str]) -> Option<Running> {
    let program = compiled(home, KNOWN, &[])?;
    Some(start(home.cairn().arg("run").args(build).arg(program)))
}

/// The row of the size class of so many bytes.
fn class(account: &Value, size: u64) -> &Value {
    let rows = account["classes"].as_array().unwrap();
    rows.iter().find(|row| row["size"] == size).unwrap_or_else(|| panic!("no {size}: {account}"))
}

/// What is known of the heap of `KNOWN`.
#[track_caller]
fn assert_known(account: &Value, size: u64) {
    let row = class(account, size);
    assert_near(number(&row["in_use"]), 5000, 1);
    assert!(number(&row["floor"]) <= number(&row["resident"]), "{row}");
    // Survivors are more than a page apart.
    assert!(number(&row["floor"]) > 4000 * 4096, "{row}");
    let biggest = account["biggest"].as_array().unwrap();
    let rooms: Vec<_> = biggest.iter().map(|block| number(&block["bytes"]) >> 20).collect();
    assert!(rooms.len() >= 2 && rooms[0] == 64 && rooms[1] == 10, "{rooms:?}");
    assert_near(number(&biggest[0]["resident"]), 32 << 20, 10);
    assert_near(number(&biggest[1]["resident"]), 10 << 20, 1);
    let advice = account["advice"].to_string();
    assert!(advice.contains("survivors scattered"), "{advice}");
    assert_eq!(steps(account), number(&account["resident"]["sum"]) as i64);
    let above = ["free_in_spans", "dirty", "metadata"].map(|name| number(&account["floor"][name]));
    let floor = number(&account["floor"]["bytes"]) + above.iter().sum::<u64>();
    assert_eq!(floor, number(&account["resident"]["through_cairn"]));
}

#[test]
fn a_heap_is_known_from_outside() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let account = account(&home, &process.0.id().to_string());
    assert_known(&account, 112);
    let resident = &account["resident"];
    assert_near(number(&resident["sum"]), number(&resident["kernel"]), 2);
    assert_eq!(account["target"]["threads"][0], 9);
    assert_eq!(account["target"]["hardened"], false);
    assert!(account["held"]["asked"].is_null());
    // Those that sleep have blocks ready, or in spans of their own.
    let row = class(&account, 1024);
    assert!(
        number(&row["in_use"]) < 16 && number(&row["free"]) + number(&row["cached"]) > 64,
        "{row}"
    );
    let heaps = account["heaps"].as_array().unwrap();
    assert!(heaps.len() >= 8, "{account}");
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        let mut threads: Vec<_> = heaps.iter().filter_map(|heap| heap["thread"].as_u64()).collect();
        threads.sort_unstable();
        assert_eq!(threads[0], u64::from(process.0.id()), "the first thread's");
        assert!(threads.windows(2).all(|pair| pair[0] < pair[1]), "each its own: {threads:?}");
        assert!(threads.len() >= 8, "{account}");
        assert!(heaps.iter().any(|heap| heap["thread_name"] == "program"), "{account}");
    }
}

/// Memory that the program supplies is not in the account, and that is said of no other program.
#[test]
fn a_region_of_the_programs_is_noted() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        void *cairn_region_new(void *, size_t, const void *) __attribute__((weak));\n\
        void *cairn_heap_new_in(void *) __attribute__((weak));\n\
        void *cairn_heap_malloc(void *, size_t) __attribute__((weak));\n\
        static char memory[4 << 20] __attribute__((aligned(1 << 16)));\n\
        int main(int argc, char **argv) {\n\
            void *heap = argc > 1 ? cairn_heap_new_in(cairn_region_new(memory, sizeof memory, 0)) : 0;\n\
            for (int i = 0; i < 1000; i++) heap ? cairn_heap_malloc(heap, 100) : malloc(100);\n\
            puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &[]) else { return };
    for (arguments, expected) in [(&[][..], false), (&["region"], true)] {
        let process = start(home.cairn().arg("run").arg(&program).args(arguments));
        let notes = account(&home, &process.0.id().to_string())["notes"].to_string();
        assert_eq!(notes.contains("regions of the program's"), expected, "{notes}");
        assert!(!notes.contains("changed while they were read"), "{notes}");
    }
}

#[test]
fn the_guide_names_each_field() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let account = account(&home, &process.0.id().to_string());
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/inspect.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let fields = account.as_object().unwrap().keys();
    let parts = ["resident", "floor"].map(|name| account[name].as_object().unwrap().keys());
    for field in fields.chain(parts.into_iter().flatten()).filter(|&field| field != "one_in") {
        assert!(
            guide.contains(&format!("`{field}`")) || guide.contains(&format!(".{field}`")),
            "{field}"
        );
    }
}

#[test]
fn the_hardened_build_is_accounted() {
    let home = Home::new();
    let Some(process) = known(&home, &["--hardened"]) else { return };
    let account = account(&home, &process.0.id().to_string());
    assert_known(&account, 112);
    assert_eq!(account["target"]["hardened"], true);
    assert!(account["notes"].to_string().contains("hardened"), "{account}");
    // It knows what was asked for: 100 bytes a block.
    let row = class(&account, 112);
    assert_near(number(&row["asked"]), number(&row["in_use"]) * 100, 1);
    let held = &account["held"];
    assert!((5000 * 100..number(&held["small"])).contains(&number(&held["asked"])), "{held}");
    assert_near(number(&account["resident"]["sum"]), number(&account["resident"]["kernel"]), 2);
}

/// 100 bytes a block, by some of the 5000.
#[test]
fn samples_tell_what_was_asked_for() {
    let home = Home::new();
    let file = home.path().join("profile");
    let options = ["--profile", common::display(&file), "--profile-rate", "4KiB"];
    let Some(process) = known(&home, &options) else { return };
    let account = account(&home, &process.0.id().to_string());
    let row = class(&account, 112);
    assert_near(number(&row["asked"]), number(&row["in_use"]) * 100, 1);
    let held = &account["held"];
    // Samples lie apart.
    assert!((4500 * 100..number(&held["small"])).contains(&number(&held["asked"])), "{held}");
    assert!(account["notes"].to_string().contains("samples of the heap profile"), "{account}");
}

#[test]
fn the_account_is_told_in_words() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let output = home.cairn().args(["inspect", &process.0.id().to_string()]).output().unwrap();
    assert_succeeded(&output);
    let said = text(&output.stdout);
    for part in [
        ", the library in this command",
        "blocks that the program holds",
        "resident in all",
        "The floor",
        "Size classes",
        "Heaps",
        "The biggest blocks",
        "Survivors are scattered: 5000 blocks of 112 bytes",
    ] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

#[test]
fn a_core_file_says_the_same() {
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    let alive = account(&home, &process.0.id().to_string());
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    drop(process);
    let dead = account(&home, display(&core));
    assert_known(&dead, 112);
    // A core file has the numbers of threads, not their names.
    let mut alive = alive;
    for heap in alive["heaps"].as_array_mut().unwrap() {
        heap["thread_name"] = Value::Null;
    }
    for name in ["held", "classes", "heaps"] {
        assert_eq!(alive[name], dead[name], "{name}");
    }
    let through = |account: &Value| number(&account["resident"]["through_cairn"]);
    assert_near(through(&dead), through(&alive), 1);
    assert!(dead["resident"]["kernel"].is_null());
    // Cut off, it has less, or nothing, and that is said.
    let length = core.metadata().unwrap().len();
    for part in [length / 2, length / 100, 4096, 100] {
        std::fs::File::options().write(true).open(&core).unwrap().set_len(part).unwrap();
        for command in ["inspect", "leaks", "profile"] {
            let output = home.cairn().args([command, display(&core)]).output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            // A profile may be whole all the same.
            let is_told = said.contains("the core file is cut off");
            let is_whole = command == "profile" && output.status.success();
            assert!(is_told || is_whole, "{command}, {part}: {said}");
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    let home = Home::new();
    let inspect = |target: &str| home.cairn().args(["inspect", target]).output().unwrap();
    let other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    let pid = other.0.id().to_string();
    assert_refused(&inspect(&pid), 125, &["no cairn in it"]);
    drop(other);
    assert_refused(&inspect(&pid), 125, &["no process", &pid]);
    assert_refused(&inspect("./absent"), 125, &["./absent: ", "No such file"]);
    let file = home.file("text", 0o644, b"hello\n");
    assert_refused(&inspect(display(&file)), 125, &["no core file"]);
    assert_refused(&inspect("/bin/sh"), 125, &["no core file"]);
    let help = home.cairn().args(["inspect", "--help"]).output().unwrap();
    assert!(text(&help.stdout).contains("Examples:"));
}

#[test]
fn another_version_is_refused() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <unistd.h>\n\
        const char cairn_header[256] __attribute__((visibility(\"default\"))) = \"CAIRNHDR\\11\\0\\0\\0\\377\";\n\
        int main(void) { puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &["-rdynamic", "-Wl,--build-id"]) else { return };
    let process = start(&mut Command::new(&program));
    let output = home.cairn().args(["inspect", &process.0.id().to_string()]).output().unwrap();
    assert_refused(
        &output,
        125,
        &["version 9", "reads version 8", "use the command of that cairn", "/program", "(build "],
    );
}

#[test]
fn an_older_one_is_refused() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <unistd.h>\n\
        const char cairn_header[256] = \"CAIRNHDR\\10\\0\\0\\0\\160\";\n\
        int main(void) { puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &[]) else { return };
    let process = start(&mut Command::new(&program));
    let output = home.cairn().args(["inspect", &process.0.id().to_string()]).output().unwrap();
    assert_refused(&output, 125, &["older", "112 bytes", "use the command of that cairn"]);
}

/// What is linked with the archive has the symbol in its own table; without one the header itself is found.
#[test]
fn a_static_program_is_read() {
    let home = Home::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/lib/libcairn.a");
    if !archive.is_file() {
        return skipped("no libcairn.a; `cargo xtask library` builds it");
    }
    let Some(program) = compiled(&home, KNOWN, &["-static", "-Wl,--build-id", display(&archive)])
    else {
        return;
    };
    let look = |program: &Path| {
        let process = start(&mut Command::new(program));
        home.cairn().args(["inspect", "--json", &process.0.id().to_string()]).output().unwrap()
    };
    for is_stripped in [false, true] {
        if is_stripped && !Command::new("strip").arg(&program).status().is_ok_and(|it| it.success())
        {
            return skipped("no strip");
        }
        let output = look(&program);
        assert_succeeded(&output);
        assert!(text(&output.stdout).contains("\"build\": \""), "{output:?}");
        assert_known(&serde_json::from_slice(&output.stdout).unwrap(), 112);
    }
}

/// Threads have names of any bytes.
#[test]
fn a_thread_with_any_name_is_counted() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <sys/prctl.h>\n#include <unistd.h>\n\
        int main(void) { prctl(PR_SET_NAME, \"caf\\351\"); puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    let account = account(&home, &process.0.id().to_string());
    assert_eq!(account["target"]["threads"][0], 1, "{account}");
}

/// It is told as it is where a machine reads it, and harmless where a person does.
#[test]
fn a_name_is_escaped_once() {
    let home = Home::new();
    let source = b"#include <stdio.h>\n#include <stdlib.h>\n#include <sys/prctl.h>\n#include <unistd.h>\n\
        int main(void) { prctl(PR_SET_NAME, \"e\\033[31m\\n\\\"x\"); free(malloc(10)); puts(\"ready\"); fflush(stdout); pause(); }\n";
    let Some(program) = compiled(&home, source, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    let pid = process.0.id().to_string();
    let account = account(&home, &pid);
    assert_eq!(account["target"]["program"], "e\x1b[31m\n\"x", "{account}");
    assert_eq!(account["heaps"][0]["thread_name"], "e\x1b[31m\n\"x", "{account}");
    let run = |arguments: &[&str]| {
        let output = home.cairn().args(arguments).arg(&pid).output().unwrap();
        assert_succeeded(&output);
        text(&output.stdout)
    };
    let seen: Value = serde_json::from_str(&run(&["top", "--once", "--json"])).unwrap();
    assert_eq!(seen["processes"][0]["program"], "e\x1b[31m\n\"x", "{seen}");
    for arguments in [&["inspect"][..], &["top", "--once"], &["leaks"], &["diff", &pid]] {
        let said = run(arguments);
        assert!(!said.contains('\x1b'), "{said:?}");
        let is_named = said.contains(r#"e\u{1b}[31m\n"x"#);
        assert!(is_named || arguments[0] == "top", "{said}");
    }
}

/// As after an upgrade: the library that runs has no name any more.
#[test]
fn a_library_without_a_name_is_read() {
    if !is_root() {
        return skipped("only root can read what is mapped of a file without a name");
    }
    let home = Home::new();
    let library = home.library();
    let Some(process) = known(&home, &[]) else { return };
    std::fs::remove_file(&library).unwrap();
    let account = account(&home, &process.0.id().to_string());
    assert_known(&account, 112);
    let name = account["target"]["library"].as_str().unwrap();
    assert!(name.ends_with(" (deleted)"), "{name}");
}

#[test]
fn it_takes_the_rights_of_a_debugger() {
    if !is_root() {
        return skipped("only root can become another user");
    }
    let home = Home::new();
    let Some(process) = known(&home, &[]) else { return };
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let cairn = home.file("cairn", 0o755, &std::fs::read(env!("CARGO_BIN_EXE_cairn")).unwrap());
    let mut command = Command::new(cairn);
    command.args(["inspect", &process.0.id().to_string()]).uid(NOBODY).gid(NOBODY);
    assert_refused(&command.output().unwrap(), 125, &["not permitted", "CAP_SYS_PTRACE"]);
}

/// 1,000 threads, 2 GiB, and 8 GiB of addresses more: in less than two seconds of a processor, by a command that is not
/// optimized, and nobody is stopped or traced.
#[test]
#[ignore = "it takes 2 GiB; `--ignored` runs it"]
fn a_large_process_takes_little_time() {
    let home = Home::new();
    let Some(program) = compiled(&home, LARGE, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    let pid = process.0.id().to_string();
    let status = format!("/proc/{pid}/status");
    let is_done = AtomicBool::new(false);
    let took = |arguments: &[&str]| {
        let (begin, before) = (Instant::now(), time_of_children());
        assert_succeeded(&home.cairn().args(arguments).arg(&pid).output().unwrap());
        let took = time_of_children() - before;
        println!("{arguments:?}: {took:?} of a processor in {:?}", begin.elapsed());
        took
    };
    let times = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let status = std::fs::read_to_string(&status).unwrap();
                assert!(status.contains("TracerPid:\t0\n"), "{status}");
                assert!(!status.contains("State:\tT") && !status.contains("State:\tt"), "{status}");
            }
        });
        let times = [took(&["inspect", "--json"]), took(&["top", "--once"])];
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        times
    });
    assert!(times.iter().all(|&took| took < Duration::from_secs(2)), "{times:?}");
}

/// What children of this process, those that have ended, have had of processors.
fn time_of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(13).take(2);
    let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

const LARGE: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 1000, BLOCKS = 8 << 20 };
static void *blocks[BLOCKS];
static void *sleeper(void *arg)
{
    void *some[100];
    for (int i = 0; i < 100; i++) some[i] = malloc(10 * i);
    for (int i = 0; i < 100; i++) free(some[i]);
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(256), 1, 256);
    for (int i = 0; i < BLOCKS; i++) if (i % 3 == 0) free(blocks[i]);
    for (int i = 0; i < 8; i++) malloc(1 << 30);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_t thread;
    for (int i = 0; i < THREADS; i++) pthread_create(&thread, &small, sleeper, &barrier);
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";
