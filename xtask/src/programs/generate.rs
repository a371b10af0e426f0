//! Inputs that are the same on every machine and in every run, and fingerprints of outputs.

use anyhow::{Context, Result};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Numbers without end from one seed (SplitMix64).
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A word of a made-up language; short words are the frequent ones, as in real ones.
    pub(super) fn word(&mut self) -> String {
        const SYLLABLES: [&str; 16] = [
            "ka", "lo", "mi", "ter", "sun", "ra", "vel", "do", "is", "pan", "qu", "zor", "eth",
            "ny", "gal", "u",
        ];
        let count = 1 + self.below(4).min(self.below(4)) as usize;
        (0..count).map(|_| SYLLABLES[self.below(16) as usize]).collect()
    }

    pub(super) fn words(&mut self, count: u64) -> String {
        (0..count).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }

    /// Text of about `bytes` bytes in lines.
    pub(super) fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 128);
        while text.len() < bytes {
            let words = 3 + self.below(12);
            text.push_str(&self.words(words));
            text.push('\n');
        }
        text
    }

    /// Bytes that no compressor can shrink.
    pub(super) fn noise(&mut self, bytes: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).flatten().take(bytes).collect()
    }
}

/// A short name for content: equal content, equal name.
pub(super) fn fingerprint(content: &[u8]) -> String {
    // `DefaultHasher::new` has fixed keys, unlike the one inside `HashMap`.
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}", hasher.finish())
}

/// The fingerprint of a file.
pub(super) fn file_fingerprint(path: &Path) -> Result<String> {
    let content = fs::read(path).with_context(|| format!("no output {}", path.display()))?;
    Ok(fingerprint(&content))
}

/// The fingerprint of a directory: names and contents of all files below it.
pub(super) fn tree_fingerprint(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(root, &mut files)?;
    files.sort();
    let mut lines = String::new();
    for file in files {
        let name = file.strip_prefix(root)?.to_string_lossy();
        lines.push_str(&format!("{name} {}\n", file_fingerprint(&file)?));
    }
    Ok(fingerprint(lines.as_bytes()))
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
