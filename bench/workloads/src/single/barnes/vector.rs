//! Places, speeds and accelerations.

use std::ops::{Add, Mul, Sub};

#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct Vector(pub(super) [f64; 3]);

impl Vector {
    pub(super) fn square(self) -> f64 {
        self.0.iter().map(|x| x * x).sum()
    }

    /// The largest of the coordinates, without signs.
    pub(super) fn largest(self) -> f64 {
        self.0.iter().fold(0.0, |most, x| x.abs().max(most))
    }

    /// In which of the eight directions it lies from `middle`: a number and the direction.
    pub(super) fn octant(self, middle: Vector) -> (usize, Vector) {
        let above: [bool; 3] = std::array::from_fn(|axis| self.0[axis] >= middle.0[axis]);
        let number = above.iter().rev().fold(0, |number, &bit| 2 * number + usize::from(bit));
        (number, Vector(above.map(|bit| if bit { 1.0 } else { -1.0 })))
    }
}

impl Add for Vector {
    type Output = Vector;
    fn add(self, other: Vector) -> Vector {
        Vector(std::array::from_fn(|axis| self.0[axis] + other.0[axis]))
    }
}

impl Sub for Vector {
    type Output = Vector;
    fn sub(self, other: Vector) -> Vector {
        Vector(std::array::from_fn(|axis| self.0[axis] - other.0[axis]))
    }
}

impl Mul<f64> for Vector {
    type Output = Vector;
    fn mul(self, factor: f64) -> Vector {
        Vector(self.0.map(|x| x * factor))
    }
}
