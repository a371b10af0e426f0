//! Plugins, and several allocators in one process: other copies and builds of cairn, mimalloc, jemalloc.

mod common;

use common::{
    Build, Loading, Program, built_library, clean_environment, lacks, library, passes_in,
    scratch_dir, skip_for_stand_in, skipped, source_path,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The loadings in which a program can load plugins.
const SHARED: [Loading; 2] = [Loading::Preloaded, Loading::Linked];
/// The same, and a program on the C library's allocator.
const ANY: [Loading; 3] = [Loading::Preloaded, Loading::Linked, Loading::Absent];

/// Debian's packages of other allocators, and their files.
const OTHERS: [(&str, &str); 2] =
    [("libmimalloc2.0", "libmimalloc.so.2"), ("libjemalloc2", "libjemalloc.so.2")];
const DEBIANS_FOLDER: &str = "/usr/lib/x86_64-linux-gnu";

/// A file of this name in the scratch folder, as `make` makes it.
fn made(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    // Renamed when whole: another test, or another process of tests, may be running with the same file.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = scratch_dir().join(name);
    let unfinished = path.with_extension(format!("{}-{number}", std::process::id()));
    make(&unfinished);
    std::fs::rename(&unfinished, &path).expect("rename within a folder");
    path
}

/// Runs a compiler of C or C++ to its end; the file that it makes.
fn compiled(compiler: &str, name: &str, tell: impl FnOnce(&mut Command)) -> PathBuf {
    made(name, |path| {
        let mut compiler = Command::new(compiler);
        compiler.args(["-O1", "-g", "-pthread", "-fPIC", "-fno-builtin", "-o"]);
        tell(compiler.arg(path));
        let output = compiler.output().expect("a C compiler is needed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// `tests/c/plugin.c`, linked with these files and options.
fn plugin(name: &str, files: &[&Path], options: &[&str]) -> PathBuf {
    compiled("cc", name, |cc| {
        cc.arg("-shared").arg(source_path("plugin.c")).args(files).args(options);
    })
}

fn archive(build: Build) -> PathBuf {
    built_library(build).archive.expect("ours has an archive")
}

/// Plugins with a copy of their own, kept to themselves: as the guide has it; by a list of names, and with
/// the flag that keeps it loaded; of the hardened build.
fn plugins_with_copies() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    PATHS.get_or_init(|| {
        let (default, hardened) = (archive(Build::Default), archive(Build::Hardened));
        let names = made("plugin.map", |path| {
            std::fs::write(path, "{ global: plugin_*; local: *; };").expect("a scratch file");
        });
        let by_names = format!("-Wl,--version-script={}", names.display());
        let own = ["-Wl,--exclude-libs,ALL"];
        [
            plugin("plugin-with-a-copy.so", &[&default], &own),
            plugin("plugin-that-stays.so", &[&default], &[&by_names, "-Wl,-z,nodelete"]),
            plugin("plugin-hardened.so", &[&hardened], &own),
        ]
    })
}

/// The shared library once more, as another installation has it; a library of another name that is
/// made from the archive; the build that is not under test.
fn libraries() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    PATHS.get_or_init(|| {
        std::fs::create_dir_all(scratch_dir().join("elsewhere")).expect("a scratch folder");
        let elsewhere = made("elsewhere/libcairn.so", |path| {
            std::fs::copy(&library().shared, path).expect("a copy");
        });
        let other = compiled("cc", "libcairn-other.so.9", |cc| {
            cc.args(["-shared", "-Wl,-soname,libcairn-other.so.9", "-Wl,-u,malloc"]);
            cc.arg(archive(Build::Default));
        });
        let tested_is_hardened = cfg!(feature = "hardened");
        let build = if tested_is_hardened { Build::Default } else { Build::Hardened };
        [elsewhere, other, built_library(build).shared]
    })
}

/// Arguments of `copies.c` for libraries whose allocator is cairn.
fn cairns<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| format!("+{}", path.display())).collect()
}

/// Debian's other allocators, as far as they are installed.
fn others() -> Vec<PathBuf> {
    let installed = OTHERS.iter().filter_map(|(package, file)| {
        let path = Path::new(DEBIANS_FOLDER).join(file);
        if path.exists() {
            return Some(path);
        }
        let why = format!("no {file}; install the package `{package}`");
        assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
        skipped(&why);
        None
    });
    installed.collect()
}

fn run(loadings: &[Loading], case: &str, libraries: &[String]) {
    for &loading in loadings {
        let Some(program) = Program::build("copies.c", loading) else { continue };
        let arguments: Vec<_> = [case].into_iter().chain(libraries.iter().map(|l| &**l)).collect();
        let mut command = program.command(&arguments);
        // Debian's jemalloc has more thread-local storage than the loader keeps room for.
        command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=4096");
        common::run(command).assert_quiet_success(&format!("copies.c {arguments:?}, {loading:?}"));
    }
}

#[test]
fn a_plugin_may_come_and_go() {
    let plugin = plugin("plugin.so", &[], &[]);
    passes_in(&SHARED, "endings.cpp", &["plugin_again_and_again", plugin.to_str().expect("plain")]);
}

/// No `new` asks the loader for anything: it has its lock while a plugin's constructors run.
#[test]
fn a_plugins_constructor_may_wait_for_a_thread() {
    let plugin = compiled("g++", "plugin-waits.so", |cxx| {
        cxx.args(["-shared", "-std=c++17"]).arg(source_path("plugin_waits.cpp"));
    });
    let plugin = plugin.to_str().expect("plain");
    for host in ["endings.cpp", "replaced_plain.cpp"] {
        passes_in(&SHARED, host, &["plugin_waits_for_a_thread", plugin]);
    }
}

/// A plugin in C++ that allocates by the forms that do not throw.
fn nothrow_plugin() -> PathBuf {
    compiled("g++", "plugin-nothrow.so", |cxx| {
        cxx.args(["-shared", "-std=c++17"]).arg(source_path("plugin_nothrow.cpp"));
    })
}

/// The C++ library came with the plugin, and no other library finds it.
#[test]
fn what_a_plugins_new_handler_throws_is_caught() {
    if skip_for_stand_in() {
        return;
    }
    run(&SHARED, "plugin_gives_up", &[nothrow_plugin().display().to_string()]);
}

/// Such a host has forms of `operator new` that are not ours, and the forms that do not throw are in no library that others see.
#[test]
fn a_plugin_whose_host_has_another_runtime_gets_blocks() {
    let host = compiled("g++", "plugin-host", |cxx| {
        cxx.args(["-std=c++17", "-static-libstdc++", "-static-libgcc", "-rdynamic"]);
        cxx.arg(source_path("plugin_host.cpp"));
    });
    let mut command = Command::new(host);
    command.arg(nothrow_plugin()).env("LD_PRELOAD", &library().shared);
    let output = command.output().expect("the host starts");
    assert!(output.status.success(), "{output:?}");
}

/// What is bound deeply, without an allocator of its own, finds the C library's.
#[test]
fn two_allocators_live_side_by_side() {
    if skip_for_stand_in() {
        return;
    }
    for path in plugins_with_copies() {
        run(&ANY, "side_by_side", &cairns([path]));
    }
    let deep = plugin("plugin-deep.so", &[], &[]);
    run(&SHARED, "side_by_side_deeply_bound", &[format!("-{}", deep.display())]);
}

/// The files lack the flag that keeps them loaded, all but one.
#[test]
fn threads_outlive_copies_that_were_closed() {
    if skip_for_stand_in() {
        return;
    }
    for path in plugins_with_copies() {
        run(&ANY, "threads_outlive_them", &cairns([path]));
    }
    run(&ANY, "they_come_again", &cairns(plugins_with_copies()));
}

/// Much of the C++ library is compiled into the plugin, and the rest is not: with `-static-libstdc++` all of it uses
/// the plugin's copy.
#[test]
fn a_plugin_in_cxx_may_have_a_copy() {
    if skip_for_stand_in() {
        return;
    }
    let c_part = plugin("plugin-c-part.o", &[], &["-c"]);
    let whole = compiled("c++", "plugin-cxx.so", |cc| {
        cc.args(["-shared", "-O3"]).arg(c_part).arg(source_path("plugin_cxx.cpp"));
        cc.arg(archive(Build::Default)).args(["-static-libstdc++", "-Wl,--exclude-libs,ALL"]);
    });
    run(&ANY, "side_by_side", &cairns([&whole]));
}

/// The interpreter runs on cairn or not.
#[test]
fn an_extension_of_python_may_have_a_copy() {
    if skip_for_stand_in() || lacks("python3", "python3") {
        return;
    }
    for preload in [library().shared.to_str().expect("a plain path"), ""] {
        let mut command = Command::new("python3");
        command.arg(source_path("wheel.py")).arg(&plugins_with_copies()[0]);
        clean_environment(&mut command);
        command.env("LD_PRELOAD", preload);
        common::run(command).assert_quiet_success(&format!("wheel.py, preload `{preload}`"));
    }
}

/// Six copies of cairn beside the program's, of two builds, four of them made from archives.
#[test]
fn many_copies_live_together() {
    if skip_for_stand_in() {
        return;
    }
    let all = cairns(plugins_with_copies().iter().chain(libraries()));
    for case in ["side_by_side", "side_by_side_deeply_bound", "threads_outlive_them"] {
        run(&ANY, case, &all);
    }
}

/// They come as themselves, and with plugins that are linked with them.
#[test]
fn other_allocators_live_beside_it() {
    if skip_for_stand_in() {
        return;
    }
    let copy = cairns(&plugins_with_copies()[..1]);
    for other in others() {
        let itself = format!("-{}", other.display());
        let name = format!("plugin-{}", other.file_name().expect("a file").display());
        let user = plugin(&name, &[&other], &["-Wl,--no-as-needed"]);
        let user = format!("-{}", user.display());
        run(&SHARED, "side_by_side", &[&copy[..], &[itself]].concat());
        for case in ["side_by_side_deeply_bound", "mixed_up_deeply_bound"] {
            run(&SHARED, case, std::slice::from_ref(&user));
        }
    }
}

#[test]
fn a_block_of_another_allocator_is_told() {
    if skip_for_stand_in() {
        return;
    }
    run(&ANY, "mixed_up", &cairns(plugins_with_copies()));
    run(&ANY, "mixed_up", &cairns(libraries()));
    let deep = plugin("plugin-deep.so", &[], &[]);
    run(&SHARED, "mixed_up_deeply_bound", &[format!("-{}", deep.display())]);
}

/// What a program says whose copy has this prefix for its settings.
fn said(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    clean_environment(command.args(arguments));
    command.envs(variables.iter().copied());
    let outcome = common::run(command);
    outcome.assert_success(&format!("prefix.c {arguments:?} with {variables:?}"));
    outcome.stderr
}

/// `tests/c/prefix.c` with the archive.
fn with_prefix(prefix: &str, kind: &str) -> PathBuf {
    compiled("cc", &format!("prefix-{}{kind}", prefix.len()), |cc| {
        cc.arg(source_path("prefix.c")).arg(format!("-DPREFIX=\"{prefix}\""));
        cc.arg(archive(Build::Default)).arg(kind);
    })
}

#[test]
fn a_copy_obeys_variables_of_its_own() {
    if skip_for_stand_in() {
        return;
    }
    const SHOW: (&str, &str) = ("APP_CAIRN_SHOW_CONFIG", "1");
    for kind in ["-static", "-static-pie", "-pie"] {
        let program = with_prefix("APP_CAIRN_", kind);
        let said = |case, variables: &[_]| said(&program, &[case], variables);
        let hosts = [("CAIRN_SHOW_CONFIG", "1"), ("CAIRN_STATS", "1"), ("CAIRN_STATZ", "1")];
        assert_eq!(said("work", &hosts), "", "{kind}");

        let shown = said("work", &[SHOW, ("APP_CAIRN_PURGE_DELAY", "2s"), ("CAIRN_GUARDS", "x")]);
        let lines: Vec<_> = shown.lines().skip(1).collect();
        assert!(lines.iter().all(|line| line.starts_with("APP_CAIRN_")), "{kind}: {shown}");
        assert!(lines.contains(&"APP_CAIRN_PURGE_DELAY=2000ms"), "{kind}: {shown}");

        let shown = said("work", &[SHOW, ("APP_CAIRN_STATZ", "1"), ("APP_CAIRN_GUARDS", "x")]);
        let unknown = "cairn: APP_CAIRN_STATZ is not a setting; APP_CAIRN_STATS is\n";
        assert!(shown.contains(unknown), "{kind}: {shown}");
        let unread = "cairn: APP_CAIRN_GUARDS: cannot read `x`; it is a number";
        assert!(shown.contains(unread), "{kind}: {shown}");

        // The request is for the first process.
        let account = said("child_works", &[("APP_CAIRN_STATS", "1")]);
        assert_eq!(account.matches("cairn: the memory of ").count(), 1, "{kind}: {account}");
    }
}

#[test]
fn a_copy_without_a_prefix_obeys_none() {
    if skip_for_stand_in() {
        return;
    }
    let all = [("CAIRN_SHOW_CONFIG", "1"), ("SHOW_CONFIG", "1"), ("STATS", "1")];
    assert_eq!(said(&with_prefix("", "-pie"), &["work"], &all), "");
    let long = "A".repeat(33);
    let told = said(&with_prefix(&long, "-pie"), &["work"], &[(&format!("{long}STATS"), "1")]);
    assert_eq!(
        told,
        format!("cairn: cairn_settings_prefix: `{long}` is too long; no setting is read\n")
    );
}

/// The program's cairn and the plugin's: each has its own, and none of the other's.
#[test]
fn a_plugins_copy_does_not_obey_the_programs_variables() {
    if skip_for_stand_in() {
        return;
    }
    let of_plugin = ["-DPREFIX=\"APP_CAIRN_\"", "-DIS_PLUGIN", "-Wl,--exclude-libs,ALL"];
    let (copy, prefix) = (archive(Build::Default), source_path("prefix.c"));
    let plugin = plugin("plugin-with-settings.so", &[&prefix, &copy], &of_plugin);
    let plugin = plugin.to_str().expect("a plain path");
    for loading in ANY {
        let Some(program) = Program::build("prefix.c", loading) else { continue };
        let preload = library().shared.to_str().expect("a plain path");
        let preload = if loading == Loading::Preloaded { preload } else { "" };
        let said = |name| {
            said(
                &program.path,
                &["loads_a_plugin", plugin],
                &[("LD_PRELOAD", preload), (name, "1")],
            )
        };
        let own = said("APP_CAIRN_SHOW_CONFIG");
        assert!(own.contains("\nAPP_CAIRN_STATS=0\n") && !own.contains("\nCAIRN_"), "{own}");
        let programs = said("CAIRN_SHOW_CONFIG");
        let has_own = loading != Loading::Absent;
        assert_eq!(programs.contains("\nCAIRN_STATS=0\n"), has_own, "{loading:?}: {programs}");
        assert!(!programs.contains("APP_"), "{programs}");
    }
}

/// Runs a program that is asked for an account and a profile; what the files have, by their names.
fn written(mut command: Command, what: &str) -> BTreeMap<String, String> {
    // Tests run side by side in one process, and each ends with the removal of its folder.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = scratch_dir().join(format!("copies-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    command.env("CAIRN_STATS", "1").env("CAIRN_STATS_FILE", folder.join("f.json"));
    command.env("CAIRN_PROFILE", folder.join("heap")).env("CAIRN_PROFILE_RATE", "64KiB");
    common::run(command).assert_quiet_success(what);
    let files = std::fs::read_dir(&folder).expect("the folder").map(|file| {
        let file = file.expect("a file");
        let text = std::fs::read_to_string(file.path()).expect("text");
        (file.file_name().into_string().expect("plain"), text)
    });
    let files = files.collect();
    std::fs::remove_dir_all(folder).expect("it is there");
    files
}

/// The copy of a program that has its names to itself; the program writes over the name that the loader has of it.
#[test]
fn the_name_of_a_copy_is_its_files() {
    if skip_for_stand_in() {
        return;
    }
    let program = compiled("cc", "program-with-a-copy", |cc| {
        cc.arg("-I").arg(common::include_dir()).arg(source_path("account.c"));
        cc.arg(archive(Build::Default)).arg("-Wl,--exclude-libs,ALL");
    });
    let mut command = Command::new(program);
    clean_environment(&mut command);
    command.arg("changes_its_title").env("LD_PRELOAD", &library().shared);
    let files = written(command, "changes_its_title");
    let names = ["f.json", "f.json.program-with-a-copy", "heap", "heap.program-with-a-copy"];
    assert!(files.keys().eq(names), "{:?}", files.keys());
}

/// The files that were asked for have what the program's own copy knows, the others the name of their copy.
#[test]
fn no_two_copies_write_the_same_file() {
    if skip_for_stand_in() {
        return;
    }
    let has_sites = |profile: &str| profile.contains("\nsite ") && profile.ends_with("end\n");
    let Some(program) = Program::build("account.c", Loading::Archive) else { return };
    let mut command = program.command(&["hold_much"]);
    command.env("LD_PRELOAD", &library().shared);
    let files = written(command, "hold_much with two copies");
    let preloaded = library().shared.file_name().expect("a file").display();
    let others = ["f.json", "heap"].map(|name| format!("{name}.{preloaded}"));
    assert!(files.keys().eq(["f.json", &others[0], "heap", &others[1]]), "{:?}", files.keys());
    let account: serde_json::Value = serde_json::from_str(&files["f.json"]).expect("JSON");
    assert!(account["allocated"].as_u64() >= Some(64 << 20), "{account}");
    assert!(has_sites(&files["heap"]) && !has_sites(&files[&others[1]]), "{files:?}");

    let own = ["-Wl,--exclude-libs,ALL"];
    let plugin = plugin("plugin-that-writes.so", &[&archive(Build::Default)], &own);
    for loading in [Loading::Preloaded, Loading::Archive] {
        let Some(program) = Program::build("copies.c", loading) else { return };
        let arguments = ["side_by_side".to_owned(), format!("+{}", plugin.display())];
        let files = written(program.command(&arguments), "side_by_side, profiled");
        let names =
            ["f.json", "f.json.plugin-that-writes.so", "heap", "heap.plugin-that-writes.so"];
        // Its children write profiles, too.
        assert!(names.iter().all(|&name| files.contains_key(name)), "{:?}", files.keys());
        assert!(has_sites(&files[names[2]]) && has_sites(&files[names[3]]), "{files:?}");
    }
}
