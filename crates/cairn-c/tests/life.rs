//! The first operation of a process, whatever it is, wherever it happens, however the library
//! got into the process: a grid of which each cell is a process of its own.
//!
//! `CAIRN_TEST_ALL=1 cargo test -p cairn-c --test life -- --nocapture` runs all cells, else a third; it prints the
//! table. The message of a cell that fails has the command that repeats it.

mod common;

use common::{
    Outcome, include_dir, lacks, library, run, scratch_dir, skip_for_stand_in, skipped, source_path,
};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// How the library gets into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// `LD_PRELOAD`.
    Preloaded,
    /// Linked with the shared library.
    Linked,
    /// The archive, in a program that is otherwise dynamic.
    Archive,
    /// `-static`, with glibc.
    Static,
    /// `-static-pie`, with glibc.
    StaticPie,
    /// `-static`, with musl.
    Musl,
}

const FORMS: [Form; 6] =
    [Form::Preloaded, Form::Linked, Form::Archive, Form::Static, Form::StaticPie, Form::Musl];

impl Form {
    fn is_static(self) -> bool {
        matches!(self, Form::Static | Form::StaticPie | Form::Musl)
    }
}

/// Places, in the order of a process's life, and what one of them needs.
#[rustfmt::skip]
const PLACES: [(&str, Need); 27] = [
    ("preinit", Need::Preinit),
    ("library_constructor", Need::Libraries),
    ("early_constructor", Need::Nothing),
    ("constructor", Need::Nothing),
    ("main", Need::Nothing),
    ("thread", Need::Nothing),
    ("thread_key", Need::Nothing),
    ("thread_local", Need::Glibc),
    ("main_thread_local", Need::Glibc),
    ("handler", Need::Nothing),
    ("alternate_stack", Need::Nothing),
    ("interrupted", Need::Nothing),
    ("forked", Need::Nothing),
    ("forked_again", Need::Nothing),
    ("bare_fork", Need::Nothing),
    ("cloned_process", Need::Nothing),
    ("cloned_thread", Need::Nothing),
    ("beside_spawned", Need::Nothing),
    ("plugin", Need::Libraries),
    ("plugin_deepbind", Need::Libraries),
    ("plugin_constructor", Need::Libraries),
    ("plugin_destructor", Need::Libraries),
    ("after_plugin", Need::Libraries),
    ("atexit", Need::Nothing),
    ("quick_exit", Need::Nothing),
    ("destructor", Need::Nothing),
    ("library_destructor", Need::Libraries),
];

/// Places in no form, and why.
const NOWHERE: [(&str, &str); 4] = [
    (
        "a child of vfork",
        "it may only exec or end; beside_spawned has the operation after such children",
    ),
    (
        "an IFUNC resolver",
        "it runs before thread-local storage has its initial values (dynamic; glibc's own malloc \
         needs none, so it works there) or exists (static; glibc's own crashes too)",
    ),
    (
        "reallocarray in a deeply bound plugin, which finds the C library's",
        "glibc's reallocarray calls the program's realloc, and its free then meets a block of ours",
    ),
    (
        "a handler that interrupted the allocator, and allocates",
        "undefined for every malloc; `interrupted` has handlers that leave it alone",
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    /// Shared libraries.
    Libraries,
    /// glibc's way to thread_local destructors.
    Glibc,
    /// `.preinit_array` is run.
    Preinit,
}

/// Why this form has no such place.
fn missing(form: Form, need: Need) -> Option<&'static str> {
    match need {
        Need::Libraries if form.is_static() => Some("a static program loads no libraries"),
        Need::Glibc if form == Form::Musl => Some("musl has no __cxa_thread_atexit_impl"),
        Need::Preinit if form == Form::Musl => Some("musl runs no .preinit_array"),
        _ => None,
    }
}

/// Whether the two go together; if not, `NOWHERE` says why.
fn makes_sense(form: Form, place: &str, operation: &str) -> bool {
    !(may_be_foreign(form, place) && operation.ends_with("reallocarray"))
}

/// Every operation of `tests/c/life.h`.
#[rustfmt::skip]
const OPERATIONS: [&str; 66] = [
    "malloc", "malloc-0", "malloc-medium", "malloc-large", "malloc-mapping",
    "calloc", "calloc-medium", "calloc-large", "realloc", "realloc-0", "realloc-large",
    "reallocarray", "aligned_alloc", "memalign", "memalign-1M", "memalign-16M", "posix_memalign",
    "valloc", "pvalloc",
    "__libc_malloc", "__libc_calloc", "__libc_realloc", "__libc_reallocarray", "__libc_memalign",
    "__libc_valloc", "__libc_pvalloc",
    "new", "new-nothrow", "new-aligned", "new-aligned-nothrow",
    "new[]", "new[]-nothrow", "new[]-aligned", "new[]-aligned-nothrow",
    "free-null", "malloc_usable_size", "malloc_trim", "mallinfo", "mallinfo2", "malloc_info",
    "malloc_stats", "mallopt", "__libc_mallopt", "__libc_mallinfo", "__libc_free-null",
    "cfree-null", "free_sized-null", "free_aligned_sized-null",
    "delete-null", "delete-sized", "delete-nothrow", "delete-aligned", "delete-sized-aligned",
    "delete-aligned-nothrow", "delete[]-null", "delete[]-sized", "delete[]-nothrow",
    "delete[]-aligned", "delete[]-sized-aligned", "delete[]-aligned-nothrow",
    "cairn_is_active", "cairn_version", "cairn_usable_size", "cairn_base", "cairn_purge",
    "cairn_stats_print",
];

/// A program of `tests/c/life.c`, and its plugin if it can have one.
struct Program {
    form: Form,
    path: PathBuf,
    plugin: Option<PathBuf>,
}

impl Program {
    fn command(&self, place: &str, operation: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args([place, operation]).args(&self.plugin).stdin(Stdio::null());
        common::clean_environment(&mut command);
        if self.form == Form::Preloaded {
            command.env("LD_PRELOAD", &library().shared);
        }
        command
    }

    /// The same, for people.
    fn repeat(&self, place: &str, operation: &str) -> String {
        let mut text = String::new();
        if self.form == Form::Preloaded {
            let _ = write!(text, "LD_PRELOAD={} ", library().shared.display());
        }
        let _ = write!(text, "{} {place} '{operation}'", self.path.display());
        if let Some(plugin) = &self.plugin {
            let _ = write!(text, " {}", plugin.display());
        }
        text
    }
}

/// The archive for musl; None, with a word about it, if this machine cannot make one.
fn musl_archive() -> Option<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    if lacks("musl-gcc", "musl-tools") {
        return None;
    }
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "library", "-p", "cairn-c", "--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    let messages = String::from_utf8_lossy(&built.stderr);
    if messages.contains("target may not be installed") {
        skipped(&format!("no standard library for musl; rustup target add {TARGET}"));
        return None;
    }
    assert!(built.status.success(), "no archive for musl:\n{messages}");
    Some(target_dir.join(TARGET).join("library/libcairn_archive.a"))
}

fn compiler(name: &str) -> Command {
    let mut compiler = Command::new(name);
    compiler.args(["-std=gnu11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-fno-builtin"]);
    compiler.arg("-I").arg(include_dir());
    compiler
}

/// Compiles to a file of this name in the scratch folder.
fn compile(mut compiler: Command, name: &str) -> PathBuf {
    // Renamed when whole: another test process may be running the same program.
    let unfinished = scratch_dir().join(format!("{name}-{}", std::process::id()));
    let output = compiler.arg("-o").arg(&unfinished).output().expect("a C compiler is needed");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} does not compile:\n{messages}\n{compiler:?}");
    let path = scratch_dir().join(name);
    std::fs::rename(&unfinished, &path).expect("rename within a folder");
    path
}

/// Has the compiler link with the shared library.
fn link_shared(compiler: &mut Command) {
    let dir = library().shared.parent().expect("an absolute path");
    compiler.args(["-DCAIRN_IS_LINKED", "-Wl,--no-as-needed"]).arg(&library().shared);
    compiler.arg(format!("-Wl,-rpath,{}", dir.display()));
}

/// The program in every form that can be built here.
fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| FORMS.into_iter().filter_map(build).collect())
}

fn build(form: Form) -> Option<Program> {
    let archive = match form {
        Form::Musl => musl_archive()?,
        _ => library().archive.clone().expect("ours has an archive"),
    };
    let mut program = compiler(if form == Form::Musl { "musl-gcc" } else { "cc" });
    program.arg(source_path("life.c"));
    let mut plugin = None;
    if form.is_static() {
        program.args(["-DCAIRN_IS_LINKED", "-DLIFE_IS_STATIC=1"]).arg(&archive);
        program.arg(if form == Form::StaticPie { "-static-pie" } else { "-static" });
    } else {
        program.arg("-Wl,--no-as-needed").arg(build_library(form, "library", &[]));
        plugin = Some(build_library(form, "plugin", &["-DLIFE_IS_PLUGIN"]));
    }
    match form {
        Form::Linked => link_shared(&mut program),
        Form::Archive => {
            program.args(["-DCAIRN_IS_LINKED", "-rdynamic"]).arg(&archive);
        }
        _ => {}
    }
    Some(Program { form, path: compile(program, &format!("life-{form:?}")), plugin })
}

fn build_library(form: Form, part: &str, define: &[&str]) -> PathBuf {
    let mut compiler = compiler("cc");
    compiler.args(["-shared", "-fPIC"]).args(define).arg(source_path("life_library.c"));
    if form == Form::Linked {
        link_shared(&mut compiler);
    }
    compile(compiler, &format!("life-{part}-{form:?}.so"))
}

/// What a cell has shown.
#[derive(Clone, Copy, Default)]
struct Tally {
    cells: usize,
    /// Nobody had allocated before.
    first: usize,
    /// Another allocator answered.
    foreign: usize,
}

/// The line that the program prints, as (nobody allocated before, cairn answered).
fn verdict(outcome: &Outcome, place: &str, operation: &str) -> Result<(bool, bool), String> {
    let said = || format!("{}\n{}{}", outcome.status, outcome.stdout, outcome.stderr);
    if !outcome.status.success() || !outcome.stderr.is_empty() {
        return Err(said());
    }
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let [line] = lines[..] else { return Err(said()) };
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        [at, what, when @ ("first" | "later"), who @ ("cairn" | "other")]
            if at == place && what == operation =>
        {
            Ok((when == "first", who == "cairn"))
        }
        _ => Err(said()),
    }
}

/// Whether another allocator may answer: a plugin that looks into its own libraries first finds
/// the C library's, unless cairn is one of them.
fn may_be_foreign(form: Form, place: &str) -> bool {
    place == "plugin_deepbind" && form != Form::Linked
}

type Cell<'a> = (&'a Program, &'static str, &'static str);

/// Runs every cell, a few at a time.
fn run_cells(cells: &[Cell<'_>]) -> (HashMap<(Form, &'static str), Tally>, Vec<String>) {
    let next = AtomicUsize::new(0);
    let tallies: Mutex<HashMap<_, Tally>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(&(program, place, operation)) =
                    cells.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let outcome = run(program.command(place, operation));
                    let result = match verdict(&outcome, place, operation) {
                        Ok((_, false)) if !may_be_foreign(program.form, place) => {
                            Err("another allocator answered".to_owned())
                        }
                        other => other,
                    };
                    match result {
                        Ok((first, ours)) => {
                            let mut tallies = tallies.lock().expect("no worker panics");
                            let tally = tallies.entry((program.form, place)).or_default();
                            tally.cells += 1;
                            tally.first += usize::from(first);
                            tally.foreign += usize::from(!ours);
                        }
                        Err(why) => failures.lock().expect("no worker panics").push(format!(
                            "{:?}, {place}, {operation}: {why}\nrepeat: {}",
                            program.form,
                            program.repeat(place, operation)
                        )),
                    }
                }
            });
        }
    });
    (tallies.into_inner().expect("joined"), failures.into_inner().expect("joined"))
}

fn table(tallies: &HashMap<(Form, &'static str), Tally>) -> String {
    let mut text = format!("{:22}", "");
    for form in FORMS {
        let _ = write!(text, "{:>16}", format!("{form:?}"));
    }
    text.push('\n');
    let mut reasons = Vec::new();
    for (place, need) in PLACES {
        let _ = write!(text, "{place:22}");
        for form in FORMS {
            let cell = match (tallies.get(&(form, place)), missing(form, need)) {
                (Some(t), _) if t.foreign > 0 => format!("{} ({} foreign)", t.cells, t.foreign),
                (Some(t), _) => format!("{} ({} first)", t.cells, t.first),
                (None, Some(reason)) => {
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                    let number = reasons.iter().position(|r| *r == reason).unwrap_or(0) + 1;
                    format!("- [{number}]")
                }
                (None, None) => "not run".to_owned(),
            };
            let _ = write!(text, "{cell:>16}");
        }
        text.push('\n');
    }
    for (number, reason) in reasons.iter().enumerate() {
        let _ = writeln!(text, "[{}] {reason}", number + 1);
    }
    for (place, reason) in NOWHERE {
        let _ = writeln!(text, "nowhere: {place}: {reason}");
    }
    text
}

/// The grid: all of it, or of each form a third, in which are all places and all operations, and two forms of most
/// pairs of them.
#[test]
fn any_operation_may_be_the_first_anywhere() {
    if skip_for_stand_in() {
        return;
    }
    let mut cells = Vec::new();
    let step = if std::env::var_os("CAIRN_TEST_ALL").is_some() { 1 } else { 3 };
    for (form, program) in programs().iter().enumerate() {
        for (nth, (place, need)) in PLACES.into_iter().enumerate() {
            if missing(program.form, need).is_some() {
                continue;
            }
            let fits = |operation: &&str| makes_sense(program.form, place, operation);
            let operations = OPERATIONS.into_iter().skip((form + nth) % step).step_by(step);
            cells.extend(operations.filter(fits).map(|operation| (program, place, operation)));
        }
    }
    let start = std::time::Instant::now();
    let (tallies, failures) = run_cells(&cells);
    println!("{} cells in {:.1} s", cells.len(), start.elapsed().as_secs_f64());
    println!("{}", table(&tallies));
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} of {} cells fail:\n\n{shown}", failures.len(), cells.len());
}

/// A thread's first allocation makes the window, which registers handlers, which may allocate:
/// all of it has to end in one heap.
#[test]
fn one_thread_takes_one_heap() {
    if skip_for_stand_in() {
        return;
    }
    for program in programs() {
        let outcome = run(program.command("heaps", "malloc"));
        let what = format!("{:?}: {}", program.form, program.repeat("heaps", "malloc"));
        outcome.assert_quiet_success(&what);
        let heaps = outcome.stdout.lines().find(|line| line.starts_with("<heaps "));
        let heaps = heaps.unwrap_or_else(|| panic!("{what}:\n{}", outcome.stdout));
        assert!(heaps.starts_with("<heaps in_use=\"1\""), "{what}: {heaps}");
    }
}

/// Nothing has been allocated by then: there is no window that the pointer could be looked up in.
#[test]
fn a_bad_pointer_is_named_even_first_of_all() {
    if skip_for_stand_in() {
        return;
    }
    for program in programs() {
        for place in ["constructor", "main", "thread", "handler", "atexit", "destructor"] {
            let outcome = run(program.command(place, "free-foreign"));
            let repeat = program.repeat(place, "free-foreign");
            let what = format!("{}\n{}\n{repeat}", outcome.status, outcome.stderr);
            assert_eq!(outcome.signal(), Some(libc::SIGABRT), "{what}");
            assert!(outcome.stderr.starts_with("cairn: free(0x"), "{what}");
            assert!(
                outcome.stderr.ends_with("): the pointer is not from this allocator\n"),
                "{what}"
            );
            assert_eq!(outcome.stderr.lines().count(), 1, "{what}");
        }
    }
}
