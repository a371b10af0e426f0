//! Names of functions, short enough for a table.
//!
//! Owns: what of a long name is left out: those of templates have hundreds of letters.
//! Idea: types and parameters, which stand in brackets, give way; what is around them names the function.
//! Never: cuts off the end, where the function's own name stands.
//! Threads: any.
//! Checked: tests here.
//! Story: docs/guide/profile.md

use std::borrow::Cow;
use std::ops::Range;

/// Letters that a table shows of a name.
const LETTERS: usize = 80;
/// Letters in brackets that stay in any case, such as `anonymous namespace`.
const FEW: usize = 20;
/// What stands for letters that are left out.
const GAP: &str = "...";
/// Where there is room for fewer than these of them, only the gap stands there.
const PIECE: usize = 12;

/// A function's name, in 80 letters at most. Of what is left out, the first has the room that there is: types of a class stand
/// before those of its function.
#[must_use]
pub fn short(name: &str) -> Cow<'_, str> {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LETTERS {
        return name.into();
    }
    let long: Vec<_> = bracketed(&letters).into_iter().filter(|range| range.len() > FEW).collect();
    let around = letters.len() - long.iter().map(|range| range.len() - GAP.len()).sum::<usize>();
    let mut room = LETTERS.saturating_sub(around);
    let (mut text, mut from) = (String::new(), 0);
    for range in long {
        text.extend(&letters[from..range.start]);
        let most = range.len().min(room + GAP.len());
        add_cut(&mut text, &letters[range.clone()], most);
        room -= most - GAP.len();
        from = range.end;
    }
    text.extend(&letters[from..]);
    if around > LETTERS {
        let letters: Vec<char> = text.chars().collect();
        text.clear();
        add_cut(&mut text, &letters, LETTERS);
    }
    text.into()
}

/// Adds these letters, or as many of their first and last, around a gap.
fn add_cut(text: &mut String, letters: &[char], most: usize) {
    if letters.len() <= most {
        return text.extend(letters);
    }
    let shown = most - GAP.len();
    let shown = if shown < PIECE { 0 } else { shown };
    let (first, last) = (shown.div_ceil(2), shown / 2);
    text.extend(&letters[..first]);
    text.push_str(GAP);
    text.extend(&letters[letters.len() - last..]);
}

/// What stands in brackets that are in no others; nothing if one is missing.
fn bracketed(letters: &[char]) -> Vec<Range<usize>> {
    let (mut found, mut open, mut at) = (Vec::new(), Vec::new(), 0);
    while at < letters.len() {
        match letters[at] {
            'o' if at == 0 || !letters[at - 1].is_alphanumeric() => at += operator(&letters[at..]),
            '<' | '(' | '[' | '{' => open.push(at + 1),
            // Of an arrow: what a function of Rust's gives.
            '>' if at > 0 && letters[at - 1] == '-' => {}
            '>' | ')' | ']' | '}' => match open.pop() {
                Some(start) if open.is_empty() => found.push(start..at),
                Some(_) => {}
                None => return Vec::new(),
            },
            _ => {}
        }
        at += 1;
    }
    if open.is_empty() { found } else { Vec::new() }
}

/// Letters behind the first in the name of an operator, if this is one: its brackets are none.
fn operator(letters: &[char]) -> usize {
    const NAME: &str = "operator";
    if !letters.iter().copied().take(NAME.len()).eq(NAME.chars()) {
        return 0;
    }
    let signs = &letters[NAME.len()..];
    let signs = match signs {
        ['(', ')', ..] | ['[', ']', ..] => 2,
        _ => signs.iter().take_while(|&sign| "<>=-".contains(*sign)).count(),
    };
    NAME.len() - 1 + signs
}

#[cfg(test)]
mod tests {
    use super::{LETTERS, short};

    const STRING: &str =
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

    fn of_vector(of: &str, function: &str) -> String {
        format!("std::vector<{of}, std::allocator<{of} > >::{function}")
    }

    #[test]
    fn short_names_stay() {
        for name in ["", "f", &"\u{e4}".repeat(LETTERS), "std::map<int, int>::insert(int&&)"] {
            assert_eq!(short(name), name);
        }
    }

    #[test]
    fn functions_have_their_names() {
        for (name, expected) in [
            (
                of_vector(STRING, &format!("push_back({STRING}&&)")),
                "std::vector<std::__cxx11::basic_stri...td::allocator<char> > > >::push_back(...)",
            ),
            (
                format!("(anonymous namespace)::fills({STRING}&, {STRING}&)"),
                "(anonymous namespace)::fills(std::__cxx11::basic_stri...std::allocator<char> >&)",
            ),
            (
                format!("{STRING}& std::operator<< <char>(std::basic_ostream<char>&)"),
                "std::__cxx11::basic_string<char, std:...tor<char> >& std::operator<< <char>(...)",
            ),
        ] {
            assert_eq!(short(&name), expected);
        }
    }

    /// Those that differ at the beginning or the end of the first types, or behind them.
    #[test]
    fn instances_differ() {
        let long = format!("std::map<{STRING}, {STRING}>");
        let names = [
            of_vector(STRING, "push_back(int)"),
            of_vector(STRING, "insert(int)"),
            of_vector("int", &format!("push_back({long})")),
            format!("app::Cache<{long}, app::First>::insert({long})"),
            format!("app::Cache<{long}, app::Second>::insert({long})"),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(names[..at].iter().all(|other| short(other) != short(name)), "{name}");
        }
    }

    /// Without brackets, with too many letters around them, or with one missing.
    #[test]
    fn other_names_keep_both_ends() {
        let path = "module::".repeat(20);
        for name in [
            format!("{path}f"),
            format!("{path}f({STRING})"),
            format!("{path}operator()(int)"),
            format!("app::<{path}f"),
            format!("app::{path}>f"),
            format!("<{path}T>::f::<fn({path}) -> {path}>"),
        ] {
            let short = short(&name);
            assert!(short.chars().count() <= LETTERS, "{short}");
            assert!(short.starts_with(&name[..1]) && short.contains("..."), "{short}");
            assert_eq!(short.chars().last(), name.chars().last(), "{short}");
        }
    }
}
