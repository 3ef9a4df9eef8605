//! Terms: which node may write a canonical file.
//!
//! # Why a term has one holder
//!
//! A node takes a term by making the term's link and then listing the directory. Of two nodes that
//! do so at the same time, the one whose link came later sees the other's link, and gives its own
//! up. Links are removed only when their term is over or given up, older ones first. So if the term
//! that a node's own term follows is still there after that listing, the node has not missed a
//! newer term that came and went. The listing that gave the node its number was made before its
//! link, and may be old: if the directory was emptied and made again meanwhile, its numbers are
//! different, because the first term of a directory has a number that no directory had before.
//!
//! Time decides only whether a holder is dead, and a holder whose lease has lapsed stops by itself:
//! [`Terms::holds_term`] must be checked before every write.
//!
//! # Killed in between
//!
//! The link is there and its owner is dead: other nodes take the next term after the lease, and the
//! next run of the same node takes it at once.

use super::dirs::{Dirs, error_in_file, list_dir};
use super::lease::{Tenure, lease_lapsed};
use super::membership::Membership;
use super::names::{Listing, Name, Owner};
use super::sys;
use crate::beneath::remove_from;
use crate::types::FileId;
use nix::errno::Errno;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// After losing the race for a term this often, the caller must try again later.
const TRIES: usize = 16;

/// The right to write a canonical file, for as long as the lease holds without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub number: u64,
    pub tenure: Tenure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermAttempt {
    Mine(Term),
    /// Held by an owner that is alive as far as is known. It can be this node.
    Held(Owner),
}

/// The terms of this node. A term in `held` was this node's when it was taken; it still is while the
/// lease has held without a break since then.
pub struct Terms {
    pub(super) dirs: Arc<Dirs>,
    pub(super) membership: Arc<Membership>,
    pub(super) held: Mutex<HashMap<FileId, Term>>,
    /// Files for which a thread of this node is taking a term right now.
    taking: Mutex<HashSet<FileId>>,
}

impl Terms {
    pub(super) fn new(dirs: Arc<Dirs>, membership: Arc<Membership>) -> Terms {
        Terms {
            dirs,
            membership,
            held: Mutex::default(),
            taking: Mutex::default(),
        }
    }

    /// Takes the next term of a file, if the last one is over. Makes the file's directory if it is
    /// missing.
    pub fn take_term(&self, file: FileId) -> io::Result<TermAttempt> {
        let tenure = self.membership.lease.require()?;
        // A link that another thread has made and not yet decided on would look like a forgotten
        // one and be ended.
        if !self.taking.lock().insert(file) {
            return Ok(TermAttempt::Held(self.membership.me));
        }
        let taken = self.take_next(file, tenure);
        self.taking.lock().remove(&file);
        taken
    }

    fn take_next(&self, file: FileId, tenure: Tenure) -> io::Result<TermAttempt> {
        for _ in 0..TRIES {
            let taken = self.dirs.in_dir(file, true, |dir| {
                let mut seen = list_dir(dir)?;
                self.end_forgotten(file, dir, &mut seen)?;
                match self.living_holder(&seen, None)? {
                    Some(owner) => Ok(Some(TermAttempt::Held(owner))),
                    None => self.claim(file, dir, &seen, tenure),
                }
            })?;
            if let Some(Some(attempt)) = taken {
                return Ok(attempt);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("others take and end terms of file {file} all the time: try later"),
        ))
    }

    /// Returns a living owner of a term that is not over, other than `mine`.
    fn living_holder(&self, listing: &Listing, mine: Option<u64>) -> io::Result<Option<Owner>> {
        for (term, owner) in &listing.terms {
            if Some(*term) != mine && !listing.is_over(*term) && !self.membership.is_dead(*owner)? {
                return Ok(Some(*owner));
            }
        }
        Ok(None)
    }

    /// Makes the link, lists the directory again, and gives the link up if `seen` was old. `None`
    /// means that it was given up, and the caller must list again. Two nodes can both give up,
    /// because the first terms of a directory have different numbers; the node that lists last
    /// finds no other and goes on.
    pub(super) fn claim(
        &self,
        file: FileId,
        dir: BorrowedFd<'_>,
        seen: &Listing,
        tenure: Tenure,
    ) -> io::Result<Option<TermAttempt>> {
        let last = seen.terms.last_key_value();
        let number = match last {
            None => first_number(),
            Some((last, _)) => last.checked_add(1).ok_or_else(|| {
                let name = Name::Term(*last).to_string();
                let what = "no term can follow it: remove it when no daemon runs";
                error_in_file(file, &name, io::Error::other(what))
            })?,
        };
        let name = Name::Term(number).to_string();
        match sys::link(dir, &name, &self.membership.me.to_string()) {
            Ok(()) => {}
            Err(Errno::EEXIST) => {
                return read_owner(file, dir, &name).map(|o| o.map(TermAttempt::Held));
            }
            Err(e) => return Err(e.into()),
        }
        let judged = self.is_sole_holder(dir, number, last, tenure);
        if let Ok(true) = judged {
            let term = Term { number, tenure };
            self.held.lock().insert(file, term);
            return Ok(Some(TermAttempt::Mine(term)));
        }
        remove_from(dir, &name)?;
        judged.map(|_| None)
    }

    /// Whether the link that was just made is that of the only holder.
    fn is_sole_holder(
        &self,
        dir: BorrowedFd<'_>,
        number: u64,
        last: Option<(&u64, &Owner)>,
        tenure: Tenure,
    ) -> io::Result<bool> {
        let again = list_dir(dir)?;
        let is_there = again.terms.get(&number) == Some(&self.membership.me);
        let is_highest = again.terms.keys().all(|term| *term <= number);
        if !is_there || !is_highest || self.living_holder(&again, Some(number))?.is_some() {
            return Ok(false);
        }
        if let Some((last, owner)) = last {
            let text = sys::read_link(dir, &Name::Term(*last).to_string())?;
            if text != Some(owner.to_string()) {
                return Ok(false);
            }
        }
        if !self.membership.lease.is_held_since(tenure) {
            return Err(lease_lapsed());
        }
        Ok(true)
    }

    /// Ends terms of this run that it does not hold any more: the lease lapsed, or an error came
    /// between the link and the answer.
    fn end_forgotten(
        &self,
        file: FileId,
        dir: BorrowedFd<'_>,
        seen: &mut Listing,
    ) -> io::Result<()> {
        let held = self.held.lock().get(&file).copied();
        let held = held.filter(|term| self.membership.lease.is_held_since(term.tenure));
        for (term, owner) in &seen.terms {
            let is_held = held.is_some_and(|held| held.number == *term);
            if *owner == self.membership.me && !is_held && !seen.ended.contains(term) {
                mark(dir, Name::Ended(*term), self.membership.me)?;
                seen.ended.insert(*term);
            }
        }
        Ok(())
    }

    /// Whether this node may write under that term. Must be checked before every write; makes no
    /// system call on a file.
    pub fn holds_term(&self, file: FileId, term: u64) -> bool {
        let held = self.held.lock().get(&file).copied();
        held.is_some_and(|held| {
            held.number == term && self.membership.lease.is_held_since(held.tenure)
        })
    }

    /// The highest term of a file and the owner that took it.
    pub fn highest_term(&self, file: FileId) -> io::Result<Option<(u64, Owner)>> {
        let listing = self.dirs.list(file)?.unwrap_or_default();
        Ok(listing.terms.into_iter().next_back())
    }

    /// Ends a term, so that another node can take the next one. It is no error if the term is not
    /// held any more.
    pub fn end_term(&self, file: FileId, term: u64) -> io::Result<()> {
        let mut terms = self.held.lock();
        if terms.get(&file).is_some_and(|held| held.number == term) {
            terms.remove(&file);
        }
        drop(terms);
        let name = Name::Term(term).to_string();
        let ended = self.dirs.in_present_dir(file, |dir| {
            match read_owner(file, dir, &name)? {
                Some(owner) if owner.id == self.membership.me.id => {
                    mark(dir, Name::Ended(term), self.membership.me)
                }
                // The directory was emptied, and a node that does not know that yet has taken a
                // term by the old numbers.
                Some(_) => Ok(()),
                None => Err(Errno::ENOENT.into()),
            }
        });
        ended.map(drop)
    }
}

/// Returns the owner in a link that another node made. `None` if the link is gone again.
pub(super) fn read_owner(
    file: FileId,
    dir: BorrowedFd<'_>,
    name: &str,
) -> io::Result<Option<Owner>> {
    let foreign = || {
        let what = "it is no link of ours, and stands in the way of one: remove it";
        error_in_file(file, name, io::Error::new(io::ErrorKind::InvalidData, what))
    };
    match sys::read_link(dir, name) {
        Ok(Some(text)) => text.parse().map(Some).map_err(|_| foreign()),
        Ok(None) => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(foreign()),
        Err(e) => Err(e),
    }
}

/// Makes a link whose existence is its meaning.
pub(super) fn mark(dir: BorrowedFd<'_>, name: Name, me: Owner) -> io::Result<()> {
    Ok(sys::ensure_link(dir, &name.to_string(), &me.to_string())?)
}

/// The first term number of a new directory. Later directories of the same file get higher numbers
/// if clocks are right, and different numbers in any case.
fn first_number() -> u64 {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH);
    let sec = now.map_or(0, |now| now.as_secs()) & u64::from(u32::MAX >> 1);
    sec << 32 | u64::from(rand::random::<u32>())
}
