//! The command line.

use crate::probe::{self, Order, Shape};
use crate::report::{self, Measured};
use crate::simulation::{self, Plan};
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Count locked instructions and cache-line transfers of allocators, by simulation.
#[derive(Parser)]
struct Cli {
    /// A library to preload; without any, the C library's own malloc is counted.
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    library: Vec<(String, PathBuf)>,
    /// Count the C library's own malloc too.
    #[arg(long)]
    glibc: bool,
    /// Only these shapes (comma-separated).
    #[arg(long, value_name = "SHAPE", value_delimiter = ',', default_values_t = Shape::ALL.map(Named))]
    shapes: Vec<Named>,
    /// These numbers of threads [default: powers of two from 2 to 256]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// 2, 8 and 32 threads, and fewer operations.
    #[arg(long)]
    quick: bool,
    /// Operations that are counted in each run [default: by the number of threads]
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Bytes in a block.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    /// Seconds after which a run stops and tells what it has.
    #[arg(long, value_name = "SECONDS", default_value_t = 90.0)]
    limit: f64,
    /// Seed of the order in which threads take turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Execute every instruction on the processor too, and compare; slow.
    #[arg(long)]
    check: bool,
    /// After each run, the places where most lines move.
    #[arg(long = "where", value_name = "N", num_args = 0..=1, default_missing_value = "12")]
    places: Option<usize>,
    /// Write everything to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Be the traced program.
    #[command(hide = true)]
    Probe(Order),
}

/// A shape that prints as its name.
#[derive(Clone, Copy)]
struct Named(Shape);

impl std::fmt::Display for Named {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0.name())
    }
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(name: &str) -> Result<Named, String> {
        clap::ValueEnum::from_str(name, false).map(Named)
    }
}

fn named(argument: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = argument.split_once('=').ok_or("expected NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

/// Places that go into the JSON.
const PLACES: usize = 12;

/// The main function.
pub fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Command::Probe(order)) = cli.command {
        return probe::run(order);
    }
    let mut libraries: Vec<(&str, Option<PathBuf>)> =
        cli.library.iter().map(|(name, path)| (&**name, Some(path.clone()))).collect();
    if cli.glibc || libraries.is_empty() {
        libraries.push(("glibc", None));
    }
    let mut all = Vec::new();
    for &Named(shape) in &cli.shapes {
        for threads in counts(&cli) {
            for (name, library) in &libraries {
                let plan = plan(&cli, shape, threads)?;
                let described = || format!("{name}, {} with {threads} threads", shape.name());
                let mut run = simulation::run(&plan, library.as_deref()).with_context(described)?;
                let [all_steps, stepped] = run.steps;
                eprintln!("{}: {all_steps} instructions, {stepped} stepped", described());
                let top = cli.places.unwrap_or(PLACES);
                let measured = Measured::new(name, shape, threads, &mut run, top);
                if cli.places.is_some() {
                    println!("{}\n{}\n", described(), report::places(&measured));
                }
                all.push(measured);
            }
        }
    }
    println!("{}", report::table(&all));
    if let Some(path) = &cli.json {
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn counts(cli: &Cli) -> Vec<usize> {
    match (&cli.threads[..], cli.quick) {
        ([], true) => vec![2, 8, 32],
        ([], false) => (1..=8).map(|power| 1 << power).collect(),
        (given, _) => given.to_vec(),
    }
}

/// Few operations for each of many threads: they were stopped at random points of what
/// they repeat, so that together they show all of it.
fn plan(cli: &Cli, shape: Shape, threads: usize) -> Result<Plan> {
    let least = if cli.quick { 2048 } else { 4096 };
    let operations = cli.operations.unwrap_or((threads as u64 * 64).max(least));
    Ok(Plan {
        probe: std::env::current_exe()?,
        shape,
        threads,
        size: cli.size,
        settle: operations / 3,
        operations,
        limit: Duration::from_secs_f64(cli.limit),
        seed: cli.seed,
        check: cli.check,
    })
}
