//! The file system that jobs see: names and attributes of the backing directory as they are, data
//! absorbed into the node's store.
//!
//! ```text
//! kernel ──▶ fuse/   translation to and from fuser, threads; no semantics
//!              │
//!              ▼
//!            ops/    what each operation means; plain types in, plain results out
//!              │  ╲
//!              ▼   ╲
//!         backing/  layout_index::Store
//!         (the PFS directory, always as the caller)
//! ```
//!
//! `inode/` and `handle.rs` are the two tables between requests. `errno.rs` is the only place where
//! an error becomes a number. The flusher is not imported: the drain gets at canonical files
//! through [`Overlay::open_canonical`], handed to it by the composition root.

mod asker;
pub mod backing;
pub mod errno;
mod fuse;
mod handle;
mod inode;
mod mount;
pub mod ops;
mod places;
pub mod policy;
mod recent;
pub mod types;

pub use backing::Backing;
pub use errno::FsError;
pub use mount::{
    MountOptions, Mounted, PageDropper, UnmountError, Unmounter, abort_connection, mount,
};
pub use ops::{
    Close, Explained, Fsync, OpenFile, Others, Overlay, OverlayOptions, Placement, Prefetched,
    Publisher,
};
pub use policy::{Policies, Rule, Rules};
