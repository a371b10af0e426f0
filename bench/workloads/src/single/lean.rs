//! A compiler in the functional style: definitions are read, rewritten to a normal form with
//! the help of earlier ones, and entered into an environment. Nothing is ever changed in place.
//! Objects are of 32 to 64 bytes, most of them dead at once, some kept for good, freed in chains.

use crate::case::{Results, Settings};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

const DEFINITIONS: usize = 2600;
const VARIABLES: u32 = 6;
/// A definition mentions ones among so many before it.
const NEAR: usize = 200;
/// Earlier environments are kept, one of so many.
const KEPT: usize = 16;
const PRIME: u64 = 1_000_000_007;

pub(crate) fn run(settings: &Settings) -> Results {
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
/// Nothing here ever changes; what is new shares its parts with what was there.
#[derive(Clone)]
enum Term {
    Number(u64),
    Variable(u32),
    Defined(Name),
    Sum(Rc<[Term; 2]>),
    Product(Rc<[Term; 2]>),
}
use Term::{Defined, Number, Product, Sum, Variable};

/// Variables that are multiplied, in ascending order.
type Variables = Option<Rc<Factor>>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Factor {
    variable: u32,
    rest: Variables,
}

/// A term's normal form: products that are added, in ascending order. Equal polynomials have the same.
type Normal = Option<Rc<Summand>>;

#[derive(PartialEq, Eq)]
struct Summand {
    /// Not zero.
    number: u64,
    variables: Variables,
    rest: Normal,
}

fn summand(number: u64, variables: Variables, rest: Normal) -> Normal {
    match number % PRIME {
        0 => rest,
        number => Some(Rc::new(Summand { number, variables, rest })),
    }
}

/// The normal form. `definition` says that of what is defined under a name.
fn normal(term: &Term, definition: &impl Fn(&Name) -> Normal) -> Normal {
    let both = |[a, b]: &[Term; 2]| [normal(a, definition), normal(b, definition)];
    match term {
        Number(number) => summand(*number, None, None),
        Variable(variable) => {
            summand(1, Some(Rc::new(Factor { variable: *variable, rest: None })), None)
        }
        Defined(name) => definition(name),
        Sum(terms) => {
            let [a, b] = both(terms);
            added(&a, &b)
        }
        Product(terms) => {
            let [a, b] = both(terms);
            let mut result = None;
            for a in summands(&a) {
                for b in summands(&b) {
                    let variables = united(&a.variables, &b.variables);
                    result = added(&result, &summand(a.number * b.number, variables, None));
                }
            }
            result
        }
    }
}

fn summands(normal: &Normal) -> impl Iterator<Item = &Summand> {
    std::iter::successors(normal.as_deref(), |summand| summand.rest.as_deref())
}

/// The sum. What comes after the last difference is shared.
fn added(a: &Normal, b: &Normal) -> Normal {
    let (Some(first), Some(other)) = (a, b) else { return a.clone().or_else(|| b.clone()) };
    let variables = first.variables.clone();
    match first.variables.cmp(&other.variables) {
        Ordering::Less => summand(first.number, variables, added(&first.rest, b)),
        Ordering::Equal => {
            summand(first.number + other.number, variables, added(&first.rest, &other.rest))
        }
        Ordering::Greater => added(b, a),
    }
}

fn united(a: &Variables, b: &Variables) -> Variables {
    let (Some(first), Some(other)) = (a, b) else { return a.clone().or_else(|| b.clone()) };
    let variable = first.variable;
    let rest = match variable.cmp(&other.variable) {
        Ordering::Less => united(&first.rest, b),
        Ordering::Equal => united(&first.rest, &other.rest),
        Ordering::Greater => return united(b, a),
    };
    Some(Rc::new(Factor { variable, rest }))
}

/// The value where the variables are the bits of `point`.
fn value(term: &Term, point: u32, definition: &impl Fn(&Name) -> u64) -> u64 {
    let both = |terms: &[Term; 2]| terms.each_ref().map(|term| value(term, point, definition));
    match term {
        Number(n) => *n,
        Variable(v) => u64::from(point >> v & 1),
        Defined(name) => definition(name),
        Sum(terms) => both(terms).iter().sum::<u64>() % PRIME,
        Product(terms) => both(terms).iter().product::<u64>() % PRIME,
    }
}

/// The same for a normal form.
fn normal_value(normal: &Normal, point: u32) -> u64 {
    let variables = |summand: &Summand| {
        let first = summand.variables.as_deref();
        std::iter::successors(first, |factor| factor.rest.as_deref())
            .all(|factor| point >> factor.variable & 1 == 1)
    };
    let ones = summands(normal).filter(|summand| variables(summand));
    ones.map(|summand| summand.number).sum::<u64>() % PRIME
}

struct Definition {
    source: Term,
    normal: Normal,
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

struct Module {
    /// In the order of their definition.
    names: Vec<Name>,
    environment: Map,
    /// Some of the environments in between.
    history: Vec<Map>,
}

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
                Defined(self.names[rng.usize(near)].clone())
            }
            (0, 0..5) => Number(rng.u64(0..3)),
            (0, _) => Variable(rng.u32(0..VARIABLES)),
            (_, 0..4) => {
                let factor = [Number(rng.u64(0..3)), Variable(rng.u32(0..VARIABLES))];
                Product(Rc::new([Sum(Rc::new(factor)), self.random_term(rng, depth - 1)]))
            }
            _ => Sum(Rc::new([(); 2].map(|()| self.random_term(rng, depth - 1)))),
        }
    }

    /// Ends the run unless every normal form is one, with the values of its definition.
    fn check(&self) {
        for point in [0b01_0110, 0b10_1011, 0b11_1111] {
            let mut values: BTreeMap<&str, u64> = BTreeMap::new();
            for name in &self.names {
                let definition = self.definition(name);
                let found = value(&definition.source, point, &|name| values[&**name]);
                assert_eq!(found, normal_value(&definition.normal, point), "{name} is wrong");
                assert!(
                    summands(&definition.normal).is_sorted_by(|a, b| a.variables < b.variables)
                );
                values.insert(name, found);
            }
        }
    }
}
