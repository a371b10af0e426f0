//! Ghostscript on a generated document.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};
use std::fmt::Write as _;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("ghostscript", "Ghostscript turning PostScript into PDF: text, curves, shades.")
            .from("mimalloc-bench, with a document of its own"),
        run: |s| run(s, "ghostscript", "-sDEVICE=pdfwrite -dOmitID=true", "book.pdf"),
    },
    Program {
        case: case("ghostscript-paint", "Ghostscript painting the pages of the same document."),
        run: |s| {
            let device = "-sDEVICE=bmpgray -r40 -dLastPage=200";
            run(s, "ghostscript-paint", device, "book-%d.bmp")
        },
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK).quick(0.0)
}

fn run(subject: &Subject<'_>, name: &str, device: &str, file: &str) -> Result<Results, Failure> {
    let document = subject.prepared("book.ps", || document(400))?;
    let made = subject.scratch.join(file.replace("%d", "7"));
    let output = format!("-sOutputFile={}", subject.scratch.join(file).display());
    Task::new(name, find("gs", "ghostscript")?)
        .line("-q -dNOPAUSE -dBATCH -dSAFER")
        .line(device)
        .arg(&output)
        .arg(&document)
        // A PDF carries the time of day otherwise.
        .env("SOURCE_DATE_EPOCH", "1000000000")
        .makes(&made)
        .run(subject)
}

/// So many pages of curves, shades and text in three fonts.
fn document(pages: u64) -> String {
    let mut numbers = Numbers::new(3);
    let mut text = "%!PS-Adobe-3.0\n".to_owned();
    for page in 1..=pages {
        for _ in 0..150 {
            let mut points = |count: usize| -> String {
                (0..count).map(|_| format!("{} ", numbers.below(600))).collect()
            };
            let (start, curve) = (points(2), points(6));
            let colour = numbers.below(10);
            let paint = ["closepath fill", "stroke", "stroke"][numbers.below(3) as usize];
            let _ = writeln!(
                text,
                "newpath {start}moveto {curve}curveto 0.{colour} 0.5 0.{} setrgbcolor {paint}",
                9 - colour
            );
        }
        for line in 0..40 {
            let font = ["Times-Roman", "Helvetica-Bold", "Courier"][numbers.below(3) as usize];
            let (size, words) = (6 + numbers.below(10), numbers.words(8));
            let _ = writeln!(
                text,
                "/{font} findfont {size} scalefont setfont 30 {} moveto ({words}) show",
                780 - line * 18
            );
        }
        let _ = writeln!(
            text,
            "<< /ShadingType 2 /ColorSpace /DeviceRGB /Coords [0 0 {page} 300] /Function \
             << /FunctionType 2 /Domain [0 1] /C0 [1 0 0] /C1 [0 0 1] /N 1 >> >> \
             gsave 100 100 80 80 rectclip shfill grestore showpage"
        );
    }
    text
}
