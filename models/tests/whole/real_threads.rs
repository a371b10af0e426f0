//! How a test runs under Miri: once, in this process, on the system's own threads. Miri finds what
//! shuttle cannot: data races, and pointers used beyond their right.

use super::held::{Held, Random};
use super::memory::{self, System};
use super::{threads, work};

/// Operations of one thread.
const OPERATIONS: usize = 150;

/// Runs a model.
pub(crate) fn explore(name: &str, model: fn()) {
    Random::set_seed(1);
    threads::arrive();
    // As in a program: there is a reservation before there is a second thread.
    Held::allocate(1).into_iter().for_each(Held::free);
    model();
    threads::leave();
    threads::arrive();
    work::nothing_is_left(!["calls_fail", "mappings_cannot_grow"].contains(&name));
}

/// Runs one thread.
pub(crate) fn alone(_name: &str, system: System, failing: usize) {
    memory::configure(system);
    Random::set_seed(1);
    threads::arrive();
    work::alone(OPERATIONS, failing);
    work::nothing_is_left(failing == 0);
}
