//! The gravity of n bodies, by a tree of cells that is built afresh at every step: a far cell
//! acts as one body in its centre of mass (Barnes and Hut, Nature 324, 1986).
//!
//! Stands for scientific programs whose objects are of few sizes, are allocated together, are
//! used for long and are freed together; and for computing that the placement of the blocks
//! slows down or speeds up.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use std::f64::consts::TAU;
use std::time::Instant;
use tree::{Field, Leaf, Tree};
use vector::Vector;

mod tree;
mod vector;

/// The case.
pub const WORKLOADS: &[Workload] = &[Case::new(
    "barnes-like",
    Group::Single,
    "n-body simulation: a tree of cells is built, walked and freed at every step. Scientific \
     programs, where the placement of the blocks matters as well as the time to get them.",
    Row::MS_PEAK,
)
.from("Barnes and Hut, Nature 324, 1986; as a benchmark: SPLASH-2, ISCA 1995")
.quick(0.2)
.rust(run)];

const BODIES: usize = 20_000;
/// Steps at scale 1.
const STEPS: usize = 10;
const STEP: f64 = 1.0 / 64.0;

fn run(settings: &Settings) -> Results {
    let mut system = System::plummer(BODIES);
    system.update_fields();
    system.check_fields();
    let before = system.sums();
    let start = Instant::now();
    for _ in 0..settings.scaled(STEPS) {
        system.step();
    }
    let ms = ms_since(start);
    system.sums().check(&before);
    Results::of([("ms", ms)])
}

struct Body {
    leaf: Leaf,
    speed: Vector,
    field: Field,
}

struct System {
    bodies: Vec<Body>,
}

/// What does not change as the bodies move.
#[derive(Debug)]
struct Sums {
    momentum: Vector,
    energy: f64,
}

impl System {
    /// A ball of stars in equilibrium, densest in its middle: Plummer's model, drawn as
    /// Aarseth, Hénon and Wielen do (Astronomy and Astrophysics 37, 1974). Mass, radius and
    /// the constant of gravity are 1.
    fn plummer(bodies: usize) -> System {
        let mut rng = fastrand::Rng::with_seed(4);
        let body = |body| {
            let radius = loop {
                let radius = 1.0 / ((1.0 - rng.f64()).powf(-2.0 / 3.0) - 1.0).sqrt();
                if radius < 10.0 {
                    break radius;
                }
            };
            let escape = (4.0 / (1.0 + radius * radius)).powf(0.25);
            let share = loop {
                let share = rng.f64();
                if 0.1 * rng.f64() < share * share * (1.0 - share * share).powf(3.5) {
                    break share;
                }
            };
            let place = direction(&mut rng) * radius;
            let speed = direction(&mut rng) * (escape * share);
            let leaf = Leaf { mass: 1.0 / bodies as f64, place, body };
            Body { leaf, speed, field: Field::default() }
        };
        System { bodies: (0..bodies as u32).map(body).collect() }
    }

    /// A step of the leapfrog: half a kick, a drift, the other half.
    fn step(&mut self) {
        for body in &mut self.bodies {
            body.speed = body.speed + body.field.acceleration * (STEP / 2.0);
            body.leaf.place = body.leaf.place + body.speed * STEP;
        }
        self.update_fields();
        for body in &mut self.bodies {
            body.speed = body.speed + body.field.acceleration * (STEP / 2.0);
        }
    }

    fn update_fields(&mut self) {
        let tree = Tree::new(self.bodies.iter().map(|body| body.leaf));
        for body in &mut self.bodies {
            body.field = tree.field(&body.leaf);
        }
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums { momentum: Vector::default(), energy: 0.0 };
        for Body { leaf, speed, field } in &self.bodies {
            sums.momentum = sums.momentum + *speed * leaf.mass;
            // A pair's potential is in the fields of both.
            sums.energy += leaf.mass * (speed.square() + field.potential) / 2.0;
        }
        sums
    }

    /// Compares some bodies' fields with the sums over all other bodies.
    fn check_fields(&self) {
        let every = self.bodies.len().div_ceil(100);
        let (mut errors, mut count) = (0.0, 0.0);
        for body in self.bodies.iter().step_by(every) {
            let mut exact = Field::default();
            let others = self.bodies.iter().filter(|other| other.leaf.body != body.leaf.body);
            others.for_each(|other| exact.add(&body.leaf, other.leaf.mass, other.leaf.place));
            let error = (body.field.acceleration - exact.acceleration).square().sqrt();
            errors += error / exact.acceleration.square().sqrt();
            count += 1.0;
        }
        assert!(errors / count < 0.03, "fields are wrong by {}", errors / count);
    }
}

impl Sums {
    /// The tree's approximation lets them drift a little.
    fn check(&self, before: &Sums) {
        let drift = (self.momentum - before.momentum).square().sqrt();
        let gain = (self.energy / before.energy - 1.0).abs();
        assert!(drift < 1e-3 && gain < 5e-3, "{before:?} became {self:?}");
    }
}

/// A random vector of length 1.
fn direction(rng: &mut fastrand::Rng) -> Vector {
    let height = 2.0 * rng.f64() - 1.0;
    let (sine, cosine) = (TAU * rng.f64()).sin_cos();
    let across = (1.0 - height * height).sqrt();
    Vector([across * cosine, across * sine, height])
}

#[cfg(test)]
mod tests {
    use super::System;

    #[test]
    fn fields_are_near_the_exact_ones_and_energy_is_kept() {
        let mut system = System::plummer(500);
        system.update_fields();
        system.check_fields();
        let before = system.sums();
        // Known for Plummer's model.
        let model = -3.0 * std::f64::consts::PI / 64.0;
        assert!((before.energy / model - 1.0).abs() < 0.1, "{} or {model}", before.energy);
        (0..8).for_each(|_| system.step());
        system.sums().check(&before);
    }
}
