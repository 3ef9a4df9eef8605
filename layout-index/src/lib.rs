//! The node-local store: a checksummed segment log on NVMe, an extent index in RocksDB that
//! follows it, and the rules by which bytes move from the store to the canonical file.
//!
//! ```text
//! fs ──▶ File::write ──▶ log (data, then record) ──▶ extents in memory ──▶ reply
//!                                                          │ merge, in batches
//!                                                          ▼
//!                                                       RocksDB (no WAL: the log is its WAL)
//! flusher ──▶ File::snapshot ──▶ canonical, synced ──▶ File::drained ──▶ segment reclaimed
//! ```
//!
//! Nothing here knows FUSE or tokio. `docs/ARCHITECTURE.md` walks through the modules,
//! `docs/FORMAT.md` has the bytes.

pub mod beneath;
mod calls;
pub mod checksum;
pub mod disk;
pub mod error;
pub mod extent;
mod interfaces;
pub mod policy;
pub mod ranges;
pub mod sharing;
pub mod store;
pub mod types;

pub use disk::{Disk, DiskFile, LookingDisk, RealDisk, RealFile};
pub use error::{Result, StoreError};
pub use interfaces::{Canonical, CanonicalFiles, Placement, Publisher};
pub use policy::{FilePolicy, FileSettings};
pub use sharing::peers::{AppendTurn, Appends, Overlap, Pause, Peers, Wait, sleep};
pub use store::file::{
    CanonicalGuard, DirtyStat, DirtyStripe, Drained, Exclusive, File, Intro, Piece, Plan,
    PublishedLayer, PublishedSource, Snapshot, Source, StickyError, Subfiled, Watch,
};
pub use store::index::SubfileRow;
pub use store::local_copies::{LocalCopies, LocalCopyTotals, Version};
pub use store::recovery::RecoveryReport;
pub use store::space::{Space, SpaceOptions};
pub use store::subfile::{Subfile, Subfiles};
pub use store::{Event, InspectedFile, Inspection, Store, StoreOptions, Totals};
pub use types::{ByteRange, Epoch, FileId, FileNo, NodeId, Seq, Timestamp};
