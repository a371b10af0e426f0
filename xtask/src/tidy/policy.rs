//! The constant of the hardened build is asked where a list says so, with the reason. What else differs is a type, or a
//! number of two columns (`in_hardened`).

use super::Report;
use super::source::Source;

const NAME: &str = "HARDENED";
/// The file that has it, and makes types and numbers of it.
const POLICY: &str = "/base/policy.rs";
/// So many uses may be listed. Who makes a type of one makes the number smaller.
const MOST: usize = 16;

/// Checks that each file has as many uses as its line in `list` says: the file, the number, the reason. How many there
/// are.
pub(super) fn check<'a>(
    core: &[Source],
    list: impl Iterator<Item = &'a str>,
    report: &mut Report,
) -> usize {
    let mut listed: Vec<_> = list.filter_map(entry).collect();
    let mut all = 0;
    for source in core.iter().filter(|source| !source.path.ends_with(POLICY)) {
        let code = source.code_but_imports();
        let lines: Vec<_> = code.into_iter().filter(|(_, line)| is_use(line)).collect();
        let at = listed.iter().position(|(file, _)| source.path.ends_with(&format!("/src/{file}")));
        let allowed = at.map_or(0, |at| listed.swap_remove(at).1);
        if let Some((number, _)) = lines.first()
            && lines.len() > allowed
        {
            let reason = format!("`{NAME}` {} times, listed are {allowed}", lines.len());
            report.fail(&source.path, *number, "policy", reason);
        } else if lines.len() < allowed {
            let reason = format!("`{NAME}` {} times: shorten the list", lines.len());
            report.fail(&source.path, 1, "policy", reason);
        }
        all += lines.len();
    }
    for (file, _) in listed {
        report.fail("ARCHITECTURE.md", 1, "policy", format!("no file {file}"));
    }
    if all > MOST {
        report.fail(file!(), 1, "policy", format!("{all} uses, at most {MOST}"));
    }
    all
}

/// The file of a line of the list, and how many uses it may have.
fn entry(line: &str) -> Option<(&str, usize)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.parse().ok()?))
}

/// Whether a line of code asks the constant.
fn is_use(line: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.split(|c| !is_name(c)).any(|word| word == NAME)
}

#[cfg(test)]
mod tests {
    use super::super::source::tests::core;
    use super::*;

    #[test]
    fn the_constant_is_asked_where_the_list_says() {
        let text = "use crate::base::HARDENED;\npub(crate) use policy::{\n    HARDENED,\n};\n// HARDENED\nfn f() -> bool {\n    HARDENED\n}\n\
                    const SO: u8 = in_hardened(1, 2);\ntype A = InHardened<B, C>;\n";
        let of = |path: &str, list: &str| {
            let mut report = Report::default();
            (check(&[core(path, text)], list.lines(), &mut report), report.failures)
        };
        assert_eq!(of("heap/mod.rs", "heap/mod.rs  1  so it is"), (1, 0));
        assert_eq!(of("heap/mod.rs", ""), (1, 1), "it is not listed");
        assert_eq!(of("heap/mod.rs", "heap/mod.rs  2  so it is"), (1, 1), "there are fewer");
        assert_eq!(of("heap/mod.rs", "heap/mod.rs 1 a\nos/mod.rs 1 b"), (1, 1), "there is none");
        assert_eq!(of("base/policy.rs", ""), (0, 0));
        let many = format!("{text}{}", "fn f() { HARDENED }\n".repeat(MOST));
        let mut report = Report::default();
        let list = format!("a.rs {}", MOST + 1);
        check(&[core("a.rs", &many)], list.lines(), &mut report);
        assert_eq!(report.failures, 1, "too many");
    }
}
