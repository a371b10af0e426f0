//! The gravity of n bodies, by a tree of cells: a far cell acts as one body in its centre of mass.
//! The objects are of few sizes, allocated together, used for long and freed together.

use crate::case::{Results, Settings};
use glam::DVec3;
use std::f64::consts::TAU;
use std::time::Instant;

const BODIES: u32 = 20_000;
const STEPS: usize = 10;
const STEP: f64 = 1.0 / 64.0;
/// Bodies closer than this attract one another less.
const SOFTENING: f64 = 0.02;

pub(crate) fn run(settings: &Settings) -> Results {
    let mut system = System::plummer(BODIES);
    system.update_fields();
    let before = system.sums();
    // The energy of Plummer's model.
    let model = -3.0 * std::f64::consts::PI / 64.0;
    assert!((before.1 / model - 1.0).abs() < 0.1, "{} or {model}", before.1);
    let start = Instant::now();
    for _ in 0..settings.scaled(STEPS) {
        system.step();
    }
    let time = start.elapsed();
    system.check_sums(before);
    Results::ms(time)
}

#[derive(Clone, Copy)]
struct Leaf {
    mass: f64,
    place: DVec3,
    /// Which body it is: none attracts itself.
    body: u32,
}

/// A cube of space. Leaves and cells are blocks of their own.
#[derive(Default)]
enum Node {
    #[default]
    Empty,
    Leaf(Box<Leaf>),
    Cell(Box<Cell>),
}

#[derive(Default)]
struct Cell {
    mass: f64,
    /// The centre of mass.
    place: DVec3,
    parts: [Node; 8],
}

impl Cell {
    /// Puts a body into the part it belongs to. `middle` and `half` say where the cell is.
    fn insert(&mut self, leaf: Box<Leaf>, middle: DVec3, half: f64) {
        let above = leaf.place.cmpge(middle);
        let way = DVec3::select(above, DVec3::ONE, DVec3::NEG_ONE);
        let (middle, half) = (middle + way * (half / 2.0), half / 2.0);
        let part = &mut self.parts[above.bitmask() as usize];
        let mut cell = match std::mem::take(part) {
            Node::Empty => {
                *part = Node::Leaf(leaf);
                return;
            }
            Node::Leaf(other) => {
                let mut cell = Box::<Cell>::default();
                cell.insert(other, middle, half);
                cell
            }
            Node::Cell(cell) => cell,
        };
        cell.insert(leaf, middle, half);
        *part = Node::Cell(cell);
    }

    /// Finds the masses and their centres, of the parts first.
    fn sum(&mut self) {
        let mut moment = DVec3::ZERO;
        for part in &mut self.parts {
            let (mass, place) = match part {
                Node::Empty => continue,
                Node::Leaf(leaf) => (leaf.mass, leaf.place),
                Node::Cell(cell) => {
                    cell.sum();
                    (cell.mass, cell.place)
                }
            };
            self.mass += mass;
            moment += place * mass;
        }
        self.place = moment / self.mass;
    }

    /// A cell counts as one body from its own width on.
    fn add_field(&self, leaf: &Leaf, width: f64, field: &mut Field) {
        if self.place.distance_squared(leaf.place) > width * width {
            return field.add(leaf, self.mass, self.place);
        }
        for part in &self.parts {
            match part {
                Node::Empty => {}
                Node::Leaf(other) if other.body == leaf.body => {}
                Node::Leaf(other) => field.add(leaf, other.mass, other.place),
                Node::Cell(cell) => cell.add_field(leaf, width / 2.0, field),
            }
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Field {
    acceleration: DVec3,
    potential: f64,
}

impl Field {
    /// Adds what a mass at `place` does to `leaf`.
    fn add(&mut self, leaf: &Leaf, mass: f64, place: DVec3) {
        let way = place - leaf.place;
        let square = way.length_squared() + SOFTENING * SOFTENING;
        let potential = mass / square.sqrt();
        self.potential -= potential;
        self.acceleration += way * (potential / square);
    }
}

struct Body {
    leaf: Leaf,
    speed: DVec3,
    field: Field,
}

struct System {
    bodies: Vec<Body>,
}

impl System {
    /// A ball of stars in equilibrium, densest in its middle: Plummer's model, drawn as Aarseth, Hénon and Wielen do
    /// (Astronomy and Astrophysics 37, 1974). Mass, radius and the constant of gravity are 1.
    fn plummer(bodies: u32) -> System {
        let mut rng = fastrand::Rng::with_seed(4);
        let body = |body| {
            // The outermost hundredth is left out.
            let radius = 1.0 / ((1.0 - 0.99 * rng.f64()).powf(-2.0 / 3.0) - 1.0).sqrt();
            let escape = (4.0 / (1.0 + radius * radius)).powf(0.25);
            let share = loop {
                let share = rng.f64();
                if 0.1 * rng.f64() < share * share * (1.0 - share * share).powf(3.5) {
                    break share;
                }
            };
            let place = direction(&mut rng) * radius;
            let speed = direction(&mut rng) * (escape * share);
            let leaf = Leaf { mass: 1.0 / f64::from(bodies), place, body };
            Body { leaf, speed, field: Field::default() }
        };
        System { bodies: (0..bodies).map(body).collect() }
    }

    /// A step of the leapfrog: half a kick, a drift, the other half.
    fn step(&mut self) {
        for body in &mut self.bodies {
            body.speed += body.field.acceleration * (STEP / 2.0);
            body.leaf.place += body.speed * STEP;
        }
        self.update_fields();
        for body in &mut self.bodies {
            body.speed += body.field.acceleration * (STEP / 2.0);
        }
    }

    fn update_fields(&mut self) {
        let places = self.bodies.iter().map(|body| body.leaf.place.abs().max_element());
        // The root is a cube around the origin; this is half its width.
        let half = places.fold(0.0, f64::max) * 1.000_001;
        let mut root = Cell::default();
        for body in &self.bodies {
            root.insert(Box::new(body.leaf), DVec3::ZERO, half);
        }
        root.sum();
        for body in &mut self.bodies {
            body.field = Field::default();
            root.add_field(&body.leaf, 2.0 * half, &mut body.field);
        }
    }

    fn sums(&self) -> (DVec3, f64) {
        let (mut momentum, mut energy) = (DVec3::ZERO, 0.0);
        for Body { leaf, speed, field } in &self.bodies {
            momentum += *speed * leaf.mass;
            // A pair's potential is in the fields of both.
            energy += leaf.mass * (speed.length_squared() + field.potential) / 2.0;
        }
        (momentum, energy)
    }

    /// The sums do not change as the bodies move; the tree's approximation lets them drift a little.
    fn check_sums(&self, before: (DVec3, f64)) {
        let after = self.sums();
        let (drift, gain) = (after.0.distance(before.0), (after.1 / before.1 - 1.0).abs());
        assert!(drift < 1e-3 && gain < 5e-3, "{before:?} became {after:?}");
    }
}

fn direction(rng: &mut fastrand::Rng) -> DVec3 {
    let height = 2.0 * rng.f64() - 1.0;
    let (sine, cosine) = (TAU * rng.f64()).sin_cos();
    let across = (1.0 - height * height).sqrt();
    DVec3::new(across * cosine, across * sine, height)
}
