//! Owns: what a program asks for beyond malloc: heaps, regions, settings, advice.
//! Idea: a thin front on the floors below.
//! Never: has a way of its own to allocate.
//! Threads: see each call.
//! Checked: tests/heaps.rs, tests/settings.rs, tests/density.rs.
//! Story: docs/design/closed-heaps.md

pub(crate) mod defragment;
pub(crate) mod heaps;
pub(crate) mod settings;
mod tuning;
