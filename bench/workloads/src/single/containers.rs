//! Ordinary programs over the containers of their standard libraries, in Rust and in C++.

use crate::case::{Case, Group, Row, Workload};

mod cxx;
mod rust;

pub(crate) const WORKLOADS: &[Workload] = &[
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
