//! `cairn guards`: switches guards on or off in a process that runs.
//!
//! Owns what is told of that. The one idea: the process does it when it next looks. It must never say that it has been done
//! before the process says so.

use crate::advice::values;
use crate::control::{Copy, Outcome, Process, Wish};
use anyhow::{Result, bail};

/// Guard sampled blocks of a running process, or stop that
///
/// The process needs cairn as its allocator, and the command the rights of a debugger: those of root, or
/// the same user where the system lets users debug their processes. What guards find the process writes to its
/// own standard error. It follows on a slow path of `malloc`, to which an idle process does not come.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of the process
    pid: u32,

    /// From one guarded block to the next: a number of bytes such as 10MiB or 512KiB; or off
    #[arg(default_value = "10MiB", value_parser = bytes)]
    bytes: u64,
}

fn bytes(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    let bytes = values::bytes(text.as_bytes()).ok_or("it is a number such as 10MiB, or off")?;
    Ok(bytes as u64)
}

/// Switches each copy of cairn in the process; one that cannot be does not keep others from it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let process = Process { pid: args.pid };
    let copies = Copy::all(&process)?;
    let mut all = Ok(());
    for copy in &copies {
        match switch(&process, copy, args.bytes) {
            Ok(done) if copies.len() == 1 => crate::print(format!("{done}\n").as_bytes())?,
            Ok(done) => {
                crate::print(format!("{}: {done}\n", copy.path.display()).as_bytes())?;
            }
            Err(error) => {
                let failed = Err(error.context(copy.path.display().to_string()));
                if let Err(earlier) = std::mem::replace(&mut all, failed) {
                    crate::say(format_args!("{earlier:#}"));
                }
            }
        }
    }
    all
}

/// What has become of a copy.
fn switch(process: &Process, copy: &Copy, bytes: u64) -> Result<String> {
    Ok(match copy.ask(process, Wish::Guards, bytes)? {
        Outcome::Refused => bail!("the process has no memory for guards"),
        Outcome::Overtaken => {
            bail!("another command, or the program, has changed guards meanwhile")
        }
        Outcome::Asked => "the process has been asked: it follows when it allocates".to_owned(),
        Outcome::Done if bytes == 0 => "guards are off".to_owned(),
        Outcome::Done => format!("guards are on: one allocation in every {bytes} bytes"),
    })
}
