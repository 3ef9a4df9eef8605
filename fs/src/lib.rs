//! The file system that jobs see: names and attributes come from the backing directory as they are, data is
//! absorbed into the node's store.
//!
//! ```text
//! kernel ──▶ fuse/   translation to and from fuser; nothing else
//!              │
//!              ▼
//!         requests/  which thread, whose share, until when; counts, latencies, spans; no FUSE, no semantics
//!              │
//!              ▼
//!            ops/    what each operation means; plain types in, plain results out
//!              │  ╲
//!              ▼   ╲
//!         backing/  layout_index::Store
//!         (the PFS directory, always as the caller)
//! ```
//!
//! `inode/` and `handle.rs` define what is kept between requests: nodes and open handles. `errno.rs` is the
//! only place that turns an [`FsError`] into a number. This crate does not depend on the flusher: the drain
//! gets at canonical files through [`layout_index::CanonicalFiles`], which [`Overlay`] implements.

pub mod backing;
pub mod errno;
mod fuse;
mod handle;
mod inode;
mod mount;
pub mod ops;
pub mod policy;
mod recent;
mod requests;
pub mod types;

pub use backing::Backing;
pub use errno::FsError;
pub use mount::{
    MountOptions, Mounted, PageDropper, UnmountError, Unmounter, abort_connection, mount,
};
pub use ops::{
    Close, Descriptors, Explained, Fsync, OpenFile, Others, Overlay, OverlayOptions, Prefetched,
    pause,
};
pub use policy::{Policies, Rule, Rules};
pub use requests::{Class, Op, OpStats, Requests};
