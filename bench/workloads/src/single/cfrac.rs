//! The continued-fraction method of factoring, on numbers of 30 digits.
//!
//! The convergents A/B of the square root of N give squares A^2 that are congruent to small numbers Q modulo N, with
//! alternating signs. Those Q that are products of small primes are collected until some of them multiply to a square;
//! that gives x^2 = y^2 modulo N, and gcd(x - y, N) is a factor as a rule (Morrison and Brillhart, Mathematics of
//! Computation 29, 1975).
//!
//! Stands for programs that make a fresh, tiny object at every step: each sum, product and quotient here is a new
//! number on the heap, most of them 4 to 32 bytes and dead a few steps later.

use crate::case::{Results, Settings};
use ethnum::U256;
use std::hint::black_box;
use std::ops::{Add, Mul, Sub};
use std::time::Instant;

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
const SHRUNK: u64 = 1 << 15;

pub(crate) fn run(settings: &Settings) -> Results {
    check([1_000_003, 1_000_033], 40);
    let start = Instant::now();
    for &primes in PRIMES.iter().cycle().take(settings.scaled(PRIMES.len())) {
        check(primes, BASE);
    }
    Results::ms(start.elapsed())
}

fn check(primes: [u64; 2], base: usize) {
    let [p, q] = primes.map(Natural::from);
    let found = factor(&(&p * &q), base);
    assert!(found == p || found == q, "{found:?} does not divide {p:?} * {q:?}");
}

/// A natural number below 2^256, every one a block of its own on the heap: as many words as it needs, the least first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Natural(Box<[u32]>);

impl Natural {
    fn value(&self) -> U256 {
        let words = self.0.iter().rev();
        words.fold(U256::ZERO, |value, &word| value << 32 | U256::from(word))
    }

    /// The value of a number of one or two words, as most are: the narrower the arithmetic, the faster it is, by far.
    fn small(&self) -> Option<u64> {
        match *self.0 {
            [word] => Some(word.into()),
            [low, high] => Some(u64::from(high) << 32 | u64::from(low)),
            _ => None,
        }
    }

    fn div_rem(&self, by: &Natural) -> (Natural, Natural) {
        let (value, by) = (self.value(), by.value());
        let quotient = match (u128::try_from(value), u128::try_from(by)) {
            (Ok(value), Ok(by)) => U256::from(value / by),
            _ => value / by,
        };
        (quotient.into(), (value - quotient * by).into())
    }

    /// Quotient by, and remainder below, a machine word: neither is a number on the heap.
    fn div_rem_word(&self, by: u64) -> (Natural, u64) {
        if let Some(value) = self.small() {
            return ((value / by).into(), value % by);
        }
        let (value, by) = (self.value(), U256::from(by));
        ((value / by).into(), (value % by).as_u64())
    }

    fn rem(&self, by: &Natural) -> Natural {
        self.div_rem(by).1
    }

    /// What comes of two numbers: of two small ones, it fits 128 bits.
    fn with(
        &self,
        other: &Natural,
        narrow: fn(u128, u128) -> u128,
        wide: fn(U256, U256) -> U256,
    ) -> Natural {
        match self.small().zip(other.small()) {
            Some((a, b)) => U256::from(narrow(a.into(), b.into())).into(),
            None => wide(self.value(), other.value()).into(),
        }
    }
}

impl From<u64> for Natural {
    fn from(value: u64) -> Natural {
        // Not a block that the compiler may do without.
        Natural(black_box(match u32::try_from(value) {
            Ok(word) => Box::new([word]),
            Err(_) => Box::new([value as u32, (value >> 32) as u32]),
        }))
    }
}

impl From<U256> for Natural {
    fn from(value: U256) -> Natural {
        if let Ok(small) = u64::try_from(value) {
            return small.into();
        }
        let words = (256 - value.leading_zeros()).div_ceil(32);
        Natural(black_box((0..words).map(|at| (value >> (32 * at)).as_u32()).collect()))
    }
}

impl Add for &Natural {
    type Output = Natural;
    fn add(self, other: &Natural) -> Natural {
        self.with(other, u128::add, U256::add)
    }
}

impl Sub for &Natural {
    type Output = Natural;
    fn sub(self, other: &Natural) -> Natural {
        self.with(other, u128::sub, U256::sub)
    }
}

impl Mul for &Natural {
    type Output = Natural;
    fn mul(self, other: &Natural) -> Natural {
        self.with(other, u128::mul, U256::mul)
    }
}

/// A^2 is congruent to Q, or to -Q, modulo N.
struct Relation {
    a: Natural,
    /// Whether it is -Q.
    negative: bool,
    /// The primes whose product Q is, by their places in the base, each as often as it divides Q.
    primes: Vec<u16>,
}

/// A factor of `n` that is neither 1 nor `n`.
fn factor(n: &Natural, base: usize) -> Natural {
    let base = factor_base(n, base);
    let mut relations = Vec::new();
    let mut pivots: Vec<Option<Product>> = (0..=base.len()).map(|_| None).collect();
    let mut fraction = Fraction::new(n);
    loop {
        fraction.step(n);
        let Some(primes) = smooth(&fraction.q, &base) else { continue };
        relations.push(Relation { a: fraction.a.clone(), negative: fraction.odd, primes });
        if let Some(square) = reduced(&mut pivots, &relations) {
            let found = divisor(n, &base, square.of.iter().map(|&at| &relations[at as usize]));
            if found.small() != Some(1) && found != *n {
                return found;
            }
        }
    }
}

/// The first primes modulo which `n` is a square: no others divide a Q.
fn factor_base(n: &Natural, size: usize) -> Vec<u64> {
    let is_prime = |p: &u64| (2..).take_while(|d| d * d <= *p).all(|d| !p.is_multiple_of(d));
    let is_square = |p: &u64| *p == 2 || power(n.div_rem_word(*p).1, (p - 1) / 2, *p) <= 1;
    (2..).filter(is_prime).filter(is_square).take(size).collect()
}

/// `base` to the power of `exponent`, modulo `p`.
fn power(base: u64, exponent: u64, p: u64) -> u64 {
    (0..32).rev().map(|bit| exponent >> bit & 1).fold(1, |root, bit| {
        let square = root * root % p;
        if bit == 1 { square * base % p } else { square }
    })
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
        let root = Natural::from(U256::from(n.value().as_u128().isqrt()));
        let q = n - &(&root * &root);
        Fraction { p: root.clone(), q, a: root.clone(), before: 1u64.into(), root, odd: true }
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
fn smooth(q: &Natural, base: &[u64]) -> Option<Vec<u16>> {
    let mut rest = q.clone();
    let mut primes = Vec::new();
    for (at, &prime) in base.iter().enumerate() {
        if at == EARLY && (&rest * &Natural::from(SHRUNK)).value() > q.value() {
            return None;
        }
        loop {
            let (quotient, remainder) = rest.div_rem_word(prime);
            if remainder != 0 {
                break;
            }
            primes.push(at as u16);
            rest = quotient;
        }
        if rest.small() == Some(1) {
            return Some(primes);
        }
    }
    None
}

struct Product {
    /// Which primes divide it an odd number of times. Bits: the sign, then the primes.
    odd: [U256; 2],
    /// The relations that were multiplied.
    of: Vec<u32>,
}

/// The last relation, times those of `pivots` that make it a square; if there are none, it becomes one of them. In the
/// place of each column stands a product whose first odd column it is.
fn reduced(pivots: &mut [Option<Product>], relations: &[Relation]) -> Option<Product> {
    let last = relations.len() - 1;
    let mut odd = [U256::from(u8::from(relations[last].negative)), U256::ZERO];
    for prime in &relations[last].primes {
        let column = usize::from(*prime) + 1;
        odd[column / 256] ^= U256::ONE << (column % 256);
    }
    let mut row = Product { odd, of: vec![last as u32] };
    while let Some(word) = row.odd.iter().position(|&word| word != 0) {
        let column = word * 256 + row.odd[word].trailing_zeros() as usize;
        let Some(pivot) = &pivots[column] else {
            pivots[column] = Some(row);
            return None;
        };
        row = row.times(pivot);
    }
    Some(row)
}

impl Product {
    /// The product. A relation that is in both is a square and falls out.
    fn times(&self, other: &Product) -> Product {
        let odd = std::array::from_fn(|at| self.odd[at] ^ other.odd[at]);
        let only = |a: &Product, b: &Product| -> Vec<u32> {
            a.of.iter().copied().filter(|at| !b.of.contains(at)).collect()
        };
        Product { odd, of: [only(self, other), only(other, self)].concat() }
    }
}

/// The common divisor of `n` and x - y, where x is the product of the A and y the root of the product of the Q.
fn divisor<'a>(
    n: &Natural,
    base: &[u64],
    relations: impl Iterator<Item = &'a Relation>,
) -> Natural {
    let mut x = Natural::from(1u64);
    let mut times = vec![0; base.len()];
    for relation in relations {
        x = (&x * &relation.a).rem(n);
        relation.primes.iter().for_each(|&prime| times[usize::from(prime)] += 1);
    }
    let mut y = Natural::from(1u64);
    for (&prime, times) in base.iter().zip(times) {
        for _ in 0..times / 2 {
            y = (&y * &Natural::from(prime)).rem(n);
        }
    }
    assert_eq!((&x * &x).rem(n), (&y * &y).rem(n), "the squares differ");
    // Euclid's method, on the difference modulo n.
    let (mut a, mut b) = (n.clone(), (&(&x + n) - &y).rem(n));
    while b.small() != Some(0) {
        let rest = a.rem(&b);
        (a, b) = (b, rest);
    }
    a
}
