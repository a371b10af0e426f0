//! Builds cairn for other machines and runs its tests there: on a simulated aarch64 (other code,
//! weak memory), on a simulated s390x (big-endian), and with musl in place of glibc.
//!
//! The simulators are qemu's for user programs. What such a run can prove, and what it cannot, is
//! in docs/guide/platforms.md.

use crate::c_programs::{self, Loading, Workshop, is_only_memory, run_cases};
use crate::kernel;
use crate::library::{shell, target_dir};
use crate::steps::{Ended, Steps, not_run};
use anyhow::{Result, ensure};
use clap::ValueEnum;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use xshell::{Cmd, Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these machines.
    #[arg(value_enum)]
    only: Vec<Machine>,
    /// Seconds for which each of the random tests runs.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    Aarch64,
    S390x,
    Musl,
}

/// How a machine is reached.
struct Target {
    triple: &'static str,
    /// In front of the names of its C compilers.
    prefix: &'static str,
    /// What starts its programs; nothing if this machine does.
    simulator: &'static str,
    /// Debian's packages that all of this comes from.
    packages: &'static str,
    /// Whether the C layer knows it.
    c_layer: bool,
}

const AARCH64: Target = Target {
    triple: "aarch64-unknown-linux-gnu",
    prefix: "aarch64-linux-gnu-",
    simulator: "qemu-aarch64 -L /usr/aarch64-linux-gnu",
    packages: "qemu-user g++-aarch64-linux-gnu",
    c_layer: true,
};
const S390X: Target = Target {
    triple: "s390x-unknown-linux-gnu",
    prefix: "s390x-linux-gnu-",
    simulator: "qemu-s390x -L /usr/s390x-linux-gnu",
    packages: "qemu-user gcc-s390x-linux-gnu",
    c_layer: false,
};
const MUSL: Target = Target {
    triple: "x86_64-unknown-linux-musl",
    prefix: "",
    simulator: "",
    packages: "gcc",
    c_layer: false,
};

/// Far beyond what any step needs on a slow machine.
const LIMIT: Duration = Duration::from_secs(3600);
/// The same for one case of a C program.
const CASE_LIMIT: Duration = Duration::from_secs(600);

/// Tests of the core that ask for what is not there: huge pages, which qemu 7.2 does not ask the
/// kernel for, a reservation of 1 TiB and limits of address space, and a forked child that starts a
/// thread, which it does not survive.
const LEFT_OUT: [&str; 3] = ["tests::huge::", "tests::reservation::", "tests::forks::a_child"];

/// The programs of the C layer's tests that make sense on a simulated machine, and their cases
/// that do not. What memory they take is measured on real machines: here it is the simulator's.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("semantics.c", &["trim_gives_back"]),
    ("alignment.c", &[]),
    ("api.c", &["purge", "purge_idle_threads"]),
    // Some start themselves anew, which takes a machine that knows such programs. qemu 7.2 does
    // not survive a forked child that starts a thread, and keeps 300 KiB for each thread that ends.
    (
        "process.c",
        &[
            "spawn_and_vfork",
            "exec_while_busy",
            "every_size",
            "fork_in_children",
            "fork_from_threads",
            "short_threads",
        ],
    ),
    ("misuse.c", &[]),
    ("lifetime.cpp", &[]),
    // qemu does not keep processes to a limit of address space.
    ("cxx.cpp", &["handler_frees_memory", "shortage_of_small_blocks"]),
    ("replaced_new.cpp", &[]),
];

/// Runs the command.
pub(crate) fn run_all(args: &Args) -> Result<()> {
    let (shell, mut steps) = (shell()?, Steps::new("targets", LIMIT, &args.step)?);
    for &machine in Machine::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&machine) {
            continue;
        }
        let target = match machine {
            Machine::Aarch64 => AARCH64,
            Machine::S390x => S390X,
            Machine::Musl => MUSL,
        };
        target.ensure_present(&shell)?;
        target.core(&shell, args.seconds, &mut steps);
        if target.c_layer {
            target.c_layer(&shell, &mut steps)?;
        }
    }
    steps.finish()?;
    not_run(match args.only.is_empty() && args.step.is_empty() {
        true => "a reservation of 1 TiB, for which simulators take too much memory",
        false => "the other machines and steps (cargo xtask targets)",
    });
    Ok(())
}

impl Target {
    fn ensure_present(&self, shell: &Shell) -> Result<()> {
        let gcc = format!("{}gcc", self.prefix);
        for need in [gcc.as_str(), self.simulator.split(' ').next().unwrap_or_default()] {
            let there = need.is_empty() || cmd!(shell, "{need} --version").quiet().read().is_ok();
            ensure!(there, "{need} is missing: apt-get install {}", self.packages);
        }
        let triple = self.triple;
        let folder = cmd!(shell, "rustc --print target-libdir --target {triple}").quiet().read();
        let there = folder.is_ok_and(|folder| Path::new(&folder).exists());
        ensure!(there, "its standard library is missing: rustup target add {triple}");
        Ok(())
    }

    /// Cargo, set up for this machine.
    fn cargo<'a>(&self, shell: &'a Shell, subcommand: &str) -> Cmd<'a> {
        let (triple, simulator) = (self.triple, self.simulator);
        let command = cmd!(shell, "cargo {subcommand} --release --target {triple}");
        if simulator.is_empty() {
            return command;
        }
        let key = triple.replace('-', "_").to_uppercase();
        command
            .env(format!("CARGO_TARGET_{key}_LINKER"), format!("{}gcc", self.prefix))
            .env(format!("CARGO_TARGET_{key}_RUNNER"), simulator)
            .env("CAIRN_TEST_SIMULATOR", simulator)
    }

    /// The core's own tests, with assertions in the code as it ships.
    fn core(&self, shell: &Shell, seconds: u32, steps: &mut Steps) {
        let groups = [("the core's unit tests", vec!["--lib"]), ("its tests", vec!["--test", "*"])];
        for (what, selection) in groups {
            let command = self.cargo(shell, "test").args(["-p", "cairn-malloc"]).args(selection);
            let command = command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
            let command = command.env("CAIRN_STRESS_SECONDS", seconds.to_string());
            let mut command = Command::from(command);
            if !self.simulator.is_empty() {
                kernel::small(&mut command);
                command.arg("--").args(LEFT_OUT.iter().flat_map(|test| ["--skip", test]));
            }
            steps.run(&format!("{}, {what}", self.triple), command, |ended| {
                Ok(format!("{} tests passed", ended.passed()?))
            });
        }
    }

    /// Programs in C and C++, preloaded, linked and static.
    fn c_layer(&self, shell: &Shell, steps: &mut Steps) -> Result<()> {
        let name = format!("{}, libcairn.so and libcairn.a", self.triple);
        steps.build(&name, self.cargo(shell, "build").args(["-p", "cairn-c"]))?;
        let workshop = Workshop {
            prefix: self.prefix,
            libraries: target_dir(self.triple).join("release"),
            out: target_dir("targets").join(self.triple),
        };
        for (source, left_out) in PROGRAMS {
            for loading in [Loading::Preloaded, Loading::Linked, Loading::Static] {
                // Our own calls need the library at link time; a static program cannot have an
                // operator of its own and ours.
                let fits = match source {
                    "api.c" => loading != Loading::Preloaded,
                    "replaced_new.cpp" => loading != Loading::Static,
                    _ => true,
                };
                if fits {
                    let name = format!("{}, {source}, {}", self.triple, loading.name());
                    steps.step(&name, |_| self.program(&workshop, source, loading, left_out));
                }
            }
        }
        steps.step(&format!("{}, loader.c", self.triple), |_| {
            let program = workshop.build("loader.c", Loading::Preloaded)?;
            let library = workshop.library();
            let command = |case: &str| {
                let mut command = self.simulated(&program, None);
                command.arg(case).arg(&library);
                command
            };
            let cases = c_programs::cases("loader.c", &[])?;
            run_cases(&program, &cases, CASE_LIMIT, command, |_, ended| ended.ensure_success())
        });
        Ok(())
    }

    /// Builds one program and runs its cases.
    fn program(
        &self,
        workshop: &Workshop,
        source: &str,
        loading: Loading,
        left_out: &[&str],
    ) -> Result<String> {
        let program = workshop.build(source, loading)?;
        let library = workshop.library();
        let preload = (loading == Loading::Preloaded).then_some(library.as_path());
        let mut cases = c_programs::cases(source, left_out)?;
        if source == "cxx.cpp" && loading == Loading::Static {
            // A documented limit of static programs.
            cases.retain(|case| case != "handler_may_throw_in_nothrow_forms");
        }
        let command = |case: &str| {
            let mut command = self.simulated(&program, preload);
            // Each fork of a simulated process is slow.
            let fewer = (case == "fork_from_busy").then_some("200");
            command.arg(case).args(fewer).env("TEST_EXPECTS_CAIRN", "1");
            command
        };
        let judge = |case: &str, ended: &Ended| match source {
            "misuse.c" => is_told(case, ended),
            _ if is_only_memory(ended) => Ok(()),
            _ => ended.ensure_success(),
        };
        run_cases(&program, &cases, CASE_LIMIT, command, judge)
    }

    fn simulated(&self, program: &Path, preload: Option<&Path>) -> Command {
        let mut words = self.simulator.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        if let Some(library) = preload {
            command.args(["-E", &format!("LD_PRELOAD={}", library.display())]);
        }
        command.arg(program);
        // The simulator writes core files of its own making.
        kernel::no_core_files(&mut command);
        kernel::small(&mut command);
        command
    }
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
