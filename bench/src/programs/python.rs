//! CPython with its own small-object allocator switched off: every object is a malloc.

use super::find;
use crate::case::{Case, Row, Run, Subject, Values};
use crate::child::{self, Failure};

/// The case.
pub const CASES: &[Case] = &[Case {
    name: "python",
    about: "CPython on malloc, building dicts, lists and strings",
    rows: &[Row::time("ms"), Row::PEAK],
    quick_scale: 0.3,
    run: Run::Program(run),
}];

fn run(subject: &Subject<'_>) -> Result<Values, Failure> {
    let mut command = subject.command(&find("python3", "python3")?);
    command.args(["-S", "-B", "-c", include_str!("python.py")]);
    command.arg(subject.scaled(30).to_string());
    command.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "0");
    let output = child::run(&mut command, subject.limits)?.stdout;
    let numbers: Vec<f64> = output.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [ms, peak] => Ok(Values::from([("ms".to_owned(), ms), ("peak_mib".to_owned(), peak)])),
        _ => Err(Failure::wrong(format!("unreadable result: {output}"))),
    }
}
