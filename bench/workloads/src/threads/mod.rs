//! Many threads.

pub(crate) mod cache;
pub(crate) mod larson;
pub(crate) mod mstress;
pub(crate) mod prodcons;
pub(crate) mod rptest;
pub(crate) mod scaling;
pub(crate) mod superserver;
pub(crate) mod swap;
pub(crate) mod xmalloc;
