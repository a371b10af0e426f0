//! Many growing things at once, through Rust's own vectors and strings: big blocks that move past
//! one another, and small ones.

use crate::case::{Results, Settings};
use std::time::{Duration, Instant};

const VECTORS: usize = 64;
const BYTES: usize = 128 << 20;
/// Rounds at scale 1, each from empty vectors.
const ROUNDS: usize = 2;
const CHUNK: std::ops::RangeInclusive<usize> = 64..=8192;
/// A prime period, so that a page in the wrong place shows.
const PERIOD: usize = 251;

const STRINGS: usize = 20_000;
const APPENDS: usize = 3_000_000;
/// Length at which a string is complete.
const COMPLETE: std::ops::Range<usize> = 8..400;

pub(crate) fn vectors(settings: &Settings) -> Results {
    let bytes = settings.scaled(BYTES);
    let pattern: Vec<u8> = (0..PERIOD + CHUNK.end()).map(|at| (at % PERIOD) as u8).collect();
    let mut time = Duration::ZERO;
    for round in 0..ROUNDS {
        let mut rng = fastrand::Rng::with_seed(round as u64);
        let mut vectors = vec![Vec::new(); VECTORS];
        let start = Instant::now();
        fill(&mut vectors, bytes, &pattern, &mut rng);
        time += start.elapsed();
        check(&vectors, &pattern, bytes);
        let start = Instant::now();
        drop(vectors);
        time += start.elapsed();
    }
    Results::ms(time)
}

/// Appends in random turns; some vectors get more turns than others, so that they do not double in step.
fn fill(vectors: &mut [Vec<u8>], bytes: usize, pattern: &[u8], rng: &mut fastrand::Rng) {
    let mut left = bytes;
    while left > 0 {
        let at = rng.usize(0..VECTORS).max(rng.usize(0..VECTORS));
        let chunk = rng.usize(CHUNK).min(left);
        let vector = &mut vectors[at];
        let from = (vector.len() + at) % PERIOD;
        vector.extend_from_slice(&pattern[from..from + chunk]);
        left -= chunk;
    }
}

fn check(vectors: &[Vec<u8>], pattern: &[u8], bytes: usize) {
    assert_eq!(vectors.iter().map(Vec::len).sum::<usize>(), bytes, "bytes in all vectors");
    for (at, vector) in vectors.iter().enumerate() {
        for (chunk, found) in vector.chunks(PERIOD).enumerate() {
            assert!(found == &pattern[at..at + found.len()], "vector {at}, chunk {chunk}");
        }
    }
}

pub(crate) fn strings(settings: &Settings) -> Results {
    let appends = settings.scaled(APPENDS);
    let mut desk = Desk::new();
    desk.append(STRINGS * 20);
    let start = Instant::now();
    desk.append(appends);
    let time = start.elapsed();
    desk.check();
    Results::ns(time, appends)
}

const TEXT: &str = "a string that is read from somewhere, a few characters at a time; ";

/// Strings in work and strings done. Each string goes round [`TEXT`] from its slot's place.
struct Desk {
    rng: fastrand::Rng,
    text: String,
    growing: Vec<(String, usize)>,
    done: Vec<(Box<str>, usize)>,
}

impl Desk {
    fn new() -> Desk {
        let mut rng = fastrand::Rng::with_seed(9);
        let growing = (0..STRINGS).map(|_| (String::new(), rng.usize(COMPLETE))).collect();
        let done = (0..STRINGS).map(|_| (Box::default(), 0)).collect();
        // Twice, so that no piece has to go round its end.
        Desk { rng, text: TEXT.repeat(2), growing, done }
    }

    fn append(&mut self, turns: usize) {
        for _ in 0..turns {
            let at = self.rng.usize(0..STRINGS);
            let (string, complete) = &mut self.growing[at];
            let from = (at + string.len()) % TEXT.len();
            let piece = self.rng.usize(1..=16);
            string.push_str(&self.text[from..from + piece]);
            if string.len() >= *complete {
                *complete = self.rng.usize(COMPLETE);
                let string = std::mem::take(string).into_boxed_str();
                let place = self.rng.usize(0..STRINGS);
                self.done[place] = (string, at);
            }
        }
    }

    fn check(&self) {
        let growing = self.growing.iter().enumerate().map(|(at, (string, _))| (&**string, at));
        let done = self.done.iter().map(|(string, at)| (&**string, *at));
        for (string, from) in growing.chain(done) {
            let expected = self.text.bytes().cycle().skip(from % TEXT.len());
            assert!(string.bytes().eq(expected.take(string.len())), "a string of slot {from}");
        }
    }
}
