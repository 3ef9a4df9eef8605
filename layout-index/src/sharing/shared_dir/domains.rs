//! Domains: which part of a canonical file a node writes in a round.
//!
//! A node takes a domain by making a link that names the domain and the attempt. Once its owner is
//! dead, another node makes the link of the next attempt. A node that gives a domain up removes its
//! link. As for terms, a node whose lease has lapsed stops by itself: [`Domains::holds_domain`].
//!
//! *Killed in between*: the link is there and its owner is dead, and other nodes begin the next
//! attempt after the lease.

use super::dirs::Dirs;
use super::lease::Tenure;
use super::membership::Membership;
use super::names::Name;
use super::sys;
use super::terms::{mark, read_owner};
use crate::beneath::remove_from;
use crate::types::FileId;
use nix::errno::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The domains of this node, by file, term and number.
pub struct Domains {
    dirs: Arc<Dirs>,
    membership: Arc<Membership>,
    held: Mutex<HashMap<(FileId, u64, u32), Tenure>>,
}

impl Domains {
    pub(super) fn new(dirs: Arc<Dirs>, membership: Arc<Membership>) -> Domains {
        Domains {
            dirs,
            membership,
            held: Mutex::default(),
        }
    }

    /// Takes a domain of a plan, and returns the number of the attempt. `None` if the domain is
    /// done, a living node is doing it, or the plan is gone.
    pub fn take_domain(&self, file: FileId, term: u64, domain: u32) -> io::Result<Option<u32>> {
        let tenure = self.membership.lease.require()?;
        let taken = self.dirs.in_present_dir(file, |dir| {
            let done = Name::Done { term, domain }.to_string();
            let mut attempt: u32 = 0;
            loop {
                if sys::stat_name(dir, &done)?.is_some() {
                    return Ok(None);
                }
                let name = Name::Domain {
                    term,
                    domain,
                    attempt,
                };
                let name = name.to_string();
                match sys::link(dir, &name, &self.membership.me.to_string()) {
                    Ok(()) => {
                        // The holder that tidies removes the plan before the marks of done domains.
                        let plan = Name::Plan(term).to_string();
                        if sys::stat_name(dir, &plan)?.is_some()
                            && sys::stat_name(dir, &done)?.is_none()
                        {
                            let key = (file, term, domain);
                            self.held.lock().insert(key, tenure);
                            return Ok(Some(attempt));
                        }
                        remove_from(dir, &name)?;
                        return Ok(None);
                    }
                    Err(Errno::EEXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                if let Some(owner) = read_owner(file, dir, &name)? {
                    let alive = if owner == self.membership.me {
                        self.holds_domain(file, term, domain)
                    } else {
                        !self.membership.is_dead(owner)?
                    };
                    if alive {
                        return Ok(None);
                    }
                    attempt = attempt.checked_add(1).ok_or(Errno::EOVERFLOW)?;
                }
            }
        });
        taken.map(Option::flatten)
    }

    /// Whether this node may write the units of a domain that it took. Must be checked before every
    /// write; makes no system call on a file.
    pub fn holds_domain(&self, file: FileId, term: u64, domain: u32) -> bool {
        let taken = self.held.lock().get(&(file, term, domain)).copied();
        taken.is_some_and(|tenure| self.membership.lease.is_held_since(tenure))
    }

    /// Marks a domain as done. All of it must be in the canonical file, synced.
    pub fn mark_domain_done(&self, file: FileId, term: u64, domain: u32) -> io::Result<()> {
        let done = Name::Done { term, domain };
        // The plan may have been finished and tidied away by other nodes.
        let dirs = &self.dirs;
        let marked = dirs.in_present_dir(file, |dir| mark(dir, done, self.membership.me));
        self.held.lock().remove(&(file, term, domain));
        marked.map(drop)
    }

    /// Gives a domain up after a failure, so that another node, or this one again, can take it.
    pub fn give_up_domain(
        &self,
        file: FileId,
        term: u64,
        domain: u32,
        attempt: u32,
    ) -> io::Result<()> {
        // If the lease lapsed, another node may have begun the next attempt already.
        let is_mine = self.holds_domain(file, term, domain);
        self.held.lock().remove(&(file, term, domain));
        if !is_mine {
            return Ok(());
        }
        let name = Name::Domain {
            term,
            domain,
            attempt,
        };
        self.dirs.remove_names(file, [name])
    }
}
