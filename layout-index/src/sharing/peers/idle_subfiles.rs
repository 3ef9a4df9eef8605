//! Subfiles of a dead node that are not needed any more.
//!
//! A subfile belongs to a dirty period, and may hold more than what its node has published of that
//! period: the store moves bytes there first and publishes them afterwards, and from then on it has
//! no other copy. So a subfile may be removed when the base covers everything that layouts refer to
//! in it, *and* layouts refer to every byte of it. A subfile with bytes that were overwritten
//! before they were published stays, too: only its store can tell those bytes from unpublished
//! ones.

use crate::sharing::layout::{self, Base, LayoutId, SubfileRef, Tail, View};
use crate::sharing::shared_dir::SharedDir;
use crate::store::subfile::ALIGN;
use crate::types::{ByteRange, FileId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// No layout gets this long.
const LONGEST: usize = 1 << 32;

/// A subfile of which the canonical file has everything that was published.
#[derive(Debug)]
pub struct IdleSubfile {
    pub ost: String,
    pub name: String,
    named: Named,
}

/// Bytes of a subfile that layouts refer to.
#[derive(Debug, Default)]
struct Named {
    ranges: Vec<ByteRange>,
    /// Where units end: the bytes that follow, up to the next multiple of [`ALIGN`], are padding.
    ends: BTreeSet<u64>,
}

impl IdleSubfile {
    /// Whether a subfile of `len` bytes has nothing in it that was never published.
    pub fn is_all(&self, len: u64) -> bool {
        let reach = |at: u64| match self.named.ends.contains(&at) {
            true => at.next_multiple_of(ALIGN),
            false => at,
        };
        let mut at = 0;
        for range in &self.named.ranges {
            if range.start > reach(at) {
                return false;
            }
            at = at.max(range.end);
        }
        len <= reach(at)
    }
}

impl Named {
    fn add(&mut self, range: ByteRange, ends: bool) {
        if ends {
            self.ends.insert(range.end);
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }
}

/// Returns the idle subfiles of one node for one file. Empty if some of the node's layouts cannot
/// be read.
pub fn idle_subfiles(
    shared_dir: &SharedDir,
    id: FileId,
    node: NodeId,
) -> io::Result<Vec<IdleSubfile>> {
    let Some(listing) = shared_dir.list(id)? else {
        return Ok(Vec::new());
    };
    let mut view = View::default();
    let base = match listing.bases.last() {
        Some(term) => shared_dir.read_base(id, *term)?,
        None => None,
    };
    match base.map(|bytes| Base::decode(&bytes, id)) {
        Some(Ok(base)) => view.set_base(base),
        _ => return Ok(Vec::new()),
    }
    let mut known: BTreeMap<SubfileRef, Named> = BTreeMap::new();
    let mut needed = BTreeSet::new();
    for (_, generation) in listing.layouts.iter().filter(|(of, _)| *of == node) {
        let seal = listing.seal_of((node, *generation));
        let longest = seal.and_then(|end| usize::try_from(end).ok());
        let longest = longest.map_or(LONGEST, |end| LONGEST.min(end));
        let Some(bytes) = shared_dir.read_layout(id, node, *generation, 0, longest)? else {
            return Ok(Vec::new());
        };
        let layout = LayoutId {
            file: id,
            node,
            generation: *generation,
        };
        let parsed = layout::parse(&bytes, 0, &layout);
        if let Tail::Damaged { .. } = parsed.tail {
            return Ok(Vec::new());
        }
        let covered = view.base_upto(node, *generation);
        for (end, batch) in &parsed.batches {
            if *end > covered {
                needed.extend(batch.subfiles().iter().cloned());
            }
            batch.in_subfiles(|subfile, range, ends| match known.get_mut(subfile) {
                Some(named) => named.add(range, ends),
                None => known.entry(subfile.clone()).or_default().add(range, ends),
            });
        }
    }
    let idle = known.into_iter().filter(|(s, _)| !needed.contains(s));
    Ok(idle
        .map(|(subfile, mut named)| {
            named.ranges.sort_unstable_by_key(|range| range.start);
            IdleSubfile {
                name: subfile.name(node),
                ost: subfile.ost,
                named,
            }
        })
        .collect())
}

#[cfg(test)]
mod tests;
