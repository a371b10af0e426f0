//! Builds cairn for other machines and runs its tests there: on a simulated aarch64 (other code,
//! weak memory), on a simulated s390x (big-endian), and with musl in place of glibc.
//!
//! The simulators are qemu's for user programs. What such a run can prove, and what it cannot, is
//! in docs/guide/platforms.md.

use crate::c_programs::{self, Loading, Workshop};
use crate::kernel;
use crate::library;
use crate::library::target_dir;
use crate::steps::{Steps, not_run, passed, run};
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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
    /// Give the simulated programs the whole reservation of 1 TiB (qemu before 8.0 keeps a table of
    /// every page of it: 6 GiB of memory for each process). Only the traffic test is run.
    #[arg(long)]
    full_reservation: bool,
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
    let mut steps = Steps::new("targets", LIMIT)?.only(&args.step);
    for &machine in Machine::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&machine) {
            continue;
        }
        let target = match machine {
            Machine::Aarch64 => AARCH64,
            Machine::S390x => S390X,
            Machine::Musl => MUSL,
        };
        target.ensure_present()?;
        target.core(args, &mut steps);
        if target.c_layer && !args.full_reservation {
            target.c_layer(&mut steps)?;
        }
    }
    steps.finish()?;
    not_run(match args.only.is_empty() && args.step.is_empty() && !args.full_reservation {
        true => "a reservation of 1 TiB under a simulator (cargo xtask targets --full-reservation)",
        false => "the other machines and steps (cargo xtask targets)",
    });
    Ok(())
}

impl Target {
    fn ensure_present(&self) -> Result<()> {
        let mut needs = vec![format!("{}gcc", self.prefix)];
        needs.extend(self.simulator.split(' ').next().map(str::to_owned));
        for need in needs.iter().filter(|need| !need.is_empty()) {
            let there = Command::new(need).arg("--version").output().is_ok();
            ensure!(there, "{need} is missing: apt-get install {}", self.packages);
        }
        let found = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", self.triple])
            .current_dir(library::workspace())
            .output()?;
        let folder = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let there = !folder.is_empty() && Path::new(&folder).exists();
        ensure!(there, "its standard library is missing: rustup target add {}", self.triple);
        Ok(())
    }

    /// Cargo, set up for this machine.
    fn cargo(&self, subcommand: &str) -> Command {
        let key = self.triple.replace('-', "_").to_uppercase();
        let mut command = Command::new(env!("CARGO"));
        command.args([subcommand, "--release", "--target", self.triple]);
        command.current_dir(library::workspace());
        if !self.simulator.is_empty() {
            command.env(format!("CARGO_TARGET_{key}_LINKER"), format!("{}gcc", self.prefix));
            command.env(format!("CARGO_TARGET_{key}_RUNNER"), self.simulator);
            command.env("CAIRN_TEST_SIMULATOR", self.simulator);
        }
        command
    }

    /// The core's own tests, with assertions in the code as it ships.
    fn core(&self, args: &Args, steps: &mut Steps) {
        let groups: &[(&str, &[&str])] = match args.full_reservation {
            true => &[("the traffic test in a full reservation", &["--test", "traffic"])],
            false => &[("the core's unit tests", &["--lib"]), ("its tests", &["--test", "*"])],
        };
        for (what, selection) in groups {
            let mut command = self.cargo("test");
            command.args(["-p", "cairn-malloc"]).args(*selection);
            command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
            command.env("CAIRN_STRESS_SECONDS", args.seconds.to_string());
            if !self.simulator.is_empty() && !args.full_reservation {
                kernel::small(&mut command);
                command.arg("--");
                command.args(LEFT_OUT.iter().flat_map(|test| ["--skip", test]));
            }
            steps.run(&format!("{}, {what}", self.triple), &mut command, |ended| {
                ended.ensure_success()?;
                Ok(format!("{} tests passed", passed(&ended.output)))
            });
        }
    }

    /// Programs in C and C++, preloaded, linked and static.
    fn c_layer(&self, steps: &mut Steps) -> Result<()> {
        let name = format!("{}, libcairn.so and libcairn.a", self.triple);
        steps.build(&name, self.cargo("build").args(["-p", "cairn-c"]))?;
        let workshop = Workshop {
            prefix: self.prefix,
            libraries: target_dir(self.triple).join("release"),
            out: target_dir("targets").join(self.triple),
        };
        for (source, left_out) in PROGRAMS {
            for loading in Loading::USUAL {
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
            let library = workshop.libraries.join("libcairn.so");
            let library = library.to_str().unwrap_or_default();
            each(&program, &c_programs::cases("loader.c")?, |case| {
                self.simulated(&program, &[case, library], None)
            })
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
        let library = workshop.libraries.join("libcairn.so");
        let preload = (loading == Loading::Preloaded).then_some(library.as_path());
        let mut cases = c_programs::cases(source)?;
        cases.retain(|case| !left_out.contains(&case.as_str()));
        if source == "cxx.cpp" && loading == Loading::Static {
            // A documented limit of static programs.
            cases.retain(|case| case != "handler_may_throw_in_nothrow_forms");
        }
        each(&program, &cases, |case| {
            // Each fork of a simulated process is slow.
            let more: &[&str] = if case == "fork_from_busy" { &[case, "200"] } else { &[case] };
            let mut command = self.simulated(&program, more, preload);
            command.env("TEST_EXPECTS_CAIRN", "1");
            command
        })
    }

    fn simulated(&self, program: &Path, args: &[&str], preload: Option<&Path>) -> Command {
        let mut words = self.simulator.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        if let Some(library) = preload {
            command.args(["-E", &format!("LD_PRELOAD={}", library.display())]);
        }
        command.arg(program).args(args);
        // The simulator writes core files of its own making.
        kernel::no_core_files(&mut command);
        kernel::small(&mut command);
        command
    }
}

/// Runs each case; those that fail are named with what they said.
fn each(program: &Path, cases: &[String], command: impl Fn(&str) -> Command) -> Result<String> {
    let is_misuse = program.to_string_lossy().contains("misuse-c");
    let (mut failed, mut measured) = (Vec::new(), 0);
    for case in cases {
        let log: PathBuf = program.with_extension(format!("{case}.log"));
        let ended = run(&mut command(case), &log, CASE_LIMIT)?;
        let good = match (is_misuse, ended.status) {
            (false, Some(status)) => status.success(),
            // The handler of the one ends the process in its own way.
            (true, Some(status)) => {
                let by_handler = case == "handler_allocates";
                let signal = if by_handler { libc::SIGKILL } else { libc::SIGABRT };
                status.signal() == Some(signal) && ended.output.contains("cairn: ")
            }
            (_, None) => false,
        };
        let last = ended.output.lines().last().unwrap_or_default().to_owned();
        if !good && last.contains("resident_kib() <") {
            // All that it does was right; then it looks at the memory of the process.
            measured += 1;
        } else if !good {
            failed.push(format!("{case} ({:?}: {last})", ended.status));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} cases: {}", failed.len(), cases.len(), failed.join("; "));
    }
    let passed = cases.len() - measured;
    Ok(match measured {
        0 => format!("{passed} cases passed"),
        _ => format!("{passed} cases passed, {measured} up to their measure of memory"),
    })
}
