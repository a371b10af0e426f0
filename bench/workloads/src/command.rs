//! The main function of `cairn-workload` and of the linked engines: runs one workload and prints one JSON line.
//!
//! Arguments are read with lexopt rather than clap: this process's own footprint is part
//! of every RSS figure, the same for all allocators but better small.

use crate::case::{Interface, Line, Settings};
use crate::{aging, cases, malloc, process};
use lexopt::prelude::*;

const USAGE: &str = "usage: NAME [--threads N] [--scale F] [--no-alloc] [--aged] | --list";

/// Runs what the command line says. `linked` names the allocator that the executable has
/// as Rust's global one; without it that is whatever malloc the loader resolved.
pub fn main(linked: Option<&str>) -> Result<(), lexopt::Error> {
    process::be_expendable();
    let mut name = None;
    let mut settings = Settings { threads: None, scale: 1.0, no_alloc: false, aged: false };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("threads") => settings.threads = Some(arguments.value()?.parse()?),
            Long("scale") => settings.scale = arguments.value()?.parse()?,
            Long("no-alloc") => settings.no_alloc = true,
            Long("aged") => settings.aged = true,
            Long("list") => {
                // What they are, `cargo lab list` says: this process does not read workloads.toml.
                cases::names().for_each(|name| println!("{name}"));
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
    let Some((interface, run)) = cases::code(&name) else {
        return Err(format!("no workload named {name}; see --list").into());
    };
    if linked.is_some() && interface == Interface::C {
        return Err(format!("{name} calls malloc itself: it runs preloaded only").into());
    }
    let stays = if settings.aged { aging::age() } else { Vec::new() };
    let mut results = run(&settings);
    drop(stays);
    process::add_facts(&mut results.values);
    let malloc_from = malloc::provider();
    let line = Line { workload: name, malloc_from, linked: linked.map(str::to_owned), results };
    println!("{}", serde_json::to_string(&line).expect("plain numbers and strings"));
    Ok(())
}
