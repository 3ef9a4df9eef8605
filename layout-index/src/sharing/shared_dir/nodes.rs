//! Records of the nodes, and which nodes are alive.
//!
//! A node's record holds its name, its run and its lease. The record's mtime is the heartbeat: a
//! random time, so that every heartbeat differs whatever the server's clock does. No two clocks are
//! compared: a node knows when it began its last successful heartbeat, and other nodes know how
//! long they have seen the same heartbeat, each by its own clock, which also counts sleep.
//!
//! # A lost lease does not come back
//!
//! A heartbeat can be under way for any length of time. If it arrives after half of the lease has
//! passed since the previous one, other nodes may have seen the old heartbeat for a whole lease and
//! taken this node for dead. From then on the node is alive again, but what it held is gone: a
//! [`Tenure`] is a period in which that cannot have happened, and nothing that was taken in an
//! older tenure may be used.
//!
//! *Killed while a record is written*: the old record is there, and a temporary name beside it that
//! the node's next start removes.

use super::names::Owner;
use super::standing::Standing;
use super::sys::{self, NameStat};
use super::writer::Patience;
use super::{LONGEST_LEASE, SharedDir};
use crate::beneath::{entries, open_seen, remove_from, sync_open};
use crate::types::NodeId;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const VERSION: u32 = 1;
const LONGEST_RECORD: u64 = 64 * 1024;
const LONGEST_NAME: usize = 255;

/// Returns the time since some fixed moment, by a clock that goes on while the machine sleeps.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

pub(super) fn boottime() -> Clock {
    Arc::new(|| {
        // This fails for unknown clocks only, and this clock is older than `openat2`.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    })
}

/// A period without any moment at which other nodes could have taken this node for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure(u64);

/// The last heartbeat of this node.
#[derive(Debug, Default)]
pub(super) struct LastHeartbeat {
    /// When the last successful heartbeat began.
    began: Option<Duration>,
    tenure: u64,
}

/// This node's record file, and its identity when it was written.
#[derive(Debug)]
pub(super) struct OwnRecord {
    file: File,
    stat: NameStat,
}

/// The last heartbeat that was seen of another node.
#[derive(Debug)]
pub(super) struct SeenHeartbeat {
    name: String,
    heartbeat: NameStat,
    /// When this heartbeat was first seen, by this node's clock. Never earlier than that.
    since: Duration,
}

#[derive(Clone, Debug)]
pub struct NodeRecord {
    pub id: NodeId,
    /// Or the reason why its record cannot be used.
    pub state: Result<NodeState, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub name: String,
    pub run: u32,
    pub lease: Duration,
    pub standing: Standing,
    /// The node left in good order.
    pub left: bool,
    /// Its last heartbeat, by the file system's clock (the record's ctime).
    pub last_heartbeat: SystemTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordText {
    version: u32,
    name: String,
    run: String,
    lease_ms: u64,
    #[serde(default)]
    left: bool,
    #[serde(flatten)]
    standing: Standing,
}

/// Names are shown to users, so control characters are refused.
pub(super) fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control)
}

impl SharedDir {
    pub(super) fn first_heartbeat(&self) -> io::Result<()> {
        let began = (self.clock)();
        *self.record.lock() = Some(self.write_record(false)?);
        self.record_heartbeat(began);
        Ok(())
    }

    /// Tells the other nodes that this node is alive. Must be called every quarter of the lease.
    pub fn heartbeat(&self) -> io::Result<()> {
        let mut record = self.record.lock();
        let began = (self.clock)();
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
            Err(e) if e.kind() == io::ErrorKind::NotFound && !self.lease_holds() => {
                *record = Some(self.write_record(false)?);
            }
            Err(e) => return Err(e),
        }
        self.record_heartbeat(began);
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

    fn record_heartbeat(&self, began: Duration) {
        let now = (self.clock)();
        let mut last = self.last_heartbeat.lock();
        if !last.began.is_some_and(|began| self.is_recent(began, now)) {
            last.tenure += 1;
        }
        last.began = Some(began);
    }

    fn is_recent(&self, began: Duration, now: Duration) -> bool {
        now.saturating_sub(began) < self.lease / 2
    }

    /// Whether no other node can take this node for dead: less than half of the lease has passed
    /// since the last successful heartbeat began.
    pub fn lease_holds(&self) -> bool {
        self.tenure().is_some()
    }

    /// The present tenure, or `None` if the lease does not hold.
    pub fn tenure(&self) -> Option<Tenure> {
        let last = self.last_heartbeat.lock();
        let began = last.began?;
        self.is_recent(began, (self.clock)())
            .then_some(Tenure(last.tenure))
    }

    /// Whether the lease holds and has held without a break since `tenure`. Must be checked before
    /// every write to a canonical file; makes no system call on a file.
    pub fn holds_since(&self, tenure: Tenure) -> bool {
        self.tenure() == Some(tenure)
    }

    pub(super) fn require_lease(&self) -> io::Result<Tenure> {
        self.tenure().ok_or_else(lease_lapsed)
    }

    fn write_record(&self, left: bool) -> io::Result<OwnRecord> {
        let written = RecordText {
            version: VERSION,
            name: self.name.clone(),
            run: format!("{:08x}", self.me.run),
            lease_ms: self.lease.as_millis().max(1) as u64,
            left,
            standing: self.standing.clone(),
        };
        let text = toml::to_string(&written).map_err(io::Error::other)?;
        let (dir, id) = (self.roots.nodes.as_fd(), self.me.id.to_string());
        let bytes: Arc<[u8]> = text.as_bytes().into();
        let (name, file) = self
            .writer
            .write_temporary(dir, &bytes, Patience::UntilDeadline)?;
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
    pub fn can_map(&self) -> bool {
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
        self.last_heartbeat.lock().began = None;
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
    /// ([`SharedDir::heartbeat`]).
    pub fn forget_node(&self, id: NodeId) -> io::Result<()> {
        let name = id.to_string();
        remove_from(self.roots.nodes.as_fd(), &name)?;
        match sys::remove_dir(self.roots.notes.as_fd(), &name) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// All nodes that ever joined and were not forgotten.
    pub fn nodes(&self) -> io::Result<Vec<NodeRecord>> {
        let mut found = Vec::new();
        for entry in entries(self.roots.nodes.as_fd())? {
            let Ok(id) = u64::from_str_radix(&entry.name, 16).map(NodeId) else {
                continue;
            };
            if id.to_string() != entry.name {
                continue;
            }
            match self.read_record(id) {
                Ok(Some((state, _))) => found.push(NodeRecord {
                    id,
                    state: Ok(state),
                }),
                Ok(None) => {}
                Err(e) => found.push(NodeRecord {
                    id,
                    state: Err(e.to_string()),
                }),
            }
        }
        found.sort_unstable_by_key(|node| node.id);
        Ok(found)
    }

    /// Whether `owner` will not write any more. Finding that a node has died without leaving takes
    /// a lease of watching, so callers that wait for a node call this repeatedly.
    pub fn is_dead(&self, owner: Owner) -> io::Result<bool> {
        if owner.id == self.me.id && self.roots.my_notes.is_some() {
            return Ok(owner.run != self.me.run);
        }
        self.is_silent(owner.id, |run| run == owner.run)
    }

    /// Like [`SharedDir::is_dead`], for a node in whatever run it is now: a node that was started
    /// again is not gone.
    pub fn is_gone(&self, id: NodeId) -> io::Result<bool> {
        if id == self.me.id && self.roots.my_notes.is_some() {
            return Ok(false);
        }
        self.is_silent(id, |_| true)
    }

    fn is_silent(&self, id: NodeId, is_meant: impl FnOnce(u32) -> bool) -> io::Result<bool> {
        let before = (self.clock)();
        let Some((state, heartbeat)) = self.read_record(id)? else {
            // A kernel may cache that a name is missing; a directory listing is always fresh.
            let name = id.to_string();
            return Ok(!entries(self.roots.nodes.as_fd())?
                .iter()
                .any(|e| e.name == name));
        };
        let after = (self.clock)();
        let mut seen = self.seen_heartbeats.lock();
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
        let patience = state.lease.max(self.lease);
        Ok(!is_meant(state.run) || state.left || before.saturating_sub(known.since) >= patience)
    }

    /// For messages: the node's name, or its id if the name is not known.
    pub fn name_of(&self, id: NodeId) -> String {
        if let Some(seen) = self.seen_heartbeats.lock().get(&id) {
            return seen.name.clone();
        }
        match self.read_record(id) {
            Ok(Some((state, _))) => state.name,
            _ => id.to_string(),
        }
    }

    pub(super) fn read_record(&self, id: NodeId) -> io::Result<Option<(NodeState, NameStat)>> {
        let name = id.to_string();
        let damaged = |what: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("nodes/{name} is damaged ({what}): remove it if that node is gone"),
            )
        };
        // The record and its mtime must belong to the same file, and the record may be replaced
        // between the two calls.
        for _ in 0..8 {
            let Some(stat) = sys::stat_name(self.roots.nodes.as_fd(), &name)? else {
                return Ok(None);
            };
            let opened = open_seen(
                self.roots.nodes.as_fd(),
                &name,
                OFlag::O_RDONLY,
                Some(self.roots.uid),
            );
            let (file, meta) = match opened {
                Ok(opened) => opened,
                Err(e) if super::dirs::is_missing(&e) => continue,
                Err(e) if e.raw_os_error().is_none() => return Err(damaged(e.to_string())),
                Err(e) => return Err(e),
            };
            if meta.ino() != stat.ino {
                continue;
            }
            let mut text = String::new();
            match file.take(LONGEST_RECORD + 1).read_to_string(&mut text) {
                Ok(n) if n as u64 > LONGEST_RECORD => return Err(damaged("it is too long".into())),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    return Err(damaged("it is no text".into()));
                }
                Err(e) => return Err(e),
            }
            let last_heartbeat =
                SystemTime::UNIX_EPOCH + Duration::from_secs(meta.ctime().max(0) as u64);
            let state = parse(&text, last_heartbeat).map_err(damaged)?;
            return Ok(Some((state, stat)));
        }
        Err(Errno::ESTALE.into())
    }
}

fn parse(text: &str, last_heartbeat: SystemTime) -> Result<NodeState, String> {
    let written: RecordText = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    if written.version != VERSION {
        return Err(format!(
            "it has version {} and not {VERSION}",
            written.version
        ));
    }
    if !is_valid_name(&written.name) {
        return Err("its name cannot be shown".into());
    }
    let run = u32::from_str_radix(&written.run, 16).map_err(|e| format!("its run: {e}"))?;
    let lease = Duration::from_millis(written.lease_ms);
    if lease.is_zero() || lease > LONGEST_LEASE {
        return Err(format!("a lease of {lease:?}"));
    }
    Ok(NodeState {
        name: written.name,
        run,
        lease,
        left: written.left,
        standing: written.standing,
        last_heartbeat,
    })
}

pub(super) fn lease_lapsed() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "this node's lease in the shared directory has lapsed: others may have taken over",
    )
}
