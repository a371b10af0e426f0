//! Many threads.

pub(crate) mod cache;
pub(crate) mod larson;
pub(crate) mod superserver;
pub(crate) mod swap;
pub(crate) mod xmalloc;
