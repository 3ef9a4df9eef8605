//! Policies of files: where the operations read and apply them.
//!
//! An open reads the file's policy and stores it in the store's object for the file, where closes, syncs and
//! the drain find it. This takes one call to the backing for a file without attributes, none if the file has
//! not changed since the last open (`policy/learned.rs`), and nothing for each write. How writes go
//! (`absorb`) belongs to a handle and stays as it was at its open.
//!
//! A new file takes over what the directories above it set *for its owner*: a directory's attributes count
//! for files of the directory's owner, and root's for all files if only root can set them. So no user's
//! policy is forced on another user's files.
//!
//! # Crash behaviour
//!
//! The attributes that a file took over are recorded with the file right after it was made. A kill between
//! the two leaves a file that has taken over nothing.

use super::Overlay;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::policy::above::{self, Above, Climbed};
use crate::policy::learned::Learned;
use crate::policy::{Attributes, Decision, attributes};
use crate::types::{Caller, Time};
use layout_index::policy::Absorb;
use layout_index::{File, FilePolicy, Timestamp};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Directories are read again after this time at most: another node may have changed them.
const FRESH: Duration = Duration::from_secs(1);

/// Maximum number of directories to climb. No path is deeper, but one that is moved meanwhile might seem so.
const HIGHEST: usize = 2048;

/// Maximum number of different complaints that are logged while the daemon runs: any user can cause them.
const MOST_COMPLAINTS: usize = 1000;

/// The complaints that were logged already.
#[derive(Default)]
pub(super) struct Complaints(Mutex<HashSet<String>>);

impl Complaints {
    /// True the first time, as long as there are not too many complaints.
    fn is_new(&self, complaint: &str) -> bool {
        let mut said = self.0.lock();
        said.len() < MOST_COMPLAINTS && said.insert(complaint.to_owned())
    }
}

/// Where the attributes of a file are found.
pub(super) enum Said {
    /// The file was made just now, and has taken these over.
    Made(Attributes),
    /// In the backing. The file's ctime is given.
    Below(Time),
    /// In the backing, where one of them was changed just now.
    Anew,
}

/// How a file is treated, and why.
#[derive(Debug)]
pub struct Explained {
    /// The file's owner.
    pub uid: u32,
    /// The path below the mount; `None` if the file has no name.
    pub path: Option<PathBuf>,
    pub decisions: Vec<Decision>,
    /// Messages about attributes of the file that make no sense.
    pub bad: Vec<String>,
}

impl Overlay {
    pub(super) fn absorb_of(&self, file: &File) -> Absorb {
        match file.settings().absorb {
            // On a single node every read sees the last write anyway.
            Absorb::Coherent if self.others.is_none() => Absorb::On,
            other => other,
        }
    }

    /// Called at an open: reads everything that decides about the file. Attributes never make an open fail.
    pub(super) fn learn(&self, inode: &Inode, file: &File, said: Said) {
        let policy = match said {
            Said::Made(attributes) => self.differs(inode.fd(), &attributes),
            Said::Below(ctime) => self
                .attributes_at(inode, ctime)
                .and_then(|attributes| self.differs(inode.fd(), &attributes)),
            Said::Anew => self.policy_behind(inode.fd()),
        };
        let policy = policy.unwrap_or_else(|error| {
            self.complain(format!(
                "file {}: its policy cannot be read, so the mount's settings hold: {error}",
                inode.id
            ));
            FilePolicy::default()
        });
        file.set_policy(policy);
    }

    pub(super) fn policy_behind(&self, fd: BorrowedFd<'_>) -> io::Result<FilePolicy> {
        let attributes = self.attributes_behind(fd)?;
        self.differs(fd, &attributes)
    }

    fn attributes_behind(&self, fd: BorrowedFd<'_>) -> io::Result<Attributes> {
        let attributes = attributes::read(fd)?;
        for bad in &attributes.bad {
            self.complain(format!("{}: {bad}; ignored", self.name_for_log(fd)));
        }
        Ok(attributes)
    }

    /// The attributes of a file whose ctime was `ctime` just before this call. They are listed only if they
    /// may have changed since the last open.
    fn attributes_at(&self, inode: &Inode, ctime: Time) -> io::Result<Arc<Attributes>> {
        let learned = |known: &Learned| known.at_ctime(ctime);
        let known = inode.learned.lock().as_ref().and_then(learned);
        if let Some(known) = known {
            return Ok(known);
        }
        let at = Timestamp::now();
        let attributes = Arc::new(self.attributes_behind(inode.fd())?);
        *inode.learned.lock() = Some(Learned {
            attributes: attributes.clone(),
            ctime,
            at,
        });
        Ok(attributes)
    }

    fn differs(&self, fd: BorrowedFd<'_>, attributes: &Attributes) -> io::Result<FilePolicy> {
        let path = match self.policies.rules.is_empty() {
            true => None,
            false => self.backing.relative_path(fd)?,
        };
        Ok(self.policies.differs(path.as_deref(), attributes))
    }

    /// How the drain, and processes that open the file now, treat it. `None` if the kernel does not know
    /// a file with this number.
    pub fn explain(&self, node: u64) -> Result<Option<Explained>> {
        let Some(inode) = self.inodes.get(node).filter(|inode| inode.is_file()) else {
            return Ok(None);
        };
        let attributes = attributes::read(inode.fd())?;
        let path = self.backing.relative_path(inode.fd())?;
        // From here on the file is treated as this call reports.
        if let Some(file) = self.store().lookup(inode.id) {
            file.set_policy(self.policies.differs(path.as_deref(), &attributes));
        }
        Ok(Some(Explained {
            uid: sys::stat(inode.fd())?.uid,
            decisions: self.policies.decide(path.as_deref(), &attributes),
            path,
            bad: attributes.bad,
        }))
    }

    /// The attributes that a file of `uid` takes over that was just made in `dir`. Records them with the file.
    pub(super) fn inherit(&self, dir: &Inode, made: BorrowedFd<'_>, uid: u32) -> Attributes {
        let attributes = above::inherit(&self.above(dir), uid);
        if !attributes.is_empty()
            && let Err(error) = attributes::write_record(made, &attributes)
        {
            self.complain(format!(
                "{}: what it inherits cannot be recorded, and holds only until it is closed: {error}",
                self.name_for_log(made)
            ));
        }
        attributes
    }

    fn above(&self, dir: &Inode) -> Arc<[Above]> {
        let changes = self.directory_policies.load(Ordering::Acquire);
        let fresh = self.ttl.min(FRESH);
        let known = dir.climbed.lock().clone();
        if let Some(known) = known.filter(|known| known.is_fresh(changes, fresh)) {
            return known.above;
        }
        let at = Instant::now();
        let mut found = Vec::new();
        if let Err(error) = self.climb(dir, &mut found) {
            self.complain(format!(
                "{}: not all directories above it can be looked at, so some of their attributes may not count: {error}",
                self.name_for_log(dir.fd())
            ));
        }
        let above: Arc<[Above]> = found.into();
        *dir.climbed.lock() = Some(Climbed {
            at,
            changes,
            above: above.clone(),
        });
        above
    }

    /// Collects the directories with policies from `dir` up to the root of the backing.
    fn climb(&self, dir: &Inode, found: &mut Vec<Above>) -> io::Result<()> {
        let root = self.backing.root_identity().stat;
        let mut at: Option<OwnedFd> = None;
        for _ in 0..HIGHEST {
            let fd = at.as_ref().map_or(dir.fd(), |fd| fd.as_fd());
            let stat = sys::stat(fd)?;
            if stat.dev != root.dev {
                break;
            }
            let attributes = self.attributes_behind(fd)?;
            if !attributes.own.is_empty() {
                let path = self.backing.relative_path(fd)?.unwrap_or_default();
                let dir = attributes::directory(&path);
                found.push(Above::new(attributes.own, dir, &stat));
            }
            if stat.ino == root.ino {
                break;
            }
            at = Some(sys::open_parent(fd)?);
        }
        Ok(())
    }

    /// Called before an attribute of ours is set or removed: it must make sense, and the caller
    /// must be root or the owner.
    pub(super) fn check_policy(
        &self,
        caller: &Caller,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        if !name.starts_with(attributes::PREFIX) {
            return Ok(());
        }
        if caller.uid != 0 && caller.uid != sys::stat(inode.fd())?.uid {
            return Err(io::Error::from_raw_os_error(libc::EPERM).into());
        }
        let Some(value) = value else {
            return Ok(());
        };
        if !inode.is_file() && !inode.is_dir() {
            return Err(FsError::Invalid("only files and directories have policies"));
        }
        attributes::parse(&mut FilePolicy::default(), name, value).map_err(|why| {
            self.complain(format!(
                "an attribute of {} was refused to user {}: {why}",
                self.name_for_log(inode.fd()),
                caller.uid
            ));
            FsError::Invalid("the attribute makes no sense; the daemon's log says why")
        })
    }

    /// Called when an attribute of ours was set or removed.
    pub(super) fn policy_changed(&self, inode: &Inode, name: &[u8]) {
        if !name.starts_with(attributes::PREFIX) {
            return;
        }
        if inode.is_dir() {
            self.directory_policies.fetch_add(1, Ordering::AcqRel);
        } else if let Some(file) = self.store().lookup(inode.id) {
            self.learn(inode, &file, Said::Anew);
        }
    }

    fn name_for_log(&self, fd: BorrowedFd<'_>) -> String {
        match self.backing.relative_path(fd) {
            Ok(Some(path)) => attributes::directory(&path),
            _ => "a file without a name".to_owned(),
        }
    }

    /// Users cause these complaints, so they are not logged as warnings, and each is logged once.
    fn complain(&self, complaint: String) {
        if self.complaints.is_new(&complaint) {
            tracing::info!("{complaint}");
        }
    }
}
