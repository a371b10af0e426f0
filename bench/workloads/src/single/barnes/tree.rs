//! The tree of cells: each has eight parts, which are empty, one body, or cells again.

use super::vector::Vector;

/// A cell counts as one body from this many times its width.
const OPENING: f64 = 1.0;
/// Bodies closer than this attract one another less.
pub(super) const SOFTENING: f64 = 0.02;

/// A body as the tree sees it.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) mass: f64,
    pub(super) place: Vector,
    /// Which body it is: none attracts itself.
    pub(super) body: u32,
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
    place: Vector,
    parts: [Node; 8],
}

/// All bodies.
pub(super) struct Tree {
    root: Cell,
    /// Half the width of the cube around the origin that is the root.
    half: f64,
}

/// What acts on a body.
#[derive(Clone, Copy, Default)]
pub(super) struct Field {
    pub(super) acceleration: Vector,
    pub(super) potential: f64,
}

impl Tree {
    pub(super) fn new(leaves: impl Iterator<Item = Leaf> + Clone) -> Tree {
        let farthest = leaves.clone().map(|leaf| leaf.place.largest()).fold(0.0, f64::max);
        let half = farthest * 1.000_001;
        let mut root = Cell::default();
        for leaf in leaves {
            root.insert(Box::new(leaf), Vector::default(), half);
        }
        root.sum();
        Tree { root, half }
    }

    /// The field of all others at the place of `leaf`.
    pub(super) fn field(&self, leaf: &Leaf) -> Field {
        let mut field = Field::default();
        self.root.add_field(leaf, 2.0 * self.half, &mut field);
        field
    }
}

impl Cell {
    /// Puts a body into the part it belongs to. `middle` and `half` say where the cell is.
    fn insert(&mut self, leaf: Box<Leaf>, middle: Vector, half: f64) {
        let (octant, direction) = leaf.place.octant(middle);
        let (middle, half) = (middle + direction * (half / 2.0), half / 2.0);
        let part = &mut self.parts[octant];
        *part = match std::mem::take(part) {
            Node::Empty => Node::Leaf(leaf),
            Node::Leaf(other) => {
                let mut cell = Box::<Cell>::default();
                cell.insert(other, middle, half);
                cell.insert(leaf, middle, half);
                Node::Cell(cell)
            }
            Node::Cell(mut cell) => {
                cell.insert(leaf, middle, half);
                Node::Cell(cell)
            }
        };
    }

    /// Finds the masses and their centres, of the parts first.
    fn sum(&mut self) {
        let mut moment = Vector::default();
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
            moment = moment + place * mass;
        }
        self.place = moment * (1.0 / self.mass);
    }

    fn add_field(&self, leaf: &Leaf, width: f64, field: &mut Field) {
        let far = (self.place - leaf.place).square() * (OPENING * OPENING) > width * width;
        if far {
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

impl Field {
    /// Adds what a mass at `place` does to `leaf`.
    pub(super) fn add(&mut self, leaf: &Leaf, mass: f64, place: Vector) {
        let way = place - leaf.place;
        let square = way.square() + SOFTENING * SOFTENING;
        let potential = mass / square.sqrt();
        self.potential -= potential;
        self.acceleration = self.acceleration + way * (potential / square);
    }
}
