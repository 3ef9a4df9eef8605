//! Layouts, plans and bases: what nodes tell each other of a file, as bytes, and what it means.
//!
//! Nothing here opens a file. The publisher makes a [`Batch`] with a [`BatchBuilder`] and appends
//! what [`Batch::encode`] gives; a reader hands the new tail of a layout to [`parse`] and what it
//! finds to a [`View`]. Order and cuts: `docs/decisions/0008-many-nodes.md`. Bytes:
//! `docs/FORMAT.md`.
//!
//! # What comes from outside
//!
//! All of it was written on another machine. Checksums tell a torn or copied file, not a forged
//! one, so every number is checked against the bytes that are really there before anything is
//! allocated for it, every sum before it is made, and a [`Batch`] can only be had from a decoder
//! or a builder that did so: whoever holds one may index with its numbers. What it cannot promise
//! is that a subfile exists, is the right one, or is as long as a unit says.
//!
//! # Crash behaviour
//!
//! A layout only grows, by whole batches, each synced before anybody is told of it. So an
//! incomplete tail is an append that is under way, or one that died; it was promised to nobody.
//! Its node must not append behind one: [`Tail::Incomplete`] on the node's own layout means that
//! it goes on in a new generation. Plans and bases come whole, by rename.

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
