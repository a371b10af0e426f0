//! How a test becomes many runs, each in a process of its own. The allocator's state lives as long as a
//! process: so a run is its model, its scheduler, its seed and its length, and nothing else.

use super::held::Random;
use super::memory::{self, System};
use super::{threads, work};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Executions in a run. More make later ones meet more that earlier ones left; fewer make a
/// failure quick to repeat.
const EXECUTIONS: usize = 40;
/// Operations in a run of one thread.
const OPERATIONS: usize = 3000;
/// How long each model runs, if nothing else is said: CAIRN_MODEL_SECONDS=600 is the long run.
const SECONDS: u64 = 1;
/// After this a run counts as hung.
pub(crate) const HUNG_AFTER_SECONDS: u32 = 120;
/// The depth of the bugs that the scheduler of that name looks for.
const PCT_DEPTH: usize = 4;

/// Runs a model under both schedulers.
pub(crate) fn explore(name: &'static str, model: fn()) {
    test(name, &["random", "pct"], EXECUTIONS, |scheduler, seed, executions| {
        let mut config = Config::new();
        config.stack_size = 256 << 10;
        // Schedules are long; a seed is not.
        config.failure_persistence = FailurePersistence::None;
        config.ungraceful_shutdown_config.immediately_return_on_panic = true;
        let execution = AtomicU64::new(seed << 32);
        let body = move || {
            Random::set_seed(execution.fetch_add(1, Ordering::Relaxed));
            threads::run_model(model);
            work::nothing_is_left(!["calls_fail", "mappings_cannot_grow"].contains(&name));
        };
        let scheduler: Box<dyn Scheduler + Send> = match scheduler {
            "random" => Box::new(RandomScheduler::new_from_seed(seed, executions)),
            _ => Box::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, executions)),
        };
        Runner::new(scheduler, config).run(body);
    });
}

/// Runs one thread on such a system. One call of `failing` fails, or none if that is 0.
pub(crate) fn alone(name: &str, system: System, failing: usize) {
    test(name, &["alone"], OPERATIONS, |_, seed, operations| {
        memory::configure(system);
        Random::set_seed(seed);
        work::alone(operations, failing);
        work::nothing_is_left(failing == 0);
    });
}

/// In a run, runs; else starts one run after the other.
fn test(name: &str, schedulers: &[&str], length: usize, run: impl FnOnce(&str, u64, usize)) {
    if let Ok(spec) = std::env::var("CAIRN_MODEL") {
        let parts: Vec<_> = spec.split(':').collect();
        let [scheduler, seed, length] = parts[..] else { panic!("no run: {spec}") };
        let (seed, length) = (seed.parse().expect("a seed"), length.parse().expect("a length"));
        // SAFETY: no preconditions.
        unsafe { libc::alarm(HUNG_AFTER_SECONDS) };
        run(scheduler, seed, length);
        println!("points: {}", threads::POINTS.load(Ordering::Relaxed));
        return;
    }
    let seconds = std::env::var("CAIRN_MODEL_SECONDS").ok().and_then(|s| s.parse().ok());
    let (start, seconds) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(SECONDS)));
    let (mut runs, mut points) = (0, 0);
    for seed in 1.. {
        for scheduler in schedulers {
            points += start_run(name, &format!("{scheduler}:{seed}:{length}"));
            runs += 1;
        }
        if start.elapsed() >= seconds {
            break;
        }
    }
    println!("{name}: {runs} runs of {length}, {points} points in {:?}", start.elapsed());
}

/// Starts a run; answers how many points it had.
fn start_run(name: &str, spec: &str) -> u64 {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]);
    command.env("CAIRN_MODEL", spec).env("RUST_BACKTRACE", "0");
    let output = command.output().expect("this program starts");
    assert!(
        output.status.success(),
        "{}\n{}\nTo repeat it:\nCAIRN_MODEL={spec} cargo test -p cairn-models --test whole -- --exact {} --nocapture",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        name,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let points = said.lines().find_map(|line| line.split_once("points: "));
    points.expect("the run says how many points").1.parse().expect("a number")
}
