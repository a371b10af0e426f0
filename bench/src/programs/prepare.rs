//! What is made once and then used by every run: inputs, counts, references.

use super::Subject;
use crate::child::Failure;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

impl Subject<'_> {
    /// The file or directory of this name in the scratch directory. At first use `make` makes
    /// it, at the path that it is given.
    pub fn made(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<PathBuf, Failure> {
        let path = self.scratch.join(name);
        if !path.exists() {
            // What is left half done must not be taken for the whole. The extension stays:
            // compilers go by it.
            let part = path.with_file_name(format!("part-{name}"));
            let _ = fs::remove_dir_all(&part);
            make(&part)?;
            fs::rename(&part, &path)?;
        }
        Ok(path)
    }

    /// The same, for content that is known.
    pub fn prepared<T: AsRef<[u8]>>(
        &self,
        name: &str,
        make: impl FnOnce() -> T,
    ) -> Result<PathBuf, Failure> {
        self.made(name, |path| Ok(fs::write(path, make())?))
    }

    /// What `find` found out of this library by this name when it was first asked. For what
    /// does not change from run to run.
    pub fn cached(
        &self,
        name: &str,
        find: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<String, Failure> {
        let library = self.preload.map_or(String::new(), |path| path.display().to_string());
        let name = format!("{name}-{}", fingerprint(library.as_bytes()));
        let file = self.made(&name, |path| Ok(fs::write(path, find()?)?))?;
        Ok(fs::read_to_string(file)?)
    }

    /// Whether `outcome`, of the run called `name`, is what the C library's malloc gives;
    /// `bare` runs it so, when the subject is another.
    pub fn compare(
        &self,
        name: &str,
        outcome: &str,
        bare: impl FnOnce(&Subject<'_>) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let subject = Subject { preload: None, ..*self };
        let reference = self.prepared_by(&format!("{name}.expected"), || match self.preload {
            None => Ok(outcome.to_owned()),
            Some(_) => bare(&subject),
        })?;
        match fs::read_to_string(reference)? == outcome {
            true => Ok(()),
            false => Err(Failure::wrong("the output is not what it is on the C library's malloc")),
        }
    }

    fn prepared_by(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<PathBuf, Failure> {
        self.made(name, |path| Ok(fs::write(path, make()?)?))
    }
}

/// A short name for content: equal content, equal name.
pub fn fingerprint(content: &[u8]) -> String {
    // `DefaultHasher::new` has fixed keys, unlike the one inside `HashMap`.
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}", hasher.finish())
}

/// Numbers without end from one seed, the same everywhere (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    /// From a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// A length from `least` to `most`, short ones far more often.
    pub fn length(&mut self, least: u64, most: u64) -> usize {
        let bound = 1 + self.below(most - least + 1);
        let bound = 1 + self.below(bound);
        (least + self.below(bound)) as usize
    }

    /// A word of no language.
    pub fn word(&mut self) -> String {
        const SYLLABLES: [&str; 16] = [
            "ka", "lo", "mi", "ter", "sun", "ra", "vel", "do", "is", "pan", "qu", "zor", "eth",
            "ny", "gal", "u",
        ];
        let count = 1 + self.below(4).min(self.below(4));
        (0..count).map(|_| SYLLABLES[self.below(16) as usize]).collect()
    }

    /// Words with a space between them.
    pub fn words(&mut self, count: u64) -> String {
        (0..count).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }

    /// Lines of words, about this many bytes.
    pub fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 128);
        while text.len() < bytes {
            let words = 3 + self.below(12);
            text.push_str(&self.words(words));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Limits;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn with_subject(test: impl FnOnce(&Subject<'_>)) {
        let scratch = tempfile::tempdir().expect("a directory");
        let limits = Limits { timeout: Duration::from_secs(9), memory_mib: 1e3 };
        let library = Path::new("/lib/one.so");
        test(&Subject {
            preload: Some(library),
            environment: &BTreeMap::new(),
            scale: 1.0,
            limits: &limits,
            scratch: scratch.path(),
        });
    }

    #[test]
    fn things_are_made_once() {
        with_subject(|subject| {
            let path = subject.prepared("input.txt", || "first").expect("made");
            let again = subject.prepared("input.txt", || "second").expect("there");
            assert_eq!(path, again);
            assert_eq!(fs::read_to_string(path).expect("readable"), "first");
            let failed = subject.made("other", |_| Err(Failure::wrong("no")));
            assert!(failed.is_err() && !subject.scratch.join("other").exists());
        });
    }

    #[test]
    fn counts_are_kept_for_each_library() {
        with_subject(|subject| {
            let count = |subject: &Subject<'_>, text: &str| {
                subject.cached("count", || Ok(text.to_owned())).expect("found")
            };
            assert_eq!(count(subject, "1"), "1");
            assert_eq!(count(subject, "2"), "1");
            assert_eq!(count(&Subject { preload: None, ..*subject }, "3"), "3");
        });
    }

    #[test]
    fn outcomes_are_held_against_those_without_the_library() {
        with_subject(|subject| {
            let bare = |subject: &Subject<'_>| {
                assert!(subject.preload.is_none());
                Ok("right".to_owned())
            };
            assert!(subject.compare("run", "wrong", bare).is_err());
            assert!(subject.compare("run", "right", |_| unreachable!()).is_ok());
        });
    }

    #[test]
    fn lengths_are_mostly_short() {
        let mut numbers = Numbers::new(1);
        let lengths: Vec<usize> = (0..1000).map(|_| numbers.length(16, 1000)).collect();
        assert!(lengths.iter().all(|&length| (16..=1000).contains(&length)));
        assert!(lengths.iter().filter(|&&length| length < 200).count() > 600);
    }
}
