//! Subfiles: files on targets that hold bytes of a dirty period until the canonical file has them.
//!
//! This store makes them and no other store writes them. They only grow: a place that a record
//! names is never written again, so a reader with an old plan reads the bytes of that moment.
//!
//! # Order on disk
//!
//! 1. the file is made on its target, owned by the owner of the file it is for;
//! 2. a `Subfile` record says that it is there;
//! 3. bytes are appended, and the subfile is **synced**;
//! 4. `Subfiled` records name them; the log's copy is dead from here on;
//! 5. the bytes are drained or replaced: nothing names bytes of the subfile any more, and
//!    `SubfileGone`, `Clean` or `Discard` says so;
//! 6. the log is **synced**;
//! 7. the file is removed.
//!
//! | killed after … | the next start sees |
//! |---|---|
//! | 1 | a file that no record names: an orphan, which is removed |
//! | 2, 3 | a subfile without extents; the log still has the bytes, and they are moved to subfiles again |
//! | 4 | the bytes in the subfile |
//! | 5, 6 | a subfile that a record has given up: removed after a sync of the log; an orphan once no record names it |
//! | 7 | nothing |
//!
//! # Power failures
//!
//! - Step 6 comes before 7: a power failure that lost the record of 5 would bring back extents
//!   whose file is gone. For the same reason a start removes a subfile that a record has given up
//!   only after a sync of the log.
//! - A power failure may lose the record of 2 and leave those of 4. Recovery ignores those: the log
//!   was not synced since, and still has the bytes.
//! - The records that emptied a subfile are synced before `SubfileGone`. Otherwise recovery would
//!   drop a subfile that it still finds extents of.
//! - When a sync of step 3 fails, everything written to the file before it counts as lost
//!   ([`Subfile::failed_syncs`]): the kernel reports lost pages only once.

use crate::disk::DiskFile;
use crate::store::index::SubfileRow;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::extent::BLOCK;

/// Each write to a subfile begins and ends on a multiple of this.
pub const ALIGN: u64 = 4096;

/// The largest size of a subfile: its blocks are numbered with four bytes.
const MOST: u64 = BLOCK << 32;

/// From this size on a subfile is worth replacing; a smaller one goes with its dirty period.
pub const WASTE: u64 = 256 << 20;

/// Opens subfiles on their targets. Called only where waiting is allowed.
pub trait Subfiles: Send + Sync {
    /// Opens the subfile for reading and writing. Returns `NotFound` if it is not there.
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>>;
}

/// One subfile of this store.
#[derive(Debug)]
pub struct Subfile {
    row: SubfileRow,
    /// Bytes that extents refer to, as counted: never too few.
    live: AtomicU64,
    open: Mutex<Option<Arc<dyn DiskFile>>>,
    /// Where the next unit goes.
    tail: Mutex<Option<u64>>,
    /// Number of syncs that failed. The kernel reports lost pages only once, so a failure concerns
    /// everything that was written before it, by whichever thread.
    failed_syncs: AtomicU64,
}

impl Subfile {
    pub(crate) fn new(row: SubfileRow) -> Subfile {
        Subfile {
            row,
            live: AtomicU64::new(0),
            open: Mutex::default(),
            tail: Mutex::default(),
            failed_syncs: AtomicU64::new(0),
        }
    }

    /// A subfile that was made just now and is empty.
    pub fn made(row: SubfileRow, file: Arc<dyn DiskFile>) -> Subfile {
        Subfile {
            open: Mutex::new(Some(file)),
            tail: Mutex::new(Some(0)),
            ..Subfile::new(row)
        }
    }

    pub fn row(&self) -> &SubfileRow {
        &self.row
    }

    pub fn no(&self) -> u32 {
        self.row.no
    }

    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// How far it has grown, as far as this daemon knows.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.lock().unwrap_or(0)
    }

    /// True if another subfile should be begun: a sync of this one failed, or it is large and most
    /// of it was replaced or drained, so that it can go when the rest is.
    pub fn is_spent(&self) -> bool {
        let tail = self.tail();
        self.failed_syncs() > 0 || tail >= WASTE && self.live() < tail / 2
    }

    pub fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Ordering::Acquire)
    }

    /// Syncs `file`, which is the open file of this subfile. Bytes that were written when
    /// [`Subfile::failed_syncs`] had another value may be lost even if this succeeds.
    pub fn sync(&self, file: &dyn DiskFile) -> io::Result<()> {
        file.sync().inspect_err(|_| {
            self.failed_syncs.fetch_add(1, Ordering::AcqRel);
        })
    }

    /// Syncs the subfile and returns whether it still has a name. If this node was taken for dead,
    /// `forebay drain --adopt` may have drained everything that was published of the subfile and
    /// removed it. Bytes written to a subfile without a name count as lost, too.
    pub fn sync_named(&self, file: &dyn DiskFile) -> io::Result<bool> {
        self.sync(file)?;
        let named = file.has_name()?;
        if !named {
            self.failed_syncs.fetch_add(1, Ordering::AcqRel);
        }
        Ok(named)
    }

    pub(crate) fn add_live(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn sub_live(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// The open file; opened with `subfiles` when it is first needed. No lock is held while that
    /// waits for the target.
    pub fn file(&self, subfiles: &dyn Subfiles) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &*self.open.lock() {
            return Ok(file.clone());
        }
        let file = subfiles.open(&self.row)?;
        Ok(self.open.lock().get_or_insert(file).clone())
    }

    /// Drops the open file if `error` says that it is of no use any more (its mount died, say), so
    /// that the next call opens it again. Returns true when that is worth trying.
    pub fn reopen_after(&self, error: &io::Error, file: &Arc<dyn DiskFile>) -> bool {
        let dead = matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ESTALE | libc::ENODEV)
        );
        if dead {
            let mut open = self.open.lock();
            if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, file)) {
                *open = None;
            }
        }
        dead
    }

    /// Reserves room for `len` bytes at the end, for this caller alone. Returns `None` when the
    /// subfile is full. Bytes that an earlier daemon left at the end without a record are never
    /// written over.
    pub fn reserve(&self, file: &dyn DiskFile, len: u64) -> io::Result<Option<u64>> {
        let known = *self.tail.lock();
        let found = match known {
            Some(_) => 0,
            None => file.size()?.next_multiple_of(BLOCK),
        };
        let mut tail = self.tail.lock();
        let start = tail.unwrap_or(found);
        let end = start + len.next_multiple_of(BLOCK);
        if end > MOST {
            return Ok(None);
        }
        *tail = Some(end);
        Ok(Some(start))
    }
}
