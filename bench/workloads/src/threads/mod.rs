//! Many threads.

pub mod alloc_test;
pub mod cache;
pub mod larson;
pub mod mstress;
mod post;
pub mod prodcons;
pub mod rptest;
pub mod scaling;
pub mod sh8bench;
mod slot;
pub mod smalloc;
pub mod superserver;
pub mod swap;
mod team;
pub mod xmalloc;
