//! Cubes, covers, and the recursive operations on them.
//!
//! A cube has one bit per value of each variable: an input has the values 0 and 1, and the
//! outputs together are one variable with a value each. A cube stands for all choices of one
//! of its values for every variable; a cover stands for the union of its cubes.

/// The bits of a cube, in words.
pub(super) type Cube = Box<[u32]>;
/// A union of cubes.
pub(super) type Cover = Vec<Cube>;

/// How many inputs and outputs there are.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// Whether the bit is set.
pub(super) fn has(cube: &Cube, bit: usize) -> bool {
    cube[bit / 32] >> (bit % 32) & 1 == 1
}

/// The cube with one more bit.
pub(super) fn with(cube: &Cube, bit: usize) -> Cube {
    let mut wider = cube.clone();
    wider[bit / 32] |= 1 << (bit % 32);
    wider
}

/// The bits of both.
pub(super) fn and(a: &Cube, b: &Cube) -> Cube {
    a.iter().zip(b).map(|(a, b)| a & b).collect()
}

/// The bits of either.
pub(super) fn or(a: &Cube, b: &Cube) -> Cube {
    a.iter().zip(b).map(|(a, b)| a | b).collect()
}

/// The bits of the first that the second lacks.
pub(super) fn without(a: &Cube, b: &Cube) -> Cube {
    a.iter().zip(b).map(|(a, b)| a & !b).collect()
}

/// Whether the second has all bits of the first.
pub(super) fn within(a: &Cube, b: &Cube) -> bool {
    a.iter().zip(b).all(|(a, b)| a & !b == 0)
}

/// The number of bits.
pub(super) fn size(cube: &Cube) -> u32 {
    cube.iter().map(|word| word.count_ones()).sum()
}

/// Leaves out every cube that lies within another of the cover.
pub(super) fn without_contained(mut cover: Cover) -> Cover {
    cover.sort_by_key(|cube| std::cmp::Reverse(size(cube)));
    let mut kept = Cover::with_capacity(cover.len());
    for cube in cover {
        if !kept.iter().any(|other| within(&cube, other)) {
            kept.push(cube);
        }
    }
    kept
}

impl Space {
    /// The number of bits of a cube.
    pub(super) fn bits(self) -> usize {
        2 * self.inputs + self.outputs
    }

    /// The number of variables.
    fn variables(self) -> usize {
        self.inputs + 1
    }

    /// The bits of one variable.
    pub(super) fn values(self, variable: usize) -> std::ops::Range<usize> {
        if variable < self.inputs {
            2 * variable..2 * variable + 2
        } else {
            2 * self.inputs..self.bits()
        }
    }

    /// The cube with no bit.
    pub(super) fn none(self) -> Cube {
        vec![0; self.bits().div_ceil(32)].into()
    }

    /// The cube with the bits of one variable.
    pub(super) fn variable(self, variable: usize) -> Cube {
        self.values(variable).fold(self.none(), |cube, bit| with(&cube, bit))
    }

    /// The cube of everything.
    pub(super) fn full(self) -> Cube {
        (0..self.bits()).fold(self.none(), |cube, bit| with(&cube, bit))
    }

    /// Whether the two have a value of every variable in common.
    pub(super) fn meet(self, a: &Cube, b: &Cube) -> bool {
        let mut outputs = 0;
        let mut input_bits = 2 * self.inputs;
        for (a, b) in a.iter().zip(b) {
            let both = a & b;
            let inputs = u32::MAX.checked_shr(32u32.saturating_sub(input_bits as u32)).unwrap_or(0);
            // The two values of an input are neighbours: here both count as the first.
            let first = inputs & 0x5555_5555;
            if (both | both >> 1) & first != first {
                return false;
            }
            outputs |= both & !inputs;
            input_bits = input_bits.saturating_sub(32);
        }
        outputs != 0
    }

    /// The cover as seen from inside `cube`: what `cube` fixes no longer matters.
    pub(super) fn cofactor(self, cover: &[Cube], cube: &Cube) -> Cover {
        let free = without(&self.full(), cube);
        let meets = |other: &&Cube| self.meet(other, cube);
        cover.iter().filter(meets).map(|other| or(other, &free)).collect()
    }

    /// The variable that the most cubes depend on, and whether any cube does. Inputs come
    /// before outputs, and inputs that occur with both values before the others.
    fn most_binate(self, cover: &[Cube]) -> Option<usize> {
        let mut lacking = vec![0; self.bits()];
        for cube in cover {
            for bit in (0..self.bits()).filter(|&bit| !has(cube, bit)) {
                lacking[bit] += 1;
            }
        }
        let depends = |variable: usize| {
            let counts = &lacking[self.values(variable)];
            let both = counts.iter().filter(|&&count| count > 0).count() > 1;
            (both && variable < self.inputs, counts.iter().sum::<usize>())
        };
        let variables = (0..self.variables()).map(|variable| (depends(variable), variable));
        let ((_, count), variable) = variables.max()?;
        (count > 0).then_some(variable)
    }

    /// For each value of the variable: the half space, and the cover as seen from there.
    fn split(self, cover: &[Cube], variable: usize) -> impl Iterator<Item = (Cube, Cover)> {
        let rest = without(&self.full(), &self.variable(variable));
        self.values(variable).map(move |bit| {
            let half = with(&rest, bit);
            let seen = self.cofactor(cover, &half);
            (half, seen)
        })
    }

    /// Whether the cover is everything.
    pub(super) fn is_tautology(self, cover: &[Cube]) -> bool {
        let full = self.full();
        if cover.contains(&full) {
            return true;
        }
        if cover.iter().fold(self.none(), |all, cube| or(&all, cube)) != full {
            return false;
        }
        let Some(variable) = self.most_binate(cover) else { return false };
        self.split(cover, variable).all(|(_, seen)| self.is_tautology(&seen))
    }

    /// Everything that is not in the cover.
    pub(super) fn complement(self, cover: &[Cube]) -> Cover {
        let full = self.full();
        if cover.is_empty() {
            return vec![full];
        }
        if cover.contains(&full) {
            return Cover::new();
        }
        if let [cube] = cover {
            return self.complement_of_cube(cube);
        }
        let variable = self.most_binate(cover).expect("no cube is full");
        let mut result = Cover::new();
        for (half, seen) in self.split(cover, variable) {
            for cube in self.complement(&without_contained(seen)) {
                let cube = and(&cube, &half);
                // The same cube in both halves is one cube.
                let joined = |other: &Cube| {
                    let rest = self.variable(variable);
                    without(other, &rest) == without(&cube, &rest)
                };
                match result.iter().position(joined) {
                    Some(at) => result[at] = or(&result[at], &cube),
                    None => result.push(cube),
                }
            }
        }
        result
    }

    /// One cube for each variable that the cube restricts.
    fn complement_of_cube(self, cube: &Cube) -> Cover {
        let full = self.full();
        let outside = |variable| {
            let values = self.variable(variable);
            let lacking = without(&values, cube);
            (size(&lacking) > 0).then(|| or(&without(&full, &values), &lacking))
        };
        (0..self.variables()).filter_map(outside).collect()
    }
}
