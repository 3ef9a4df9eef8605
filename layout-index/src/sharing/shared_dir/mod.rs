//! The shared directory, `<backing>/.forebay`: everything that passes between nodes.
//!
//! `docs/decisions/0008-many-nodes.md` says what the names mean and in which order they are made;
//! this module implements each step as plain system calls. The contents of layouts, plans and bases
//! are opaque bytes here.
//!
//! [`SharedDir`] owns the parts, each of which knows one thing: [`Membership`] which nodes are alive,
//! [`Terms`] and [`Domains`] what this node may write of a canonical file, [`FileWriter`] how long a
//! write may take. The first three share the held directories (`roots`, `dirs`).
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
mod domains;
mod files;
mod lease;
mod locks;
mod membership;
mod names;
mod notes;
mod records;
mod roots;
mod standing;
mod sys;
mod terms;
mod tidy;
mod writer;

pub(crate) use append::AppendLock;
pub use domains::Domains;
pub use files::ChangeToken;
pub use lease::Tenure;
pub use membership::Membership;
pub use names::{Announcement, Listing, Owner, names_of};
pub use records::{NodeRecord, NodeState};
pub use standing::Standing;
pub use terms::{Term, TermAttempt, Terms};
pub use writer::{FileWriter, Patience, WRITE_ATTEMPTS};

use crate::Placement;
use crate::types::NodeId;
use dirs::Dirs;
use lease::{LONGEST_LEASE, Lease, boottime};
use roots::Roots;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A node's open handle on the shared directory. All calls may wait for the file system.
pub struct SharedDir {
    roots: Arc<Roots>,
    dirs: Arc<Dirs>,
    writer: Arc<FileWriter>,
    membership: Arc<Membership>,
    terms: Terms,
    domains: Domains,
    announcements: std::sync::atomic::AtomicU64,
}

impl std::fmt::Debug for SharedDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedDir")
            .field("me", &self.me())
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
        let joined = SharedDir::prepare(backing, me, name, lease, standing, boottime())?;
        joined.membership.join()?;
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
        clock: lease::Clock,
    ) -> io::Result<SharedDir> {
        if lease.is_zero() || lease > LONGEST_LEASE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a lease of {lease:?} is not between 1 ms and {LONGEST_LEASE:?}: choose another"
                ),
            ));
        }
        if !records::is_valid_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{name:?} is no name for a node: give one of 1 to 255 printable characters"
                ),
            ));
        }
        let roots = Roots::make(backing, me)?;
        let lease = Lease::new(lease, clock);
        Ok(SharedDir::new(roots, me, name, standing, lease))
    }

    /// Opens the shared directory for inspection: changes nothing, and cannot change anything that
    /// needs a lease. `None` if no node ever joined.
    pub fn open_for_inspection(backing: OwnedFd) -> io::Result<Option<SharedDir>> {
        let Some(roots) = Roots::find(backing)? else {
            return Ok(None);
        };
        let (id, lease) = (NodeId(0), Lease::new(Duration::ZERO, boottime()));
        let me = Owner { id, run: 0 };
        Ok(Some(SharedDir::new(
            roots,
            me,
            "",
            Standing::default(),
            lease,
        )))
    }

    fn new(roots: Roots, me: Owner, name: &str, standing: Standing, lease: Lease) -> SharedDir {
        let (roots, writer) = (Arc::new(roots), Arc::new(FileWriter::new(me)));
        let membership = Membership::new(roots.clone(), writer.clone(), me, name, standing, lease);
        let (dirs, membership) = (Arc::new(Dirs::new(roots.clone())), Arc::new(membership));
        SharedDir {
            terms: Terms::new(dirs.clone(), membership.clone()),
            domains: Domains::new(dirs.clone(), membership.clone()),
            roots,
            dirs,
            writer,
            membership,
            announcements: Default::default(),
        }
    }

    /// The writer of this node's files, which knows what becomes of late writes.
    pub fn writer(&self) -> &FileWriter {
        &self.writer
    }

    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    pub fn me(&self) -> Owner {
        self.membership.me()
    }
}

#[cfg(test)]
mod tests;
