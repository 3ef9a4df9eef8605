//! The shared directory, `<backing>/.forebay`: everything that passes between nodes.
//!
//! `docs/decisions/0008-many-nodes.md` says what the names mean and in which order they are made;
//! this module implements each step as plain system calls. The contents of layouts, plans and bases
//! are opaque bytes here.
//!
//! # Writers
//!
//! Every file has one writer. Names that several nodes compete for are symbolic links whose text
//! names the node that made them: one system call creates the link together with its text, or finds
//! that another node was first. Links are read, never followed. Names that carry no other data
//! (announcements, notes, ends) are links, too.
//!
//! # Access checks
//!
//! All access starts from held descriptors, as in [`crate::beneath`]. A directory is used only if
//! it belongs to the user that owns the daemon's own files and no other user may write to it; a
//! file only if it is a regular file with one name and the same owner. Anything else is reported as
//! an error that names it, or listed as strange, and left alone.
//!
//! # Killed at any moment
//!
//! Each submodule says what a kill between its calls leaves behind. In this file: a kill in
//! [`SharedDir::join`] leaves directories without a record, or a temporary name beside the records,
//! which the node's next start removes.

mod append;
mod dirs;
mod files;
mod locks;
mod names;
mod nodes;
mod notes;
mod roots;
mod standing;
mod sys;
mod terms;
mod tidy;
mod writer;
mod writing;

pub(crate) use append::AppendLock;
pub use files::ChangeToken;
pub use names::{Announcement, Listing, Owner, names_of};
pub use nodes::{Clock, NodeRecord, NodeState, Tenure};
pub use standing::Standing;
pub use terms::{Term, TermAttempt};
pub use writer::{FileWriter, Patience, WRITE_ATTEMPTS};

use crate::Placement;
use crate::types::{FileId, NodeId};
use dirs::Dirs;
use nodes::{LastHeartbeat, SeenHeartbeat};
use parking_lot::Mutex;
use roots::Roots;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Upper limit of the lease: how long other nodes wait for a node that may be dead.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);

/// A node's open handle on the shared directory. All calls may wait for the file system.
pub struct SharedDir {
    roots: Arc<Roots>,
    dirs: Dirs,
    writer: Arc<FileWriter>,
    me: Owner,
    name: String,
    standing: Standing,
    lease: Duration,
    clock: Clock,
    last_heartbeat: Mutex<LastHeartbeat>,
    /// The record file whose mtime is the heartbeat. Locked while a heartbeat is under way.
    record: Mutex<Option<nodes::OwnRecord>>,
    seen_heartbeats: Mutex<HashMap<NodeId, SeenHeartbeat>>,
    terms: Mutex<HashMap<FileId, Term>>,
    /// Files for which a thread of this node is taking a term right now.
    taking: Mutex<HashSet<FileId>>,
    domains: Mutex<HashMap<(FileId, u64, u32), Tenure>>,
    announcements: std::sync::atomic::AtomicU64,
}

impl std::fmt::Debug for SharedDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedDir")
            .field("me", &self.me)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl SharedDir {
    /// Joins the nodes that share the backing. The node's record is durable when this returns.
    pub fn join(backing: OwnedFd, me: Owner, name: &str, lease: Duration) -> io::Result<SharedDir> {
        SharedDir::join_with(backing, me, name, lease, Standing::default(), None)
    }

    /// Like [`SharedDir::join`], with everything else that a mount states about itself, and with
    /// the targets that its files go to. Refused while another copy of this store is in use, or a
    /// living node uses other targets. Finding that such a node is dead takes a lease of watching.
    pub fn join_with(
        backing: OwnedFd,
        me: Owner,
        name: &str,
        lease: Duration,
        standing: Standing,
        placement: Option<Arc<dyn Placement>>,
    ) -> io::Result<SharedDir> {
        let joined = SharedDir::prepare(backing, me, name, lease, standing, nodes::boottime())?;
        joined.join_after_checks()?;
        // Not before this node has joined, which waits for a slow target.
        joined.writer.set_placement(placement);
        Ok(joined)
    }

    /// Opens and checks the shared directory, but does not yet write the record by which other
    /// nodes know this one.
    fn prepare(
        backing: OwnedFd,
        me: Owner,
        name: &str,
        lease: Duration,
        standing: Standing,
        clock: Clock,
    ) -> io::Result<SharedDir> {
        if lease.is_zero() || lease > LONGEST_LEASE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a lease of {lease:?} is not between 1 ms and {LONGEST_LEASE:?}: choose another"
                ),
            ));
        }
        if !nodes::is_valid_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{name:?} is no name for a node: give one of 1 to 255 printable characters"
                ),
            ));
        }
        let roots = Roots::make(backing, me)?;
        Ok(SharedDir::new(roots, me, name, lease, standing, clock))
    }

    /// Writes this node's record after the checks. From then on other nodes count on this node.
    fn join_after_checks(&self) -> io::Result<()> {
        self.refuse_beside_living_copy()?;
        let dead = self.compare_targets()?;
        self.first_heartbeat()?;
        self.compare_targets_again(&dead)
    }

    /// Opens the shared directory for inspection: changes nothing, and cannot change anything that
    /// needs a lease. `None` if no node ever joined.
    pub fn open_for_inspection(backing: OwnedFd) -> io::Result<Option<SharedDir>> {
        let Some(roots) = Roots::find(backing)? else {
            return Ok(None);
        };
        let (me, standing, clock) = (Owner::NONE, Standing::default(), nodes::boottime());
        Ok(Some(SharedDir::new(
            roots,
            me,
            "",
            Duration::ZERO,
            standing,
            clock,
        )))
    }

    fn new(
        roots: Roots,
        me: Owner,
        name: &str,
        lease: Duration,
        standing: Standing,
        clock: Clock,
    ) -> SharedDir {
        let roots = Arc::new(roots);
        SharedDir {
            dirs: Dirs::new(roots.clone()),
            roots,
            writer: Arc::new(FileWriter::new(me)),
            me,
            name: name.to_owned(),
            standing,
            lease,
            clock,
            last_heartbeat: Mutex::default(),
            record: Mutex::default(),
            seen_heartbeats: Mutex::default(),
            terms: Mutex::default(),
            taking: Mutex::default(),
            domains: Mutex::default(),
            announcements: Default::default(),
        }
    }

    /// The writer of this node's files, which knows what becomes of late writes.
    pub fn writer(&self) -> &FileWriter {
        &self.writer
    }

    pub fn me(&self) -> Owner {
        self.me
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }
}

#[cfg(test)]
mod tests;
