//! The command line.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod command {
    use anyhow::{Context, Result};
    use cairn_scaling::probe::{self, Order, Shape};
    use cairn_scaling::simulation::{self, Account};
    use clap::{Parser, ValueEnum};
    use std::path::Path;

    /// Count locked instructions and cache-line transfers of allocators, by simulation.
    #[derive(Parser)]
    struct Cli {
        /// A library to preload; a name alone is the C library, which stands for all if none is given.
        #[arg(long, value_name = "NAME=PATH")]
        library: Vec<String>,
        /// Only these shapes (comma-separated) [default: all]
        #[arg(long, value_enum, value_delimiter = ',')]
        shapes: Vec<Shape>,
        /// These numbers of threads [default: powers of two from 2 to 256]
        #[arg(long, value_name = "N", value_delimiter = ',')]
        threads: Vec<usize>,
        /// 2, 8 and 32 threads, and fewer operations.
        #[arg(long)]
        quick: bool,
    }

    /// The main function.
    pub(crate) fn main() -> Result<()> {
        // The traced program is this one, too.
        if let Ok(order) = std::env::var(probe::ORDER) {
            return probe::run(&order);
        }
        let mut cli = Cli::parse();
        if cli.library.is_empty() {
            cli.library.push("glibc".to_owned());
        }
        if cli.shapes.is_empty() {
            cli.shapes = Shape::value_variants().to_vec();
        }
        if cli.threads.is_empty() {
            cli.threads =
                if cli.quick { vec![2, 8, 32] } else { (1..=8).map(|n| 1 << n).collect() };
        }
        let probe = std::env::current_exe()?;
        println!("|library|shape|threads|operations|{}|", Account::COLUMNS.join("|"));
        println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        for &shape in &cli.shapes {
            for &threads in &cli.threads {
                for library in &cli.library {
                    let (name, path) = library.split_once('=').unzip();
                    let name = name.unwrap_or(library);
                    // Few for each of many threads: they were stopped at random points of what they
                    // repeat, so that together they show all of it.
                    let operations = (threads as u64 * 64).max(if cli.quick { 2048 } else { 4096 });
                    let (order, path) = (Order { shape, threads }, path.map(Path::new));
                    let account = simulation::run(&probe, order, operations, path)
                        .with_context(|| format!("{name}, {} of {threads}", shape.name()))?;
                    let (operations, shape) = (account.operations(), shape.name());
                    let figures = account.figures().map(number).join("|");
                    println!("|{name}|{shape}|{threads}|{operations}|{figures}|");
                }
            }
        }
        Ok(())
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
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> anyhow::Result<()> {
    command::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("cairn-scaling: not applicable, it steps x86-64 instructions on Linux");
}
