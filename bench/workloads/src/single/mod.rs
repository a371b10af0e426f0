//! One thread. Some files have a form with many threads beside it.

pub(crate) mod alloc_test;
pub(crate) mod barnes;
pub(crate) mod cfrac;
pub(crate) mod containers;
pub(crate) mod espresso;
pub(crate) mod functions;
pub(crate) mod grow;
pub(crate) mod json;
pub(crate) mod lean;
pub(crate) mod mostly;
pub(crate) mod requests;
pub(crate) mod sh6bench;
pub(crate) mod small;
pub(crate) mod smalloc;
