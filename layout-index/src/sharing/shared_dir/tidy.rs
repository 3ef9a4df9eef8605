//! Cleanup by the holder of a term: removes everything that older terms left, and the file's
//! directory itself when no node has any data or announcement in it any more.
//!
//! Only names that were listed before are removed, and only names that no node needs again. So a
//! node that arrives meanwhile loses nothing: its new layout or announcement keeps the directory,
//! because the directory is not empty then; and if the directory is removed first, the next node
//! that wants to put something there makes it again. For the same reason a holder that wakes up
//! late does no harm.
//!
//! # Order, and kills in between
//!
//! Plans are removed before the marks that say which of their domains are done, or such a domain
//! could be taken again. Terms are removed last, the oldest first, and each before its end mark.
//! Wherever the cleanup stops, the next node that tidies finds the rest.

use super::dirs::{error_in_file, list_dir};
use super::lease::lease_lapsed;
use super::names::{Listing, Name, Owner, names_of};
use super::sys;
use super::terms::Terms;
use crate::beneath::remove_from;
use crate::types::FileId;
use nix::errno::Errno;
use std::io;
use std::os::fd::AsFd;

impl Terms {
    /// Returns true when the term is over and all that belonged to it is gone, most often with the
    /// directory. Otherwise the term is still held.
    pub fn tidy(&self, file: FileId, term: u64) -> io::Result<bool> {
        if !self.holds_term(file, term) {
            return Err(lease_lapsed());
        }
        let Some(dir) = self.dirs.open(file, false)? else {
            return Ok(true);
        };
        let listing = list_dir(dir.as_fd())?;
        if listing.terms.get(&term) != Some(&self.membership.me) || listing.is_over(term) {
            return Err(lease_lapsed());
        }
        if listing.terms.keys().any(|other| *other > term) {
            // The higher term belongs to a node that went by an old listing, and is about to give
            // it up.
            return Ok(false);
        }
        let mut over = Vec::new();
        let mut others = false;
        for (number, owner) in listing.terms.range(..term) {
            if listing.is_over(*number) || self.membership.is_dead(*owner)? {
                over.push(*number);
            } else {
                others = true;
            }
        }
        let all = !others
            && listing.layouts.is_empty()
            && listing.announcements.is_empty()
            && listing.strange.is_empty()
            && listing.unfinished_plan().is_none();
        let mut names = self.left_over(&listing, term, all)?;
        for number in &over {
            names.extend([Name::Term(*number), Name::Ended(*number)]);
        }
        let ends = listing.ended.range(..term);
        let orphans = ends.filter(|end| !listing.terms.contains_key(end));
        names.extend(orphans.map(|end| Name::Ended(*end)));
        if all {
            // From here on this node does not hold the term any more.
            self.held.lock().remove(&file);
            names.extend([Name::Term(term), Name::Ended(term)]);
        }
        for name in names {
            let name = name.to_string();
            remove_from(dir.as_fd(), &name).map_err(|e| error_in_file(file, &name, e))?;
        }
        if !all {
            return Ok(false);
        }
        self.dirs.close_held(file);
        let Some(group) = self.dirs.group(file, false)? else {
            return Ok(true);
        };
        let [_, fid] = names_of(file);
        match sys::remove_dir(group.as_fd(), &fid) {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            // Another node put something there. Nothing that it needs was removed, but the term is
            // over.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Everything that may be removed except terms and their ends, in the order of removal.
    fn left_over(&self, listing: &Listing, term: u64, all: bool) -> io::Result<Vec<Name>> {
        let base = listing.bases.last().copied();
        let is_drained = |number: u64| base.is_some_and(|base| number <= base);
        let has_plan = |number: u64| listing.plans.contains(&number) && !is_drained(number);
        let mut names = Vec::new();
        let plans = listing.plans.iter().filter(|plan| is_drained(**plan));
        names.extend(plans.map(|plan| Name::Plan(*plan)));
        for (number, domain, attempt) in &listing.domains {
            if *number <= term && !has_plan(*number) {
                names.push(Name::Domain {
                    term: *number,
                    domain: *domain,
                    attempt: *attempt,
                });
            }
        }
        for (number, domain) in &listing.done {
            if *number <= term && !has_plan(*number) {
                names.push(Name::Done {
                    term: *number,
                    domain: *domain,
                });
            }
        }
        let orphans = listing.seals.iter();
        let orphans = orphans.filter(|(layout, _)| !listing.layouts.contains(layout));
        names.extend(orphans.map(|((id, number), end)| Name::Seal(*id, *number, *end)));
        let bases = listing.bases.iter().filter(|b| all || Some(**b) < base);
        names.extend(bases.map(|base| Name::Base(*base)));
        for (id, number) in &listing.temporary {
            let run = (number >> 32) as u32;
            if self.membership.is_dead(Owner { id: *id, run })? {
                names.push(Name::Temporary(*id, *number));
            }
        }
        Ok(names)
    }
}
