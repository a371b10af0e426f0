//! Ordinary programs over the containers of their standard libraries, in Rust and in C++.

use crate::case::{Case, Row, Workload};

mod cxx;
mod rust;

pub(crate) const WORKLOADS: &[Workload] = &[
    Case::single(
        "containers-rust",
        "A service over HashMap, BTreeMap, VecDeque, Vec and String; time per request. What \
         ordinary Rust code does.",
    )
    .quick(0.2)
    .rust(rust::run),
    Case::single(
        "containers-cxx",
        "map, unordered_map, vector, list, string and shared_ptr, by new and delete. What \
         ordinary C++ code does.",
    )
    .rows(Row::MS_PEAK)
    .quick(0.2)
    .c(cxx::run),
];
