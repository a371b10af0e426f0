//! A compiler in the functional style: definitions are read, rewritten to a normal form with
//! the help of earlier ones, and entered into an environment. Nothing is ever changed in
//! place; what nobody refers to any more is freed by its reference count.
//!
//! Stands for the runtime systems of functional languages: objects of 32 to 80 bytes, most of
//! them dead at once, some kept for good, and freed in chains. The compiler of Lean is the
//! first of mimalloc's own benchmarks.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

pub(crate) const WORKLOADS: &[Workload] = &[Case::new(
    "lean-like",
    Group::Single,
    "Rewrites terms to normal forms and keeps them in a persistent tree, all by reference \
     counts. Compilers and runtime systems of functional languages.",
    Row::MS_PEAK,
)
.from("Leijen, Zorn and de Moura, mimalloc, APLAS 2019, by the real compiler")
.quick(0.2)
.rust(run)];

/// Definitions at scale 1.
const DEFINITIONS: usize = 1500;
const VARIABLES: u32 = 6;
/// A definition mentions ones among so many before it.
const NEAR: usize = 200;
/// Earlier environments are kept, one of so many.
const KEPT: usize = 16;
/// Numbers are taken modulo this.
const PRIME: u64 = 1_000_000_007;

fn run(settings: &Settings) -> Results {
    compiled(50).check();
    let start = Instant::now();
    let module = compiled(settings.scaled(DEFINITIONS));
    let mut time = start.elapsed();
    module.check();
    let start = Instant::now();
    drop(module);
    time += start.elapsed();
    Results::ms(time)
}

type Name = Rc<str>;

/// A polynomial over the numbers modulo a prime, in variables that are 0 or 1: so x * x is x.
/// Terms never change; new ones share their parts with old ones.
type Term = Rc<Node>;

/// The outermost step of a term.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Number(u64),
    Variable(u32),
    /// What is defined under the name.
    Defined(Name),
    Sum(Term, Term),
    Product(Term, Term),
}
use Node::{Defined, Number, Product, Sum, Variable};

fn number(value: u64) -> Term {
    Rc::new(Number(value % PRIME))
}

fn sum(a: Term, b: Term) -> Term {
    Rc::new(Sum(a, b))
}

fn product(a: Term, b: Term) -> Term {
    Rc::new(Product(a, b))
}

/// The normal form. `definition` says the normal form of what is defined under a name. Equal
/// polynomials have the same.
///
/// It is 0, or `Sum(m, rest)` where `rest` is a normal form and m is `Product(n, x)`, n a
/// number, x 1 or `Product(v, x)`, v a variable. Variables ascend, products too; none twice.
fn normal(term: &Term, definition: &impl Fn(&Name) -> Term) -> Term {
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
fn value(term: &Term, point: u32, definition: &impl Fn(&Name) -> u64) -> u64 {
    let value = |term| value(term, point, definition);
    match &**term {
        Number(n) => *n,
        Variable(v) => u64::from(point >> v & 1),
        Defined(name) => definition(name),
        Sum(a, b) => (value(a) + value(b)) % PRIME,
        Product(a, b) => value(a) * value(b) % PRIME,
    }
}

/// What a name stands for.
struct Definition {
    source: Term,
    normal: Term,
}

/// A search tree that stays as it is: inserting makes a new one, which shares all but one path
/// with the old. The names come in random order, so nothing has to keep it balanced.
#[derive(Clone)]
struct Map(Option<Rc<Entry>>);

struct Entry {
    smaller: Map,
    name: Name,
    definition: Rc<Definition>,
    larger: Map,
}

impl Map {
    fn get(&self, name: &str) -> Option<&Definition> {
        let entry = self.0.as_ref()?;
        match name.cmp(&entry.name) {
            Ordering::Less => entry.smaller.get(name),
            Ordering::Equal => Some(&entry.definition),
            Ordering::Greater => entry.larger.get(name),
        }
    }

    /// The map with one more name.
    fn insert(&self, name: Name, definition: Rc<Definition>) -> Map {
        let entry = match &self.0 {
            None => Entry { smaller: Map(None), name, definition, larger: Map(None) },
            Some(entry) => {
                let (mut smaller, mut larger) = (entry.smaller.clone(), entry.larger.clone());
                let side = if name < entry.name { &mut smaller } else { &mut larger };
                *side = side.insert(name, definition);
                let (name, definition) = (entry.name.clone(), entry.definition.clone());
                Entry { smaller, name, definition, larger }
            }
        };
        Map(Some(Rc::new(entry)))
    }
}

/// A compiled module.
struct Module {
    /// In the order of their definition.
    names: Vec<Name>,
    environment: Map,
    /// Some of the environments in between.
    history: Vec<Map>,
}

/// Compiles random definitions.
fn compiled(count: usize) -> Module {
    let mut rng = fastrand::Rng::with_seed(6);
    let mut module = Module { names: Vec::new(), environment: Map(None), history: Vec::new() };
    for at in 0..count {
        let name = Name::from(format!("module{:04}.lemma{at}", rng.u32(0..10_000)));
        let source = module.random_term(&mut rng, 5);
        let normal = normal(&source, &|name| module.definition(name).normal.clone());
        let definition = Rc::new(Definition { source, normal });
        module.environment = module.environment.insert(name.clone(), definition);
        module.names.push(name);
        if at % KEPT == 0 {
            module.history.push(module.environment.clone());
        }
    }
    module
}

impl Module {
    fn definition(&self, name: &Name) -> &Definition {
        self.environment.get(name).expect("defined before")
    }

    /// Sums, products with simple factors, and mentions of earlier definitions.
    fn random_term(&self, rng: &mut fastrand::Rng, depth: u32) -> Term {
        match (depth, rng.u32(0..10)) {
            (0, 0..3) if !self.names.is_empty() => {
                let near = self.names.len().saturating_sub(NEAR)..self.names.len();
                Rc::new(Defined(self.names[rng.usize(near)].clone()))
            }
            (0, 0..5) => number(rng.u64(0..3)),
            (0, _) => Rc::new(Variable(rng.u32(0..VARIABLES))),
            (_, 0..4) => {
                let variable = Rc::new(Variable(rng.u32(0..VARIABLES)));
                let factor = sum(number(rng.u64(0..3)), variable);
                product(factor, self.random_term(rng, depth - 1))
            }
            _ => sum(self.random_term(rng, depth - 1), self.random_term(rng, depth - 1)),
        }
    }

    /// Ends the run unless every definition and its normal form have the same values, and
    /// the normal form is one.
    fn check(&self) {
        let mut values: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
        for name in &self.names {
            let definition = self.definition(name);
            let points = [0b01_0110, 0b10_1011, 0b11_1111];
            let found = std::array::from_fn(|at| {
                let point = points[at];
                let of_source = value(&definition.source, point, &|name| values[&**name][at]);
                let of_normal = value(&definition.normal, point, &|_| panic!("a name"));
                assert_eq!(of_source, of_normal, "{name} is wrong");
                of_source
            });
            values.insert(name, found);
            let again = normal(&definition.normal, &|_| panic!("a name"));
            assert_eq!(again, definition.normal, "{name} is not in normal form");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_terms_have_the_same_normal_form() {
        let form = |term| normal(&term, &|_| panic!("no definitions"));
        let x = || Rc::new(Variable(0));
        let y = || Rc::new(Variable(1));
        // (x + y)^2 is x + y + 2 x y, since squares of variables are the variables.
        let square = form(product(sum(x(), y()), sum(y(), x())));
        assert_eq!(square, form(sum(product(number(2), product(y(), x())), sum(y(), x()))));
        assert_ne!(square, form(sum(x(), y())));
        assert_eq!(form(sum(x(), product(number(PRIME - 1), x()))), number(0));
    }

    #[test]
    fn compiles_and_keeps_earlier_environments() {
        let module = compiled(40);
        module.check();
        let known = |at: usize, name: usize| module.history[at].get(&module.names[name]).is_some();
        assert_eq!([known(0, 0), known(0, 1), known(2, 1)], [true, false, true]);
    }
}
