//! This node among the others: its record and heartbeat, and which other nodes are alive.
//!
//! What this node knows of others is the last heartbeat that it saw of each, and since when. A node
//! that sends no other heartbeat for a lease is dead ([`Membership::is_dead`]); whether others can
//! take this one for dead is the business of [`Lease`].
//!
//! *Killed while a record is written*: the old record is there, and a temporary name beside it that
//! the node's next start removes.

use super::lease::Lease;
use super::names::Owner;
use super::records::{NodeRecord, encode_record, list_records, read_record};
use super::roots::Roots;
use super::standing::Standing;
use super::sys::{self, NameStat};
use super::writer::{FileWriter, Patience};
use crate::beneath::{entries, remove_from, sync_open};
use crate::types::NodeId;
use nix::errno::Errno;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

/// This node's record file, and its identity when it was written.
#[derive(Debug)]
struct OwnRecord {
    file: File,
    stat: NameStat,
}

/// The last heartbeat that was seen of another node.
#[derive(Debug)]
struct SeenHeartbeat {
    name: String,
    heartbeat: NameStat,
    /// When this heartbeat was first seen, by this node's clock. Never earlier than that.
    since: Duration,
}

/// This node among the others. While `record` is `None` this node has not joined, or has left.
pub struct Membership {
    pub(super) roots: Arc<Roots>,
    writer: Arc<FileWriter>,
    pub(super) me: Owner,
    name: String,
    pub(super) standing: Standing,
    pub(super) lease: Lease,
    /// The record file whose mtime is the heartbeat. Locked while a heartbeat is under way.
    record: Mutex<Option<OwnRecord>>,
    seen: Mutex<HashMap<NodeId, SeenHeartbeat>>,
}

impl Membership {
    pub(super) fn new(
        roots: Arc<Roots>,
        writer: Arc<FileWriter>,
        me: Owner,
        name: &str,
        standing: Standing,
        lease: Lease,
    ) -> Membership {
        Membership {
            roots,
            writer,
            me,
            name: name.to_owned(),
            standing,
            lease,
            record: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    pub fn me(&self) -> Owner {
        self.me
    }

    pub fn lease_length(&self) -> Duration {
        self.lease.length()
    }

    /// Writes this node's record after the checks. From then on other nodes count on this node.
    pub(super) fn join(&self) -> io::Result<()> {
        self.refuse_beside_living_copy()?;
        let dead = self.compare_targets()?;
        self.first_heartbeat()?;
        self.compare_targets_again(&dead)
    }

    /// All nodes that ever joined and were not forgotten.
    pub fn nodes(&self) -> io::Result<Vec<NodeRecord>> {
        list_records(&self.roots)
    }

    pub(super) fn first_heartbeat(&self) -> io::Result<()> {
        let began = self.lease.now();
        *self.record.lock() = Some(self.write_record(false)?);
        self.lease.extend(began);
        Ok(())
    }

    /// Tells the other nodes that this node is alive. Must be called every quarter of the lease.
    pub fn heartbeat(&self) -> io::Result<()> {
        let mut record = self.record.lock();
        let began = self.lease.now();
        let Some(own) = record.as_ref() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "this daemon has not joined the shared directory, or has left it",
            ));
        };
        self.roots.check_not_replaced()?;
        match self.set_heartbeat(own) {
            Ok(()) => {}
            // Other nodes take a node without a record for dead. Once this node does not count on
            // its lease any more either, it may begin again.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !self.lease.is_held() => {
                *record = Some(self.write_record(false)?);
            }
            Err(e) => return Err(e),
        }
        self.lease.extend(began);
        Ok(())
    }

    fn set_heartbeat(&self, own: &OwnRecord) -> io::Result<()> {
        crate::calls::note("utime");
        futimens(&own.file, &TimeSpec::UTIME_OMIT, &sys::random_time())?;
        let id = self.me.id.to_string();
        match sys::stat_name(self.roots.nodes.as_fd(), &id)? {
            Some(stat) if stat.identity() == own.stat.identity() => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!(
                    "another daemon has taken the place of this one in nodes/{id}: is a copy of \
                     its store in use?"
                ),
            )),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("nodes/{id}, the record of this daemon, was removed"),
            )),
        }
    }

    fn write_record(&self, left: bool) -> io::Result<OwnRecord> {
        let lease = self.lease.length();
        let text = encode_record(self.me, &self.name, lease, &self.standing, left)?;
        let (dir, id) = (self.roots.nodes.as_fd(), self.me.id.to_string());
        let bytes: Arc<[u8]> = text.as_bytes().into();
        let writer = &self.writer;
        let (name, file) = writer.write_temporary(dir, &bytes, Patience::UntilDeadline)?;
        let put = futimens(&file, &TimeSpec::UTIME_OMIT, &sys::random_time())
            .and_then(|()| sys::rename(dir, &name, &id));
        if let Err(e) = put {
            remove_from(dir, &name)?;
            return Err(e.into());
        }
        sync_open(dir)?;
        let stat = sys::stat_name(dir, &id)?.ok_or(Errno::ENOENT)?;
        Ok(OwnRecord { file, stat })
    }

    /// Whether files of the shared directory can be mapped with `MAP_SHARED`, which needs a page
    /// cache.
    pub fn can_map_files(&self) -> bool {
        let record = self.record.lock();
        let Some(own) = record.as_ref() else {
            return false;
        };
        // SAFETY: a new mapping of one page at an address that the kernel chooses, which no code
        // reads and which is removed at once; the descriptor is held by `own`.
        unsafe {
            let fd = own.file.as_raw_fd();
            let page = libc::mmap(
                std::ptr::null_mut(),
                1,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd,
                0,
            );
            page != libc::MAP_FAILED && libc::munmap(page, 1) == 0
        }
    }

    /// Leaves in good order, so that other nodes need not wait for the lease. Data may stay.
    pub fn leave(&self) -> io::Result<()> {
        let mut record = self.record.lock();
        self.lease.end();
        let Some(own) = record.take() else {
            return Ok(());
        };
        let now = sys::stat_name(self.roots.nodes.as_fd(), &self.me.id.to_string())?;
        // The next daemon of this store may have written its own record already.
        if now.is_none_or(|stat| stat.identity() == own.stat.identity()) {
            drop(self.write_record(true)?);
        }
        Ok(())
    }

    /// Removes the record of a dead node that has nothing in the shared directory and whose store
    /// is gone. A node without a record counts as dead; if it wakes up all the same, it begins anew
    /// ([`Membership::heartbeat`]).
    pub fn forget_node(&self, id: NodeId) -> io::Result<()> {
        let name = id.to_string();
        remove_from(self.roots.nodes.as_fd(), &name)?;
        match sys::remove_dir(self.roots.notes.as_fd(), &name) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether `owner` will not write any more. Finding that a node has died without leaving takes
    /// a lease of watching, so callers that wait for a node call this repeatedly.
    pub fn is_dead(&self, owner: Owner) -> io::Result<bool> {
        if owner.id == self.me.id && self.roots.my_notes.is_some() {
            return Ok(owner.run != self.me.run);
        }
        self.is_silent(owner.id, |run| run == owner.run)
    }

    /// Like [`Membership::is_dead`], for a node in whatever run it is now: a node that was started
    /// again is not gone.
    pub fn is_gone(&self, id: NodeId) -> io::Result<bool> {
        if id == self.me.id && self.roots.my_notes.is_some() {
            return Ok(false);
        }
        self.is_silent(id, |_| true)
    }

    fn is_silent(&self, id: NodeId, is_meant: impl FnOnce(u32) -> bool) -> io::Result<bool> {
        let before = self.lease.now();
        let Some((state, heartbeat)) = read_record(&self.roots, id)? else {
            // A kernel may cache that a name is missing; a directory listing is always fresh.
            let name = id.to_string();
            let listed = entries(self.roots.nodes.as_fd())?;
            return Ok(!listed.iter().any(|entry| entry.name == name));
        };
        let after = self.lease.now();
        let mut seen = self.seen.lock();
        let known = seen.entry(id).or_insert_with(|| SeenHeartbeat {
            name: String::new(),
            heartbeat,
            since: after,
        });
        known.name.clone_from(&state.name);
        if known.heartbeat != heartbeat {
            known.heartbeat = heartbeat;
            known.since = after;
        }
        let patience = state.lease.max(self.lease.length());
        Ok(!is_meant(state.run) || state.left || before.saturating_sub(known.since) >= patience)
    }

    /// For messages: the node's name, or its id if the name is not known.
    pub fn name_of(&self, id: NodeId) -> String {
        if let Some(seen) = self.seen.lock().get(&id) {
            return seen.name.clone();
        }
        match read_record(&self.roots, id) {
            Ok(Some((state, _))) => state.name,
            _ => id.to_string(),
        }
    }
}
