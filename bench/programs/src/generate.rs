//! Inputs that are the same on every machine and in every run, and fingerprints of outputs.

use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Rest;
use minijinja::{Environment, Value};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex};

/// Numbers without end from one seed (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A length from `least` to `most`, short ones far more often.
    fn length(&mut self, least: u64, most: u64) -> u64 {
        let bound = 1 + self.below(most - least + 1);
        let bound = 1 + self.below(bound);
        least + self.below(bound)
    }

    /// A word of a made-up language; short words are the frequent ones, as in real ones.
    fn word(&mut self) -> String {
        const SYLLABLES: [&str; 16] = [
            "ka", "lo", "mi", "ter", "sun", "ra", "vel", "do", "is", "pan", "qu", "zor", "eth",
            "ny", "gal", "u",
        ];
        let count = 1 + self.below(4).min(self.below(4)) as usize;
        (0..count).map(|_| SYLLABLES[self.below(16) as usize]).collect()
    }

    fn words(&mut self, count: u64) -> String {
        (0..count).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }

    /// Text of about `bytes` bytes in lines.
    pub(crate) fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 128);
        while text.len() < bytes {
            let words = 3 + self.below(12);
            text.push_str(&self.words(words));
            text.push('\n');
        }
        text
    }
}

/// What a template makes of these variables, its numbers drawn from `seed`.
///
/// Templates are minijinja's. They can draw: `below(n)`, `length(least, most)`, `word()`,
/// `words(n)`, `text(bytes)`, `list(n, below)`, `one_of(list)` and `history(commits)`; `seed(n)`
/// begins anew.
pub(crate) fn render(template: &str, seed: u64, variables: &Variables) -> Result<String> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.keep_trailing_newline(true).trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build()?);
    let numbers = Arc::new(Mutex::new(Numbers::new(seed)));
    // Nobody else draws: the lock is free, and what panics takes the whole command along.
    let drawer = |draw: Draw| {
        let numbers = numbers.clone();
        move |arguments: Rest<u64>| draw(&mut numbers.lock().expect("not poisoned"), &arguments)
    };
    let functions: [(&'static str, Draw); 9] = [
        // Its own has a bound.
        ("range", |_, n| (if n.len() == 1 { 0..n[0] } else { n[0]..n[1] }).collect()),
        ("seed", |numbers, n| {
            *numbers = Numbers::new(n[0]);
            Value::from("")
        }),
        ("below", |numbers, n| numbers.below(n[0]).into()),
        ("length", |numbers, n| numbers.length(n[0], n[1]).into()),
        ("word", |numbers, _| numbers.word().into()),
        ("words", |numbers, n| numbers.words(n[0]).into()),
        ("text", |numbers, n| numbers.text(n[0] as usize).into()),
        ("list", |numbers, n| (0..n[0]).map(|_| numbers.below(n[1])).collect()),
        ("history", |numbers, n| history(numbers, n[0]).into()),
    ];
    for (name, draw) in functions {
        environment.add_function(name, drawer(draw));
    }
    let one_of = numbers.clone();
    environment.add_function("one_of", move |list: Vec<Value>| {
        let at = one_of.lock().expect("not poisoned").below(list.len() as u64);
        list[at as usize].clone()
    });
    let context: BTreeMap<&str, Value> =
        variables.iter().map(|(name, text)| (name.as_str(), value(text))).collect();
    environment.render_str(template, context).context("a template")
}

/// A function of templates.
type Draw = fn(&mut Numbers, &[u64]) -> Value;

/// Names and what stands for them.
pub(crate) type Variables = BTreeMap<String, String>;

fn value(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from)
}

/// A short name for content: equal content, equal name.
pub(crate) fn fingerprint(content: &[u8]) -> String {
    // `DefaultHasher::new` has fixed keys, unlike the one inside `HashMap`.
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}", hasher.finish())
}

/// A history for `git fast-import`: files that grow and change by a few lines at a time.
fn history(numbers: &mut Numbers, commits: u64) -> String {
    let mut stream = String::new();
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for commit in 1..=commits {
        let message = format!("step {commit}: {}\n", numbers.words(6));
        stream.push_str(&format!(
            "commit refs/heads/main\ncommitter C <c@example.com> {} +0000\ndata {}\n{message}",
            1_700_000_000 + commit * 60,
            message.len()
        ));
        for _ in 0..1 + numbers.below(6) {
            let path = format!("d{}/f{}.txt", numbers.below(10), numbers.below(12));
            let lines = files.entry(path.clone()).or_default();
            for _ in 0..numbers.length(4, 60) {
                let (at, words) =
                    (numbers.below(lines.len() as u64 + 1) as usize, numbers.below(15));
                match numbers.below(3) {
                    0 if at < lines.len() => drop(lines.remove(at)),
                    _ => lines.insert(at, numbers.words(words)),
                }
            }
            let content = lines.join("\n");
            stream.push_str(&format!("M 644 inline {path}\ndata {}\n{content}\n", content.len()));
        }
    }
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_mostly_short() {
        let mut numbers = Numbers::new(1);
        let lengths: Vec<u64> = (0..1000).map(|_| numbers.length(16, 1000)).collect();
        assert!(lengths.iter().all(|&length| (16..=1000).contains(&length)));
        assert!(lengths.iter().filter(|&&length| length < 200).count() > 600);
    }

    #[test]
    fn a_template_draws_the_same_numbers_every_time() {
        let template = "{{ below(9) }} {{ word() }}{{ seed(3) }} {{ below(9) }}\n";
        let text = || render(template, 3, &Variables::new()).unwrap();
        let words: Vec<String> = text().split_whitespace().map(str::to_owned).collect();
        assert_eq!((text(), &words[0]), (text(), &words[2]));
        assert!(text().ends_with('\n'));
    }
}
