//! Each tuned constant of the core says what half and twice of it do, or that nobody has tried.

use super::Report;
use super::source::Source;

/// So many constants may say that nobody has tried. Who tries one makes the number smaller.
const NOT_TRIED: usize = 79;

/// Checks the files of tuned constants; how many of these there are, and how many of them nobody has tried.
pub(super) fn check(core: &[Source], report: &mut Report) -> (usize, usize) {
    let (mut tuned, mut not_tried) = (0, 0);
    for source in core.iter().filter(|source| source.path.ends_with("/tuning.rs")) {
        for (number, name, words) in constants(&source.text) {
            if !words.contains("half") && !words.contains("twice") {
                let reason = format!("`{name}`: say what half and twice of it do");
                report.fail(&source.path, number, "tuning", reason);
            }
            tuned += 1;
            not_tried += usize::from(words.contains("not tried"));
        }
    }
    if not_tried > NOT_TRIED {
        let reason =
            format!("{not_tried} are not tried, at most {NOT_TRIED}: the list only shrinks");
        report.fail(file!(), 1, "tuning", reason);
    }
    (tuned, not_tried)
}

/// The constants with their lines, and their documentation in small letters.
fn constants(text: &str) -> Vec<(usize, &str, String)> {
    let (mut found, mut words) = (Vec::new(), String::new());
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(more) = line.strip_prefix("///") {
            words += &more.to_lowercase();
            continue;
        }
        let item = line.trim_start_matches("pub(crate) ").strip_prefix("const ");
        let name = item.and_then(|item| item.split(':').next()).filter(|name| *name != "_");
        found.extend(name.map(|name| (number, name, words.clone())));
        words.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source::tests::core;
    use super::*;

    #[test]
    fn tuned_constants_tell_of_half_and_twice() {
        let text = "//! half\n/// Half of it is slower.\npub(crate) const A: usize = 1;\n\
                    /// Bytes.\npub(crate) const B: usize = 1;\nconst C: u8 = 2;\n\
                    /// Ms. Half, twice: not\n/// tried.\nconst D: [u8; 1] = [\n    3,\n];\n\
                    const _: () = assert!(A > 0);\n";
        let of = |path: &str| {
            let mut report = Report::default();
            (check(&[core(path, text)], &mut report), report.failures)
        };
        assert_eq!(of("heap/tuning.rs"), ((4, 1), 2));
        assert_eq!(of("heap/mod.rs"), ((0, 0), 0));
        let many = "/// Twice: not tried.\nconst A: u8 = 1;\n".repeat(NOT_TRIED + 1);
        let mut report = Report::default();
        check(&[core("heap/tuning.rs", &many)], &mut report);
        assert_eq!(report.failures, 1);
    }
}
