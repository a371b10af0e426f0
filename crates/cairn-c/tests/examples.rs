//! The programs of examples/c and examples/cxx: each is built as its head says, without a warning, and does what it shows.

mod common;

use common::{
    include_dir, lacks, lacks_package, library, run, scratch_dir, skip_for_stand_in, skipped,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c")
}

/// A program in C, or in C++ if it ends so.
fn built(source: &Path) -> PathBuf {
    built_with(source, &[])
}

/// The same with more arguments for the compiler.
fn built_with(source: &Path, more: &[&str]) -> PathBuf {
    let is_cxx = source.extension().is_some_and(|end| end == "cpp");
    let name = source.file_stem().expect("a program").to_str().expect("a plain name");
    static BUILT: AtomicUsize = AtomicUsize::new(0);
    let number = BUILT.fetch_add(1, Ordering::Relaxed);
    let program = scratch_dir().join(format!("example-{name}-{}-{number}", std::process::id()));
    let shared = &library().shared;
    let dir = shared.parent().expect("an absolute path").display();
    let mut compiler = Command::new(if is_cxx { "c++" } else { "cc" });
    compiler.arg(if is_cxx { "-std=c++17" } else { "-std=c11" });
    compiler.args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    compiler
        .arg("-I")
        .arg(include_dir())
        .arg(source)
        .arg(shared)
        .args(more)
        .arg("-lm")
        .arg("-o")
        .arg(&program);
    compiler.arg(format!("-Wl,-rpath,{dir},--disable-new-dtags"));
    let output = compiler.output().expect("a C compiler is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// What a program writes.
fn said(name: &str) -> String {
    let program = built(&folder().join(name));
    let outcome = run(Command::new(&program));
    outcome.assert_quiet_success(name);
    std::fs::remove_file(program).expect("it was just built");
    outcome.stdout
}

#[test]
fn each_example_is_built_and_runs() {
    if skip_for_stand_in() {
        return;
    }
    let mut sources: Vec<_> = folder().read_dir().expect("examples").flatten().collect();
    sources.extend(folder().join("../cxx").read_dir().expect("examples").flatten());
    // Lua has a test of its own. The hardened build has no regions, and leaves nothing of a free block.
    let left_out: &[&str] = if cfg!(feature = "hardened") {
        &["lua.c", "vectors.c", "concurrent.c"]
    } else {
        &["lua.c"]
    };
    sources.retain(|entry| !left_out.contains(&&*entry.file_name().to_string_lossy()));
    // It has a test of its own, too.
    sources.retain(|entry| entry.file_name() != "service.c" || !lacks_network());
    assert!(!sources.is_empty());
    for entry in sources {
        let program = built(&entry.path());
        let outcome = run(Command::new(&program));
        let name = entry.path().display().to_string();
        outcome.assert_quiet_success(&name);
        std::fs::remove_file(program).expect("it was just built");
        assert!(!outcome.stdout.is_empty(), "{name} says nothing");
    }
}

/// Vectors lie in the file, and what has been freed there is used again.
#[test]
#[cfg(not(feature = "hardened"))]
fn vectors_lie_in_a_file() {
    if skip_for_stand_in() {
        return;
    }
    let text = said("vectors.c");
    let words = text.split([' ', '\n']).filter_map(|word| word.parse::<usize>().ok());
    let figures: Vec<usize> = words.collect();
    let [count, nearest, file, at_first, own] = figures[..] else { panic!("{text}") };
    assert_eq!(nearest, count + count / 2 - 3, "{text}");
    assert!(file == at_first && file * 1024 > count * 512, "{text}");
    assert!(own < 1024, "{text}");
}

/// Whether nobody can be connected with, not even on this machine.
fn lacks_network() -> bool {
    let listener = TcpListener::bind("127.0.0.1:0");
    let address = listener.as_ref().ok().and_then(|listener| listener.local_addr().ok());
    let connects = address.is_some_and(|address| TcpStream::connect(address).is_ok());
    !connects && skipped("no network")
}

/// A page of the service: its status, and what follows the head.
fn page(service: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(service).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    // Whoever is told before all of the request has been read may see the connection reset.
    let _ = stream.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.0 "));
    (status.expect("a status").to_owned(), body.to_owned())
}

/// Has something asked of a service that runs.
fn with_service(ask: impl FnOnce(&str) + std::panic::UnwindSafe) {
    let program = built_with(&folder().join("service.c"), &["-rdynamic"]);
    let mut command = Command::new(&program);
    let mut child = command.arg("0").stdout(Stdio::piped()).spawn().expect("it starts");
    let mut first = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("its output"));
    said.read_line(&mut first).expect("its address");
    let service = first.trim().strip_prefix("http://").expect("its address").to_owned();
    let asked = std::panic::catch_unwind(|| ask(&service));
    child.kill().expect("it runs still");
    child.wait().expect("it ends");
    std::fs::remove_file(program).expect("it was just built");
    asked.unwrap_or_else(|why| std::panic::resume_unwind(why));
}

fn get(service: &str, path: &str) -> (String, String) {
    page(service, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

/// A page that is there.
fn good(service: &str, path: &str) -> String {
    let (status, body) = get(service, path);
    assert_eq!(status, "200 OK", "{path}");
    body
}

/// What jemalloc's users know is there, what is not is told, and no client keeps others waiting for ever.
#[test]
fn a_service_tells_of_its_memory() {
    if skip_for_stand_in() || lacks_network() {
        return;
    }
    with_service(|service| {
        let profile = good(service, "/profile");
        assert!(profile.starts_with("cairn heap profile ") && profile.ends_with("end\n"));
        assert!(profile.contains("\nsite "), "{profile}");
        for path in ["/debug/pprof/heap", "/pprof/heap?seconds=1"] {
            let profile = good(service, path);
            assert!(profile.starts_with("heap profile: "), "{profile}");
            let (sites, maps) = profile.split_once("\nMAPPED_LIBRARIES:\n").expect("mappings");
            assert!(sites.lines().nth(1).is_some_and(|site| site.contains("] @ 0x")), "{sites}");
            assert!(maps.lines().all(|line| line.contains('-')) && maps.contains("/libcairn"));
        }
        for (length, addresses) in [("0", ""), ("3", "0x1"), ("9", "0x1+0x2++"), ("100000", "0x1")]
        {
            let request = format!("POST /pprof/symbol HTTP/1.1\r\ncontent-length: {length}");
            let (status, names) = page(service, &format!("{request}\r\n\r\n{addresses}"));
            assert_eq!((&*status, &*names), ("200 OK", "num_symbols: 1\n"), "{addresses}");
        }
        assert!(good(service, "/metrics").contains("\ncairn_resident_bytes "));
        serde_json::from_str::<serde_json::Value>(&good(service, "/stats")).expect("JSON");
        let allocated = good(service, "/stats/allocated").trim().parse::<usize>();
        assert!(allocated.is_ok_and(|bytes| bytes >= 64 << 20));
        for path in ["/", "/stats/", "/stats/alocated", "/debug/pprof/profile", "/debug/heap"] {
            assert_eq!(get(service, path).0, "404 Not Found", "{path}");
        }
        // One that says nothing.
        let _silent = TcpStream::connect(service).expect("it listens");
        for request in ["POST /stats HTTP/1.1\r\n\r\n", "\r\n\r\n", &"GET ".repeat(2000)] {
            assert_eq!(page(service, request).0, "400 Bad Request", "{request}");
        }
    });
}

/// Bytes that are live, as the library's own text has them.
fn live_bytes(profile: &str) -> f64 {
    let sites = profile.lines().filter_map(|line| line.strip_prefix("site "));
    let bytes = sites.map(|site| {
        let numbers = site.split(' ').take(6).map(|word| word.parse::<f64>().expect("a number"));
        let numbers: Vec<f64> = numbers.collect();
        let [weighed, rate, _, made, _, freed] = numbers[..] else { panic!("{site}") };
        (made - freed) / -(-weighed / rate).exp_m1()
    });
    bytes.sum()
}

/// A real viewer fetches the profile, and has the same figures, and names.
#[test]
fn go_fetches_the_profile_of_a_service() {
    if skip_for_stand_in() || lacks_network() || lacks("go", "golang") {
        return;
    }
    with_service(|service| {
        let mut go = Command::new("go");
        go.args(["tool", "pprof", "-top", "-cum", "-unit=B"]);
        go.arg(format!("http://{service}/debug/pprof/heap"));
        let saved = scratch_dir().join(format!("pprof-{}", std::process::id()));
        let output = go.env("PPROF_TMPDIR", &saved).output().expect("it starts");
        let _ = std::fs::remove_dir_all(saved);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let top = String::from_utf8_lossy(&output.stdout);
        assert!(top.contains("Type: inuse_space"), "{top}");
        assert!(top.lines().any(|line| line.ends_with(" main")), "{top}");
        let whole = top.split(" of ").nth(1).and_then(|text| text.split_once("B total"));
        let whole = whole.and_then(|(bytes, _)| bytes.parse::<f64>().ok()).expect("a sum");
        let expected = live_bytes(&good(service, "/profile"));
        assert!(whole > 0.0 && (whole - expected).abs() < 100.0, "{whole}, not {expected}: {top}");
    });
}

/// What builds and links a program with Lua; None, and a word about it, if something for it is not installed.
fn lua() -> Option<Vec<String>> {
    if lacks("pkg-config", "pkgconf") {
        return None;
    }
    let output = Command::new("pkg-config").args(["--cflags", "--libs", "lua5.4"]).output().ok()?;
    if !output.status.success() {
        lacks_package("lua5.4", "liblua5.4-dev");
        return None;
    }
    let words = String::from_utf8_lossy(&output.stdout);
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// Each script has what it wants, a greedy one is refused, and all states go with their heaps.
#[test]
fn lua_states_go_with_their_heaps() {
    if skip_for_stand_in() {
        return;
    }
    let Some(words) = lua() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let program = built_with(&folder().join("lua.c"), &words);
    let mut command = Command::new(&program);
    command.arg("40");
    let outcome = run(command);
    outcome.assert_quiet_success("lua.c");
    std::fs::remove_file(program).expect("it was just built");
    let text = outcome.stdout;
    assert!(
        text.starts_with("80 requests: ") && text.contains("greedy script was refused"),
        "{text}"
    );
}

/// No object loses its contents or is lost, some are freed where they belong, and late readers are told.
#[test]
#[cfg(not(feature = "hardened"))]
fn readers_need_no_lock() {
    if skip_for_stand_in() {
        return;
    }
    let text = said("concurrent.c");
    let words = text.split([' ', '\n']).filter_map(|word| word.parse::<usize>().ok());
    let figures: Vec<usize> = words.collect();
    let [made, freed, sent, read, gone, epoch] = figures[..] else { panic!("{text}") };
    assert!(made == freed && sent > 0 && read > made && epoch > 100, "{text}");
    assert!(gone < read, "{text}");
}

/// A greedy request is refused, the others are served, and no heap is larger than its limit.
#[test]
fn a_greedy_request_is_refused() {
    if skip_for_stand_in() {
        return;
    }
    let text = said("../cxx/requests.cpp");
    assert!(text.starts_with("served 40, refused 20, most frequent 1000, largest heap "), "{text}");
    let largest = text.split(' ').filter_map(|word| word.parse::<usize>().ok()).next_back();
    assert!(largest.is_some_and(|kib| (1000..=8192).contains(&kib)), "{text}");
}

/// No pause takes more objects apart than the runtime says, and none is left.
#[test]
fn pauses_are_bounded_in_objects() {
    if skip_for_stand_in() {
        return;
    }
    let text = said("deferred.c");
    let words = text.split([' ', '\n']).filter_map(|word| word.parse::<f64>().ok());
    let figures: Vec<f64> = words.collect();
    let [nodes, _, pauses, most, _, turns, left] = figures[..] else { panic!("{text}") };
    assert!(most == 1000.0 && pauses >= nodes / 1000.0 && left == 0.0, "{text}");
    assert!(turns < nodes, "{text}");
}

/// Memory falls to near what is live, and there is an end.
#[test]
#[cfg_attr(feature = "hardened", ignore = "blocks take random places: none is to be moved")]
fn defragmentation_converges_to_what_is_live() {
    if skip_for_stand_in() {
        return;
    }
    let text = said("defrag.c");
    let words = text.split([' ', '\n']).filter_map(|word| word.parse::<usize>().ok());
    let figures: Vec<usize> = words.collect();
    let [full, scattered, defragmented, live, blocks, moves, passes] = figures[..] else {
        panic!("{text}")
    };
    assert!(full > 2 * scattered / 2 && scattered > 5 * live / 2, "{text}");
    assert!(defragmented < live + live / 3, "{text}");
    assert!(moves < blocks + blocks / 4 && passes < 20, "{text}");
}

/// Redis from Debian's source package, with our hint in the place of its own allocator's: what is resident falls to near
/// what is live while it serves, and no value changes.
#[test]
#[ignore = "brings and builds Redis: 4 min"]
#[cfg(not(feature = "hardened"))]
fn redis_defragments_itself() {
    let needs = [("dpkg-source", "dpkg-dev"), ("make", "make"), ("patch", "patch")];
    if skip_for_stand_in() || needs.iter().any(|(program, package)| lacks(program, package)) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let work = scratch_dir().join(format!("redis-{}", std::process::id()));
    std::fs::create_dir_all(&work).expect("a folder");
    let mut bring = Command::new("sh");
    bring
        .arg(root.join("bench/programs/scripts/sources.sh"))
        .arg(scratch_dir())
        .args(["debian", "redis"]);
    let brought = run(bring);
    assert!(brought.status.success(), "{}", brought.stderr);
    let last = brought.stdout.lines().next_back().expect("where they are").to_owned();
    let mut example = Command::new("sh");
    example.arg(root.join("examples/redis/run.sh")).arg(last.split(' ').next().expect("a folder"));
    example.arg(&library().shared).arg(include_dir()).arg(&work);
    let outcome = run(example);
    outcome.assert_quiet_success("run.sh");
    std::fs::remove_dir_all(work).expect("it was just made");
    let text = outcome.stdout;
    let words = text.split([' ', '\n']).filter_map(|word| word.parse::<f64>().ok());
    let figures: Vec<f64> = words.collect();
    let [empty, full, scattered, defragmented, moved, wrong, slowest] = figures[..] else {
        panic!("{text}")
    };
    println!("{text}");
    assert!(wrong == 0.0 && moved > 10_000.0 && slowest > 0.0, "{text}");
    assert!(scattered - empty > 0.8 * (full - empty), "{text}");
    assert!(defragmented - empty < 0.5 * (full - empty), "{text}");
}
