//! Owns: what an address says: its descriptor, its metadata, the remote word, a link.
//! Idea: everything is computed from the pointer.
//! Never: knows heaps or lists.
//! Threads: see each file.
//! Checked: const assertions; the models.
//! Story: docs/design/layout.md

pub(crate) mod address_map;
pub(crate) mod block;
pub(crate) mod region;
pub(crate) mod remote;
pub(crate) mod tuning;
pub(crate) mod walk;
