//! Makes a program that fails short, and says how to repeat it.

use super::folder_of;
use super::supervisor::{FOLDER, Failure, fails};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a program is made shorter.
const SHRINKING: Duration = Duration::from_secs(60);

/// What to say about a failure.
pub(crate) fn tell(failure: &Failure) -> String {
    let Failure { kind, program, order, end, said } = failure;
    let whole = keep(failure, program, "whole");
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    let test = format!("cargo test{release} -p cairn-malloc --test operations -- --nocapture");
    let mut text = format!("a {} program fails: {end}\n{said}\n", folder_of(*kind));
    if fails(&whole) {
        let (short, steps) = shrink(failure, &whole);
        let path = keep(failure, &short, "short");
        text += &format!(
            "{} bytes, made {} in {steps} tries: {}\nrepeat:\n  \
             CAIRN_FUZZ_TRACE=1 CAIRN_FUZZ_REPLAY={} {test}\n",
            program.len(),
            short.len(),
            hex(&short),
            path.display(),
        );
    } else {
        text += &format!(
            "alone, {} does not fail: it needs what ran before it\nrepeat:\n  \
             CAIRN_FUZZ_WORKER='{order}' {test}\n",
            whole.display()
        );
    }
    text
}

/// Writes a program where its kind can be told.
fn keep(failure: &Failure, program: &[u8], name: &str) -> PathBuf {
    let folder = Path::new(FOLDER).join(folder_of(failure.kind));
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let path = folder.join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, program).expect("the target folder can be written");
    path
}

/// Leaves out ever smaller pieces, as long as the program fails without them.
fn shrink(failure: &Failure, whole: &Path) -> (Vec<u8>, usize) {
    let mut program = std::fs::read(whole).expect("it has just been written");
    let until = Instant::now() + SHRINKING;
    let (mut piece, mut tries) = (program.len() / 2, 0);
    while piece > 0 {
        let (mut at, before) = (0, program.len());
        while at < program.len() && Instant::now() < until {
            let mut shorter = program.clone();
            shorter.drain(at..(at + piece).min(program.len()));
            tries += 1;
            let path = keep(failure, &shorter, "try");
            let still = fails(&path);
            std::fs::remove_file(path).expect("it has just been written");
            if still {
                program = shorter;
            } else {
                at += piece;
            }
        }
        // What has become shorter may be cut in pieces of the same size once more.
        if program.len() == before || Instant::now() >= until {
            piece /= 2;
        }
    }
    (program, tries)
}

fn hex(program: &[u8]) -> String {
    let shown = &program[..program.len().min(256)];
    shown.iter().map(|byte| format!("{byte:02x}")).collect()
}
