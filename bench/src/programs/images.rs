//! ImageMagick on a generated picture: large blocks, a few at a time.

use super::task::Task;
use super::{Program, Subject, find};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row};

/// The program.
pub const PROGRAMS: &[Program] = &[Program {
    case: Case::new(
        "imagemagick",
        Group::Programs,
        "ImageMagick resizing, blurring, turning a picture: large blocks, a few at a time.",
        Row::MS_PEAK,
    )
    .quick(0.0),
    run,
}];

fn run(subject: &Subject<'_>) -> Result<Results, Failure> {
    let convert = find("convert", "imagemagick")?;
    let picture = subject.made("picture.png", |path| {
        let mut command = Subject { preload: None, ..*subject }.command(&convert);
        command.args(["-size", "1500x1200", "-seed", "42", "plasma:fractal", "-depth", "8"]);
        child::run(command.arg(path), subject.limits).map(drop)
    })?;
    let made = subject.scratch.join("changed.png");
    Task::new("imagemagick", convert)
        .env("MAGICK_THREAD_LIMIT", "2")
        .arg(&picture)
        .line("-resize 80% -unsharp 0x1 -modulate 110,80 -rotate 7 -blur 0x2 -swirl 60")
        .line("-morphology Dilate Disk:2 -resize 50% -colors 64 -strip")
        .line("-define png:exclude-chunks=date,time")
        .arg(&made)
        .makes(&made)
        .run(subject)
}
