//! A compiler in the functional style: definitions are read, simplified, rewritten to a
//! normal form with the help of earlier ones, and entered into an environment. Nothing is
//! ever changed in place; what nobody refers to any more is freed by its reference count.
//!
//! Stands for the runtime systems of functional languages: objects of 32 to 80 bytes, most of
//! them dead at once, some kept for good, and freed in chains. The compiler of Lean is the
//! first of mimalloc's own benchmarks.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use map::{Map, Name};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;
use term::{Node, Term, normal, number, product, simplified, sum, value};

mod map;
mod term;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
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

fn run(settings: &Settings) -> Results {
    compiled(50).0.check();
    let start = Instant::now();
    let (module, history) = compiled(settings.scaled(DEFINITIONS));
    let mut ms = ms_since(start);
    module.check();
    let start = Instant::now();
    drop((module, history));
    ms += ms_since(start);
    Results::of([("ms", ms)])
}

/// What a name stands for.
struct Definition {
    source: Term,
    normal: Term,
}

/// What is known so far.
#[derive(Clone)]
struct Environment {
    definitions: Map<Rc<Definition>>,
    /// How often each name was mentioned.
    mentions: Map<u32>,
}

/// A compiled module.
struct Module {
    /// In the order of their definition.
    names: Vec<Name>,
    environment: Environment,
}

/// Compiles random definitions; also returns some of the environments in between.
fn compiled(count: usize) -> (Module, Vec<Environment>) {
    let mut rng = fastrand::Rng::with_seed(6);
    let environment = Environment { definitions: Map::new(), mentions: Map::new() };
    let mut module = Module { names: Vec::new(), environment };
    let mut history = Vec::new();
    for at in 0..count {
        let name = Name::from(format!("module{}.lemma{at}", rng.u32(0..100)));
        let source = module.random_term(&mut rng, 5);
        module.define(name, &source);
        if at % KEPT == 0 {
            history.push(module.environment.clone());
        }
    }
    (module, history)
}

impl Module {
    /// Sums, products with simple factors, and mentions of earlier definitions.
    fn random_term(&self, rng: &mut fastrand::Rng, depth: u32) -> Term {
        match (depth, rng.u32(0..10)) {
            (0, 0..3) if !self.names.is_empty() => {
                let near = self.names.len().saturating_sub(NEAR)..self.names.len();
                Rc::new(Node::Defined(self.names[rng.usize(near)].clone()))
            }
            (0, 0..5) => number(rng.u64(0..3)),
            (0, _) => Rc::new(Node::Variable(rng.u32(0..VARIABLES))),
            (_, 0..4) => {
                let variable = Rc::new(Node::Variable(rng.u32(0..VARIABLES)));
                let factor = sum(number(rng.u64(0..3)), variable);
                product(factor, self.random_term(rng, depth - 1))
            }
            _ => sum(self.random_term(rng, depth - 1), self.random_term(rng, depth - 1)),
        }
    }

    /// Enters a definition.
    fn define(&mut self, name: Name, source: &Term) {
        let Environment { definitions, mentions } = &self.environment;
        let source = simplified(source);
        let normal =
            normal(&source, &|name| definitions.get(name).expect("defined before").normal.clone());
        let mentions = mentioned(&source, mentions.clone());
        let definitions = definitions.insert(&name, Rc::new(Definition { source, normal }));
        self.environment = Environment { definitions, mentions };
        self.names.push(name);
    }

    /// Ends the run unless every definition and its normal form have the same values, and
    /// the normal form is one.
    fn check(&self) {
        let mut values: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
        for name in &self.names {
            let definition = self.environment.definitions.get(name).expect("defined");
            let points = [0b01_0110, 0b10_1011, 0b11_1111];
            let found = std::array::from_fn(|at| {
                let of_source = value(&definition.source, points[at], &|name| values[&**name][at]);
                let of_normal = value(&definition.normal, points[at], &|_| panic!("a name"));
                assert_eq!(of_source, of_normal, "{name} is wrong");
                of_source
            });
            values.insert(name, found);
            let again = normal(&definition.normal, &|_| panic!("a name"));
            assert_eq!(again, definition.normal, "{name} is not in normal form");
        }
        let mut mentions = Map::new();
        for name in &self.names {
            let definition = self.environment.definitions.get(name).expect("defined");
            mentions = mentioned(&definition.source, mentions);
        }
        let count = |mentions: &Map<u32>, name: &Name| mentions.get(name).copied();
        let agree = |name| count(&mentions, name) == count(&self.environment.mentions, name);
        assert!(self.names.iter().all(agree), "the counts differ");
    }
}

/// The counts, with what `term` mentions.
fn mentioned(term: &Term, counts: Map<u32>) -> Map<u32> {
    match &**term {
        Node::Number(_) | Node::Variable(_) => counts,
        Node::Defined(name) => counts.insert(name, counts.get(name).unwrap_or(&0) + 1),
        Node::Sum(a, b) | Node::Product(a, b) => mentioned(b, mentioned(a, counts)),
    }
}

#[cfg(test)]
mod tests {
    use super::compiled;
    use super::term::{Node, Term, normal, number, product, simplified, sum};
    use std::rc::Rc;

    fn form(term: &Term) -> Term {
        normal(&simplified(term), &|_| panic!("no definitions"))
    }

    #[test]
    fn equal_terms_have_the_same_normal_form() {
        let x = || Rc::new(Node::Variable(0));
        let y = || Rc::new(Node::Variable(1));
        // (x + y)^2 is x + y + 2 x y, since squares of variables are the variables.
        let square = product(sum(x(), y()), sum(y(), x()));
        let expanded = sum(product(number(2), product(y(), x())), sum(y(), x()));
        assert_eq!(form(&square), form(&expanded));
        assert_ne!(form(&square), form(&sum(x(), y())));
        let nothing = sum(x(), product(number(1_000_000_006), x()));
        assert_eq!(form(&nothing), number(0));
    }

    #[test]
    fn compiles_and_keeps_earlier_environments() {
        let (module, history) = compiled(40);
        module.check();
        let first = &module.names[0];
        let found = |at: usize| history[at].definitions.get(first).map(|found| &found.normal);
        assert_eq!(found(0), found(2));
        assert!(history[0].definitions.get(&module.names[1]).is_none());
    }
}
