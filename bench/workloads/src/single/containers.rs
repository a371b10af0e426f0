//! Ordinary programs over the containers of their standard libraries, in Rust and in C++.

use crate::case::{Case, Group, Row, Workload};

mod cxx;
mod rust;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    Case::new(
        "containers-rust",
        Group::Single,
        "A service over HashMap, BTreeMap, VecDeque, Vec and String; time per request. What \
         ordinary Rust code does.",
        Row::NS_PEAK,
    )
    .quick(0.2)
    .rust(rust::run),
    Case::new(
        "containers-cxx",
        Group::Single,
        "map, unordered_map, vector, list, string and shared_ptr, by new and delete. What \
         ordinary C++ code does.",
        Row::MS_PEAK,
    )
    .quick(0.2)
    .c(cxx::run),
];

/// A hash of bytes (Fowler, Noll and Vo), the same with every version of Rust.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, mix);
    }

    fn value(&self) -> u64 {
        self.0
    }
}
