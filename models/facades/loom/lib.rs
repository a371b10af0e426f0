//! The core under loom: all of its rooms but the statistics and the view from outside.

mod block;
mod closed;
mod policy;
mod remote;
mod sync;

mod address_map;
mod api;
mod arena;
mod heap;
mod pool;
mod large;
mod abandoned;
mod os;
mod reservation;
mod size_class;
mod span;
mod thread;
