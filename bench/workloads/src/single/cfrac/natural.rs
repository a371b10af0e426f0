//! Natural numbers of any size, every one a block of its own on the heap.

use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

/// A natural number.
///
/// Invariant 1: digits to the base 2^32, least first; at least one; the last is not zero
/// unless it is the only one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Natural(Vec<u32>);

impl Natural {
    /// Keeps invariant 1.
    fn trimmed(mut digits: Vec<u32>) -> Natural {
        while digits.len() > 1 && digits.last() == Some(&0) {
            digits.pop();
        }
        Natural(digits)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0 == [0]
    }

    pub(super) fn is_one(&self) -> bool {
        self.0 == [1]
    }

    /// Quotient and remainder.
    pub(super) fn div_rem(&self, by: &Natural) -> (Natural, Natural) {
        match by.0[..] {
            [small] => {
                let (quotient, rest) = self.div_rem_small(small);
                (quotient, Natural::from(rest))
            }
            _ if self < by => (Natural::from(0u32), self.clone()),
            _ => long_division(&self.0, &by.0),
        }
    }

    /// Quotient by, and remainder below, a single digit.
    pub(super) fn div_rem_small(&self, by: u32) -> (Natural, u32) {
        let mut rest = 0;
        let digits = self.0.iter().rev().map(|&digit| {
            let value = rest << 32 | u64::from(digit);
            rest = value % u64::from(by);
            (value / u64::from(by)) as u32
        });
        let mut quotient: Vec<u32> = digits.collect();
        quotient.reverse();
        (Natural::trimmed(quotient), rest as u32)
    }

    /// The remainder.
    pub(super) fn rem(&self, by: &Natural) -> Natural {
        self.div_rem(by).1
    }

    /// The root, rounded down, by Newton's method from above.
    pub(super) fn sqrt(&self) -> Natural {
        let mut root = &Natural::from(1u32) + self;
        loop {
            let next = (&root + &self.div_rem(&root).0).div_rem_small(2).0;
            if next >= root {
                return root;
            }
            root = next;
        }
    }

    /// The greatest common divisor, by Euclid's method.
    pub(super) fn gcd(self, other: Natural) -> Natural {
        let (mut a, mut b) = (self, other);
        while !b.is_zero() {
            let rest = a.rem(&b);
            (a, b) = (b, rest);
        }
        a
    }

    /// The difference, whichever is larger.
    pub(super) fn distance(&self, other: &Natural) -> Natural {
        if self < other { other - self } else { self - other }
    }
}

/// `dividend / divisor` for a divisor of at least two digits and a dividend not below it
/// (Knuth, volume 2, algorithm D).
fn long_division(dividend: &[u32], divisor: &[u32]) -> (Natural, Natural) {
    let n = divisor.len();
    // Both are shifted so that the divisor's top bit is set: then a quotient digit that is
    // guessed from the leading digits is too large by two at most.
    let shift = divisor[n - 1].leading_zeros();
    let divisor = shifted_left(divisor, shift);
    let mut rest = shifted_left(dividend, shift);
    let (top, second) = (u64::from(divisor[n - 1]), u64::from(divisor[n - 2]));
    let mut quotient = vec![0; rest.len() - n];
    for at in (0..quotient.len()).rev() {
        let leading = u64::from(rest[at + n]) << 32 | u64::from(rest[at + n - 1]);
        let (mut guess, mut over) = (leading / top, leading % top);
        while over <= u64::from(u32::MAX)
            && (guess > u64::from(u32::MAX)
                || guess * second > (over << 32 | u64::from(rest[at + n - 2])))
        {
            guess -= 1;
            over += top;
        }
        let (mut carry, mut borrow) = (0, 0);
        for (digit, out) in divisor[..n].iter().chain(&[0]).zip(&mut rest[at..=at + n]) {
            let product = guess * u64::from(*digit) + carry;
            carry = product >> 32;
            let difference = i64::from(*out) - (product & 0xffff_ffff) as i64 + borrow;
            *out = difference as u32;
            borrow = difference >> 32;
        }
        if borrow < 0 {
            guess -= 1;
            let mut carry = 0;
            for (digit, out) in divisor[..n].iter().chain(&[0]).zip(&mut rest[at..=at + n]) {
                carry += u64::from(*digit) + u64::from(*out);
                *out = carry as u32;
                carry >>= 32;
            }
        }
        quotient[at] = guess as u32;
    }
    for at in 0..n {
        rest[at] = ((u64::from(rest[at + 1]) << 32 | u64::from(rest[at])) >> shift) as u32;
    }
    rest.truncate(n);
    (Natural::trimmed(quotient), Natural::trimmed(rest))
}

/// One more digit than before.
fn shifted_left(digits: &[u32], shift: u32) -> Vec<u32> {
    let mut shifted = Vec::with_capacity(digits.len() + 1);
    let mut carry = 0;
    for &digit in digits {
        let value = u64::from(digit) << shift | carry;
        shifted.push(value as u32);
        carry = value >> 32;
    }
    shifted.push(carry as u32);
    shifted
}

impl Add for &Natural {
    type Output = Natural;
    fn add(self, other: &Natural) -> Natural {
        let length = self.0.len().max(other.0.len());
        let mut sum = Vec::with_capacity(length + 1);
        let mut carry = 0;
        for at in 0..length {
            carry += u64::from(self.0.get(at).copied().unwrap_or(0));
            carry += u64::from(other.0.get(at).copied().unwrap_or(0));
            sum.push(carry as u32);
            carry >>= 32;
        }
        if carry > 0 {
            sum.push(carry as u32);
        }
        Natural::trimmed(sum)
    }
}

impl Sub for &Natural {
    type Output = Natural;
    fn sub(self, other: &Natural) -> Natural {
        let mut difference = Vec::with_capacity(self.0.len());
        let mut borrow = 0;
        for (at, &digit) in self.0.iter().enumerate() {
            borrow += i64::from(digit) - i64::from(other.0.get(at).copied().unwrap_or(0));
            difference.push(borrow as u32);
            borrow >>= 32;
        }
        assert!(borrow == 0 && self.0.len() >= other.0.len(), "negative difference");
        Natural::trimmed(difference)
    }
}

impl Mul for &Natural {
    type Output = Natural;
    fn mul(self, other: &Natural) -> Natural {
        let mut product = vec![0; self.0.len() + other.0.len()];
        for (at, &a) in self.0.iter().enumerate() {
            let mut carry = 0;
            for (&b, out) in other.0.iter().chain(&[0]).zip(&mut product[at..]) {
                carry += u64::from(a) * u64::from(b) + u64::from(*out);
                *out = carry as u32;
                carry >>= 32;
            }
        }
        Natural::trimmed(product)
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Natural) -> Ordering {
        let by_digits = || self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then_with(by_digits)
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Natural) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<u32> for Natural {
    fn from(value: u32) -> Natural {
        Natural(vec![value])
    }
}

impl From<u64> for Natural {
    fn from(value: u64) -> Natural {
        Natural::trimmed(vec![value as u32, (value >> 32) as u32])
    }
}

#[cfg(test)]
mod tests {
    use super::Natural;

    fn natural(value: u128) -> Natural {
        Natural::trimmed((0..4).map(|at| (value >> (32 * at)) as u32).collect())
    }

    #[test]
    fn agrees_with_the_machine() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let mut number = |bits| rng.u128(1..1 << 126) >> rng.u32(0..bits);
            let (a, b) = (number(126).max(1), number(126).max(1));
            // Long runs of ones are the hard case of a division.
            let a = if rng.bool() { a | u128::from(u64::MAX) } else { a };
            let (big_a, big_b) = (natural(a), natural(b));
            let (quotient, rest) = big_a.div_rem(&big_b);
            assert_eq!((&quotient, &rest), (&natural(a / b), &natural(a % b)));
            assert_eq!(&(&quotient * &big_b) + &rest, big_a);
            assert_eq!(&big_a + &big_b, natural(a + b));
            assert_eq!(big_a.distance(&big_b), natural(a.abs_diff(b)));
            assert_eq!((&big_a * &big_b).div_rem(&big_b), (big_a.clone(), natural(0)));
            assert_eq!(big_a.sqrt(), natural(a.isqrt()));
        }
    }
}
