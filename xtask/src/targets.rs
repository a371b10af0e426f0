//! Builds cairn for other machines and runs its tests there: on a simulated aarch64 (other code,
//! weak memory), on a simulated s390x (big-endian), and with musl in place of glibc.
//!
//! The simulators are qemu's for user programs. What such a run can prove, and what it cannot, is
//! in CONTRIBUTING.md.

use crate::c_programs::{Loading, Workshop, cases, is_only_memory, run_cases};
use crate::kernel;
use crate::library::{Build, link, shell};
use crate::steps::{Ended, LIMIT, Steps, not_run_with};
use anyhow::{Result, ensure};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use xshell::{Cmd, Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these machines.
    #[arg(value_parser = ["aarch64", "s390x", "musl"])]
    only: Vec<String>,
    /// Seconds for which each of the random tests runs.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
    #[command(flatten)]
    build: Build,
}

/// A machine; all but musl's is simulated.
struct Target {
    name: &'static str,
    /// Debian's packages of its compilers and its simulator.
    packages: &'static str,
}

const TARGETS: [Target; 3] = [
    Target { name: "aarch64", packages: "qemu-user g++-aarch64-linux-gnu" },
    Target { name: "s390x", packages: "qemu-user gcc-s390x-linux-gnu" },
    Target { name: "musl", packages: "gcc" },
];

/// Tests of the core that ask for what is not there: huge pages, which qemu 7.2 does not ask the
/// kernel for, which pages are resident, a reservation of 1 TiB and limits of address space, and
/// forked children that start threads, which it does not survive, or that follow one another beside
/// busy threads: it needs seconds and gigabytes for each. And guard pages, which it says are there and are not.
const LEFT_OUT: [&str; 13] = [
    "tests::hardened_nursery::a_slice_of_nurseries_ends_in_a_guard",
    "tests::hardened_nursery::what_is_free_is_certain",
    "tests::quarantine::long_spans_end_in_guards",
    "tests::huge::",
    "tests::keeping::metadata_is_there_before_it_is_used",
    "tests::reservation::",
    "tests::forks::a_child",
    "tests::forks::handlers_older_than_ours_may_lock_and_allocate",
    "tests::hand_over::a_child_gets_no_heap_that_was_half_written",
    "tests::hand_over::a_child_inherits_what_others_kept",
    "tests::hand_over::heirs::a_child_believes_no_list_of_a_heap",
    "tests::lock::a_fork_waits_for_no_lock",
    "tests::shared::a_forked_child_has_it",
];

/// With musl, programs in Rust are static: they load no plugins.
const LEFT_OUT_OF_STATIC: [&str; 1] = ["it_stays_when_it_is_closed"];

/// The programs of the C layer's tests that make sense on a simulated machine, and their cases
/// that do not. What memory they take is measured on real machines: here it is the simulator's.
const PROGRAMS: [(&str, &str); 8] = [
    ("semantics.c", "trim_gives_back"),
    ("alignment.c", ""),
    ("api.c", "purge purge_idle_threads"),
    // Some start themselves anew, which takes a machine that knows such programs. qemu 7.2 does
    // not survive a forked child that starts a thread, and keeps 300 KiB for each thread that ends.
    (
        "process.c",
        "spawn_and_vfork exec_while_busy every_size fork_in_children fork_from_threads short_threads",
    ),
    ("misuse.c", ""),
    ("lifetime.cpp", ""),
    // qemu does not keep processes to a limit of address space.
    ("cxx.cpp", "handler_frees_memory shortage_of_small_blocks"),
    ("replaced_new.cpp", ""),
];
/// A documented limit of static programs, as well.
const STATIC_CXX: &str =
    "handler_frees_memory shortage_of_small_blocks handler_may_throw_in_nothrow_forms";

/// Misuses that the hardened build sees if chance wills: where a block lies is chance.
const CHANCE: &str = "free_of_a_neighbour free_sized_too_large free_sized_too_small free_sized_large \
    free_aligned_sized_wrong";

/// Runs the command.
pub(crate) fn run_all(args: &Args) -> Result<()> {
    let (shell, folder) = (shell()?, args.build.target_dir("targets"));
    let mut steps = Steps::new(&folder, LIMIT, &args.step)?;
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for target in TARGETS.iter().filter(|target| wanted(target.name)) {
        let (packages, triple) = (target.packages, target.triple());
        eprintln!("needs: apt-get install {packages}; rustup target add {triple}");
        target.core(&shell, args, &mut steps);
        // The C layer is not for the others.
        if target.name == "aarch64" {
            target.c_layer(&shell, args.build, &mut steps)?;
        }
    }
    steps.finish()?;
    let left_out = match args.only.is_empty() && args.step.is_empty() {
        true => "a reservation of 1 TiB, for which simulators take too much memory",
        false => "the other machines and steps (cargo xtask targets)",
    };
    not_run_with(args.build, left_out);
    Ok(())
}

impl Target {
    fn triple(&self) -> String {
        match self.simulator() {
            Some(_) => format!("{}-unknown-linux-gnu", self.name),
            None => "x86_64-unknown-linux-musl".to_owned(),
        }
    }

    /// What starts its programs, if this machine does not.
    fn simulator(&self) -> Option<String> {
        let name = self.name;
        (name != "musl").then(|| format!("qemu-{name} -L /usr/{name}-linux-gnu"))
    }

    /// In front of the names of its C compilers.
    fn prefix(&self) -> String {
        format!("{}-linux-gnu-", self.name)
    }

    /// Cargo, set up for this machine.
    fn cargo<'a>(
        &self,
        shell: &'a Shell,
        build: Build,
        subcommand: &str,
        profile: &str,
    ) -> Cmd<'a> {
        let (triple, folder) = (self.triple(), build.target_dir(""));
        let command = cmd!(shell, "cargo {subcommand} --profile {profile} --target {triple}");
        let command = command.arg("--target-dir").arg(folder);
        let Some(simulator) = self.simulator() else { return command };
        let key = triple.replace('-', "_").to_uppercase();
        command
            .env(format!("CARGO_TARGET_{key}_LINKER"), self.prefix() + "gcc")
            .env(format!("CARGO_TARGET_{key}_RUNNER"), &simulator)
            .env("CAIRN_TEST_SIMULATOR", simulator)
    }

    /// The core's own tests, with assertions in the code as it ships.
    fn core(&self, shell: &Shell, args: &Args, steps: &mut Steps) {
        steps.core_tests(&self.triple(), args.build, |tests| {
            let command = self.cargo(shell, args.build, "test", "library").args(tests);
            let command = command.env("CARGO_PROFILE_LIBRARY_DEBUG_ASSERTIONS", "true");
            let mut command =
                Command::from(command.env("CAIRN_STRESS_SECONDS", args.seconds.to_string()));
            let mut left_out = &LEFT_OUT_OF_STATIC[..];
            if self.simulator().is_some() {
                kernel::small(&mut command);
                left_out = &LEFT_OUT;
            }
            command.arg("--").args(left_out.iter().flat_map(|test| ["--skip", test]));
            command
        });
    }

    /// Programs in C and C++, preloaded, linked and static.
    fn c_layer(&self, shell: &Shell, build: Build, steps: &mut Steps) -> Result<()> {
        let triple = self.triple();
        let package = ["-p", "cairn-c", "--features", build.features()];
        let name = build.library_name();
        let made = self.cargo(shell, build, "build", "library").args(package);
        steps.build(&format!("{triple}, {name}"), made)?;
        let folder = build.target_dir(&triple);
        let (archive, linked) =
            (folder.join("library/libcairn_archive.a"), folder.join("release/lib"));
        let _compiler = shell.push_env("CC", self.prefix() + "gcc");
        link(shell, &archive, &linked, name)?;
        let workshop = Workshop {
            prefix: self.prefix(),
            library: linked.join(name).with_extension("so"),
            out: build.target_dir("targets").join(&triple),
        };
        for (source, left_out) in PROGRAMS {
            for loading in [Loading::Preloaded, Loading::Linked, Loading::Static] {
                let left_out = match (source, loading) {
                    // Our own calls need the library at link time; a static program cannot have an
                    // operator of its own and ours.
                    ("api.c", Loading::Preloaded) | ("replaced_new.cpp", Loading::Static) => {
                        continue;
                    }
                    ("cxx.cpp", Loading::Static) => STATIC_CXX,
                    ("misuse.c", _) if !build.features().is_empty() => CHANCE,
                    _ => left_out,
                };
                let judge = if source == "misuse.c" { is_told } else { ended_well };
                let tool =
                    |program: &Path, preload: Option<&Path>| self.simulated(program, preload);
                steps.step(&format!("{triple}, {source}, {}", loading.name()), || {
                    // Each fork of a simulated process is slow.
                    workshop.test((source, left_out), loading, "200", tool, judge)
                });
            }
        }
        steps.step(&format!("{triple}, loader.c"), || {
            let program = workshop.build("loader.c", Loading::Preloaded)?;
            let command = |case: &str| {
                let mut command = self.simulated(&program, None);
                command.arg(case).arg(&workshop.library);
                command
            };
            run_cases(&program, &cases("loader.c", "")?, command, |_, ended| ended.ensure_success())
        });
        Ok(())
    }

    fn simulated(&self, program: &Path, preload: Option<&Path>) -> Command {
        // The simulator writes core files of its own making.
        let mut command = Command::new("prlimit");
        command.arg("--core=0").args(self.simulator().iter().flat_map(|it| it.split(' ')));
        if let Some(library) = preload {
            command.args(["-E", &format!("LD_PRELOAD={}", library.display())]);
        }
        command.arg(program);
        kernel::small(&mut command);
        command
    }
}

/// A case ends well, but for a look at the simulator's memory.
fn ended_well(_: &str, ended: &Ended) -> Result<()> {
    if is_only_memory(ended) { Ok(()) } else { ended.ensure_success() }
}

/// A misuse ends the process, with a message.
fn is_told(case: &str, ended: &Ended) -> Result<()> {
    // The handler of the one ends the process in its own way.
    let signal = if case == "handler_allocates" { libc::SIGKILL } else { libc::SIGABRT };
    let ended_by = ended.status.and_then(|status| status.signal());
    let told = ended_by == Some(signal) && ended.output.contains("cairn: ");
    ensure!(told, "signal {ended_by:?}, or no message");
    Ok(())
}
