//! Failing calls to the system, seen by a whole process: every call that the library makes, the
//! Nth alone and all from the Nth on, for N = 1, 2, 3, ... until a scenario ends without reaching
//! it, with each error that the kernel may answer.
//!
//! Each attempt is a process of its own. The programs, `faults.c` and `faults_new.cpp`, put
//! themselves where the library enters the kernel, and define the C library's names; `faults.h` tells
//! how. They say what must hold afterwards.
//!
//! An ordinary run leaves most N out. All of it takes minutes:
//!
//! ```sh
//! cargo test -p cairn-c --test faults -- --ignored --nocapture
//! ```

mod common;

use common::{Loading, Program, library, run, skip_for_stand_in};
use libc::{EACCES, EAGAIN, EINTR, EINVAL, EIO, ENOENT, ENOMEM, ENOSYS, EPERM, EPIPE, SIGALRM};
use object::endian::LittleEndian;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A call, and what the kernel may answer: the likeliest first, the last ones where a filter of
/// system calls stands before it. `memory` is all those that change memory.
const CALLS: [(&str, &[i32]); 15] = [
    ("mmap", &[ENOMEM, EAGAIN, EINVAL, EPERM]),
    ("munmap", &[ENOMEM, EINVAL, EPERM]),
    ("mprotect", &[ENOMEM, EACCES, EPERM]),
    ("madvise", &[EINVAL, EAGAIN, ENOMEM, EIO, EPERM]),
    ("mremap", &[ENOMEM, EAGAIN, EINVAL, EPERM, ENOSYS]),
    ("memory", &[ENOMEM, EPERM]),
    ("mincore", &[EAGAIN, ENOMEM, ENOSYS]),
    ("futex", &[EINTR, EAGAIN, ENOSYS]),
    ("write", &[EINTR, EAGAIN, EIO, EPIPE]),
    ("getrlimit", &[EPERM, EINVAL]),
    ("clock_gettime", &[EINVAL, ENOSYS]),
    ("getauxval", &[ENOENT]),
    ("pthread_key_create", &[EAGAIN, ENOMEM]),
    ("pthread_setspecific", &[ENOMEM, EINVAL]),
    ("pthread_atfork", &[ENOMEM]),
];

/// Symbols under which the library calls the C library, and which the programs define. The kernel it enters itself.
const WATCHED: [&str; 4] =
    ["__register_atfork", "getauxval", "pthread_key_create", "pthread_setspecific"];

/// All else that the library needs: what cannot fail, and what only its own calls of the same
/// name would be failed by (the loader's, which finds a file that calls it, and the stream that a program hands over); what only
/// starts and ends the purge thread, which is refused its start in `purge_thread.rs`; and what only a
/// setting asks for: an account at a signal (`raise` and `sig*`; `account.rs` has it refused), and words on settings.
const UNWATCHED: [&str; 41] = [
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "_ZSt15get_new_handlerv",
    "_ZSt17__throw_bad_allocv",
    // Weak: the C++ runtime's, if there is one, which catch what a new-handler throws.
    "__cxa_begin_catch",
    "__cxa_end_catch",
    "__gxx_personality_v0",
    "__cxa_finalize",
    // GNU ld adds it to `environ`, whose other name it is.
    "__environ",
    "__errno_location",
    "__gmon_start__",
    "__libc_single_threaded",
    "abort",
    "bcmp",
    "dl_iterate_phdr",
    "dladdr",
    "dlsym",
    "environ",
    "explicit_bzero",
    "fwrite",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "pthread_attr_destroy",
    "pthread_attr_init",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_getspecific",
    "pthread_join",
    // Of a key that another thread has made first.
    "pthread_key_delete",
    "pthread_sigmask",
    "raise",
    "setenv",
    "sigaction",
    "sigaddset",
    "sigemptyset",
    "sigfillset",
    "strlen",
    "sysconf",
    "unsetenv",
];

const SCENARIOS: [(&str, &[&str]); 2] = [
    (
        "faults.c",
        &[
            "startup",
            "startup_large",
            "startup_mapping",
            "startup_zeroed",
            "startup_aligned",
            "classes",
            "large",
            "mappings",
            "many_mappings",
            "growth",
            "growth_by_steps",
            "movers",
            "shrinking",
            "zeroed",
            "aligned",
            "purge",
            "threads",
            "threads_with_many_keys",
            "contention",
            "forks",
            "reports",
            "last_words",
        ],
    ),
    ("faults_new.cpp", &["throwing", "nothrow", "aligned", "with_handler"]),
];

/// What a program ends with if the call that was to fail was not reached.
const NOT_REACHED: i32 = 77;
/// More calls than any scenario makes: a loop that does not end is a failure, not a wait.
const CALLS_MAX: usize = 5000;
/// How often threads find a lock taken differs from run to run: more is not asked for.
const WAITS_MAX: usize = 20;

/// How much of everything is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// The likeliest error; the first calls, then ever fewer.
    Quick,
    /// All errors. Each call fails with the likeliest; with the others, which the allocator does
    /// not tell apart, the first calls, then ever fewer.
    Full,
}

impl Effort {
    fn errors(self, errors: &'static [i32]) -> &'static [i32] {
        match self {
            Effort::Quick => &errors[..1],
            Effort::Full => errors,
        }
    }

    /// The call to fail after the `nth`.
    fn after(self, nth: usize, is_likeliest: bool) -> usize {
        /// Calls beyond are those of hundreds of equal requests.
        const EQUAL: usize = 150;
        match self {
            Effort::Full if is_likeliest && nth <= EQUAL => nth + 1,
            Effort::Full if is_likeliest => nth + 7,
            Effort::Full => nth + 1 + nth / 2,
            Effort::Quick => 2 * nth,
        }
    }
}

/// A scenario in one way of loading, and how its attempts ended.
struct Trial<'a> {
    program: &'a Program,
    loading: Loading,
    scenario: &'a str,
    attempts: usize,
    failures: Vec<String>,
}

impl Trial<'_> {
    /// Runs one attempt; whether the call that was to fail was reached.
    fn attempt(&mut self, plan: &str) -> bool {
        let mut command = self.program.command(&[self.scenario]);
        command.env("TEST_FAULT", plan);
        self.attempts += 1;
        let outcome = run(command);
        let is_quiet = outcome.stderr.is_empty();
        match outcome.status.code() {
            Some(0) if is_quiet => return true,
            Some(NOT_REACHED) if is_quiet => return false,
            _ => {}
        }
        let how = if outcome.signal() == Some(SIGALRM) { "it hangs" } else { "it fails" };
        let preload = match self.loading {
            Loading::Preloaded => format!("LD_PRELOAD={} ", library().shared.display()),
            _ => String::new(),
        };
        let failure = format!(
            "TEST_FAULT={plan} {preload}{} {}\n    {how}, {}: {}",
            self.program.path.display(),
            self.scenario,
            outcome.status,
            outcome.stderr.trim_end(),
        );
        // At once: the whole run takes long.
        println!("{failure}");
        self.failures.push(failure);
        outcome.status.code() != Some(NOT_REACHED)
    }

    /// How often each call is made when none fails.
    fn census(&mut self) -> HashMap<String, usize> {
        let mut command = self.program.command(&[self.scenario]);
        command.env("TEST_FAULT", "census");
        let outcome = run(command);
        outcome.assert_quiet_success(&format!("{}, nothing fails", self.scenario));
        let line = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        outcome.stdout.lines().filter_map(line).collect()
    }

    fn fail_each_call(&mut self, effort: Effort) {
        let census = self.census();
        assert_ne!(census["mmap"], 0, "{}: the library's calls are not seen", self.scenario);
        for (call, errors) in CALLS {
            // A call that is made only after another has failed is not in the census.
            let is_made = census[call] > 0 || effort == Effort::Full;
            let most = if call == "futex" { WAITS_MAX } else { CALLS_MAX };
            for &error in effort.errors(errors).iter().filter(|_| is_made) {
                for mode in ["once", "from"] {
                    let mut nth = 1;
                    while nth <= most && self.attempt(&format!("{call}:{error}:{nth}:{mode}")) {
                        nth = effort.after(nth, error == errors[0]);
                    }
                    assert!(nth <= CALLS_MAX, "{}: {call} has no end", self.scenario);
                }
            }
        }
    }
}

/// Runs all scenarios, several at a time; says how many attempts it were, and fails with all that
/// failed.
fn fail_everything(loading: Loading, effort: Effort) {
    if skip_for_stand_in() {
        return;
    }
    let begin = Instant::now();
    let trials: Vec<_> = SCENARIOS
        .iter()
        .flat_map(|&(source, scenarios)| scenarios.iter().map(move |&scenario| (source, scenario)))
        .collect();
    let next = AtomicUsize::new(0);
    // Starting a process waits now and then.
    let workers = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    let (mut attempts, mut failures) = (0, Vec::new());
    std::thread::scope(|scope| {
        let work = || {
            let (mut attempts, mut failures) = (0, Vec::new());
            while let Some(&(source, scenario)) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(program) = Program::build(source, loading) else { continue };
                let program = &program;
                let mut trial =
                    Trial { program, loading, scenario, attempts: 0, failures: Vec::new() };
                trial.fail_each_call(effort);
                println!("{source} {scenario}, {loading:?}: {} attempts", trial.attempts);
                attempts += trial.attempts;
                failures.append(&mut trial.failures);
            }
            (attempts, failures)
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let (more, mut failed) =
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            attempts += more;
            failures.append(&mut failed);
        }
    });
    println!("{attempts} attempts in {:.1} s", begin.elapsed().as_secs_f64());
    let shown: Vec<_> = failures.iter().take(30).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} attempts fail:\n{}", failures.len(), shown.join("\n"));
}

#[test]
fn calls_may_fail() {
    fail_everything(Loading::Preloaded, Effort::Quick);
}

#[test]
#[ignore = "minutes: cargo test -p cairn-c --test faults -- --ignored --nocapture"]
fn every_call_may_fail_in_every_way() {
    fail_everything(Loading::Preloaded, Effort::Full);
    fail_everything(Loading::Linked, Effort::Quick);
}

/// Each symbol that the library needs is either failed by the programs or known not to matter.
#[test]
fn no_call_escapes() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = std::fs::read(&library().shared).expect("the library is readable");
    let file = ElfFile64::<LittleEndian>::parse(bytes.as_slice()).expect("an ELF library");
    let needed: Vec<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .map(|symbol| symbol.name().expect("a name"))
        .filter(|name| !name.is_empty())
        .collect();
    let strange: Vec<_> =
        needed.iter().filter(|name| !WATCHED.contains(name) && !UNWATCHED.contains(name)).collect();
    assert!(strange.is_empty(), "calls that no test makes fail: {strange:?}");
    let idle: Vec<_> = WATCHED.iter().filter(|name| !needed.contains(name)).collect();
    assert!(idle.is_empty(), "the library does not call {idle:?}");

    // And the loader binds them to the program.
    for loading in [Loading::Preloaded, Loading::Linked] {
        let Some(program) = Program::build("faults.c", loading) else { continue };
        let mut command = program.command(&["startup"]);
        command.env("LD_DEBUG", "bindings");
        let said = run(command).stderr;
        // By this name or, where a program asks for it, by that name with its version.
        let ours = format!("binding file {}", library().shared.display());
        for name in WATCHED {
            let symbol = format!("symbol `{name}'");
            let bound = said.lines().find(|line| line.contains(&symbol) && line.contains(&ours));
            let bound = bound.unwrap_or_else(|| panic!("{loading:?}: {name} is not bound"));
            let program = program.path.display().to_string();
            assert!(bound.contains(&format!(" to {program} ")), "{loading:?}: {bound}");
        }
    }
}
