//! The command line.

use anyhow::{Context, Result};
use cairn_scaling::account::Account;
use cairn_scaling::places::Places;
use cairn_scaling::probe::{self, Order, Shape};
use cairn_scaling::simulation::{self, Plan};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Count locked instructions and cache-line transfers of allocators, by simulation.
#[derive(Parser)]
struct Cli {
    /// A library to preload; a name alone is the C library, which stands for all if none is given.
    #[arg(long, value_name = "NAME=PATH")]
    library: Vec<String>,
    /// Only these shapes (comma-separated) [default: all but ping-pong]
    #[arg(long, value_enum, value_delimiter = ',')]
    shapes: Vec<Shape>,
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
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    limit: f64,
    /// Seed of the order in which threads take turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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

/// The main function.
pub(crate) fn main() -> Result<()> {
    let mut cli = Cli::parse();
    if let Some(Command::Probe(order)) = cli.command {
        return probe::run(order);
    }
    if cli.library.is_empty() {
        cli.library.push("glibc".to_owned());
    }
    if cli.shapes.is_empty() {
        cli.shapes = Shape::ALL.to_vec();
    }
    let head = ["library", "shape", "threads", "ops"];
    row(head.into_iter().map(str::to_owned).chain(Account::COLUMNS.map(str::to_owned)));
    row(vec!["---".to_owned(); head.len() + Account::COLUMNS.len()]);
    let mut all = Vec::new();
    for &shape in &cli.shapes {
        for threads in counts(&cli) {
            for library in &cli.library {
                let (name, path) = library.split_once('=').unzip();
                let name = name.unwrap_or(library);
                let plan = plan(&cli, shape, threads)?;
                let described = || format!("{name}, {} with {threads} threads", shape.name());
                let (account, mut places) =
                    simulation::run(&plan, path.map(Path::new)).with_context(described)?;
                all.push(told(name, &plan, &account));
                if let Some(top) = cli.places {
                    tell_places(&account, &mut places, top);
                }
            }
        }
    }
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
    })
}

/// Prints one run's figures, and returns them as JSON.
fn told(library: &str, plan: &Plan, account: &Account) -> serde_json::Value {
    let (shape, threads, operations) = (plan.shape.name(), plan.threads, account.operations());
    let figures = account.figures();
    let head = [library.to_owned(), shape.clone(), threads.to_string(), operations.to_string()];
    row(head.into_iter().chain(figures.map(number)));
    let figures: serde_json::Map<_, _> =
        Account::COLUMNS.iter().map(|&name| name.to_owned()).zip(figures.map(Into::into)).collect();
    serde_json::json!({
        "library": library, "shape": shape, "threads": threads, "operations": operations,
        "per_operation": figures,
    })
}

/// Prints where the lines of one run move.
fn tell_places(account: &Account, places: &mut Places, top: usize) {
    println!();
    for (code, cause, transfers) in account.sites().into_iter().take(top) {
        let cause = format!("{cause:?}").to_lowercase();
        println!("{:>6}  {cause:<9} {}", number(transfers), places.describe(code));
    }
    for (line, transfers, cores, words) in account.hot_lines().into_iter().take(top) {
        let place = places.describe(line.address());
        println!("{:>6}  line of {cores} cores, {words} words: {place}", number(transfers));
    }
    println!();
}

fn row(cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    println!("| {} |", cells.join(" | "));
}

fn number(figure: f64) -> String {
    match figure {
        0.0 => "0".to_owned(),
        figure if figure < 0.0005 => "<0.001".to_owned(),
        figure if figure < 0.0995 => format!("{figure:.3}"),
        figure if figure < 9.95 => format!("{figure:.2}"),
        figure => format!("{figure:.0}"),
    }
}
