//! The node-local store: a checksummed segment log on NVMe, an extent index in RocksDB that
//! follows it, and the rules by which bytes move from one to the canonical file.
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
pub mod commons;
pub mod disk;
pub mod error;
pub mod extent;
pub mod file;
pub mod index;
pub mod kept;
pub mod layout;
pub mod log;
mod maintain;
pub mod peers;
pub mod policy;
pub mod ranges;
pub mod recovery;
mod shared;
pub mod space;
pub mod store;
pub mod subfile;
pub mod superblock;
pub mod types;

pub use disk::{Disk, DiskFile, LookingDisk, RealDisk, RealFile};
pub use error::{Result, StoreError};
pub use file::{
    CanonicalGuard, DirtyStat, DirtyStripe, Drained, Exclusive, File, Intro, Piece, Plan, Snapshot,
    Source, StickyError, Subfiled, Watch,
};
pub use index::SubfileRow;
pub use kept::{Kept, KeptTotals, Version};
pub use peers::{AppendTurn, Appends, Canonical, Overlap, Peers, Wait};
pub use policy::FilePolicy;
pub use recovery::RecoveryReport;
pub use space::{Space, SpaceOptions};
pub use store::{Event, InspectedFile, Inspection, Store, StoreOptions, Totals};
pub use subfile::{Subfile, Subfiles};
pub use types::{ByteRange, Epoch, FileId, FileNo, NodeId, Seq, Timestamp};
