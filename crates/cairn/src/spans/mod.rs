//! Owns: runs of slices cut into equal blocks, lists of them, and those that nobody holds.
//! Idea: free blocks cost nothing.
//! Never: knows heaps.
//! Threads: the owner of a span, or of the lock of its list.
//! Checked: `Span::check`; the models.
//! Story: docs/design/spans.md

pub(crate) mod abandoned;
pub(crate) mod aside;
pub(crate) mod corruption;
pub(crate) mod grace;
pub(crate) mod holes;
pub(crate) mod span;
pub(crate) mod span_list;
pub(crate) mod tuning;
pub(crate) mod waiting;
