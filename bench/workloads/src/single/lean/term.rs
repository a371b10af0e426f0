//! Terms, and rewriting them to a normal form.
//!
//! A term is a polynomial over the numbers modulo a prime, in variables that are 0 or 1: so
//! x * x is x. Equal polynomials have the same normal form, a sum of products in fixed order.
//! Terms never change; new ones share their parts with old ones.

use super::map::Name;
use std::cmp::Ordering;
use std::rc::Rc;

/// Numbers are taken modulo this.
const PRIME: u64 = 1_000_000_007;

/// A term; copies share it.
pub(super) type Term = Rc<Node>;

/// The outermost step of a term.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    Number(u64),
    Variable(u32),
    /// What is defined under the name.
    Defined(Name),
    Sum(Term, Term),
    Product(Term, Term),
}
use Node::{Defined, Number, Product, Sum, Variable};

pub(super) fn number(value: u64) -> Term {
    Rc::new(Number(value % PRIME))
}

pub(super) fn sum(a: Term, b: Term) -> Term {
    Rc::new(Sum(a, b))
}

pub(super) fn product(a: Term, b: Term) -> Term {
    Rc::new(Product(a, b))
}

/// Carries out what is plain from the outermost steps of each part: folds numbers, and drops
/// zeros and ones.
pub(super) fn simplified(term: &Term) -> Term {
    match &**term {
        Number(_) | Variable(_) | Defined(_) => term.clone(),
        Sum(a, b) => {
            let (a, b) = (simplified(a), simplified(b));
            match (&*a, &*b) {
                (Number(0), _) => b,
                (_, Number(0)) => a,
                (Number(a), Number(b)) => number(a + b),
                (_, Number(_)) => sum(b, a),
                (Number(n), Sum(c, d)) => match **c {
                    Number(m) => sum(number(n + m), d.clone()),
                    _ => sum(a, b),
                },
                _ if Rc::ptr_eq(&a, &b) => product(number(2), a),
                _ => sum(a, b),
            }
        }
        Product(a, b) => {
            let (a, b) = (simplified(a), simplified(b));
            match (&*a, &*b) {
                (Number(0), _) | (_, Number(1)) => a,
                (_, Number(0)) | (Number(1), _) => b,
                (Number(a), Number(b)) => number(a * b),
                (_, Number(_)) => product(b, a),
                _ if Rc::ptr_eq(&a, &b) => a,
                _ => product(a, b),
            }
        }
    }
}

/// The normal form. `definition` says the normal form of what is defined under a name.
///
/// It is 0, or `Sum(m, rest)` where `rest` is a normal form and m is `Product(n, x)`, n a
/// number, x 1 or `Product(v, x)`, v a variable. Variables ascend, products too; none twice.
pub(super) fn normal(term: &Term, definition: &impl Fn(&Name) -> Term) -> Term {
    match &**term {
        Number(0) => term.clone(),
        Number(_) => sum(product(term.clone(), number(1)), number(0)),
        Variable(_) => {
            let variables = product(term.clone(), number(1));
            sum(product(number(1), variables), number(0))
        }
        Defined(name) => definition(name),
        Sum(a, b) => added(&normal(a, definition), &normal(b, definition)),
        Product(a, b) => multiplied(&normal(a, definition), &normal(b, definition)),
    }
}

/// The parts of a product or sum of the normal form; none of what ends it.
fn parts(term: &Term) -> Option<(&Term, &Term)> {
    match &**term {
        Sum(a, b) | Product(a, b) => Some((a, b)),
        _ => None,
    }
}

fn coefficient(product: &Term) -> (u64, &Term) {
    match parts(product).map(|(number, variables)| (&**number, variables)) {
        Some((&Number(n), variables)) => (n, variables),
        _ => panic!("not in normal form: {product:?}"),
    }
}

/// The sum of two normal forms. What comes after the last difference is shared.
fn added(a: &Term, b: &Term) -> Term {
    let (Some((first, a_rest)), Some((other, b_rest))) = (parts(a), parts(b)) else {
        return if parts(a).is_some() { a.clone() } else { b.clone() };
    };
    let ((n, variables), (m, other_variables)) = (coefficient(first), coefficient(other));
    match compared(variables, other_variables) {
        Ordering::Less => sum(first.clone(), added(a_rest, b)),
        Ordering::Greater => sum(other.clone(), added(a, b_rest)),
        Ordering::Equal if (n + m) % PRIME == 0 => added(a_rest, b_rest),
        Ordering::Equal => sum(product(number(n + m), variables.clone()), added(a_rest, b_rest)),
    }
}

/// The product of two normal forms: of all pairs of parts.
fn multiplied(a: &Term, b: &Term) -> Term {
    let mut result = number(0);
    let mut a = a;
    while let Some((first, a_rest)) = parts(a) {
        let (n, variables) = coefficient(first);
        let mut b = b;
        while let Some((other, b_rest)) = parts(b) {
            let (m, other_variables) = coefficient(other);
            let one = product(number(n * m), united(variables, other_variables));
            result = added(&result, &sum(one, number(0)));
            b = b_rest;
        }
        a = a_rest;
    }
    result
}

/// The variables of both.
fn united(a: &Term, b: &Term) -> Term {
    let (Some((first, a_rest)), Some((other, b_rest))) = (parts(a), parts(b)) else {
        return if parts(a).is_some() { a.clone() } else { b.clone() };
    };
    match variable(first).cmp(&variable(other)) {
        Ordering::Less => product(first.clone(), united(a_rest, b)),
        Ordering::Equal => product(first.clone(), united(a_rest, b_rest)),
        Ordering::Greater => product(other.clone(), united(a, b_rest)),
    }
}

fn compared(a: &Term, b: &Term) -> Ordering {
    match (parts(a), parts(b)) {
        (Some((first, a)), Some((other, b))) => {
            variable(first).cmp(&variable(other)).then_with(|| compared(a, b))
        }
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn variable(term: &Term) -> u32 {
    match **term {
        Variable(v) => v,
        _ => panic!("not in normal form: {term:?}"),
    }
}

/// The value where the variables are the bits of `point`.
pub(super) fn value(term: &Term, point: u32, definition: &impl Fn(&Name) -> u64) -> u64 {
    let value = |term| value(term, point, definition);
    match &**term {
        Number(n) => *n,
        Variable(v) => u64::from(point >> v & 1),
        Defined(name) => definition(name),
        Sum(a, b) => (value(a) + value(b)) % PRIME,
        Product(a, b) => value(a) * value(b) % PRIME,
    }
}
