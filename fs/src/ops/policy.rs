//! Policies of files, where the operations meet them.
//!
//! An open learns the file's policy and leaves it with the store's object for the file, where closes,
//! syncs and the drain find it: one call to the backing for a file without attributes, none if the file
//! has not changed since the last open (`policy/learned.rs`), and nothing for each write. How writes go
//! (`absorb`) is a handle's own and stays as it was at its open.
//!
//! A new file takes over what the directories above it say *to its owner*: a directory's attributes count
//! for the files of whoever owns it, and root's for everybody's if nobody else can set them. So
//! nobody's policy is forced on somebody else's files.
//!
//! # Crash behaviour
//!
//! What a file took over is recorded with the file right after it was made. A kill between the two
//! leaves a file that has taken over nothing.

use super::Overlay;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::policy::above::{self, Above, Climbed};
use crate::policy::learned::Learned;
use crate::policy::{Attributes, Decision, attributes};
use crate::types::{Caller, Time};
use layout_index::policy::{Absorb, Close, Fsync};
use layout_index::{File, FilePolicy, Timestamp};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Directories are looked at again after this long at most: another node may have changed them.
const FRESH: Duration = Duration::from_secs(1);

/// No path is deeper; one that moves while it is climbed might be.
const HIGHEST: usize = 2048;

/// Different complaints that are logged while the daemon runs: anybody can cause them.
const MOST_COMPLAINTS: usize = 1000;

/// Complaints that were logged already.
#[derive(Default)]
pub(super) struct Complaints(Mutex<HashSet<String>>);

impl Complaints {
    /// True for the first time, as long as there are not too many of them.
    fn is_new(&self, complaint: &str) -> bool {
        let mut said = self.0.lock();
        said.len() < MOST_COMPLAINTS && said.insert(complaint.to_owned())
    }
}

/// Where the attributes of a file are to be had.
pub(super) enum Said {
    /// It was made just now, and has taken these over.
    Made(Attributes),
    /// In the backing, where it was last changed at this time.
    Below(Time),
    /// In the backing, and one of them was changed just now.
    Anew,
}

/// How a file is treated, and why.
#[derive(Debug)]
pub struct Explained {
    /// Of the file.
    pub uid: u32,
    /// Below the mount; `None` if it has no name.
    pub path: Option<PathBuf>,
    pub decisions: Vec<Decision>,
    /// What is wrong with its attributes.
    pub bad: Vec<String>,
}

impl Overlay {
    pub(super) fn absorb_of(&self, file: &File) -> Absorb {
        let absorb = file.policy().absorb.unwrap_or(self.absorb);
        match absorb {
            // With one node every read sees the last write anyway.
            Absorb::Coherent if self.others.is_none() => Absorb::On,
            other => other,
        }
    }

    pub(super) fn close_of(&self, file: &File) -> Close {
        let mount = || self.others.as_ref().map_or(Close::default(), |o| o.close);
        file.policy().close.unwrap_or_else(mount)
    }

    pub(super) fn fsync_of(&self, file: &File) -> Fsync {
        let mount = || self.others.as_ref().map_or(Fsync::default(), |o| o.fsync);
        file.policy().fsync.unwrap_or_else(mount)
    }

    /// At an open: whatever decides about the file is looked at. Attributes never make an open fail.
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

    fn policy_behind(&self, fd: BorrowedFd<'_>) -> io::Result<FilePolicy> {
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

    /// Those of a file that was last changed at `ctime`, as was asked before this: listed only if they
    /// may be others than at the last open.
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

    /// For the drain, of a file that nobody may have opened. May wait.
    pub fn policy_of(&self, file: &File) -> io::Result<FilePolicy> {
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            return self.policy_behind(inode.fd());
        }
        match self.backing.find(file.id(), &file.hint())? {
            Some(fd) => self.policy_behind(fd.as_fd()),
            // The drain will find that out for itself.
            None => Ok(FilePolicy::default()),
        }
    }

    /// How the file is treated by whoever opens it now, and by the drain. `None` if the kernel does
    /// not know a file of this number.
    pub fn explain(&self, node: u64) -> Result<Option<Explained>> {
        let Some(inode) = self.inodes.get(node).filter(|inode| inode.is_file()) else {
            return Ok(None);
        };
        let attributes = attributes::read(inode.fd())?;
        let path = self.backing.relative_path(inode.fd())?;
        // What is said here is what is done from here on.
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

    /// What a file of `uid` that was made in `dir` just now takes over; recorded with the file.
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

    /// From `dir` up to the root of the backing.
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

    /// Before an attribute of ours is set: it must make sense, and be the owner's to set.
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

    /// An attribute of ours was set or removed.
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

    /// Users cause these, so they are no warnings, and each is logged once.
    fn complain(&self, complaint: String) {
        if self.complaints.is_new(&complaint) {
            tracing::info!("{complaint}");
        }
    }
}
