//! Owns: runs of slices cut into equal blocks, lists of them, and those that nobody holds.
//! Idea: free blocks cost nothing.
//! Never: knows heaps.
//! Threads: the owner of a span, or of the lock of its list.
//! Checked: `Span::check`; the models.
//! Story: docs/design/spans.md

pub(crate) mod abandoned;
mod ahead;
mod aside;
mod corruption;
mod following;
mod grace;
mod holes;
pub(crate) mod span;
mod span_list;
mod thin;
mod thinning;
mod tuning;
pub(crate) mod waiting;

pub(crate) use ahead::Ahead;
pub(crate) use aside::{SettingAside, Step};
pub(crate) use corruption::expect_end;
pub(crate) use following::{Following, note_thinned};
pub use grace::HEAD_MAX;
pub(crate) use grace::{Grace, is_block_of};
pub(crate) use span::{Carved, Home, Keep, Span};
pub(crate) use span_list::SpanList;
pub(crate) use thinning::Thinning;
pub(crate) use tuning::{THIN_AFTER, THIN_QUEUE};
