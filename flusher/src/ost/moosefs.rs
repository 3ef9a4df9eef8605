//! MooseFS: a target is a chunkserver that has a label of its own, and a file is placed there by a
//! storage class that names the label.
//!
//! # Numbers
//!
//! A target's number is that of its label: A is 0. Labels are in the chunkserver's own
//! configuration, so the number is the same on all nodes, and stays when other chunkservers come
//! and go or this one gets another address. While a chunkserver is away the master does not know
//! its label; its target then keeps the label that it had.
//!
//! Chunkservers without a label that no other chunkserver has cannot be chosen one by one. They are
//! in the list all the same, with numbers from [`UNLABELLED`] on, so that every command that shows
//! targets says why they are not used.
//!
//! # Making a file
//!
//! The class must be set before the first byte is written: chunks stay where they were begun. A
//! file that cannot be pinned is removed again.
//!
//! Removed subfiles stay in the trash of MooseFS as long as the directory's trash time says.
//!
//! # Full chunkservers
//!
//! The master begins no chunk on a chunkserver with less room than a whole chunk, however little is
//! to be written. This module checks that itself and does not leave it to the client: by default
//! the client asks again and again for two minutes, and for ever while another chunkserver is away.

use super::moosefs_master::{ClassName, Error, Master, Target};
use super::place::{self, Place};
use super::{Ost, OstError, Provider};
use nix::errno::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Size of a full chunk.
const CHUNK: u64 = 64 << 20;

/// Numbers of targets without a label of their own: this plus the master's number for the
/// chunkserver.
pub const UNLABELLED: u32 = 1 << 16;

#[derive(Debug)]
pub struct MooseFs {
    master: Master,
    dir: Arc<OwnedFd>,
    /// Path of `dir` for error messages.
    path: String,
    classes: Mutex<HashMap<char, ClassName>>,
    /// The label that each chunkserver had when it was last connected, by the master's number.
    seen: Mutex<HashMap<u16, char>>,
}

/// A chunkserver, and whether it can be chosen.
struct Known {
    ost: Ost,
    usable: Result<char, &'static str>,
    full: bool,
}

const AWAY: &str = "the master misses this chunkserver: is it running, and is its network up?";
const NO_DISKS: &str = "the master has not heard of this chunkserver's disks yet: if that lasts, \
                        look at its log";
const MAINTENANCE: &str = "the chunkserver is in maintenance mode: new files go elsewhere";
const NO_LABEL: &str = "the chunkserver has no label that no other has: give it one \
                        (LABELS in its mfschunkserver.cfg, then mfschunkserver reload)";

impl MooseFs {
    /// `None` if `dir` is not on a MooseFS client mount. `dir` must have been opened before
    /// anything is mounted over it.
    pub fn open(dir: BorrowedFd<'_>) -> Result<Option<MooseFs>, Error> {
        let Some(master) = Master::find(dir)? else {
            return Ok(None);
        };
        let what = "cannot duplicate a descriptor";
        let held = dir.try_clone_to_owned();
        Ok(Some(MooseFs {
            master,
            dir: Arc::new(held.map_err(|source| Error::Io { what, source })?),
            path: place::name_of(dir),
            classes: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    fn known(&self) -> Result<Vec<Known>, Error> {
        let targets = self.master.targets()?;
        Ok(number(&targets, &mut self.seen.lock()))
    }

    fn make(&self, ost: &Ost, name: &str, direct: bool) -> io::Result<File> {
        let known = self.known().map_err(io_error)?;
        let known = known.into_iter().find(|known| known.ost.index == ost.index);
        let known = known.ok_or_else(|| io::Error::other(AWAY))?;
        let label = known.usable.map_err(io::Error::other)?;
        if known.full {
            return Err(Errno::ENOSPC.into());
        }
        let class = self.class(label).map_err(io_error)?;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let place = self.place(ost)?;
        let file = place.create(name, flags)?;
        match self.master.pin(&file, &class) {
            Ok(()) => Ok(file),
            Err(e) => {
                // An administrator may have removed the class.
                self.classes.lock().remove(&label);
                drop(file);
                place.remove(name)?;
                Err(io_error(e))
            }
        }
    }

    fn class(&self, label: char) -> Result<ClassName, Error> {
        if let Some(class) = self.classes.lock().get(&label) {
            return Ok(class.clone());
        }
        let class = self.master.ensure_class(label)?;
        self.classes.lock().insert(label, class.clone());
        Ok(class)
    }
}

fn label(ost: &Ost) -> Option<char> {
    let letter = u8::try_from(ost.index).ok().filter(|n| *n < 26)?;
    Some(char::from(b'A' + letter))
}

/// Lists the chunkservers in the order of their numbers, each number once.
fn number(targets: &[Target], seen: &mut HashMap<u16, char>) -> Vec<Known> {
    let mut found: Vec<Known> = Vec::new();
    // Connected chunkservers come first: their labels are known for certain.
    let (here, away): (Vec<&Target>, Vec<&Target>) = targets.iter().partition(|t| t.connected);
    for target in here.into_iter().chain(away) {
        let last = seen.get(&target.id).copied();
        let own = last
            .filter(|last| target.owns_label(*last, targets))
            .or_else(|| target.own_label(targets));
        let (label, usable) = match own {
            _ if !target.connected => (last, Err(AWAY)),
            None => (None, Err(NO_LABEL)),
            Some(label) => {
                seen.insert(target.id, label);
                let usable = match target {
                    Target { total: 0, .. } => Err(NO_DISKS),
                    Target {
                        maintenance: true, ..
                    } => Err(MAINTENANCE),
                    _ => Ok(label),
                };
                (Some(label), usable)
            }
        };
        let index = label
            .map(|label| label as u32 - 'A' as u32)
            .filter(|index| found.iter().all(|other| other.ost.index != *index));
        found.push(Known {
            ost: Ost {
                index: index.unwrap_or(UNLABELLED + u32::from(target.id)),
                name: match (index, label) {
                    (Some(_), Some(label)) => format!("{label} at {}", target.address),
                    _ => target.address.to_string(),
                },
            },
            usable,
            full: target.total.saturating_sub(target.used) <= CHUNK,
        });
    }
    found.sort_by_key(|known| known.ost.index);
    found
}

fn io_error(error: Error) -> io::Error {
    let number = match &error {
        Error::Refused { status, .. } => status.errno(),
        _ => None,
    };
    match (number, error) {
        (Some(number), _) => io::Error::from_raw_os_error(number),
        (None, Error::Io { source, .. }) => source,
        (None, error) => io::Error::other(error),
    }
}

impl Provider for MooseFs {
    fn kind(&self) -> &'static str {
        "moosefs"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        let known = self.known().map_err(|e| OstError {
            ost: self.path.clone(),
            what: "listing the chunkservers",
            source: io_error(e),
        })?;
        Ok(known.into_iter().map(|known| known.ost).collect())
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        let made = self.make(ost, name, direct);
        made.map_err(|e| OstError::new(ost, "making a file", e))
    }

    fn place(&self, ost: &Ost) -> io::Result<Place> {
        let dir = self.dir.clone();
        Ok(match label(ost) {
            Some(label) => Place::with_own(dir, label),
            None => Place::with_own(dir, ost.index),
        })
    }
}

#[cfg(test)]
mod tests;
