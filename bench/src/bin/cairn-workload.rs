//! Runs one workload under whatever malloc the loader resolved, and prints one JSON line.
//!
//! Arguments are read with lexopt rather than clap: this process's own footprint is part
//! of every RSS figure, the same for all allocators but better small.

use cairn_bench::case::{Line, Run, Settings};
use cairn_bench::{cases, malloc, process};
use lexopt::prelude::*;

const USAGE: &str = "usage: cairn-workload NAME [--threads N] [--scale F] [--no-alloc] | --list";

fn main() -> Result<(), lexopt::Error> {
    process::be_expendable();
    let mut name = None;
    let mut settings = Settings { threads: None, scale: 1.0, no_alloc: false };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("threads") => settings.threads = Some(arguments.value()?.parse()?),
            Long("scale") => settings.scale = arguments.value()?.parse()?,
            Long("no-alloc") => settings.no_alloc = true,
            Long("list") => {
                for case in cases::all() {
                    if let Run::Workload(_) = case.run {
                        println!("{:16} {}", case.name, case.about);
                    }
                }
                return Ok(());
            }
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(());
            }
            Value(value) if name.is_none() => name = Some(value.string()?),
            other => return Err(other.unexpected()),
        }
    }
    let name = name.ok_or(USAGE)?;
    let case = cases::all().find(|case| case.name == name);
    let Some(Run::Workload(run)) = case.map(|case| case.run) else {
        return Err(format!("no workload named {name}; see --list").into());
    };
    let mut values = run(&settings);
    process::add_facts(&mut values);
    let line = Line { workload: name, malloc_from: malloc::provider(), values };
    println!("{}", serde_json::to_string(&line).expect("plain numbers and strings"));
    Ok(())
}
