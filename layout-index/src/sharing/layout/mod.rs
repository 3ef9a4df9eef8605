//! Layouts, plans and bases: what nodes tell each other about a file, its encoding and its meaning.
//!
//! Nothing here opens a file. The publisher makes a [`Batch`] with a [`BatchBuilder`] and appends
//! the result of [`Batch::encode`]; a reader passes the new tail of a layout to [`parse`], and the
//! batches that it finds to a [`View`]. `docs/decisions/0008-many-nodes.md` describes order and
//! cuts, `docs/FORMAT.md` the bytes.
//!
//! # Untrusted input
//!
//! All input was written on another machine. Checksums reveal a torn or copied file, but not a
//! forged one. So every number is checked against the bytes that are really there before anything
//! is allocated for it, and every sum before it is computed. A [`Batch`] comes only from a decoder
//! or a builder that has made these checks, so its users may index with its numbers. It does not
//! guarantee that a subfile exists, is the right one, or is as long as a unit says.
//!
//! # Crash behaviour
//!
//! A layout only grows, by whole batches, and each batch is synced before any other node is told of
//! it. So an incomplete tail is an append that is under way, or one that died, and no node counts
//! on it. The layout's node must not append after such a tail: [`Tail::Incomplete`] on a node's own
//! layout means that it goes on in a new generation. Plans and bases appear whole, by rename.

mod batch;
mod build;
mod bytes;
mod codec;
mod file;
mod plan;
mod spans;
#[cfg(test)]
mod testing;
mod view;

pub use batch::{Batch, Bytes, Head, Strip, SubfileRef, Unit};
pub use build::{BatchBuilder, BuildError, Piece};
pub use codec::{Decoded, MAX_BATCH, decode};
pub use file::{HEADER_LEN, LayoutId, MAX_HANDLE, Parsed, Tail, parse};
pub(crate) use file::{ends_within, no_batch_ends_at};
pub use plan::{Base, Covered, MAX_DOMAINS, Plan};
pub use view::{View, ViewPiece, ViewSource};
