//! The shared directory, `<backing>/.forebay`: all that passes between nodes.
//!
//! What the names mean and in which order they are made is `docs/decisions/0008-many-nodes.md`;
//! here is each step of it as plain system calls. What is in layouts, plans and bases is bytes to
//! this module.
//!
//! # Who writes what
//!
//! Every file has one writer. What can be fought over is a link whose text says who made it: one
//! call makes it, text and all, or finds that somebody else was first. Links are read, never
//! followed. Names that carry nothing else (intents, notes, ends) are such links, too.
//!
//! # Where it may reach
//!
//! Everything starts from descriptors that are held, as [`crate::beneath`] has it. A directory
//! counts if it belongs to the user whom this daemon's own files belong to and nobody else may
//! write to it; a file if it is a regular one with one name, of the same user. Anything else is
//! an error that says which, or is listed as strange, and is left alone.
//!
//! # Killed at any moment
//!
//! Each module says what is left between its calls. Here: [`Commons::join`] leaves directories
//! without a record, or a temporary name beside the records that the node's next start removes.

mod append;
mod data;
mod dirs;
mod files;
mod locks;
mod names;
mod nodes;
mod notes;
mod standing;
mod sys;
mod terms;
mod tidy;
mod writing;

pub(crate) use append::AppendLock;
pub use data::{PLACES, Patience, Placing};
pub use files::Stamp;
pub use names::{Intent, Listing, Owner, names_of};
pub use nodes::{Clock, NodeRecord, NodeState, Tenure};
pub use standing::Standing;
pub use terms::{Term, TermAttempt};

use crate::beneath::{DIRECTORY, step_down, step_into};
use crate::types::{FileId, NodeId};
use dirs::Dirs;
use nodes::{Beat, Seen};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const TOP: &str = ".forebay";
const NODES: &str = "nodes";
const NOTES: &str = "notes";
const FILES: &str = "files";

/// Nobody would wait longer for a node that may be dead.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);

/// A node's hold of the shared directory. All calls may wait for the file system.
pub struct Commons {
    backing: OwnedFd,
    top: OwnedFd,
    nodes: OwnedFd,
    notes: OwnedFd,
    /// `None` where this node has not joined.
    my_notes: Option<OwnedFd>,
    dirs: Dirs,
    /// Whom everything in here belongs to.
    uid: u32,
    me: Owner,
    name: String,
    standing: Standing,
    lease: Duration,
    clock: Clock,
    beat: Mutex<Beat>,
    /// Held while a heartbeat is on its way; has the record that it is set on.
    record: Mutex<Option<nodes::Own>>,
    seen: Mutex<HashMap<NodeId, Seen>>,
    terms: Mutex<HashMap<FileId, Term>>,
    /// Files of which a thread is about to take a term.
    taking: Mutex<HashSet<FileId>>,
    domains: Mutex<HashMap<(FileId, u64, u32), Tenure>>,
    intents: std::sync::atomic::AtomicU64,
    placing: OnceLock<Arc<dyn Placing>>,
    waiters: data::Waiters,
    writing: writing::Written,
    /// Where layouts of this node's lie that this process has begun.
    places: Mutex<HashMap<(FileId, u32), u32>>,
}

impl std::fmt::Debug for Commons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commons")
            .field("me", &self.me)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl Commons {
    /// Makes this node one of those that share the backing. Records are durable when it returns.
    pub fn join(backing: OwnedFd, me: Owner, name: &str, lease: Duration) -> io::Result<Commons> {
        Commons::join_by(backing, me, name, lease, nodes::boottime())
    }

    /// The same, by another clock. It must also count the time that the machine sleeps.
    pub fn join_by(
        backing: OwnedFd,
        me: Owner,
        name: &str,
        lease: Duration,
        clock: Clock,
    ) -> io::Result<Commons> {
        let joined = Commons::prepare(backing, me, name, lease, Standing::default(), clock)?;
        joined.take_place()?;
        Ok(joined)
    }

    /// The same with all that a mount says of itself: refused while another copy of its store lives, or a
    /// node that has other targets. To find that one is dead takes a lease of watching.
    pub fn join_with(
        backing: OwnedFd,
        me: Owner,
        name: &str,
        lease: Duration,
        standing: Standing,
    ) -> io::Result<Commons> {
        let joined = Commons::prepare(backing, me, name, lease, standing, nodes::boottime())?;
        joined.take_place()?;
        Ok(joined)
    }

    /// All but the record by which others know of this node.
    fn prepare(
        backing: OwnedFd,
        me: Owner,
        name: &str,
        lease: Duration,
        standing: Standing,
        clock: Clock,
    ) -> io::Result<Commons> {
        if lease.is_zero() || lease > LONGEST_LEASE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a lease of {lease:?} is not between 1 ms and {LONGEST_LEASE:?}: choose another"
                ),
            ));
        }
        if !nodes::is_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{name:?} is no name for a node: give one of 1 to 255 printable characters"
                ),
            ));
        }
        let top = step_into(backing.as_fd(), TOP, DIRECTORY)?;
        let nodes = step_into(top.as_fd(), NODES, DIRECTORY)?;
        let notes = step_into(top.as_fd(), NOTES, DIRECTORY)?;
        let my_notes = step_into(notes.as_fd(), &me.id.to_string(), DIRECTORY)?;
        let files = step_into(top.as_fd(), FILES, DIRECTORY)?;
        let uid = nodes::owner_of_ours(nodes.as_fd(), me)?;
        for (dir, name) in [
            (&top, TOP),
            (&nodes, NODES),
            (&notes, NOTES),
            (&my_notes, "notes of this node"),
            (&files, FILES),
        ] {
            check_ours(dir, name, uid)?;
        }
        let mut joined = Commons::over(backing, top, nodes, notes, files, uid, clock);
        joined.my_notes = Some(my_notes);
        joined.me = me;
        joined.name = name.to_owned();
        joined.lease = lease;
        joined.standing = standing;
        Ok(joined)
    }

    /// Others count on this node from here on.
    fn take_place(&self) -> io::Result<()> {
        self.yield_to_a_living_copy()?;
        let dead = self.compare_targets()?;
        self.first_heartbeat()?;
        self.compare_targets_again(&dead)
    }

    /// For those who only want to know: changes nothing, and cannot change anything that needs a
    /// lease. `None` where no node ever joined.
    pub fn look(backing: OwnedFd) -> io::Result<Option<Commons>> {
        let Some(top) = step_down(backing.as_fd(), TOP, DIRECTORY)? else {
            return Ok(None);
        };
        let below = |name| step_down(top.as_fd(), name, DIRECTORY);
        let (Some(nodes), Some(notes), Some(files)) = (below(NODES)?, below(NOTES)?, below(FILES)?)
        else {
            return Ok(None);
        };
        let uid = nix::sys::stat::fstat(&top)?.st_uid;
        let me = nix::unistd::geteuid();
        if !me.is_root() && uid != me.as_raw() {
            return Err(not_ours(TOP, uid, 0o700, me.as_raw()));
        }
        for (dir, name) in [
            (&top, TOP),
            (&nodes, NODES),
            (&notes, NOTES),
            (&files, FILES),
        ] {
            check_ours(dir, name, uid)?;
        }
        let clock = nodes::boottime();
        let looked = Commons::over(backing, top, nodes, notes, files, uid, clock);
        Ok(Some(looked))
    }

    fn over(
        backing: OwnedFd,
        top: OwnedFd,
        nodes: OwnedFd,
        notes: OwnedFd,
        files: OwnedFd,
        uid: u32,
        clock: Clock,
    ) -> Commons {
        Commons {
            backing,
            top,
            nodes,
            notes,
            my_notes: None,
            dirs: Dirs::new(files, uid),
            uid,
            me: Owner {
                id: NodeId(0),
                run: 0,
            },
            name: String::new(),
            standing: Standing::default(),
            lease: Duration::ZERO,
            clock,
            beat: Mutex::default(),
            record: Mutex::default(),
            seen: Mutex::default(),
            terms: Mutex::default(),
            taking: Mutex::default(),
            domains: Mutex::default(),
            intents: Default::default(),
            placing: OnceLock::new(),
            waiters: Default::default(),
            writing: Default::default(),
            places: Mutex::default(),
        }
    }

    pub fn me(&self) -> Owner {
        self.me
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }
}

/// A directory that others could change is no place to agree on anything.
fn check_ours(dir: &OwnedFd, name: &str, uid: u32) -> io::Result<()> {
    crate::calls::note("stat");
    let stat = nix::sys::stat::fstat(dir)?;
    if stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
        return Err(not_ours(name, stat.st_uid, stat.st_mode & 0o7777, uid));
    }
    Ok(())
}

fn not_ours(name: &str, owner: u32, mode: u32, uid: u32) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "the shared directory {name} (owner {owner}, mode {mode:o}) is not the daemon's \
             alone: chown it to user {uid} and chmod it 700, or remove it"
        ),
    )
}

#[cfg(test)]
mod tests;
