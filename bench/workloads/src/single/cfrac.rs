//! The continued-fraction method of factoring, on numbers of 30 digits.
//!
//! The convergents A/B of the square root of N give squares A^2 that are congruent to small
//! numbers Q modulo N, with alternating signs. Those Q that are products of small primes are
//! collected until some of them multiply to a square; that gives x^2 = y^2 modulo N, and
//! gcd(x - y, N) is a factor as a rule (Morrison and Brillhart, Mathematics of Computation 29,
//! 1975).
//!
//! Stands for programs that make a fresh, tiny object at every step: each sum, product,
//! quotient and remainder here is a new number on the heap, most of them 4 to 32 bytes and
//! dead a few steps later.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use natural::Natural;
use std::time::Instant;

mod natural;

/// The case. Its heap is tiny: no row for the memory.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "cfrac-like",
    Group::Single,
    "Factors numbers of 30 digits by continued fractions. Programs that make a fresh object of a \
     few bytes at every step of an inner loop.",
    const { &[Row::time("ms")] },
)
.from("Zorn and Grunwald, Empirical measurements of six allocation-intensive C programs, 1992")
.quick(0.2)
.rust(run)];

/// Pairs of primes, whose products are factored.
const PRIMES: [[u64; 2]; 5] = [
    [271_828_182_845_909, 577_215_664_901_609],
    [314_159_265_359_057, 466_920_160_910_303],
    [141_421_356_237_319, 866_025_403_784_491],
    [173_205_080_757_041, 693_147_180_559_957],
    [223_606_797_749_981, 707_106_781_186_567],
];
/// Primes that may divide a useful Q.
const BASE: usize = 200;
/// After this many of them a Q must have shrunk, or it is given up.
const EARLY: usize = 40;
/// By how much.
const SHRUNK: u32 = 1 << 15;

fn run(settings: &Settings) -> Results {
    check([1_000_003, 1_000_033], 40);
    let start = Instant::now();
    for &primes in PRIMES.iter().cycle().take(settings.scaled(PRIMES.len())) {
        check(primes, BASE);
    }
    Results::of([("ms", ms_since(start))])
}

/// Factors the product of two primes.
fn check(primes: [u64; 2], base: usize) {
    let [p, q] = primes.map(Natural::from);
    let found = factor(&(&p * &q), base);
    assert!(found == p || found == q, "{found:?} does not divide {p:?} * {q:?}");
}

/// A^2 is congruent to Q, or to -Q, modulo N.
struct Relation {
    a: Natural,
    /// Whether it is -Q.
    negative: bool,
    /// The primes whose product Q is, by their places in the base, each as often as it
    /// divides Q.
    primes: Vec<u16>,
}

/// A factor of `n` that is neither 1 nor `n`.
fn factor(n: &Natural, base: usize) -> Natural {
    let base = factor_base(n, base);
    let mut relations = Vec::new();
    let mut matrix = Matrix { pivots: (0..=base.len()).map(|_| None).collect() };
    let mut fraction = Fraction::new(n);
    loop {
        fraction.step(n);
        let Some(primes) = smooth(&fraction.q, &base) else { continue };
        relations.push(Relation { a: fraction.a.clone(), negative: fraction.odd, primes });
        if let Some(subset) = matrix.add(&relations) {
            let found = divisor(n, &base, subset.iter().map(|&at| &relations[at as usize]));
            if !found.is_one() && found != *n {
                return found;
            }
        }
    }
}

/// The first primes modulo which `n` is a square: no others divide a Q.
fn factor_base(n: &Natural, size: usize) -> Vec<u32> {
    let is_prime = |p: &u32| (2..).take_while(|d| d * d <= *p).all(|d| !p.is_multiple_of(d));
    let is_square = |p: &u32| *p == 2 || power(n.div_rem_small(*p).1, (p - 1) / 2, *p) <= 1;
    (2..).filter(is_prime).filter(is_square).take(size).collect()
}

/// `base` to the power of `exponent`, modulo `p`.
fn power(base: u32, exponent: u32, p: u32) -> u32 {
    let times = |a: u32, b: u32| (u64::from(a) * u64::from(b) % u64::from(p)) as u32;
    let bits = (0..32).rev().map(|bit| exponent >> bit & 1);
    bits.fold(1, |square, bit| times(times(square, square), if bit == 1 { base } else { 1 }))
}

/// The expansion of the square root of N, at one step.
struct Fraction {
    /// The root, rounded down.
    root: Natural,
    p: Natural,
    q: Natural,
    /// The numerator of the convergent, modulo N, and the one before.
    a: Natural,
    before: Natural,
    /// Whether the convergent's square is congruent to -Q rather than Q.
    odd: bool,
}

impl Fraction {
    fn new(n: &Natural) -> Fraction {
        let root = n.sqrt();
        let q = n - &(&root * &root);
        Fraction { p: root.clone(), q, a: root.clone(), before: 1u32.into(), root, odd: true }
    }

    fn step(&mut self, n: &Natural) {
        let term = (&self.root + &self.p).div_rem(&self.q).0;
        self.p = &(&term * &self.q) - &self.p;
        self.q = (n - &(&self.p * &self.p)).div_rem(&self.q).0;
        let next = (&(&term * &self.a) + &self.before).rem(n);
        self.before = std::mem::replace(&mut self.a, next);
        self.odd = !self.odd;
    }
}

/// The primes of `q`, if all of them are in the base.
fn smooth(q: &Natural, base: &[u32]) -> Option<Vec<u16>> {
    let mut rest = q.clone();
    let mut primes = Vec::new();
    for (at, &prime) in base.iter().enumerate() {
        if at == EARLY && &rest * &Natural::from(SHRUNK) > *q {
            return None;
        }
        loop {
            let (quotient, remainder) = rest.div_rem(&Natural::from(prime));
            if !remainder.is_zero() {
                break;
            }
            primes.push(at as u16);
            rest = quotient;
        }
        if rest.is_one() {
            return Some(primes);
        }
    }
    None
}

/// A product of relations: which primes divide it an odd number of times.
struct Product {
    /// Bits: the sign, then the primes of the base.
    odd: Vec<u64>,
    /// The relations that were multiplied.
    of: Vec<u32>,
}

/// Relations, reduced by one another modulo 2.
struct Matrix {
    /// By column: the row whose first odd column this is.
    pivots: Vec<Option<Product>>,
}

impl Matrix {
    /// Adds the last relation. Relations whose product is a square, if there now are some.
    fn add(&mut self, relations: &[Relation]) -> Option<Vec<u32>> {
        let last = relations.len() - 1;
        let mut odd = vec![0u64; self.pivots.len().div_ceil(64)];
        odd[0] = relations[last].negative.into();
        for prime in &relations[last].primes {
            let column = usize::from(*prime) + 1;
            odd[column / 64] ^= 1 << (column % 64);
        }
        let mut row = Product { odd, of: vec![last as u32] };
        loop {
            let Some(word) = row.odd.iter().position(|&word| word != 0) else {
                return Some(row.of);
            };
            let column = word * 64 + row.odd[word].trailing_zeros() as usize;
            let Some(pivot) = &self.pivots[column] else {
                self.pivots[column] = Some(row);
                return None;
            };
            row = row.times(pivot);
        }
    }
}

impl Product {
    /// The product. A relation that is in both is a square and falls out.
    fn times(&self, other: &Product) -> Product {
        let odd = self.odd.iter().zip(&other.odd).map(|(a, b)| a ^ b).collect();
        let only = |a: &Product, b: &Product| -> Vec<u32> {
            a.of.iter().copied().filter(|at| !b.of.contains(at)).collect()
        };
        let mut of = only(self, other);
        of.append(&mut only(other, self));
        Product { odd, of }
    }
}

/// The common divisor of `n` and x - y, where x is the product of the A and y the root of the
/// product of the Q.
fn divisor<'a>(
    n: &Natural,
    base: &[u32],
    relations: impl Iterator<Item = &'a Relation>,
) -> Natural {
    let mut x = Natural::from(1u32);
    let mut times = vec![0; base.len()];
    for relation in relations {
        x = (&x * &relation.a).rem(n);
        relation.primes.iter().for_each(|&prime| times[usize::from(prime)] += 1);
    }
    let mut y = Natural::from(1u32);
    for (&prime, times) in base.iter().zip(times) {
        for _ in 0..times / 2 {
            y = (&y * &Natural::from(prime)).rem(n);
        }
    }
    assert_eq!((&x * &x).rem(n), (&y * &y).rem(n), "the squares differ");
    x.distance(&y).gcd(n.clone())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn factors() {
        check([10_007, 10_009], 15);
        check([15_485_863, 32_452_843], 40);
        check([2_147_483_647, 4_294_967_291], 80);
    }
}
